"""The folder of blocks that processes of a machine share: what was put is found as it was put, or not at all, whatever happens to it."""

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.limits import BLOCK_BYTES, KIB
from storage.objects.block_folder import UNUSED_S_MAX, BlockExtent, BlockFolder, PutEnd, folder_name, release
from tests.contract import block_folder_use
from tests.contract.block_folder_use import BYTES_MAX, NAME, body_of, folder_at, name_of

BODY = b"0123456789abcdef" * 4
OTHER = "other/wal+01+OBJECT"
PART_BYTES = 16
TRAILER_BYTES = 12
DAY_S = 86_400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def folder(root: Path) -> BlockFolder:
    return folder_at(str(root), "1")


def read(folder: BlockFolder, start: int, end: int, *, name: str = NAME) -> bytes | None:
    """All of [start, end), or None."""
    look = folder.look(name, [BlockExtent(start, end)], part_bytes=16 * KIB, claims=False)
    assert look.error is None
    if any(one.parts is None for one in look.found):
        return None
    return b"".join(part for one in look.found for part in one.parts or ())


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*-*") if path.is_file() and not path.match(".tmp/*"))


def temporaries(root: Path) -> list[str]:
    return os.listdir(root / ".tmp")


def size_bytes(root: Path) -> int:
    """Of all files of blocks, and of those that are being written."""
    found = 0
    # Those of blocks first: a file that gets its name meanwhile counts once at most.
    for folder, _, names in (*os.walk(root / "cluster"), *os.walk(root / ".tmp")):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += os.stat(f"{folder}/{name}").st_size
    return found


@contextlib.contextmanager
def process(root: Path, owner: str, what: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, block_folder_use.__file__, str(root), owner, what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def said(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


# What was put


def test_what_was_put_is_found_by_others_whole_and_in_part(folder: BlockFolder, root: Path) -> None:
    assert read(folder, 0, 4) is None
    assert folder.put(NAME, 0, [BODY[:20], memoryview(BODY)[20:]]) == (PutEnd.PUT, None)
    assert folder.put(NAME, 0, [BODY]) == (PutEnd.THERE, None)

    other = folder_at(str(root), "2")
    assert read(other, 0, 64) == BODY
    assert read(other, 17, 40) == BODY[17:40]
    assert read(other, 0, 65) is None
    assert files(root) == [f"{NAME}/0-64"]
    assert temporaries(root) == []
    assert root.stat().st_mode & 0o077 == 0, "records are for the user who runs the brokers"


def test_several_files_together_are_what_was_put(folder: BlockFolder) -> None:
    folder.put(NAME, 0, [BODY[:16]])
    folder.put(NAME, 10, [BODY[10:40]])
    folder.put(NAME, 40, [BODY[40:]])

    assert read(folder, 3, 60) == BODY[3:60]


@pytest.mark.parametrize("size", [200 * KIB, BLOCK_BYTES])
def test_large_blocks_come_in_parts_and_as_they_were(root: Path, size: int) -> None:
    folder = BlockFolder(str(root), bytes_max=2 * BLOCK_BYTES, owner="1", now_s=block_folder_use.now_s)
    body = os.urandom(size)
    assert folder.put(NAME, BLOCK_BYTES, [body]) == (PutEnd.PUT, None)
    look = folder.look(NAME, [BlockExtent(BLOCK_BYTES + 5, BLOCK_BYTES + size)], part_bytes=64 * KIB, claims=False)

    [one] = look.found
    assert one.parts is not None
    assert b"".join(one.parts) == body[5:]
    assert max(map(len, one.parts)) <= 128 * KIB


def test_an_object_of_another_kind_or_with_too_long_a_name_has_no_place() -> None:
    assert folder_name("c", "wal/01ABCD/01ABCDEF") == "c/wal+01ABCD+01ABCDEF"
    assert folder_name("c", "segments/t/0/01ABCDEF") == "c/segments+t+0+01ABCDEF"
    assert folder_name("c", ".probe/01ABCDEF") is None
    assert folder_name("..", "wal/01ABCD/01ABCDEF") is None
    assert folder_name("c", "wal/" + "x" * 300) is None


# Damage


def flipped(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)


def replaced_by(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit": lambda path: flipped(path, 30),
    "a bit of the checksum": lambda path: flipped(path, 64 + TRAILER_BYTES - 1),
    "cut off": lambda path: os.truncate(path, 40),
    "only the trailer cut off": lambda path: os.truncate(path, 64),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(64 + TRAILER_BYTES)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "garbage": lambda path: path.write_bytes(os.urandom(64 + TRAILER_BYTES)),
}
IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: replaced_by(path, Path.mkdir),
    "a pipe": lambda path: replaced_by(path, os.mkfifo),
    "a link": lambda path: replaced_by(path, lambda link: link.symlink_to("/etc/passwd")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_a_miss_is_removed_and_may_be_put_again(folder: BlockFolder, root: Path, kind: str) -> None:
    folder.put(NAME, 0, [BODY])
    DAMAGE[kind](root / NAME / "0-64")

    look = folder.look(NAME, [BlockExtent(0, 64)], part_bytes=PART_BYTES, claims=False)
    assert [one.parts for one in look.found] == [None]
    assert look.damaged == 1
    assert files(root) == []
    assert folder.put(NAME, 0, [BODY]) == (PutEnd.PUT, None)
    assert read(folder, 0, 64) == BODY


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_is_in_the_way_is_a_miss(folder: BlockFolder, root: Path, kind: str) -> None:
    folder.put(NAME, 0, [BODY])
    IN_THE_WAY[kind](root / NAME / "0-64")

    assert read(folder, 0, 64) is None
    folder.put(NAME, 0, [BODY])
    assert folder.tidy() is None
    assert temporaries(root) == []


def test_a_file_under_another_name_is_a_miss(folder: BlockFolder, root: Path) -> None:
    for name in (NAME, OTHER):
        folder.put(name, 0, [BODY])
    folder.put(NAME, 64, [BODY])
    os.replace(root / NAME / "0-64", root / NAME / "100-164")
    os.replace(root / NAME / "64-128", root / OTHER / "0-64")

    assert read(folder, 100, 164) is None
    assert read(folder, 0, 64, name=OTHER) is None


@pytest.mark.parametrize("there", ["cluster", "cluster/wal+01+OBJECT", ".claims", ".tmp"])
def test_a_file_in_place_of_a_folder_is_told_and_nothing_else_happens(root: Path, there: str) -> None:
    (root / there).parent.mkdir(parents=True)
    (root / there).write_text("garbage")
    folder = folder_at(str(root), "1")

    look = folder.look(NAME, [BlockExtent(0, 4)], part_bytes=PART_BYTES, claims=True)
    release(look.claims)
    assert [one.parts for one in look.found] == [None]
    ended, error = folder.put(NAME, 0, [BODY])
    assert ended is PutEnd.FAILED
    assert error is not None
    assert (root / there).read_text() == "garbage"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("no totals")])
def test_a_lock_file_that_says_nothing_is_no_error(root: Path, make: Callable[[Path], object]) -> None:
    root.mkdir(parents=True)
    make(root / ".lock")
    folder = folder_at(str(root), "1")

    assert folder.totals() is None
    ended, _ = folder.put(NAME, 0, [BODY])
    assert (ended is PutEnd.PUT) == (root / ".lock").is_file()


# Claims


def test_what_is_missing_is_claimed_once_and_found_when_it_was_put(folder: BlockFolder, root: Path) -> None:
    other = folder_at(str(root), "2")
    wanted = [BlockExtent(0, BLOCK_BYTES + 4)]
    mine = folder.look(NAME, wanted, part_bytes=PART_BYTES, claims=True)
    theirs = other.look(NAME, wanted, part_bytes=PART_BYTES, claims=True)

    assert [(one.start, one.end, one.is_claimed) for one in mine.found] == [(0, BLOCK_BYTES, False), (BLOCK_BYTES, BLOCK_BYTES + 4, False)]
    assert [one.is_claimed for one in theirs.found] == [True, True]
    assert theirs.claims == []
    folder.put(NAME, BLOCK_BYTES, [b"last"])
    release(mine.claims)
    again = other.look(NAME, wanted, part_bytes=PART_BYTES, claims=True)
    release(again.claims)
    assert [(one.parts and b"".join(one.parts), one.is_claimed) for one in again.found] == [(None, False), (b"last", False)]


def test_a_claim_of_a_killed_process_is_free(root: Path, folder: BlockFolder) -> None:
    def is_claimed() -> bool:
        look = folder.look(NAME, [BlockExtent(0, 1)], part_bytes=PART_BYTES, claims=True)
        release(look.claims)
        return look.found[0].is_claimed

    with process(root, "2", "hold") as holder:
        assert said(holder) == "1"
        assert is_claimed()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not is_claimed()


# Bounds


def test_what_was_read_longest_ago_goes(root: Path) -> None:
    now_s = 1_000_000.0
    folder = BlockFolder(str(root), bytes_max=10 * (64 + TRAILER_BYTES), owner="1", now_s=lambda: now_s)
    for number in range(10):
        now_s += 1
        folder.put(name_of(number), 0, [BODY])
        os.utime(root / name_of(number) / "0-64", (now_s, now_s))
    now_s += 1
    assert read(folder, 0, 64, name=name_of(0)) == BODY
    folder.put(name_of(10), 0, [BODY])

    kept = [number for number in range(11) if read(folder, 0, 64, name=name_of(number)) is not None]
    assert kept == [0, 4, 5, 6, 7, 8, 9, 10]
    assert sorted(os.listdir(root / "cluster")) == [name_of(number).removeprefix("cluster/") for number in kept]
    totals = folder.totals()
    assert totals is not None
    assert (totals.size_bytes, totals.files) == (size_bytes(root), 8)


def test_files_are_bounded_too(root: Path) -> None:
    folder = BlockFolder(str(root), bytes_max=BYTES_MAX, owner="1", now_s=block_folder_use.now_s, files_max=8)
    for number in range(30):
        assert folder.put(NAME, number, [b"x"])[0] is PutEnd.PUT
        assert len(files(root)) <= 8
    assert read(folder, 29, 30) == b"x"


def test_what_nothing_has_read_for_a_day_goes_and_files_of_others_stay(root: Path) -> None:
    now_s = block_folder_use.now_s()
    folder = BlockFolder(str(root), bytes_max=BYTES_MAX, owner="1", now_s=lambda: now_s)
    for name in (NAME, OTHER):
        folder.put(name, 0, [BODY])
    strangers = [
        "notes.txt",
        "photos/2020/1-2",
        "cluster/wal+01+OBJECT/00-64",
        "cluster/wal+01+OBJECT/readme",
        f"{NAME}/1-{BLOCK_BYTES + 9}",
    ]
    for path in strangers:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("mine")
        os.utime(root / path, (0, 0))
    now_s += UNUSED_S_MAX - 60
    assert folder.tidy() is None
    assert read(folder, 0, 64) == BODY
    now_s += DAY_S / 2
    assert folder.tidy() is None

    assert (read(folder, 0, 64), read(folder, 0, 64, name=OTHER)) == (BODY, None), "one was read since, the other of a deleted topic"
    assert not (root / OTHER).exists()
    now_s += DAY_S + 60
    assert folder.tidy() is None
    assert files(root) == sorted(path for path in strangers if "-" in path)
    assert all((root / path).read_text() == "mine" for path in strangers)


def test_several_processes_keep_below_the_bound_together(root: Path) -> None:
    with contextlib.ExitStack() as closing:
        running = [closing.enter_context(process(root, owner, "60")) for owner in ("1", "2", "3")]
        most = 0
        while any(one.poll() is None for one in running):
            most = max(most, size_bytes(root))
        ended = [line.strip() for one in running for line in one.stdout or ()]

    assert 0 < most <= BYTES_MAX
    assert ended.count("put") > 60
    assert set(ended) <= {"put", "busy"}
    folder = folder_at(str(root), "4")
    totals = folder.totals()
    assert totals is not None
    assert (totals.size_bytes, totals.files) == (size_bytes(root), len(files(root)))
    for number in [int(path.rpartition("+")[2].partition("/")[0]) for path in files(root)]:
        assert read(folder, 0, len(body_of(number)), name=name_of(number)) == body_of(number)


# Kills, full disks, folders without rights


def test_after_kills_in_the_middle_of_writes_all_that_is_found_is_whole(root: Path, folder: BlockFolder) -> None:
    for kill in range(4):
        with process(root, str(kill + 1), "100000") as writer:
            assert [said(writer) for _ in range(5 + 7 * kill)]
            writer.send_signal(signal.SIGKILL)
        there = files(root)
        assert there
        for number in [int(path.rpartition("+")[2].partition("/")[0]) for path in there]:
            assert read(folder, 0, len(body_of(number)), name=name_of(number)) == body_of(number)

    later = BlockFolder(str(root), bytes_max=BYTES_MAX, owner="9", now_s=lambda: block_folder_use.now_s() + DAY_S * 3)
    assert later.tidy() is None
    assert temporaries(root) == []
    assert later.totals() is not None
    assert size_bytes(root) == 0


def test_while_one_that_holds_the_lock_is_stopped_others_go_on(root: Path, folder: BlockFolder) -> None:
    folder.put(NAME, 0, [BODY])
    with (root / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert folder.put(NAME, 64, [BODY]) == (PutEnd.BUSY, None)
        assert folder.tidy() is None
        assert read(folder, 0, 64) == BODY
    assert folder.put(NAME, 64, [BODY]) == (PutEnd.PUT, None)


def test_a_disk_without_room_is_told_and_leaves_nothing(root: Path, folder: BlockFolder) -> None:
    folder.put(NAME, 0, [BODY])
    before = folder.totals()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * KIB, hard))
    try:
        ended, error = folder.put(NAME, 64, [bytes(200 * KIB)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert ended is PutEnd.FAILED
    assert error is not None
    assert temporaries(root) == []
    assert folder.totals() == before


def test_a_folder_that_may_only_be_read_gives_what_it_has() -> None:
    with tempfile.TemporaryDirectory() as outside:  # tmp_path is below folders of the user who runs the tests
        os.chmod(outside, 0o755)
        root = Path(outside) / "cache"
        folder_at(str(root), "1").put(NAME, 0, [b"1234"])
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with process(root, "2", "nobody") as running:
            lines = [said(running) for _ in range(4)]
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    assert lines[0] == "[b'1234']"
    assert lines[1].startswith("[None] ")
    assert lines[2].startswith("failed ")
    assert lines[3] == "None" or "denied" in lines[3].lower()
