"""Bounds of one store on Oxia, as a value that constructors take."""

from dataclasses import dataclass
from typing import Final

from storage.limits import KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OxiaLimits:
    """Bounds of writes, and of small requests over connections of our own."""

    # Writes, in writing
    write_timeout_s: float = 5.0
    """For one request. No attempt at a write begins later than this after it was asked for: so it takes at most twice as long."""
    writes_waiting_max: int = 10_000
    """Writes in line for one shard."""

    # Connections of our own, in nodes
    connect_pause_s: float = 1.0
    """From one attempt to the next; twice as long after each that came to nothing."""
    connect_pause_s_max: float = 60.0
    headers_bytes_max: int = 8 * KIB
    """With a token that is longer, a request goes through gRPC."""


DEFAULT_LIMITS: Final = OxiaLimits()
