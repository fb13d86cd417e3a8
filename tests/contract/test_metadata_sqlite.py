import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import structlog

from runtime.blocking import InlineBlocking, ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from storage.errors import IncompatibleFormat, Unavailable
from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata.port import ABSENT, Applied, Delete, MetadataStore, NotApplied, Put, Session, Status, Unknown
from storage.metadata.sqlite import file, owners
from storage.metadata.sqlite.commits import QUEUE_REQUESTS_MAX
from storage.metadata.sqlite.store import SqliteMetadataStore
from tests.contract import sqlite_process
from tests.contract.metadata_contract import SESSION_TIMEOUT_MS, TIMEOUT_S, Client, MetadataStoreContract, eventually
from tests.kit.faulty_metadata import paths_into
from tests.kit.stepping_clock import SteppingClock


@asynccontextmanager
async def opened(
    path: Path,
    *,
    clock: Clock | None = None,
    boot_id: str | None = None,
    busy_timeout_s: float = 5.0,
    inline: bool = False,
    on_lost: Callable[[str], None] = lambda cause: None,
) -> AsyncIterator[SqliteMetadataStore]:
    clock = clock or SystemClock()
    store = await SqliteMetadataStore.open(
        path,
        blocking=InlineBlocking() if inline else ThreadBlocking(threads=1, name="sqlite"),
        clock=clock,
        ids=IdSource(clock=clock),
        boot_id=boot_id,
        busy_timeout_s=busy_timeout_s,
        on_lost=on_lost,
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def other_process(what: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", sqlite_process.__name__, what, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        return (await process.stdout.readline()).decode().strip()


@contextmanager
def foreign_transaction(path: Path) -> Iterator[None]:
    """Somebody else's, which does not end: nobody else can begin one."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


class FailingOnce:
    """A connection one statement of which fails, as a disk does: without being carried out and without rolling back."""

    def __init__(self, connection: sqlite3.Connection, statement: str) -> None:
        self._connection = connection
        self._statement: str | None = statement

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        if sql == self._statement:
            self._statement = None
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self._connection.execute(sql, parameters)


class BeforeCommit:
    """A connection before whose COMMIT something happens."""

    def __init__(self, connection: sqlite3.Connection, happens: Callable[[], None]) -> None:
        self._connection = connection
        self._happens = happens

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self._happens()
        return self._connection.execute(sql, parameters)


class TestSqliteMetadataStore(MetadataStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        self.clock = SteppingClock()
        async with opened(tmp_path / "meta.db", clock=self.clock) as store:
            yield store

    async def expire(self, session: Session) -> None:
        self.clock.advance(SESSION_TIMEOUT_MS / 1_000)


class TestTwoSqliteMetadataStoresOnOneFile(MetadataStoreContract):
    """The contract once more, while another store works on the same file."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        self.clock = SteppingClock()

        async def write_on(client: Client) -> None:
            number = 0
            while True:
                number += 1
                await client.put_ok(f"busy/{number % 10}", b"")
                await asyncio.sleep(0.002)

        async with (
            opened(tmp_path / "meta.db", clock=self.clock) as store,
            opened(tmp_path / "meta.db", clock=self.clock) as other,
            asyncio.TaskGroup() as group,
        ):
            writing = group.create_task(write_on(Client(other, "other")))
            yield store
            writing.cancel()

    async def expire(self, session: Session) -> None:
        self.clock.advance(SESSION_TIMEOUT_MS / 1_000)


# Two stores, one file


async def test_a_read_sees_every_write_that_any_store_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as first, opened(tmp_path / "meta.db") as second:
        clients = [Client(first, "root"), Client(second, "root")]
        for number in range(100):
            writer, reader = clients[number % 2], clients[1 - number % 2]
            version = await writer.put_ok("a", str(number).encode())
            record = await reader.get("a")

            assert record is not None
            assert (record.value, record.version) == (str(number).encode(), version)


async def test_two_stores_on_one_file_share_versions_and_conditions(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as first, opened(tmp_path / "meta.db") as second:
        clients = [Client(first, "root"), Client(second, "root")]
        await clients[0].put_ok("counter", b"0", expected=ABSENT)
        versions = []

        async def increment(client: Client) -> None:
            while True:
                record = await client.get("counter")
                assert record is not None
                result = await client.put("counter", str(int(record.value) + 1).encode(), expected=record.version)
                if result.status is Status.OK:
                    versions.append(result.version)
                    return

        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(increment(clients[number % 2]))

        assert await clients[0].value("counter") == b"100"
        assert len(set(versions)) == 100


async def test_ephemeral_records_are_gone_for_the_others_when_their_store_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as survivor:
        async with opened(tmp_path / "meta.db") as leaving:
            session = await leaving.open_session(timeout_ms=SESSION_TIMEOUT_MS)
            await Client(leaving, "root").put_ok("brokers/1", b"", session=session)
            assert await Client(survivor, "root").children("brokers") == ["brokers/1"]

        assert session.is_lost
        assert await Client(survivor, "root").children("brokers") == []


async def test_a_session_of_one_store_serves_puts_through_another(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as first, opened(tmp_path / "meta.db") as second:
        session = await first.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await Client(second, "root").put_ok("a", b"", session=session)
        await session.close()

        assert await Client(second, "root").get("a") is None


async def test_a_subscriber_hears_of_changes_made_through_another_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as first, opened(tmp_path / "meta.db") as second:
        heard: list[str] = []
        first.subscribe(paths_into(heard), prefix="root/topics/")
        await Client(second, "root").put_all(["topics/a", "other", "topics/b"])
        await Client(second, "root").delete("topics/a")

        async def is_heard() -> bool:
            return len(heard) == 3

        await eventually(is_heard)
        assert heard == ["root/topics/a", "root/topics/b", "root/topics/a"]


async def test_own_changes_are_told_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as first, opened(tmp_path / "meta.db") as second:
        heard: list[str] = []
        first.subscribe(paths_into(heard))
        await Client(first, "root").put_ok("mine", b"")
        await Client(second, "root").put_ok("yours", b"")

        async def is_heard() -> bool:
            return "root/yours" in heard

        await eventually(is_heard)
        assert heard == ["root/mine", "root/yours"]


async def test_the_ring_of_changes_stays_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        for number in range(file.CHANGES_KEPT + 50):
            await Client(store, "root").put_ok(f"d/{number}", b"")

    with contextlib.closing(sqlite3.connect(tmp_path / "meta.db")) as connection:
        assert connection.execute("SELECT count(*) FROM changes").fetchone() == (file.CHANGES_KEPT,)


# Sessions and processes


async def test_ephemeral_records_of_a_killed_process_are_gone_at_once(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with opened(path) as survivor, other_process("hold", path) as process:
        client = Client(survivor, sqlite_process.ROOT)
        assert await line_of(process) == "held"
        assert await client.children("brokers") == ["brokers/1"]
        process.send_signal(signal.SIGKILL)
        await process.wait()

        assert await client.children("brokers") == []
        assert await client.put_ok("brokers/1", b"", expected=ABSENT) > 0


@pytest.mark.parametrize("ask", ["put", "get", "list", "scan", "ceiling", "delete"])
async def test_whatever_touches_a_record_of_a_dead_session_finds_it_absent(tmp_path: Path, ask: str) -> None:
    clock = SteppingClock()
    async with opened(tmp_path / "meta.db", clock=clock) as dead, opened(tmp_path / "meta.db", clock=clock) as store:
        session = await dead.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await Client(dead, "root").put_ok("brokers/1", b"", session=session)
        client = Client(store, "root")
        clock.advance(SESSION_TIMEOUT_MS / 1_000)

        match ask:
            case "put":
                assert (await client.put("brokers/1", b"", expected=ABSENT)).status is Status.OK
            case "get":
                assert await client.get("brokers/1") is None
            case "list":
                assert await client.children("brokers") == []
            case "scan":
                assert await client.scan("brokers") == []
            case "ceiling":
                assert await client.ceiling("brokers/0", within="brokers/") is None
            case "delete":
                assert await client.delete("brokers/1") is Status.KEY_NOT_FOUND
        with contextlib.closing(sqlite3.connect(tmp_path / "meta.db")) as connection:
            assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
        async with asyncio.timeout(TIMEOUT_S):
            await session.wait_lost()


async def test_a_session_is_lost_by_the_clock_alone(tmp_path: Path) -> None:
    clock = SteppingClock()
    async with opened(tmp_path / "meta.db", clock=clock) as store:
        session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        clock.advance(SESSION_TIMEOUT_MS / 1_000)

        assert session.is_lost


async def test_a_session_that_cannot_be_renewed_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db", busy_timeout_s=0.05) as store:
        session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        with foreign_transaction(tmp_path / "meta.db"):
            async with asyncio.timeout(TIMEOUT_S):
                await session.wait_lost()


async def test_a_session_that_was_ended_by_another_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store, opened(tmp_path / "meta.db") as other:
        session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await other._commits.submit(lambda transaction: transaction.end_session(session.session_id))

        async with asyncio.timeout(TIMEOUT_S):
            await session.wait_lost()


async def test_a_session_that_cannot_be_closed_is_no_longer_kept_alive(tmp_path: Path) -> None:
    clock = SteppingClock()
    async with opened(tmp_path / "meta.db", clock=clock, busy_timeout_s=0.05) as store:
        client = Client(store, "root")
        session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await client.put_ok("brokers/1", b"", session=session)
        with foreign_transaction(tmp_path / "meta.db"), pytest.raises(Unavailable, match=r"session not closed: .* database is locked"):
            await session.close()

        assert session.is_lost
        clock.advance(SESSION_TIMEOUT_MS / 1_000)
        assert await client.children("brokers") == []


async def test_sessions_end_with_their_store_even_if_it_cannot_write(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as survivor:
        leaving = await SqliteMetadataStore.open(
            tmp_path / "meta.db",
            blocking=ThreadBlocking(threads=1, name="sqlite"),
            clock=SystemClock(),
            ids=IdSource(clock=SystemClock()),
            busy_timeout_s=0.05,
        )
        session = await leaving.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await Client(leaving, "root").put_ok("brokers/1", b"", session=session)
        with foreign_transaction(tmp_path / "meta.db"):
            await leaving.close()

        assert session.is_lost
        await session.close()
        assert await Client(survivor, "root").children("brokers") == []


async def test_a_process_that_hangs_loses_its_session_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with opened(path) as survivor, other_process("hold", path) as process:
        assert await line_of(process) == "held"
        process.send_signal(signal.SIGSTOP)
        client = Client(survivor, sqlite_process.ROOT)

        async def is_gone() -> bool:
            return await client.children("brokers") == []

        await eventually(is_gone)
        await client.put_ok("brokers/1", b"successor", expected=ABSENT)
        process.send_signal(signal.SIGCONT)
        assert await line_of(process) == "lost session_does_not_exist"
        assert await client.value("brokers/1") == b"successor"


async def test_a_session_of_another_boot_is_dead(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db", boot_id="before") as old:
        session = await old.open_session(timeout_ms=100 * SESSION_TIMEOUT_MS)
        await Client(old, "root").put_ok("brokers/1", b"", session=session)
        async with opened(tmp_path / "meta.db", boot_id="after") as store:
            assert await Client(store, "root").children("brokers") == []


async def test_owner_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with other_process("hold", path) as process:
        assert await line_of(process) == "held"
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert len(os.listdir(tmp_path / "meta.db.owners")) == 1
    async with opened(path):
        assert len(os.listdir(tmp_path / "meta.db.owners")) == 1
    assert os.listdir(tmp_path / "meta.db.owners") == []


# Durability and outcomes


async def test_no_acknowledged_put_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with other_process("storm", path) as process:
        acked = [await line_of(process) for _ in range(1_000)]
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        # The last line may be cut short.
        acked += (await process.stdout.read()).decode().split("\n")[:-1]
        await process.wait()
    async with opened(path) as store:
        records = await Client(store, sqlite_process.ROOT).scan("acked")

        assert len(acked) >= 1_000
        assert set(acked) <= {record.value.decode() for record in records}
        versions = [record.version for record in records]
        assert len(versions) == len(set(versions))
        assert await Client(store, "root").put_ok("a", b"") > max(versions)


async def test_a_commit_that_fails_leaves_the_outcome_unknown_and_the_store_usable(tmp_path: Path) -> None:
    async with other_process("full", tmp_path / "meta.db") as process:
        before, full, after = [await line_of(process) for _ in range(3)]
        await process.wait()

        assert before.startswith("before Applied")
        assert full.startswith("full Unknown"), full
        assert after.startswith("after Applied")


async def test_a_full_database_applies_nothing_and_says_why(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        await client.put_ok("a", b"before")
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        outcome = await store.write([Put(client.key("a"), b"after", None), Put(client.key("b"), bytes(METADATA_VALUE_BYTES_MAX), None)])

        assert outcome == NotApplied("the metadata transaction was rolled back: database or disk is full")
        assert await client.value("a") == b"before"
        store._writer.execute("PRAGMA max_page_count = 1000000")
        await client.put_ok("b", b"")


async def test_a_write_behind_a_foreign_transaction_that_does_not_end_is_not_applied(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db", busy_timeout_s=0.05) as store:
        client = Client(store, "root")
        await client.put_ok("a", b"before")
        with foreign_transaction(tmp_path / "meta.db"):
            outcome = await store.write([Put(client.key("a"), b"after", None)])

            assert outcome == NotApplied("the metadata file takes no transaction: database is locked")
            assert await client.value("a") == b"before"
        await client.put_ok("a", b"after")


@pytest.mark.parametrize(
    ("statement", "outcome"),
    [
        ("BEGIN IMMEDIATE", NotApplied("the metadata file takes no transaction: disk I/O error")),
        ("SELECT version, session, change FROM counters", NotApplied("the metadata transaction was rolled back: disk I/O error")),
        (
            "UPDATE counters SET version = ?, session = ?, change = ?",
            NotApplied("the metadata transaction was rolled back: disk I/O error"),
        ),
        ("COMMIT", Unknown("the metadata commit failed: disk I/O error")),
    ],
)
async def test_wherever_a_transaction_fails_the_next_one_begins_anew(tmp_path: Path, statement: str, outcome: object) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        store._commits._connection = FailingOnce(store._writer, statement)  # type: ignore[assignment]

        assert await store.write([Put(client.key("a"), b"", None)]) == outcome
        assert await client.get("a") is None
        await client.put_ok("b", b"")
        assert await client.children("") == ["b"]


async def test_a_full_queue_refuses_and_what_it_took_is_applied(tmp_path: Path) -> None:
    count = QUEUE_REQUESTS_MAX + 1_000
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        outcomes = await asyncio.gather(*(store.write([Put(client.key(f"d/{number}"), b"", None)]) for number in range(count)))
        refused = [outcome for outcome in outcomes if isinstance(outcome, NotApplied)]

        assert refused
        assert all("queue is full" in outcome.reason for outcome in refused)
        assert len(await client.children("d")) == count - len(refused) >= QUEUE_REQUESTS_MAX


async def test_writes_that_arrive_together_share_transactions(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        before = store.transactions
        async with asyncio.TaskGroup() as group:
            for number in range(1_000):
                group.create_task(client.put_ok(f"d/{number:04}", b"x" * 100))

        assert store.transactions - before <= 1_000 / 256 + 2
        assert len(await client.children("d")) == 1_000


async def test_a_batch_is_bounded_by_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        before = store.transactions
        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(client.put_ok(f"d/{number:04}", bytes(METADATA_VALUE_BYTES_MAX)))

        assert store.transactions - before >= 4


async def test_the_store_works_without_threads(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db", inline=True) as store:
        await Client(store, "root").put_ok("a", b"value")

        assert await Client(store, "root").value("a") == b"value"


async def test_requests_that_have_not_begun_are_not_applied_when_the_store_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        async with asyncio.TaskGroup() as group:
            writes = [group.create_task(store.write([Put(client.key(f"d/{number:04}"), b"", None)])) for number in range(1_000)]
            await asyncio.sleep(0)
            await store.close()
        outcomes = [write.result() for write in writes]
    async with opened(tmp_path / "meta.db") as store:
        children = await Client(store, "root").children("d")

        assert not any(isinstance(outcome, Unknown) for outcome in outcomes)
        assert children == [f"d/{number:04}" for number, outcome in enumerate(outcomes) if isinstance(outcome, Applied)]


# The file


async def test_records_and_versions_survive_closing(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        version = await Client(store, "root").put_ok("a", b"value")
        deleted = await Client(store, "root").put_ok("b", b"value")
        await Client(store, "root").delete("b")
    async with opened(tmp_path / "meta.db") as store:
        record = await Client(store, "root").get("a")

        assert record is not None
        assert (record.value, record.version) == (b"value", version)
        assert await Client(store, "root").put_ok("b", b"value") > deleted


async def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "made" / "here #1?%20" / "meta.db"
    async with opened(path) as store:
        await Client(store, "root").put_ok("a", b"")

    assert sorted(os.listdir(path.parent)) == ["meta.db", "meta.db.owners"]


async def test_of_many_who_create_the_file_all_get_the_same_one(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stores = await asyncio.gather(*(stack.enter_async_context(opened(tmp_path / "meta.db")) for _ in range(8)))
        for number, store in enumerate(stores):
            await Client(store, "root").put_ok(f"d/{number}", b"")

        assert len(await Client(stores[0], "root").children("d")) == 8


async def test_the_creator_who_comes_second_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "meta.db") as store:
        await Client(store, "root").put_ok("a", b"value")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    async with opened(tmp_path / "meta.db") as store:
        assert await Client(store, "root").value("a") == b"value"


async def test_a_newer_format_is_refused_and_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with opened(path) as store:
        await Client(store, "root").put_ok("a", b"")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 2")
    before = hashlib.sha256(path.read_bytes()).digest()

    with pytest.raises(
        IncompatibleFormat, match="this data directory was written by format 2; this program knows up to format 1: use a newer"
    ):
        await SqliteMetadataStore.open(path, blocking=InlineBlocking(), clock=SystemClock(), ids=IdSource(clock=SystemClock()))
    assert hashlib.sha256(path.read_bytes()).digest() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close(), "not a metadata file of forebay"),
        (lambda path: path.write_bytes(b"something else" * 1_000), "cannot read the metadata file: file is not a database"),
        (lambda path: path.touch(), "not a metadata file of forebay"),
        (lambda path: path.mkdir(), "the metadata file is a folder"),
    ],
    ids=["database", "text", "empty", "folder"],
)
async def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "meta.db"
    make(path)

    with pytest.raises(Unavailable, match=message) as refusal:
        async with opened(path):
            pass
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert os.listdir(tmp_path) == ["meta.db"]


@pytest.mark.parametrize("name", ["file/meta.db", "file/below/meta.db"])
async def test_a_folder_that_cannot_be_written_is_named_with_its_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Unavailable, match=r"cannot create the metadata file: (Not a directory|File exists): path=") as refusal:
        async with opened(tmp_path / name):
            pass
    assert str(tmp_path / name) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    """By a copy, as whoever restores a backup does."""
    copy = file.with_name("copy")
    shutil.copy(file, copy)
    copy.replace(file)


LOSSES = pytest.mark.parametrize(
    ("name", "lose", "cause"),
    [
        ("meta.db", remove, "the metadata file was removed while it was open: path={path!r}"),
        ("meta.db", replace, "the metadata file was replaced while it was open: path={path!r}"),
        ("meta.db-wal", remove, "the metadata file was removed while it was open: path={path!r}"),
        ("meta.db-wal", replace, "the metadata file was replaced while it was open: path={path!r}"),
        ("meta.db-shm", remove, "the metadata file was removed while it was open: path={path!r}"),
    ],
)
Lose = Callable[[Path], None]


@LOSSES
async def test_once_a_file_is_removed_or_replaced_nothing_is_written_read_or_probed(
    tmp_path: Path, name: str, lose: Lose, cause: str
) -> None:
    cause = cause.format(path=str(tmp_path / name))
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        await client.put_ok("a", b"before")
        before = store.transactions
        lose(tmp_path / name)

        assert await store.write([Put(client.key("a"), b"after", None)]) == NotApplied(cause)
        assert store.transactions == before
        for ask in (client.get("a"), client.children(""), client.scan(""), store.probe()):
            with pytest.raises(Unavailable, match=re.escape(cause)):
                await ask


@LOSSES
async def test_a_commit_whose_file_was_lost_meanwhile_is_unknown_and_is_not_read_back(
    tmp_path: Path, name: str, lose: Lose, cause: str
) -> None:
    cause = cause.format(path=str(tmp_path / name))
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        heard: list[str] = []
        store.subscribe(paths_into(heard))
        store._commits._connection = BeforeCommit(store._writer, lambda: lose(tmp_path / name))  # type: ignore[assignment]

        assert await store.write([Put(client.key("a"), b"", None)]) == Unknown(cause)
        assert store._reader.get_many([client.key("a")]) != [None], "the lost file has it"
        with pytest.raises(Unavailable, match=re.escape(cause)):
            await client.get("a")
        assert heard == []


async def test_who_reads_what_a_commit_wrote_into_a_lost_file_is_refused(tmp_path: Path) -> None:
    """Before anybody has looked at the file: the reader does."""
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        store._writer.execute("UPDATE counters SET version = version + 1")
        remove(tmp_path / "meta.db")

        with pytest.raises(Unavailable, match="was removed while it was open"):
            await client.get("a")


@LOSSES
async def test_an_idle_store_tells_once_that_its_file_is_lost(tmp_path: Path, name: str, lose: Lose, cause: str) -> None:
    cause = cause.format(path=str(tmp_path / name))
    told: asyncio.Queue[str] = asyncio.Queue(maxsize=10)
    with structlog.testing.capture_logs() as logged:
        async with opened(tmp_path / "meta.db", on_lost=told.put_nowait) as store:
            lose(tmp_path / name)
            async with asyncio.timeout(TIMEOUT_S):
                heard = await told.get()
            await store.write([Put(Client(store, "root").key("a"), b"", None)])

    assert heard == cause
    assert told.empty()
    errors = [line for line in logged if line["log_level"] == "error"]
    assert [(line["event"], line["cause"]) for line in errors] == [("metadata_file_lost", cause)]
    assert "/proc/PID/fd" in errors[0]["fix"]


async def test_a_lost_file_stays_lost_though_it_comes_back(tmp_path: Path) -> None:
    """Somebody else may have written into it meanwhile."""
    path = tmp_path / "meta.db"
    async with opened(path) as store:
        path.rename(tmp_path / "moved.db")
        with pytest.raises(Unavailable, match="was removed while it was open"):
            await store.probe()
        (tmp_path / "moved.db").rename(path)

        with pytest.raises(Unavailable, match="was removed while it was open"):
            await store.probe()
    async with opened(path) as store:
        await store.probe()


async def test_while_the_file_cannot_be_seen_nothing_is_committed_and_then_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        with monkeypatch.context() as blinded:

            def refuse(name: str) -> os.stat_result:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

            blinded.setattr(file.os, "stat", refuse)
            outcome = await store.write([Put(client.key("a"), b"", None)])

        assert outcome == NotApplied(f"the metadata file cannot be seen: Permission denied: path={str(tmp_path / 'meta.db')!r}")
        await client.put_ok("a", b"")


async def test_the_files_beside_the_database_are_found_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    async with opened(tmp_path / "disk" / "real.db"):
        pass
    (tmp_path / "meta.db").symlink_to(tmp_path / "disk" / "real.db")
    async with opened(tmp_path / "meta.db") as store:
        await store.probe()
        remove(tmp_path / "disk" / "real.db-wal")

        with pytest.raises(Unavailable, match=r"real\.db-wal"):
            await store.probe()


async def test_other_stores_that_open_and_close_the_file_are_no_loss(tmp_path: Path) -> None:
    async with opened(tmp_path / "meta.db") as store:
        for number in range(3):
            async with opened(tmp_path / "meta.db") as other:
                await Client(other, "root").put_ok(f"d/{number}", b"")
        store._writer.execute("VACUUM")
        store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await Client(store, "root").put_ok("a", b"")


async def test_a_copy_that_vacuum_made_is_opened_like_any_other(tmp_path: Path) -> None:
    """It does not say that it is to be written with a log."""
    async with opened(tmp_path / "meta.db") as store:
        await Client(store, "root").put_ok("a", b"kept")
        with contextlib.closing(sqlite3.connect(tmp_path / "meta.db")) as operator:
            operator.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))

    async with opened(tmp_path / "copy.db") as store, opened(tmp_path / "copy.db") as other:
        assert await Client(store, "root").value("a") == b"kept"
        with foreign_transaction(tmp_path / "copy.db"):
            assert await Client(other, "root").value("a") == b"kept"
        await Client(other, "root").put_ok("a", b"new")
        assert await Client(store, "root").value("a") == b"new"


@pytest.mark.parametrize("name", ["meta.db", "meta.db-wal"])
async def test_a_file_that_is_replaced_while_it_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Or else every commit would go into the file that is gone, compared with the one that is there."""
    async with opened(tmp_path / "meta.db"):
        pass
    open_reader = file.open_reader

    def slowly(path: Path) -> sqlite3.Connection:
        replace(tmp_path / name)
        return open_reader(path)

    monkeypatch.setattr(file, "open_reader", slowly)
    with pytest.raises(Unavailable, match="was replaced while it was open"):
        async with opened(tmp_path / "meta.db"):
            pass


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_without_descriptors_nothing_is_said_of_the_sessions_of_others_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """To see whether their process lives takes one; the table of the whole system may be full."""
    async with opened(tmp_path / "meta.db") as theirs, opened(tmp_path / "meta.db") as store:
        client = Client(store, "root")
        session = await theirs.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        await Client(theirs, "root").put_ok("brokers/1", b"", session=session)
        with monkeypatch.context() as short:

            def refuse(path: object, flags: int) -> int:
                raise OSError(code, os.strerror(code))

            short.setattr(owners.os, "open", refuse)
            reason = os.strerror(code)
            assert await store.write([Delete(client.key("brokers/1"))]) == NotApplied(f"the metadata transaction was rolled back: {reason}")
            with pytest.raises(Unavailable, match=reason):
                await client.get("brokers/1")

        assert await client.get("brokers/1") is not None
        await client.put_ok("a", b"")


async def test_a_defect_in_a_transaction_takes_the_store_down_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    outcomes: list[object] = []

    async def use() -> None:
        async with opened(tmp_path / "meta.db") as store:
            outcomes.append(await store._commits.submit(lambda transaction: 1 // 0))
            outcomes.append(await store._commits.submit(lambda transaction: 1))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await use()
    assert outcomes == [Unknown("the metadata store stopped in the middle of a commit"), NotApplied("the metadata store is closed")]
