"""Tells glibc's allocator what a broker does: buffers of megabytes, allocated and freed thousands of times a minute.

Untuned, each is mapped and unmapped by the kernel, which zeroes it anew: that costs a third of the CPU time of a produce path.
The price is that freed memory up to the trim threshold stays with the process.
"""

import ctypes
import platform
from collections.abc import Callable
from typing import Final

_MIB: Final = 1024 * 1024

MMAP_THRESHOLD_BYTES: Final = 64 * _MIB
"""Below this, memory comes from the heap and is reused."""

TRIM_THRESHOLD_BYTES: Final = 512 * _MIB
"""The heap is given back only when this much of its end is free."""

TOP_PAD_BYTES: Final = 64 * _MIB
"""The heap grows in steps of this."""

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def tune(*, mallopt: Callable[[int, int], int] | None = None) -> bool:
    """Whether all three were accepted. Does nothing where the C library is not glibc."""
    call = mallopt or _glibc_mallopt()
    if call is None:
        return False
    accepted = [
        call(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        call(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        call(_M_TOP_PAD, TOP_PAD_BYTES),
    ]
    return all(accepted)


def _glibc_mallopt() -> Callable[[int, int], int] | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return lambda parameter, value: int(mallopt(parameter, value))
