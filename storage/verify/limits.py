"""Bounds of a verification and of an inventory, which tests lower: a `StoreReading` has them for all that read through it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyLimits:
    """What is read at a time, how long a reader waits before it looks again, and how much stays in memory."""

    # Calls of the stores

    pause_s: float = 0.5
    """A second try begins after twice this; the pause doubles with each further one."""

    # The walk through a partition

    chunks_per_page: int = 16
    """Index chunks in memory at a time: about 256 entries."""
    segments_per_page: int = 256
    second_look_s: float = 0.2
    """How long to wait before a hole is looked at again: for a node that answers old state, and for the one that takes its place."""

    # Objects

    objects_per_list: int = 1_000
    window_objects: int = 200_000
    """Objects in memory at a time, about 60 MiB. All metadata are read once for each window."""
    slices_kept_max: int = 100_000
    """Slices of the headers that are kept: about 30 MiB. An object whose header was dropped is read again for its next partition."""

    # Findings

    findings_kept_max: int = 1_000
    """Beyond these, findings are counted by kind."""


DEFAULT_LIMITS: Final = VerifyLimits()
