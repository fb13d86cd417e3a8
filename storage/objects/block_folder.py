"""A folder with blocks of objects that the processes of one machine share: blocking calls, for threads.

    root/.lock                      how much is here; locked by a process that adds to it, or evicts
    root/.claims/{n}                locked by the process that fetches a block
    root/.tmp/{owner}-{n}           being written; locked by its writer (files.py)
    root/CLUSTER/OBJECT/START-END   bytes [START, END) of an object, all of one block, and then `FOREBAYC` and their CRC-32C

OBJECT is the object's key with `+` for `/`. The checksum goes on over the file's own name, so a file under another name is no block.
All of the folder may be lost, damaged or in the way at any time: nothing here raises OSError, and nothing is synced. The locks are the
system's, which drops them when a process ends. A folder whose files have other names loses none of them.
"""

import contextlib
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.limits import BLOCK_BYTES
from storage.objects.files import Temporaries, discard, read_parts, write_all, write_unbuffered
from storage.objects.port import TEMPORARY_FOLDER, is_segment
from storage.recordbatch import cut_views
from storage.vocabulary import Buffer

FILES_MAX: Final = 65_536
"""Whole blocks in as many files are 256 GiB, the most that storage.cache_dir_bytes may be. To find the oldest takes a look at each."""
KEPT_SHARE_MAX: Final = 7 / 8
"""As a share of both bounds: an eviction leaves as much, so that the next one is far."""
UNUSED_S_MAX: Final = 86_400.0
"""A block that nothing has read for longer goes, whether there is room or not: records of a deleted topic do not stay."""
RECOUNTED_EVERY_S: Final = 600.0
"""One of the processes on a folder counts all files again after this time, and corrects the sum that they share."""
LISTED_MAX: Final = 1_024
"""Names in the folder of an object that a look reads. Blocks under the others are read from the store."""
CLAIMS: Final = 4_096
"""Files for claims. Two blocks that share one wait for each other at worst."""
LOCK_TRIES: Final = 25
LOCK_PAUSE_S: Final = 0.002
PUBLISH_TRIES: Final = 4
"""Each but the last met an eviction that removed the emptied folder."""

_FILE: Final = re.compile(r"(0|[1-9]\d{0,15})-([1-9]\d{0,15})\Z")
_OBJECT: Final = re.compile(r"(?:wal|segments)\+[A-Za-z0-9._+-]{1,240}\Z")
_TRAILER: Final = struct.Struct(">8sI")
_MAGIC: Final = b"FOREBAYC"
_TOTALS: Final = struct.Struct(">8sQQQ")
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""A pipe under the name of a file makes nobody wait, and a link leads nowhere."""
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_FOLDER_MODE: Final = 0o700
"""Records are for the user who runs the brokers."""
_LOCK_MODE: Final = 0o600


class BlockExtent(NamedTuple):
    """The name of a file: bytes [start, end) of an object."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


class CoveredPart(NamedTuple):
    """Bytes [start, end) of an object, and the file that has them, if there is one."""

    start: int
    end: int
    file: BlockExtent | None


class LookedFor(NamedTuple):
    """Bytes [start, end) of an object: their `parts`, or None. `is_claimed` if another process is fetching them."""

    start: int
    end: int
    parts: Sequence[Buffer] | None
    is_claimed: bool = False


class FolderLook(NamedTuple):
    """All that was looked for, in order. `claims` are the caller's to `release`. `damaged` files are removed. `error`: why the folder is of
    no use, if it is not.
    """

    found: Sequence[LookedFor]
    claims: Sequence[int]
    damaged: int
    error: OSError | None


class FolderTotals(NamedTuple):
    """What the files are together, those that are being written included."""

    size_bytes: int
    files: int
    counted_s: int
    """When they were counted one by one."""


class PutEnd(Enum):
    """How a put ended."""

    PUT = "put"
    THERE = "there"
    FULL = "full"
    """Eviction makes no room: files cannot be removed."""
    BUSY = "busy"
    """Another process evicts."""
    FAILED = "failed"


class _Held(NamedTuple):
    used_ns: int
    size_bytes: int
    path: str


def folder_name(cluster_id: str, key: str) -> str | None:
    """CLUSTER/OBJECT, or None of an object that has no place here."""
    name = key.replace("/", "+")
    return f"{cluster_id}/{name}" if is_segment(cluster_id) and _OBJECT.match(name) else None


def extent_of(name: str) -> BlockExtent | None:
    """The extent that a file of this name has, or None if no file of ours has such a name."""
    if (match := _FILE.match(name)) is None:
        return None
    start, end = int(match[1]), int(match[2])
    return BlockExtent(start, end) if start < end and start // BLOCK_BYTES == (end - 1) // BLOCK_BYTES else None


def cover(files: Sequence[BlockExtent], start: int, end: int) -> list[CoveredPart]:
    """[start, end) in order: where there are files, as parts of as few of them as possible; the rest cut where blocks begin."""
    found: list[CoveredPart] = []
    ordered = sorted(files)
    index, position = 0, start
    best = BlockExtent(0, 0)  # the one that goes on longest of those that begin at `position` or before it
    while position < end:
        while index < len(ordered) and ordered[index].start <= position:
            best = max(best, ordered[index], key=attrgetter("end"))
            index += 1
        if is_there := best.end > position:
            stop = min(end, best.end)
        else:
            following = ordered[index].start if index < len(ordered) else end
            stop = min(end, following, (position // BLOCK_BYTES + 1) * BLOCK_BYTES)
        found.append(CoveredPart(position, stop, best if is_there else None))
        position = stop
    return found


def release(claims: Sequence[int]) -> None:
    """Give up what `BlockFolder.look` has claimed."""
    for claim in claims:
        os.close(claim)


class BlockFolder:
    """Use from threads; several processes, and instances of one process, may share `root`. Each has an `owner` of its own."""

    def __init__(self, root: str, *, bytes_max: int, owner: str, now_s: Callable[[], float], files_max: int = FILES_MAX) -> None:
        self._root = root = os.path.abspath(root)
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._now_s = now_s
        self._temporaries = Temporaries(f"{root}/{TEMPORARY_FOLDER}", owner=owner)

    def look(self, name: str, ranges: Sequence[BlockExtent], *, part_bytes: int, claims: bool) -> FolderLook:
        """What there is of `ranges` of an object. With `claims`, what is missing is claimed, block by block, unless others have done so."""
        damaged: list[str] = []
        found: list[LookedFor] = []
        claimed: dict[int, int] = {}
        try:
            for start, end in ranges:
                for one in self._gather(name, start, end, part_bytes, damaged):
                    found += [one] if one.parts is not None or not claims else self._claim(name, one, part_bytes, claimed, damaged)
        except OSError as error:
            release(list(claimed.values()))
            return FolderLook([LookedFor(start, end, None) for start, end in ranges], (), len(damaged), error)
        except BaseException:
            release(list(claimed.values()))
            raise
        return FolderLook(found, list(claimed.values()), len(damaged), None)

    def put(self, name: str, start: int, parts: Sequence[Buffer]) -> tuple[PutEnd, OSError | None]:
        """Keep bytes that begin at `start` of an object and lie in one block, unless they are here."""
        extent = BlockExtent(start, start + sum(map(len, parts)))
        try:
            if os.path.lexists(f"{self._root}/{name}/{extent}"):
                return PutEnd.THERE, None
            return self._put(name, extent, parts), None
        except OSError as error:
            return PutEnd.FAILED, error

    def forget(self, name: str) -> None:
        """Remove what there is of an object: its bytes were not what was written."""
        with suppress(OSError):
            self._remove([f"{self._root}/{name}/{file}" for file in self._files(name)])

    def totals(self) -> FolderTotals | None:
        """What the processes that share the folder have counted; None if that cannot be read."""
        with suppress(OSError):
            lock = os.open(f"{self._root}/.lock", _READ_FLAGS)
            try:
                return _read_totals(lock)
            finally:
                os.close(lock)
        return None

    def tidy(self) -> OSError | None:
        """Make the folder, remove what nothing has read for long, or what is too much. Returns why that was not possible, if it was not."""
        try:
            self._make()
            with self._locked() as lock:
                known = None if lock is None else _read_totals(lock)
                # A clock that was set back must not keep it from being done.
                if lock is not None and (known is None or not 0 <= self._now_s() - known.counted_s < RECOUNTED_EVERY_S):
                    self._evict(lock, 0)
        except OSError as error:
            return error
        return None

    # Reading

    def _gather(self, name: str, start: int, end: int, part_bytes: int, damaged: list[str]) -> list[LookedFor]:
        return [
            LookedFor(part.start, part.end, None if part.file is None else self._read(name, part, part.file, part_bytes, damaged))
            for part in cover(self._files(name), start, end)
        ]

    def _files(self, name: str) -> list[BlockExtent]:
        found: list[BlockExtent] = []
        try:
            with os.scandir(f"{self._root}/{name}") as entries:
                for _, entry in zip(range(LISTED_MAX), entries, strict=False):
                    if (extent := extent_of(entry.name)) is not None:
                        found.append(extent)
        except (FileNotFoundError, NotADirectoryError):
            pass
        return found

    def _read(self, name: str, part: CoveredPart, file: BlockExtent, part_bytes: int, damaged: list[str]) -> Sequence[Buffer] | None:
        """The bytes of the part, or None. A file that is not what was written is removed."""
        path = f"{self._root}/{name}/{file}"
        try:
            descriptor = os.open(path, _READ_FLAGS)
        except OSError:
            return None  # it went, or something else has its name
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            parts = _checked(descriptor, name, file, status.st_size, part_bytes)
            if parts is not None:
                now_ns = int(self._now_s() * 1e9)
                with suppress(OSError):  # of another user, or read-only
                    os.utime(descriptor, ns=(now_ns, now_ns))
                return _cut(parts, part.start - file.start, part.end - file.start)
        except OSError:
            pass  # a disk that fails, or a file that was cut off while it was read
        finally:
            os.close(descriptor)
        damaged.append(path)
        self._remove([path])
        return None

    # Claims

    def _claim(self, name: str, missing: LookedFor, part_bytes: int, claimed: dict[int, int], damaged: list[str]) -> list[LookedFor]:
        block = missing.start // BLOCK_BYTES
        if block not in claimed:
            slot = crc32c(f"{name}/{block}".encode()) % CLAIMS
            descriptor = self._open_lock(f".claims/{slot:03x}")
            if not _take_lock(descriptor):
                os.close(descriptor)
                return [missing._replace(is_claimed=True)]
            claimed[block] = descriptor
        # Another process may have come to its end between the look and the claim.
        again = self._gather(name, missing.start, missing.end, part_bytes, damaged)
        return again if all(one.parts is not None for one in again) else [missing]

    def _open_lock(self, name: str) -> int:
        try:
            return os.open(f"{self._root}/{name}", _LOCK_FLAGS, _LOCK_MODE)
        except FileNotFoundError:
            self._make()
            return os.open(f"{self._root}/{name}", _LOCK_FLAGS, _LOCK_MODE)

    def _make(self) -> None:
        for folder in ("", TEMPORARY_FOLDER, ".claims"):
            os.makedirs(f"{self._root}/{folder}", _FOLDER_MODE, exist_ok=True)

    # Writing

    def _put(self, name: str, extent: BlockExtent, parts: Sequence[Buffer]) -> PutEnd:
        size_bytes = extent.end - extent.start + _TRAILER.size
        with self._locked() as lock:
            if lock is None:
                return PutEnd.BUSY
            totals = _read_totals(lock)
            if totals is None or not self._has_room(totals, size_bytes):
                totals = self._evict(lock, size_bytes)
            if not self._has_room(totals, size_bytes):
                return PutEnd.FULL
            try:
                descriptor, temporary = self._temporaries.create()
            except FileNotFoundError:
                self._make()
                descriptor, temporary = self._temporaries.create()
            try:
                # As large as it will be: whoever counts meanwhile counts it so.
                os.ftruncate(descriptor, size_bytes)
                _write_totals(lock, totals._replace(size_bytes=totals.size_bytes + size_bytes, files=totals.files + 1))
            except OSError:
                discard(descriptor, temporary)
                raise
        try:
            body = [*parts, _trailer(name, extent, parts)]
            if not write_unbuffered(descriptor, body):
                write_all(descriptor, body)
            self._publish(temporary, name, extent)
        except OSError:
            discard(descriptor, temporary)
            self._take_off(size_bytes, 1)
            raise
        os.close(descriptor)
        return PutEnd.PUT

    def _publish(self, temporary: str, name: str, extent: BlockExtent) -> None:
        for _ in range(PUBLISH_TRIES - 1):
            with suppress(FileNotFoundError):
                return os.rename(temporary, f"{self._root}/{name}/{extent}")
            os.makedirs(f"{self._root}/{name}", _FOLDER_MODE, exist_ok=True)
        return os.rename(temporary, f"{self._root}/{name}/{extent}")

    def _remove(self, paths: Sequence[str]) -> None:
        size_bytes = files = 0
        for path in paths:
            with suppress(OSError):
                size = os.lstat(path).st_size
                os.unlink(path)
                size_bytes, files = size_bytes + size, files + 1
        self._take_off(size_bytes, files)

    def _take_off(self, size_bytes: int, files: int) -> None:
        """Files are gone. What is not noted, because another process evicts, the next count finds."""
        with suppress(OSError), self._locked() as lock:
            if lock is not None and (totals := _read_totals(lock)) is not None:
                less = totals._replace(size_bytes=max(0, totals.size_bytes - size_bytes), files=max(0, totals.files - files))
                _write_totals(lock, less)

    # Counting and eviction

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The lock file, locked; None if another process has had it for too long."""
        descriptor = self._open_lock(".lock")
        try:
            for _ in range(LOCK_TRIES):
                if is_ours := _take_lock(descriptor):
                    break
                time.sleep(LOCK_PAUSE_S)
            yield descriptor if is_ours else None
        finally:
            os.close(descriptor)

    def _has_room(self, totals: FolderTotals, size_bytes: int) -> bool:
        return totals.size_bytes + size_bytes <= self._bytes_max and totals.files < self._files_max

    def _evict(self, lock: int, size_bytes: int) -> FolderTotals:
        """Count all files, remove those that nothing has read for long, and, without room for `size_bytes`, those that were read longest
        ago.
        """
        now_s = self._now_s()
        with suppress(OSError):
            self._temporaries.sweep()
        being_written = [status.st_size for status in _statuses(f"{self._root}/{TEMPORARY_FOLDER}")]
        held = sorted(self._held())
        totals = FolderTotals(sum(being_written) + sum([one.size_bytes for one in held]), len(being_written) + len(held), int(now_s))
        bytes_max, files_max = self._bytes_max, self._files_max
        if not self._has_room(totals, size_bytes):
            bytes_max, files_max = int(bytes_max * KEPT_SHARE_MAX) - size_bytes, int(files_max * KEPT_SHARE_MAX)
        emptied: set[str] = set()
        for one in held:
            is_unused = abs(now_s - one.used_ns / 1e9) > UNUSED_S_MAX  # a clock that was ahead keeps nothing
            if not is_unused and totals.size_bytes <= bytes_max and totals.files <= files_max:
                continue
            with suppress(OSError):
                os.unlink(one.path)
                totals = totals._replace(size_bytes=totals.size_bytes - one.size_bytes, files=totals.files - 1)
                emptied.add(os.path.dirname(one.path))
        for folder in emptied:
            with suppress(OSError):  # not empty
                os.rmdir(folder)
        _write_totals(lock, totals)
        return totals

    def _held(self) -> Iterator[_Held]:
        """Every file of every cluster that has a name of ours."""
        for cluster in _folders(self._root):
            for folder in _folders(cluster.path):
                if _OBJECT.match(folder.name):
                    is_empty = True
                    for entry in _entries(folder.path):
                        is_empty = False
                        if extent_of(entry.name) is not None:
                            with suppress(OSError):
                                status = entry.stat(follow_symlinks=False)
                                if stat.S_ISREG(status.st_mode):
                                    yield _Held(status.st_mtime_ns, status.st_size, entry.path)
                    if is_empty:
                        with suppress(OSError):
                            os.rmdir(folder.path)


def _entries(path: str) -> Iterator["os.DirEntry[str]"]:
    with suppress(OSError), os.scandir(path) as entries:
        yield from entries


def _folders(path: str) -> Iterator["os.DirEntry[str]"]:
    for entry in _entries(path):
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield entry


def _statuses(path: str) -> Iterator[os.stat_result]:
    for entry in _entries(path):
        with suppress(OSError):
            yield entry.stat(follow_symlinks=False)


def _checked(descriptor: int, name: str, file: BlockExtent, size_bytes: int, part_bytes: int) -> Sequence[memoryview] | None:
    """The bytes of the file, if they are those that were written."""
    length = file.end - file.start
    if size_bytes != length + _TRAILER.size:
        return None
    views = [memoryview(part) for part in read_parts(descriptor, 0, size_bytes, part_bytes=part_bytes)]
    body = cut_views(views, 0, length)
    return body if b"".join(cut_views(views, length, size_bytes)) == _trailer(name, file, body) else None


def _trailer(name: str, file: BlockExtent, parts: Sequence[Buffer]) -> bytes:
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return _TRAILER.pack(_MAGIC, crc32c(f"{name}/{file}".encode(), checksum))


def _cut(parts: Sequence[memoryview], start: int, end: int) -> Sequence[Buffer]:
    """Bytes [start, end) of them: a part that is used for less than a half is copied, so that no more is kept alive."""
    return [view if len(view) * 2 >= memoryview(view.obj).nbytes else bytes(view) for view in cut_views(parts, start, end)]


def _take_lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _read_totals(lock: int) -> FolderTotals | None:
    content = os.pread(lock, _TOTALS.size + 1, 0)
    if len(content) != _TOTALS.size or not content.startswith(_MAGIC):
        return None
    return FolderTotals(*_TOTALS.unpack(content)[1:])


def _write_totals(lock: int, totals: FolderTotals) -> None:
    os.pwrite(lock, _TOTALS.pack(_MAGIC, *totals), 0)
