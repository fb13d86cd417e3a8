"""Says that a disk fills up while something can be done about it, every hour as long as it lasts, and when there is room again."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import structlog

from process.settings.model import Settings
from process.settings.notation import has_path, path_of
from runtime.blocking import Blocking
from runtime.clock import Clock
from storage.limits import MIB

LOOK_EVERY_S: Final = 5.0
"""What is written at 200 MB/s takes as long to fill LOW_BYTES. A look costs two system calls."""
SAY_EVERY_S: Final = 3_600.0
LOW_BYTES: Final = 1_024 * MIB
LOW_SHARE: Final = 0.05
"""As a share of the disk. The larger of both counts."""
ROOM_FACTOR: Final = 1.1
"""Space counts as room again only this far above low, so that ordinary deletes and writes are not reported."""

_log = structlog.get_logger(__name__)


class Space(NamedTuple):
    """What a file system has for users like this one."""

    free_bytes: int
    total_bytes: int

    @property
    def low_bytes(self) -> int:
        return max(LOW_BYTES, int(self.total_bytes * LOW_SHARE))


class ReportedSpace(Enum):
    LOW = auto()
    ROOM = auto()


class Fullness:
    """Decides what to report of one file system. Plain state, without a clock of its own."""

    def __init__(self) -> None:
        self._told_s: float | None = None

    def look(self, space: Space, *, now_s: float) -> ReportedSpace | None:
        if space.free_bytes < space.low_bytes:
            if self._told_s is not None and now_s < self._told_s + SAY_EVERY_S:
                return None
            self._told_s = now_s
            return ReportedSpace.LOW
        if self._told_s is None or space.free_bytes < space.low_bytes * ROOM_FACTOR:
            return None
        self._told_s = None
        return ReportedSpace.ROOM


class FileSystem(NamedTuple):
    device: int
    folders: tuple[Path, ...]
    """The folders asked about that are on it."""
    space: Space


class DiskSpace:
    """`measure` looks at the file systems, in `blocking`, which stays the caller's."""

    def __init__(self, measure: Callable[[], Sequence[FileSystem]], *, blocking: Blocking, clock: Clock) -> None:
        self._measure = measure
        self._blocking = blocking
        self._clock = clock
        self._known: dict[int, Fullness] = {}

    async def run(self) -> NoReturn:
        """Until cancelled."""
        # A timer is meant: a file system tells nobody that it fills up.
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """One line for each file system that there is something to tell of, however many of the folders it holds."""
        for device, folders, space in await self._blocking.run(self._measure):
            told = self._known.setdefault(device, Fullness()).look(space, now_s=self._clock.monotonic_s())
            facts = {"folders": ", ".join(map(str, folders)), "free_bytes": space.free_bytes, "total_bytes": space.total_bytes}
            if told is ReportedSpace.LOW:
                _log.warning(
                    "disk_nearly_full",
                    **facts,
                    low_bytes=space.low_bytes,
                    meaning="when it is full, Produce and commits of offsets are answered with errors that clients retry",
                    fix="free some space, or move the data to a larger disk",
                )
            elif told is ReportedSpace.ROOM:
                _log.info("disk_has_room", **facts)


def measure_folders(folders: Sequence[Path]) -> list[FileSystem]:
    """The file systems of the folders, without those that cannot be seen now: their writers report that."""
    found: dict[int, FileSystem] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            device, status = os.stat(folder).st_dev, os.statvfs(folder)
            space = Space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)
            others = found[device].folders if device in found else ()
            found[device] = FileSystem(device, (*others, folder), space)
    return list(found.values())


def folders_of(settings: Settings) -> list[Path]:
    """The folders of this machine that the stores of a broker write to."""
    folders = []
    if has_path(settings.storage.url):
        folders.append(path_of(settings.storage.url).absolute())
    if has_path(settings.metadata.url):
        folders.append(path_of(settings.metadata.url).absolute().parent)
    return folders
