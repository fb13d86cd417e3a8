"""Tells glibc's allocator what a broker does: buffers of megabytes, allocated and freed thousands of times a minute.

Untuned, each is mapped and unmapped by the kernel, which zeroes it again: that costs a third of the CPU time of a produce path.
The price is that freed memory up to the trim threshold stays with the process, in pieces between what lives. `Trimming` gives it back when
the process has more than it should need, which takes a tenth of a second per 512 MiB.
"""

import asyncio
import ctypes
import mmap
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.blocking import Blocking

_MIB: Final = 1024 * 1024

MMAP_THRESHOLD_BYTES: Final = 64 * _MIB
"""Below this, memory comes from the heap and is reused."""

TRIM_THRESHOLD_BYTES: Final = 512 * _MIB
"""The heap is given back only when this much of its end is free."""

TOP_PAD_BYTES: Final = 64 * _MIB
"""The heap grows in steps of this."""

ARENAS_MAX: Final = 1
"""Threads of pools allocate and free buffers of megabytes, too. From arenas of their own these would be memory that nobody else uses."""

CHECK_S: Final = 1.0
TRIM_PAUSE_S: Final = 5.0
"""Between two trims: what they do not give back is in use."""

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_PAGE_BYTES: Final = mmap.PAGESIZE


def tune(*, mallopt: Callable[[int, int], int] | None = None) -> bool:
    """Whether all four were accepted. Does nothing where the C library is not glibc."""
    call = mallopt or _glibc_mallopt()
    if call is None:
        return False
    accepted = [
        call(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        call(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        call(_M_TOP_PAD, TOP_PAD_BYTES),
        call(_M_ARENA_MAX, ARENAS_MAX),
    ]
    return all(accepted)


class Trimming:
    """Gives freed memory back to the system whenever more than `bytes_max` is resident; until `run` is cancelled. glibc on Linux only."""

    def __init__(
        self,
        *,
        bytes_max: int,
        blocking: Blocking,
        rss_bytes: Callable[[], int] | None = None,
        trim: Callable[[], object] | None = None,
        check_s: float = CHECK_S,
        trim_pause_s: float = TRIM_PAUSE_S,
    ) -> None:
        """`trim` takes as long as there is memory to give back, beside the event loop: `blocking` is where it runs."""
        self._bytes_max = bytes_max
        self._blocking = blocking
        self._rss_bytes = rss_bytes or _resident_bytes
        self._trim = trim or _glibc_trim()
        self._check_s, self._trim_pause_s = check_s, trim_pause_s

    async def run(self) -> None:
        while self._trim is not None:
            if self._is_above():
                await self._blocking.run(self._trim)
                await asyncio.sleep(self._trim_pause_s)
            else:
                await asyncio.sleep(self._check_s)

    def _is_above(self) -> bool:
        try:
            return self._rss_bytes() > self._bytes_max
        except OSError:
            # To look takes a descriptor: without one the memory waits until the next look, and the broker goes on.
            return False


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES


def _glibc_trim() -> Callable[[], object] | None:
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    malloc_trim = ctypes.CDLL(None).malloc_trim
    malloc_trim.argtypes, malloc_trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return lambda: malloc_trim(0)


def _glibc_mallopt() -> Callable[[int, int], int] | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return lambda parameter, value: int(mallopt(parameter, value))
