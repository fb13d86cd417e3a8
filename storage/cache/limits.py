"""Bounds of the block cache that tests change."""

from dataclasses import dataclass
from typing import Final

from storage.limits import BLOCK_BYTES, MIB

FETCH_BLOCKS_MAX: Final = 4
"""Blocks in one ranged GET: 16 MiB of the default size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """Fetches of blocks under way, of all folders of the object store and of one, and what a piece in memory counts."""

    fetches_max: int = 48
    """Fewer than the connections of an S3 client, so that puts find one."""
    folder_fetches_max: int = 32
    fetches_bytes_max: int = 64 * MIB
    folder_bytes_max: int = 40 * MIB
    """A call that is larger runs when no other of its folder does."""
    fetching_bytes_min: int = FETCH_BLOCKS_MAX * BLOCK_BYTES
    """What may be fetched at a time whatever the size of the cache. A read that needs more goes on when no other does."""
    piece_overhead_bytes: int = 1_024
    """Counted per piece for the objects around its bytes, so that many small pieces are bounded, too. What a store needs to have a piece
    begin at a page, 4 KiB of half a MiB, is not."""


DEFAULT_LIMITS: Final = CacheLimits()
