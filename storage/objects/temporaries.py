"""Files that are being written, in a folder that several processes share.

Each has one name and one writer, who holds a lock on it (flock). The operating system drops the lock of a process that
ends, however it ends, so a file whose lock can be taken has no writer: `sweep` needs no clock and no list of processes.
"""

import errno
import fcntl
import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from storage.vocabulary import Buffer

_BUFFERS_PER_CALL_MAX: Final = os.sysconf("SC_IOV_MAX")
_CREATE_ATTEMPTS_MAX: Final = 16


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


def _take_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
