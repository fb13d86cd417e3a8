"""Tests marked `alone` run while no other test of the same run does, whichever worker they are on: what they measure is theirs.

All others share the room; one that is `alone` has it to itself. A test that waits for the room holds the door, so that none that came
later goes first.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MODE: Final = 0o600


class Room:
    """`folder` is one for all workers of a run."""

    def __init__(self, folder: Path) -> None:
        self._door = folder / "door.lock"
        self._room = folder / "room.lock"

    @contextlib.contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """Inside with others, or alone. Blocks without a deadline of its own: a test that holds the room has one."""
        with contextlib.ExitStack() as leaving:
            with _locked(self._door, fcntl.LOCK_EX):
                leaving.enter_context(_locked(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            yield


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
