"""Bounds of requests to S3 that tests change: how long a call tries, and from which size on it takes several requests."""

from dataclasses import dataclass
from typing import Final

from storage.objects.requests import KEYS_PER_REQUEST, UPLOAD_PART_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Limits:
    """Bounds of one store's calls."""

    # Trying again

    attempt_s: float = 10.0
    """A request has this and the time that its bytes take."""
    probe_patience_s: float = 10.0
    tries_max: int = 20
    read_tries_max: int = 8
    pause_s_max: float = 3.0
    """Between two tries."""

    # Sizes

    part_bytes: int = UPLOAD_PART_BYTES
    multipart_above_bytes: int = UPLOAD_PART_BYTES
    """Not lower: what fits one part takes three requests instead of one."""
    put_bytes_max: int = 5 << 30
    """S3 takes larger objects in parts only."""
    page_objects: int = KEYS_PER_REQUEST
    """Objects, or unfinished uploads, of one page of a listing."""

    # Closing

    settle_s: float = 0.05
    """How long closing obstore's client waits for its threads."""


DEFAULT_LIMITS: Final = S3Limits()
