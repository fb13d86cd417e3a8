"""Folders of a disk store: made on demand, and durable before a file in them counts.

A file's name survives a power cut only if its folder was synced, and that folder's name only if *its* folder was.
Other processes make and remove the same folders, so a path says little: the folder that is there now may be another
than the one whose way down was synced. A descriptor says all: it names one folder for as long as it is open, and linking
into a removed folder fails with ENOENT, whatever is at its path by then. So emptied folders may be removed at any time.
"""

import os
from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import Final

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_MODE: Final = 0o755


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, FOLDER_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durably(path: str) -> None:
    """Make a folder and the missing ones above it; sync the folder above each."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above != path:
        make_durably(above)
    with suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
    sync_folder(above)


class Folders:
    """The folders below `root` whose way down from it this process has synced, held open, at most `held_max` of them.

    Folders are named by their path from `root`, which itself is the empty path and must exist. Thread-safe.
    """

    def __init__(self, root: str, *, held_max: int) -> None:
        assert held_max > 0
        self._root = root
        self._held_max = held_max
        self._held: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def open(self, folder: str) -> int:
        """A descriptor for the caller to use and close. The folder is made if it is missing; the way to it is durable.

        Raise FileNotFoundError if somebody removed a folder on the way meanwhile: call `forget` and try again.
        """
        with self._lock:
            held = self._held.get(folder)
            if held is not None:
                self._held.move_to_end(folder)
                # Not a duplicate: that would share the error state, and of two threads that sync one would miss an error.
                return os.open(".", FOLDER_FLAGS, dir_fd=held)
        descriptor = self._settle(folder)
        with self._lock:
            if folder not in self._held:
                self._held[folder] = os.dup(descriptor)
                if len(self._held) > self._held_max:
                    os.close(self._held.popitem(last=False)[1])
        return descriptor

    def forget(self, folder: str) -> None:
        """Hold neither `folder` nor those above it any more: one of them was removed."""
        with self._lock:
            while True:
                held = self._held.pop(folder, None)
                if held is not None:
                    os.close(held)
                if not folder:
                    return
                folder = folder.rpartition("/")[0]

    def close(self) -> None:
        """Hold nothing from now on. Calls that have begun may still use `open`."""
        with self._lock:
            self._held_max = 0
            while self._held:
                os.close(self._held.popitem()[1])

    def _settle(self, folder: str) -> int:
        if not folder:
            return os.open(self._root, FOLDER_FLAGS)
        above, _, name = folder.rpartition("/")
        above_descriptor = self.open(above)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, FOLDER_MODE, dir_fd=above_descriptor)
            descriptor = os.open(name, FOLDER_FLAGS, dir_fd=above_descriptor)
            try:
                # Also when another process made it: that one may not have come to its own sync yet.
                os.fsync(above_descriptor)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor
        finally:
            os.close(above_descriptor)
