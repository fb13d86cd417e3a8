import asyncio
import errno
import fcntl
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from runtime.blocking import InlineBlocking, ThreadBlocking
from runtime.clock import SystemClock
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from storage.objects.disk import DELETE_CHUNK_OBJECTS, DiskObjectStore
from storage.objects.port import ObjectStore
from storage.vocabulary import Buffer
from tests.contract import disk_puts, disk_unwritable
from tests.kit.objects_contract import ObjectStoreContract, listed, put_all, wins

T = TypeVar("T")


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[DiskObjectStore]:
    blocking = ThreadBlocking(threads=8, name="disk")
    store = await DiskObjectStore.open(root, blocking=blocking, clock=SystemClock())
    yield store
    await store.close()
    blocking.close()


def temporaries(root: Path) -> list[str]:
    return os.listdir(root / ".tmp")


class TestDiskObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        async with opened(folder / "objects") as store:
            yield store
        assert temporaries(folder / "objects") == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "objects"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[DiskObjectStore]:
    async with opened(root) as store:
        yield store


# Kills


def test_after_a_kill_every_acknowledged_object_is_whole_and_no_partial_one_is_seen(root: Path) -> None:
    async def check(acknowledged: list[str]) -> None:
        async with opened(root) as store:
            assert temporaries(root) == []
            found = await listed(store, "")
            assert set(acknowledged) <= set(found)
            for key in found:
                body = disk_puts.body_of(key)
                assert (await store.stat(key)).size_bytes == len(body)
                assert await store.get_range(key, 0, len(body)) == body

    acknowledged: list[str] = []
    for kill in range(5):
        command = [sys.executable, disk_puts.__file__, str(root), f"round-{kill}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(20 + 67 * kill)]
            writer.send_signal(signal.SIGKILL)
            # The last line may have been cut short by the kill.
            acknowledged += [line.strip() for line in writer.stdout.readlines() if line.endswith("\n")]
        assert writer.returncode == -signal.SIGKILL
        asyncio.run(check(acknowledged))


async def test_opening_removes_what_killed_writers_left_and_nothing_of_living_ones(root: Path) -> None:
    (root / ".tmp").mkdir(parents=True)
    (root / ".tmp" / "killed-0").write_bytes(b"half an obj")
    living = os.open(root / ".tmp" / "living-0", os.O_RDWR | os.O_CREAT)
    fcntl.flock(living, fcntl.LOCK_EX)

    async with opened(root):
        assert temporaries(root) == ["living-0"]
    os.close(living)
    async with opened(root):
        assert temporaries(root) == []


async def test_stores_that_open_a_shared_folder_do_not_disturb_puts(root: Path) -> None:
    async def reopen() -> None:
        for _ in range(100):
            async with opened(root):
                pass

    keys = [f"wal/{number:03}" for number in range(300)]
    async with opened(root) as store, asyncio.TaskGroup() as group:
        group.create_task(reopen())
        group.create_task(reopen())
        await put_all(store, keys, at_once=8)

    async with opened(root) as other:
        assert await listed(other, "") == keys


async def test_an_object_is_synced_before_it_has_its_name_and_its_name_before_the_put_returns(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put_if_absent("wal/1", [b"first"])
    done: list[str] = []
    inodes = {(root / "wal").stat().st_ino: "folder"}
    real_writev, real_fsync, real_link = os.writev, os.fsync, os.link

    def writev(descriptor: int, buffers: Sequence[Buffer]) -> int:
        done.append("write")
        return real_writev(descriptor, buffers)

    def fsync(descriptor: int) -> None:
        done.append(f"sync {inodes.get(os.fstat(descriptor).st_ino, 'file')}")
        real_fsync(descriptor)

    def link(source: str, name: str, *, dst_dir_fd: int) -> None:
        done.append("link")
        real_link(source, name, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "writev", writev)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    await store.put_if_absent("wal/2", [b"second"])
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("wal/2", [b"third"])
    await store.delete_many(["wal/absent"])

    assert done == ["write", "sync file", "link", "sync folder", "write", "sync file", "link", "sync folder", "sync folder"]


# A disk that fails


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, when: Callable[[int], bool] = lambda _: True) -> Iterator[None]:
    """While it is open, os.`name` of a descriptor that `when` picks fails with `code`."""
    real = getattr(os, name)

    def call(descriptor: int, *rest: object) -> object:
        if when(descriptor):
            raise OSError(code, os.strerror(code))
        return real(descriptor, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield


def is_folder(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def is_file(descriptor: int) -> bool:
    return not is_folder(descriptor)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("call", ["writev", "fsync"])
async def test_a_write_that_fails_stores_nothing(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with failing(monkeypatch, call, code, when=is_file), pytest.raises(Unavailable) as raised:
        await store.put_if_absent("wal/1", [b"x" * 100_000])

    assert str(raised.value) == (
        f"object not stored, {os.strerror(code).lower()}: path={str(root / 'wal' / '1')!r} errno={errno.errorcode[code]}"
    )
    assert temporaries(root) == []
    assert await listed(store, "") == []
    await store.put_if_absent("wal/1", [b"there is room again"])


async def test_a_disk_that_fills_up_in_the_middle_of_an_object_stores_nothing(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.writev, 100_000

    def writev(descriptor: int, buffers: Sequence[Buffer]) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, [memoryview(buffers[0])[:room]])
        room -= written
        return written

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(Unavailable, match=r"no space left on device.*errno=ENOSPC"):
        await store.put_if_absent("wal/1", [b"x" * 60_000, b"y" * 60_000])

    assert temporaries(root) == []
    with pytest.raises(NotFound):
        await store.stat("wal/1")


async def test_a_file_larger_than_the_system_allows_is_not_stored(store: DiskObjectStore, root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(Unavailable, match=r"file too large.*errno=EFBIG"):
            await store.put_if_absent("wal/1", [b"x" * (3 << 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert temporaries(root) == []
    assert await listed(store, "") == []


async def test_when_the_folder_cannot_be_synced_after_the_link_the_outcome_is_unknown(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put_if_absent("wal/1", [b"first"])

    with failing(monkeypatch, "fsync", errno.EIO, when=is_folder):
        with pytest.raises(OutcomeUnknown, match=r"may not be durable.*wal/2.*errno=EIO"):
            await store.put_if_absent("wal/2", [b"second"])
        # Who comes back to see what happened is told that the object is there only once its name is durable.
        with pytest.raises(Unavailable):
            await store.put_if_absent("wal/2", [b"second"])
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("wal/2", [b"second"])
    assert await store.get_range("wal/2", 0, 6) == b"second"
    assert temporaries(root) == []


async def test_when_a_new_folder_cannot_be_made_durable_nothing_is_stored_in_it(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(monkeypatch, "fsync", errno.EIO, when=is_folder), pytest.raises(Unavailable):
        await store.put_if_absent("wal/1", [b"first"])

    assert await listed(store, "") == []
    assert temporaries(root) == []


async def test_a_link_that_fails_with_an_input_output_error_may_have_happened(
    store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(OutcomeUnknown, match="the object may be there"):
        await store.put_if_absent("wal/1", [b"first"])


async def test_calls_that_accept_little_at_a_time_still_move_everything(store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    whole = chance.randbytes(20_000)
    view = memoryview(whole)
    cuts = sorted(chance.sample(range(len(whole)), 60))
    parts = [view[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    real_writev, real_pread = os.writev, os.pread

    def writev(descriptor: int, buffers: Sequence[Buffer]) -> int:
        offered = b"".join(buffers)
        return real_writev(descriptor, [offered[: chance.randint(1, 700)]])

    monkeypatch.setattr(os, "writev", writev)
    monkeypatch.setattr(os, "pread", lambda descriptor, length, position: real_pread(descriptor, min(length, 999), position))
    await store.put_if_absent("wal/1", parts)

    assert await store.get_range("wal/1", 0, len(whole)) == whole
    assert await store.get_range("wal/1", 1_500, 5_500) == whole[1_500:5_500]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
async def test_a_read_that_fails_is_unavailable(store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    await store.put_if_absent("wal/1", [b"first"])

    with failing(monkeypatch, "pread", code), pytest.raises(Unavailable, match=f"object not read.*wal/1.*{errno.errorcode[code]}"):
        await store.get_range("wal/1", 0, 5)


async def test_a_file_that_is_cut_short_while_it_is_read_is_unavailable(store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put_if_absent("wal/1", [b"first"])
    monkeypatch.setattr(os, "pread", lambda *_: b"")

    with pytest.raises(Unavailable, match="ended while it was read"):
        await store.get_range("wal/1", 0, 5)


async def test_a_delete_that_fails_before_anything_was_removed_did_nothing(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_all(store, ["wal/1", "wal/2"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: (_ for _ in ()).throw(OSError(errno.EROFS, os.strerror(errno.EROFS))))
        with pytest.raises(Unavailable, match="2 objects not deleted, read-only file system"):
            await store.delete_many(["wal/1", "wal/2"])

    assert await listed(store, "") == ["wal/1", "wal/2"]


async def test_a_delete_that_fails_after_its_first_chunk_has_an_unknown_outcome(
    store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_all(store, ["wal/1", "wal/2"])
    real = os.unlink

    def unlink(path: str) -> None:
        if path.endswith("/wal/2"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(OutcomeUnknown, match="1 objects not deleted"):
            await store.delete_many(["wal/1", *(f"wal/absent-{number}" for number in range(1, DELETE_CHUNK_OBJECTS)), "wal/2"])

    assert await listed(store, "") == ["wal/2"]


async def test_a_delete_that_cannot_be_made_durable_has_an_unknown_outcome_and_can_be_repeated(
    store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_all(store, ["wal/1", "wal/2"])

    with failing(monkeypatch, "fsync", errno.EIO):
        with pytest.raises(OutcomeUnknown):
            await store.delete_many(["wal/1"])
        with pytest.raises(Unavailable):
            await store.delete_many(["wal/1"])
    await store.delete_many(["wal/1"])
    assert await listed(store, "") == ["wal/2"]


async def test_a_folder_that_is_removed_under_the_store_makes_it_unavailable(store: DiskObjectStore, root: Path) -> None:
    (root / ".tmp").rmdir()

    with pytest.raises(Unavailable, match="no such file or directory"):
        await store.put_if_absent("wal/1", [b"x"])


# Cancellation


class LateBlocking:
    """Parks every call until the test runs it, as a thread would that is slow to begin."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.began = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        self.calls.append(call)
        self.began.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def close(self) -> None:
        return None


async def test_a_cancelled_put_does_not_publish_buffers_that_were_changed_since(root: Path) -> None:
    async with opened(root) as reader:
        late = LateBlocking()
        buffer = bytearray(b"before")
        store = DiskObjectStore(root, blocking=late, clock=SystemClock())
        async with asyncio.TaskGroup() as group:
            put = group.create_task(store.put_if_absent("wal/1", [buffer]))
            await late.began.wait()
            put.cancel()
        buffer[:] = b"afterw"
        for call in late.calls:
            call()

        assert await listed(reader, "") == []
        assert temporaries(root) == []


# Folders


async def test_folders_that_are_empty_after_a_delete_are_removed(store: DiskObjectStore, root: Path) -> None:
    await put_all(store, ["a/b/c/1", "a/b/c/2", "a/d", "e/f"])
    await store.delete_many(["a/b/c/1"])
    assert (root / "a" / "b" / "c").is_dir()
    await store.delete_many(["a/b/c/2", "e/f"])

    assert not (root / "a" / "b").exists()
    assert not (root / "e").exists()
    assert (root / "a").is_dir()
    await store.delete_many(["a/d"])
    assert os.listdir(root) == [".tmp"]


async def test_a_put_makes_its_folder_again_however_often_it_is_removed(root: Path) -> None:
    async def churn(store: DiskObjectStore, name: str) -> None:
        for number in range(150):
            key = f"a/b/{name}-{number}"
            await store.put_if_absent(key, [key.encode()])
            assert await store.get_range(key, 0, len(key)) == key.encode()
            await store.delete_many([key])

    async with opened(root) as store, opened(root) as other, asyncio.TaskGroup() as group:
        for writer in range(3):
            group.create_task(churn(store, f"one-{writer}"))
            group.create_task(churn(other, f"two-{writer}"))

    assert os.listdir(root) == [".tmp"]


async def test_more_folders_than_are_held_open_can_be_written_to(store: DiskObjectStore) -> None:
    keys = [f"{number:03}/x" for number in range(150)]
    await put_all(store, keys)
    await put_all(store, [f"{key}2" for key in keys])

    assert len(await listed(store, "")) == 300


@pytest.mark.parametrize("key", ["a", "a/b", "a/b/c/d"])
async def test_one_name_is_never_an_object_and_a_folder(store: DiskObjectStore, root: Path, key: str) -> None:
    await store.put_if_absent("a/b/c", [b"x"])

    with pytest.raises(ValueError, match="an object"):
        await store.put_if_absent(key, [b"y"])
    assert temporaries(root) == []


async def test_two_stores_on_one_folder_agree_on_the_winner(root: Path) -> None:
    async with opened(root) as one, opened(root) as other:
        for number in range(50):
            key = f"wal/{number}"
            async with asyncio.TaskGroup() as group:
                mine, theirs = group.create_task(wins(one, key, b"one")), group.create_task(wins(other, key, b"two"))
            assert mine.result() != theirs.result()
            assert await other.get_range(key, 0, 3) == (b"one" if mine.result() else b"two")


async def test_files_that_no_key_names_are_not_listed(store: DiskObjectStore, root: Path) -> None:
    await store.put_if_absent("wal/1", [b"x"])
    (root / "lost+found").mkdir()
    (root / "wal" / "note~").write_text("edited by hand")
    (root / "wal" / "link").symlink_to(root / "wal" / "1")

    assert await listed(store, "") == ["wal/1"]


# Messages at start


def test_a_folder_that_may_not_be_written_to_is_explained() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Any user must be able to reach the folder; only writing to it fails.
        os.chmod(folder, 0o755)
        root = Path(folder) / "objects"
        root.mkdir()
        (root / ".tmp").mkdir()
        root.chmod(0o555)
        (root / ".tmp").chmod(0o555)
        told = subprocess.run([sys.executable, disk_unwritable.__file__, str(root)], capture_output=True, text=True, check=True)

        expected = (
            f"storage.url {root.as_uri()}: folder is not writable (Permission denied). Check its owner and mode, or choose another folder."
        )
        assert told.stdout.splitlines() == [expected]


async def test_a_name_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Unavailable) as raised:
            await DiskObjectStore.open(root, blocking=InlineBlocking(), clock=SystemClock())
        assert str(raised.value) == (
            f"storage.url {root.as_uri()}: it, or a name above it, is not a folder (Not a directory). Choose another folder."
        )


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "there is no space left (No space left on device). Free some, or choose another folder."),
        (errno.EROFS, "folder is not writable (Read-only file system). Check its owner and mode, or choose another folder."),
        (errno.EIO, "folder cannot be used (Input/output error). Check its file system, or choose another folder."),
    ],
)
async def test_a_probe_that_fails_says_why_and_what_to_do(
    store: DiskObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    with failing(monkeypatch, "writev", code), pytest.raises(Unavailable) as raised:
        await store.probe()

    assert str(raised.value) == f"storage.url {root.as_uri()}: {advice}"


async def test_a_probe_notices_a_disk_that_reads_back_other_bytes(store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda descriptor, length, position: b"?" * length)

    with pytest.raises(Unavailable, match="reads back other bytes"):
        await store.probe()


async def test_a_file_system_without_hard_links_is_explained(store: DiskObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(Unavailable, match="takes no hard links"):
        await store.probe()
