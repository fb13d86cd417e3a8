"""Files that stores on a disk read and write: past the page cache, and under temporary names while they are being written.

Objects are written once and read through a cache of our own, so the kernel's pages would be made, copied to and dropped for nothing: on a
virtual machine that alone costs 1 to 2 CPU seconds per GiB, against 0.1 for O_DIRECT through one aligned buffer per thread
(docs/internals/adr/0005-unbuffered-files.md). A file system that does not know O_DIRECT is written and read the ordinary way; so are small
bodies, for which a page or two is cheaper than a copy.

A temporary file has one name and one writer, who holds a lock on it (flock). The operating system drops the lock of a process that
ends, however it ends, so a file whose lock can be taken has no writer: `Temporaries.sweep` needs no clock and no list of processes.
"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from storage.limits import BLOCK_BYTES, KIB
from storage.recordbatch import cut_views, in_parts
from storage.vocabulary import Buffer

ALIGNMENT_BYTES: Final = 4 * KIB
"""Alignment of memory, file positions and lengths: the largest sector size in use."""
BUFFER_BYTES: Final = BLOCK_BYTES + 2 * ALIGNMENT_BYTES
"""A block that begins and ends in the middle of a sector fits."""
WORTHWHILE_BYTES: Final = 128 * KIB
PARTS_MAX: Final = 256
"""A call of the system takes 1,024."""
_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_BUFFERS_PER_CALL_MAX: Final = os.sysconf("SC_IOV_MAX")
_CREATE_ATTEMPTS_MAX: Final = 16

_local: Final = threading.local()
_new_bytearray: Final[Callable[[None, int], bytearray]] = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def write_unbuffered(descriptor: int, parts: Sequence[Buffer]) -> bool:
    """Write the parts one after the other into an empty file, past the page cache; fsync is the caller's.

    False, with the file still empty, if it cannot or should not be done: the file system refuses, or the body is small.
    """
    size_bytes = sum(map(len, parts))
    if size_bytes < WORTHWHILE_BYTES or not _switch(descriptor, on=True):
        return False
    buffer = _buffer()
    view = memoryview(buffer)
    position = filled = 0
    try:
        for part in parts:
            rest = memoryview(part)
            while len(rest):
                taken = min(len(rest), BUFFER_BYTES - filled)
                view[filled : filled + taken] = rest[:taken]
                filled += taken
                rest = rest[taken:]
                if filled == BUFFER_BYTES:
                    _write_all(descriptor, view, position)
                    position += filled
                    filled = 0
        if filled:
            padded = -(-filled // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            view[filled:padded] = bytes(padded - filled)
            _write_all(descriptor, view[:padded], position)
    except OSError as error:
        if error.errno != errno.EINVAL or position:
            raise
        # Some file systems take the flag and refuse the write.
        _switch(descriptor, on=False)
        os.ftruncate(descriptor, 0)
        return False
    os.ftruncate(descriptor, size_bytes)
    _switch(descriptor, on=False)
    return True


def read_unbuffered(descriptor: int, start: int, end: int) -> bytes | None:
    """Bytes [start, end) of a file that has them; None if it cannot or should not be done."""
    if not WORTHWHILE_BYTES <= end - start <= BLOCK_BYTES or not _switch(descriptor, on=True):
        return None
    first = start // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    wanted = -(-(end - first) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    view = memoryview(_buffer())[:wanted]
    return bytes(view[start - first : end - first]) if _fill([view], descriptor, first, end) else None


def read_parts(descriptor: int, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
    """Bytes [start, end) of a file that has them, in parts as `get_parts` of a store gives them."""
    unbuffered = read_parts_unbuffered(descriptor, start, end, part_bytes=part_bytes)
    return in_parts(read_whole(descriptor, start, end), start, part_bytes) if unbuffered is None else unbuffered


def read_whole(descriptor: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file that has them, however little each call returns."""
    unbuffered = read_unbuffered(descriptor, start, end)
    if unbuffered is not None:
        return unbuffered
    first = os.pread(descriptor, end - start, start)
    if len(first) == end - start:
        return first
    pieces = [first]
    start += len(first)
    while start < end:
        piece = os.pread(descriptor, end - start, start)
        if not piece:
            raise OSError(errno.EIO, "file ended while it was read")
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def read_own_unbuffered(descriptor: int, start: int, end: int, *, worthwhile_bytes: int) -> memoryview | None:
    """Bytes [start, end) of a file that has them, read straight into memory of their own, which may be written to.

    None if it cannot or should not be done.
    """
    if end - start < worthwhile_bytes or not _switch(descriptor, on=True):
        return None
    first = start // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    view = _aligned(-(-(end - first) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    return view[start - first : end - first] if _fill([view], descriptor, first, end) else None


def read_parts_unbuffered(descriptor: int, start: int, end: int, *, part_bytes: int) -> list[memoryview] | None:
    """Bytes [start, end) of a file that has them, in parts that end at multiples of `part_bytes`, read straight into memory of their own.

    None if it cannot or should not be done.
    """
    first, stop = start // ALIGNMENT_BYTES * ALIGNMENT_BYTES, -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    cuts = [first, *range((start // part_bytes + 1) * part_bytes, end, part_bytes), stop]
    if end - start < WORTHWHILE_BYTES or part_bytes % ALIGNMENT_BYTES or len(cuts) > PARTS_MAX or not _switch(descriptor, on=True):
        return None
    views = [_aligned(after - cut) for cut, after in pairwise(cuts)]
    if not _fill(views, descriptor, first, end):
        return None
    return [view.toreadonly() for view in cut_views(views, start - first, end - first)]


class Temporaries:
    """Makes files in `folder`, which must exist; no other instance on the folder has the same `owner`. Thread-safe."""

    def __init__(self, folder: str, *, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._numbers = itertools.count()

    def create(self) -> tuple[int, str]:
        """A new, empty, locked file: its descriptor and its path. Hand both to `discard`, whatever happens."""
        for _ in range(_CREATE_ATTEMPTS_MAX):
            path = f"{self._folder}/{self._owner}-{next(self._numbers)}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                if _take_lock(descriptor) and os.fstat(descriptor).st_nlink == 1:
                    return descriptor, path
            except OSError:
                discard(descriptor, path)
                raise
            # A sweep of another process came between the creation and the lock; it removes the file.
            os.close(descriptor)
        raise BlockingIOError(errno.EAGAIN, "no temporary file could be locked", self._folder)

    def sweep(self) -> None:
        """Remove the files that processes left which ended while they wrote. Files of living writers stay."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    descriptor = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
                except (FileNotFoundError, PermissionError):
                    continue  # its writer was done, or it is another user's
                try:
                    if _take_lock(descriptor):
                        with suppress(FileNotFoundError):
                            os.unlink(entry.path)
                finally:
                    os.close(descriptor)


def write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write the parts one after the other without joining them, however little each call accepts."""
    pending = list(parts)
    done = 0
    while done < len(pending):
        offered = pending[done : done + _BUFFERS_PER_CALL_MAX]
        written = os.writev(descriptor, offered)
        if written == sum(map(len, offered)):
            done += len(offered)
            continue
        while written >= len(pending[done]):
            written -= len(pending[done])
            done += 1
        pending[done] = memoryview(pending[done])[written:]


def discard(descriptor: int, path: str) -> None:
    """Remove the file's name, then give up its lock. What cannot be removed now is left to the next sweep."""
    with suppress(OSError):
        os.unlink(path)
    with suppress(OSError):
        os.close(descriptor)


def _fill(views: Sequence[memoryview], descriptor: int, first: int, end: int) -> bool:
    """Read into `views` from `first` on, up to `end` at least, and switch back to the page cache. False if that cannot be done."""
    size_bytes, filled = sum(map(len, views)), 0
    try:
        while filled < end - first:
            count = os.preadv(descriptor, cut_views(views, filled, size_bytes), first + filled)
            filled += count
            if filled < end - first and (count == 0 or filled % ALIGNMENT_BYTES):
                return False  # a short read in the middle of a sector cannot be continued this way
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        _switch(descriptor, on=False)
    return True


def _aligned(size_bytes: int) -> memoryview:
    """New memory that begins at a page. Nothing has been written there, not even zeros: that would take as long as to read it."""
    whole = _new_bytearray(None, size_bytes + ALIGNMENT_BYTES)
    skipped = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % ALIGNMENT_BYTES
    return memoryview(whole)[skipped : skipped + size_bytes]


def _buffer() -> mmap.mmap:
    """Page-aligned, as only a mapping is for certain; one for each thread of the pool that runs these calls."""
    buffer: mmap.mmap | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = mmap.mmap(-1, BUFFER_BYTES)
    return buffer


def _switch(descriptor: int, *, on: bool) -> bool:
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _write_all(descriptor: int, view: memoryview, position: int) -> None:
    written = 0
    while written < len(view):
        count = os.pwrite(descriptor, view[written:], position + written)
        if count % ALIGNMENT_BYTES:
            # The rest of a sector can only be written the ordinary way; a full disk says so on the next call.
            _switch(descriptor, on=False)
        written += count


def _take_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
