"""Objects as files below one folder, which several processes of one machine may share.

    root/.tmp/{owner}-{n}      being written; locked by its writer (files.py)
    root/{key}                 an object: whole, synced, never changed

A put writes and syncs a temporary file and then links it to its name: the link succeeds once per name, and a reader
sees all of the object or nothing. A kill at any moment leaves at most a temporary file, which the next `open` removes.
`Folders` makes folders on demand, durable before a file in them counts; `walk` lists objects in the byte order of whole keys.
"""

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, Self, TypeVar

from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.ids import IdSource
from storage.errors import AlreadyExists, EndsEarly, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.objects.files import Temporaries, discard, read_parts, read_whole, write_all, write_unbuffered
from storage.objects.port import TEMPORARY_FOLDER, ObjectStat, UnfinishedUpload, check_key, is_key, is_segment, no_uploads
from storage.vocabulary import Buffer

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_MODE: Final = 0o755
LIST_CHUNK_OBJECTS: Final = 1_000
DELETE_CHUNK_OBJECTS: Final = 1_000
FOLDERS_HELD_MAX: Final = 64
LINK_ATTEMPTS_MAX: Final = 100
"""Each attempt but the last met a delete that removed the emptied folder at the same moment."""
_AMBIGUOUS: Final = frozenset({errno.EIO, errno.ETIMEDOUT})

T = TypeVar("T")


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

    A file's name survives a power cut only if its folder was synced, and that folder's name only if *its* folder was.
    Other processes make and remove the same folders, so a path says little: the folder that is there now may be another
    than the one whose way down was synced. A descriptor says all: it names one folder for as long as it is open, and linking
    into a removed folder fails with ENOENT, whatever is at its path by then. So emptied folders may be removed at any time.

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


def walk(root: str, *, prefix: str, start_after: str) -> Iterator[ObjectStat]:
    """Objects below `root` whose key starts with `prefix` and is greater than `start_after`. Blocking; OSError passes.

    `/` (0x2f) sorts after `-` and `.` and before digits and letters, so the objects of folder `a` come after file `a-b` and
    before file `a0`. Sorting the children of each folder, with a slash at the end of the names of folders, gives that order,
    because no key is a path prefix of another.

    Lazy: it reads a folder when it comes to it, and holds the names in the folders on the way to the current object.
    Objects and folders that vanish meanwhile are left out. Names that no key has are ignored.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    # A prefix is any string: one such as `../` must not lead out of the root.
    if not folder or is_key(folder[:-1]):
        yield from _walk_folder(root, folder, prefix, start_after)


class DiskObjectStore:
    """An `ObjectStore` of files. Use `open`; the constructor does no I/O.

    Blocking calls run in `blocking`, which stays the caller's to close: one call per put, ranged get or stat.
    A cancelled put lands only if it was linked before it was cancelled, so its buffers are free again at once.
    After `AlreadyExists` the object that has the name is durable: it may be one's own, of an earlier attempt.
    Needs a file system with hard links and flock; `probe` says if they are missing.
    """

    def __init__(self, root: Path, *, blocking: Blocking, clock: Clock) -> None:
        absolute = root.absolute()
        self._uri = absolute.as_uri()
        self._root = str(absolute).rstrip("/")
        self._blocking = blocking
        self._ids = IdSource(clock=clock)
        self._folders = Folders(self._root, held_max=FOLDERS_HELD_MAX)
        self._temporaries = Temporaries(f"{self._root}/{TEMPORARY_FOLDER}", owner=self._ids.next_ulid())

    @classmethod
    async def open(cls, root: Path, *, blocking: Blocking, clock: Clock) -> Self:
        """Make the folder if it is missing, remove what killed writers left. Raise `Unavailable` with cause and fix."""
        store = cls(root, blocking=blocking, clock=clock)
        try:
            await blocking.run(store._prepare)
        except OSError as error:
            raise store._unusable(error) from error
        return store

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        check_key(key)
        withdrawn = threading.Event()
        try:
            await self._blocking.run(partial(self._put, key, parts, withdrawn))
        finally:
            # After a cancellation the thread may go on reading parts that the caller changes: it must not publish them.
            withdrawn.set()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        assert 0 <= start <= end, f"not a range: start={start} end={end}"
        return await self._blocking.run(partial(self._get, key, start, end, read_whole))

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        check_key(key)
        assert 0 <= start <= end, f"not a range: start={start} end={end}"
        return await self._blocking.run(partial(self._get, key, start, end, partial(read_parts, part_bytes=part_bytes)))

    async def stat(self, key: str) -> ObjectStat:
        check_key(key)
        return await self._blocking.run(partial(self._stat, key))

    async def delete_many(self, keys: Sequence[str]) -> None:
        """As the port says; folders that are empty afterwards are removed, but for the root."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), DELETE_CHUNK_OBJECTS):
            try:
                await self._blocking.run(partial(self._delete, keys[start : start + DELETE_CHUNK_OBJECTS]))
            except Unavailable as error:
                if start == 0:
                    raise
                raise OutcomeUnknown(str(error)) from error.__cause__

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:  # noqa: ARG002
        return no_uploads()

    async def abort_upload(self, key: str, upload_id: str) -> None:  # noqa: ARG002 - there are none
        check_key(key)

    async def probe(self) -> None:
        name = self._ids.next_ulid()
        key, body = f".probe/{name}", name.encode()
        try:
            await self.put_if_absent(key, [body])
            found = await self.get_range(key, 0, len(body))
            await self.delete_many([key])
        except StorageError as error:
            raise self._unusable(error.__cause__ or error) from error
        if found != body:
            raise Unavailable(
                f"storage.url {self._uri}: a file reads back other bytes than were written to it. "
                "Check the disk and its file system, or choose another folder."
            )

    async def close(self) -> None:
        self._folders.close()

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """As the port says; memory holds the names in the folders on the way to the current object."""
        walker = walk(self._root, prefix=prefix, start_after=start_after)
        chunk: tuple[ObjectStat, ...] | None = None
        while chunk is None or len(chunk) == LIST_CHUNK_OBJECTS:
            chunk = await self._blocking.run(partial(self._next_chunk, walker))
            for found in chunk:
                yield found

    def _prepare(self) -> None:
        make_durably(self._root)
        make_durably(f"{self._root}/{TEMPORARY_FOLDER}")
        self._temporaries.sweep()

    def _put(self, key: str, parts: Sequence[Buffer], withdrawn: threading.Event) -> None:
        try:
            descriptor, temporary = self._temporaries.create()
            try:
                if not write_unbuffered(descriptor, parts):
                    write_all(descriptor, parts)
                os.fsync(descriptor)
                if not withdrawn.is_set():
                    self._publish(temporary, key)
            finally:
                discard(descriptor, temporary)
        except OSError as error:
            raise Unavailable(self._failure("object not stored", key, error)) from error

    def _publish(self, temporary: str, key: str) -> None:
        """Link a synced file to its name and sync the folder. An OSError from here means that nothing happened."""
        folder, _, name = key.rpartition("/")
        for attempt in range(1, LINK_ATTEMPTS_MAX + 1):
            try:
                folder_descriptor = self._folders.open(folder)
                try:
                    self._link(temporary, folder_descriptor, name, key)
                finally:
                    os.close(folder_descriptor)
                return
            except FileNotFoundError:
                self._folders.forget(folder)
                if attempt == LINK_ATTEMPTS_MAX:
                    raise
            except NotADirectoryError as error:
                raise ValueError(f"key is below an object: key={key!r}") from error

    def _link(self, temporary: str, folder_descriptor: int, name: str, key: str) -> None:
        try:
            os.link(temporary, name, dst_dir_fd=folder_descriptor)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder_descriptor, follow_symlinks=False).st_mode):
                raise ValueError(f"key is the folder of an object: key={key!r}") from None
            # Whoever linked it may have been killed before the folder was synced.
            os.fsync(folder_descriptor)
            raise AlreadyExists(f"object exists: key={key!r}") from None
        except OSError as error:
            if error.errno in _AMBIGUOUS:
                raise OutcomeUnknown(self._failure("link failed, the object may be there", key, error)) from error
            raise
        try:
            os.fsync(folder_descriptor)
        except OSError as error:
            raise OutcomeUnknown(self._failure("object stored, its name may not be durable", key, error)) from error

    def _get(self, key: str, start: int, end: int, read: Callable[[int, int, int], T]) -> T:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(f"no such object: key={key!r}")
                if status.st_size >= end:
                    return read(descriptor, start, end)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"no such object: key={key!r}") from None
        except OSError as error:
            raise Unavailable(self._failure("object not read", key, error)) from error
        size_bytes = status.st_size
        raise EndsEarly(f"object ends before the range: key={key!r} start={start} end={end} size_bytes={size_bytes}")

    def _stat(self, key: str) -> ObjectStat:
        try:
            status = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"no such object: key={key!r}") from None
        except OSError as error:
            raise Unavailable(self._failure("object not found out about", key, error)) from error
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(f"no such object: key={key!r}")
        return ObjectStat(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _delete(self, keys: Sequence[str]) -> None:
        changed = False
        try:
            for key in keys:
                try:
                    os.unlink(self._path(key))
                    changed = True
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    continue
            # Folders of absent keys, too: an earlier delete may have failed between the unlink and the sync.
            self._sync_and_prune({key.rpartition("/")[0] for key in keys})
        except OSError as error:
            outcome = OutcomeUnknown if changed else Unavailable
            raise outcome(self._failure(f"{len(keys)} objects not deleted", keys[0], error)) from error

    def _sync_and_prune(self, folders: set[str]) -> None:
        while folders:
            # Deepest first, so that a folder is looked at after all that may be removed from it.
            depth = max(folder.count("/") if folder else -1 for folder in folders)
            level = {folder for folder in folders if (folder.count("/") if folder else -1) == depth}
            folders -= level
            folders |= {folder.rpartition("/")[0] for folder in level if self._sync_and_remove(folder)}

    def _sync_and_remove(self, folder: str) -> bool:
        """Whether `folder` is gone, so that the caller syncs the one above it."""
        try:
            sync_folder(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return bool(folder)
        if not folder:
            return False
        try:
            # A put at this moment either is first, and this fails, or finds its folder gone and makes a new one.
            os.rmdir(self._path(folder))
        except FileNotFoundError:
            return True
        except OSError:
            return False  # not empty; or not ours to remove, and an empty folder does no harm
        return True

    def _next_chunk(self, walker: Iterator[ObjectStat]) -> tuple[ObjectStat, ...]:
        try:
            return tuple(islice(walker, LIST_CHUNK_OBJECTS))
        except OSError as error:
            raise Unavailable(self._failure("objects not listed", "", error)) from error

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _failure(self, what: str, key: str, error: OSError) -> str:
        name = errno.errorcode.get(error.errno or 0, "none")
        return f"{what}, {(error.strerror or str(error)).lower()}: path={self._path(key)!r} errno={name}"

    def _unusable(self, error: BaseException) -> Unavailable:
        """What somebody who starts a broker reads when the folder does not work."""
        code = error.errno if isinstance(error, OSError) else None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        match code:
            case errno.EACCES | errno.EROFS:
                text = f"folder is not writable ({reason}). Check its owner and mode, or choose another folder."
            case errno.EPERM:
                text = f"folder is not writable or takes no hard links ({reason}). Choose another folder."
            case errno.ENOSPC | errno.EDQUOT:
                text = f"there is no space left ({reason}). Free some, or choose another folder."
            case errno.ENOTDIR:
                text = f"it, or a name above it, is not a folder ({reason}). Choose another folder."
            case _:
                text = f"folder cannot be used ({reason}). Check its file system, or choose another folder."
        return Unavailable(f"storage.url {self._uri}: {text}")


def _walk_folder(root: str, folder: str, prefix: str, start_after: str) -> Iterator[ObjectStat]:
    """`folder` is empty or ends in a slash."""
    for name in _sorted_children(f"{root}/{folder}"):
        key = folder + name
        if name.endswith("/"):
            may_match = key.startswith(prefix) or prefix.startswith(key)
            may_be_after = key > start_after or start_after.startswith(key)
            if may_match and may_be_after and key != f"{TEMPORARY_FOLDER}/":
                yield from _walk_folder(root, key, prefix, start_after)
        elif key > start_after and key.startswith(prefix):
            try:
                status = os.stat(f"{root}/{key}")
            except FileNotFoundError:
                continue
            yield ObjectStat(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _sorted_children(path: str) -> list[str]:
    names = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not is_segment(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(f"{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()
    return names
