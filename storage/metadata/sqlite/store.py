"""The embedded metadata store: one SQLite file, one shard, any number of processes on one machine (not on a network disk).

Writes go through group commit (commits.py) on one thread: WAL journal, synchronous=FULL, so an applied request is on the disk.
Reads run on the loop, on a second connection that waits for nobody (`SqliteReader`).

Sessions (owners.py says when one is dead, `SqliteSession` how it is kept alive): the record of a dead session is never read, counts as
absent in every condition, and is removed, with its session, by whoever meets it: at opening, at every keep-alive, by a write that touches
it, and before a read that would have returned it. No process is needed to look after it.

The files are looked after (`DatabaseFiles`): once one of them was removed or replaced, nothing is written, read or acknowledged any more.
A commit or a read is reported only if the files were there after it; an idle store looks twice a second.

Hints: own changes as soon as they are committed, those of other processes by asking every 50 ms whether the file changed,
while somebody is subscribed.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from storage.errors import OutcomeUnknown, Unavailable
from storage.metadata import key_order
from storage.metadata.hints import Hints
from storage.metadata.port import (
    Applied,
    Key,
    KeyChange,
    NotApplied,
    OnChange,
    Record,
    Session,
    Subscription,
    Unknown,
    WriteOp,
    WriteOutcome,
)
from storage.metadata.sqlite import file
from storage.metadata.sqlite.commits import GroupCommit, Transaction, prepare
from storage.metadata.sqlite.file import DatabaseFiles
from storage.metadata.sqlite.owners import Liveness, Owners, owners_folder, read_boot_id

RENEWALS_PER_TIMEOUT = 3
_ONE: Final = "SELECT k, value, version, session FROM records WHERE k = ?"
_CEILING: Final = "SELECT k, value, version, session FROM records WHERE k >= ? ORDER BY k LIMIT 1"
_PAGE: Final = "SELECT k, value, version, session FROM records WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_PATHS: Final = "SELECT k, session FROM records WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
BUSY_TIMEOUT_S: Final = 5.0
"""How long a commit waits for one of another process."""
SESSION_TIMEOUT_MS_MIN: Final = 2_000
POLL_INTERVAL_S: Final = 0.05
PAGE_RECORDS: Final = 128
READ_ATTEMPTS_MAX: Final = 3
LOOK_EVERY_S: Final = 0.5
"""At the files, when there is no traffic; and the longest time until the log and /readyz tell what traffic has found."""
LOST_EFFECT: Final = "no write is taken or acknowledged any more, and nothing is read"
LOST_FIX: Final = (
    "before you stop this process copy the file from /proc/PID/fd (docs/guides/backup.md, 'When the metadata file is lost'); "
    "put it, or a copy of your own, back under its name, and start again"
)

Row = tuple[bytes, bytes, int, int | None]
T = TypeVar("T")

log = structlog.get_logger("metadata")


class SqliteSession:
    """Lost when the file says so, or when its time has passed without a renewal that is known to be committed."""

    def __init__(self, session_id: int, *, timeout_ms: int, renewed_ms: int, commits: GroupCommit, liveness: Liveness) -> None:
        self._session_id = session_id
        self._timeout_ms = timeout_ms
        self._renewed_ms = renewed_ms
        self._commits = commits
        self._liveness = liveness
        self._lost = asyncio.Event()
        self._is_gone = False

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_lost(self) -> bool:
        if not self._lost.is_set() and self._remaining_s() <= 0:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        """Raise `Unavailable` or `OutcomeUnknown` if the store could not do it; the session then ends by itself, unrenewed."""
        self._lost.set()
        if self._is_gone:
            return
        outcome = await self._commits.submit(lambda transaction: transaction.end_session(self._session_id))
        match outcome:
            case NotApplied(reason):
                raise Unavailable(f"session not closed: {reason}")
            case Unknown(reason):
                raise OutcomeUnknown(f"session perhaps not closed: {reason}")

    def ended(self) -> None:
        """Its records are gone from the file."""
        self._is_gone = True
        self._lost.set()

    async def keep_alive(self) -> None:
        """Renew until it is lost. Belongs into the nursery of the store."""
        while not await self._is_lost_within(self._timeout_ms / 1_000 / RENEWALS_PER_TIMEOUT):
            try:
                async with asyncio.timeout(self._remaining_s()):
                    renewed = await self._commits.submit(lambda transaction: transaction.renew_session(self._session_id))
            except TimeoutError:
                break
            match renewed:
                case None:
                    break
                case int():
                    self._renewed_ms = renewed
                case NotApplied() | Unknown():
                    # Tried again in a third of the timeout, as long as the time of the last renewal lasts.
                    continue
        self._lost.set()

    async def _is_lost_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(min(seconds, self._remaining_s())):
                await self._lost.wait()
        except TimeoutError:
            return self.is_lost
        return True

    def _remaining_s(self) -> float:
        return (self._renewed_ms + self._timeout_ms - self._liveness.now_ms()) / 1_000


class DeadSessionFound(Exception):
    """The answer would hold records of a dead session: end it, then read again."""


class SqliteReader:
    """Reads that see every commit that was acknowledged before they began, by any process. Raises sqlite3.Error and `DeadSessionFound`.

    A WAL reader waits for nobody and a point read costs less than handing it to a thread, so these run on the loop.
    Every statement is read to its end: one left open would pin its snapshot, and later reads would see the past.
    """

    def __init__(self, connection: sqlite3.Connection, liveness: Liveness) -> None:
        self._connection = connection
        self._liveness = liveness
        self._data_version = -1
        self._last_change = 0

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        """All of one moment."""
        if len(keys) == 1:
            return [self._get(keys[0])]
        self._connection.execute("BEGIN")
        try:
            return [self._get(key) for key in keys]
        finally:
            self._connection.execute("ROLLBACK")

    def ceiling(self, path: str, within: str) -> Record | None:
        seek, prefix = key_order.ceiling_bounds(path, within)
        rows = self._connection.execute(_CEILING, (seek,)).fetchall()
        return self._record(rows[0]) if rows and rows[0][0].startswith(prefix) else None

    def records_between(self, start: bytes, end: bytes, *, records_max: int) -> list[Record]:
        return [self._record(row) for row in self._connection.execute(_PAGE, (start, end, records_max)).fetchall()]

    def paths_between(self, start: bytes, end: bytes, *, keys_max: int) -> list[str]:
        rows = self._connection.execute(_PATHS, (start, end, keys_max)).fetchall()
        for _, session_id in rows:
            self._check(session_id)
        return [key_order.decode(encoded) for encoded, _ in rows]

    def last_version(self) -> int:
        """The last version id given out."""
        version = self._connection.execute("SELECT version FROM counters").fetchall()[0][0]
        assert isinstance(version, int)
        return version

    def skip_changes(self) -> None:
        """`foreign_changes` tells what is committed from here on."""
        self._last_change = self._connection.execute("SELECT change FROM counters").fetchall()[0][0]

    def foreign_changes(self) -> list[KeyChange]:
        """What other stores changed since the last call, without versions; incomplete when that was very much."""
        data_version = self._connection.execute("PRAGMA data_version").fetchall()[0][0]
        if data_version == self._data_version:
            return []
        rows = self._connection.execute(
            "SELECT change, paths FROM changes WHERE change > ? AND owner != ? ORDER BY change",
            (self._last_change, self._liveness.owners.own_id),
        ).fetchall()
        self._data_version = data_version
        if rows:
            self._last_change = rows[-1][0]
        return [(path, None) for _, paths in rows for path in paths.split("\n")]

    def close(self) -> None:
        self._connection.close()

    def _get(self, key: Key) -> Record | None:
        rows = self._connection.execute(_ONE, (key_order.encode(key.path),)).fetchall()
        return self._record(rows[0]) if rows else None

    def _record(self, row: Row) -> Record:
        encoded, value, version, session_id = row
        self._check(session_id)
        return Record(key_order.decode(encoded), value, version)

    def _check(self, session_id: int | None) -> None:
        if session_id is not None and not self._liveness.is_alive(self._connection, session_id):
            raise DeadSessionFound


def _ignore(_cause: str) -> None:
    pass


class SqliteMetadataStore:
    """Made by `open`."""

    def __init__(
        self,
        path: Path,
        *,
        files: DatabaseFiles,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        liveness: Liveness,
        blocking: Blocking,
        busy_timeout_s: float,
        on_lost: Callable[[str], None],
    ) -> None:
        self._path = path
        self._files = files
        self._on_lost = on_lost
        self._writer = writer
        self._liveness = liveness
        self._blocking = blocking
        self._reader = SqliteReader(reader, liveness)
        self._commits = GroupCommit(
            writer, files=self._files, liveness=liveness, blocking=blocking, busy_timeout_s=busy_timeout_s, committed=self._on_commit
        )
        self._nursery = Nursery()
        self._hints = Hints()
        self._is_polling = False
        self._sessions: dict[int, SqliteSession] = {}
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        blocking: Blocking,
        clock: Clock,
        ids: IdSource,
        boot_id: str | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        on_lost: Callable[[str], None] = _ignore,
    ) -> "SqliteMetadataStore":
        """Open the file, made with its folders if there is none.

        `blocking` (one thread) belongs to the store from now on. `clock`: its monotonic time must be the machine's.
        `boot_id` None: ask the system. `on_lost` is called once, on the loop, when the store is of no use any more, with the reason.
        Raise `Unavailable` with cause and fix, or `IncompatibleFormat`.
        """
        try:
            store = await blocking.run(
                lambda: cls._open(
                    path, blocking=blocking, clock=clock, ids=ids, boot_id=boot_id, busy_timeout_s=busy_timeout_s, on_lost=on_lost
                )
            )
        except BaseException:
            blocking.close()
            raise
        await store.start()
        return store

    @classmethod
    def _open(
        cls,
        path: Path,
        *,
        blocking: Blocking,
        clock: Clock,
        ids: IdSource,
        boot_id: str | None,
        busy_timeout_s: float,
        on_lost: Callable[[str], None],
    ) -> "SqliteMetadataStore":
        file.ensure_file(path, unique_name=ids.next_ulid())
        file.check_format(path)
        with contextlib.ExitStack() as undo:
            try:
                owners = Owners(owners_folder(path), ids=ids)
                undo.callback(owners.leave)
                files = DatabaseFiles(path)
                writer = undo.enter_context(contextlib.closing(file.open_writer(path)))
                files.add_beside()
                reader = undo.enter_context(contextlib.closing(file.open_reader(path)))
                owners.remove_dead_files()
                liveness = Liveness(owners=owners, clock=clock, boot_id=read_boot_id() if boot_id is None else boot_id)
                store = cls(
                    path,
                    files=files,
                    writer=writer,
                    reader=reader,
                    liveness=liveness,
                    blocking=blocking,
                    busy_timeout_s=busy_timeout_s,
                    on_lost=on_lost,
                )
            except (OSError, sqlite3.Error) as error:
                raise Unavailable(f"cannot open the metadata file: {file.reason_of(error)}: path={str(path)!r}") from error
            if (lost := files.look()) is not None:
                raise Unavailable(lost)
            undo.pop_all()
        return store

    async def start(self) -> None:
        """The last part of opening."""
        await self._nursery.__aenter__()
        self._nursery.spawn(self._commits.run(), name="metadata commits")
        self._nursery.spawn(self._watch_files(), name="metadata files")
        try:
            await self._end_dead_sessions()
        except BaseException:
            await self.close()
            raise

    @property
    def transactions(self) -> int:
        """Transactions committed by this store: fewer than requests when these come together."""
        return self._commits.transactions

    def shard_of(self, partition_key: str) -> int:  # noqa: ARG002 - there is one shard
        return 0

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if not ops:
            return Applied(())
        steps, size_bytes = prepare(ops)
        outcome = await self._commits.submit(lambda transaction: transaction.apply(steps), size_bytes=size_bytes)
        return outcome if isinstance(outcome, NotApplied | Unknown) else Applied(outcome)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        records: list[Record | None] = []
        for first in range(0, len(keys), PAGE_RECORDS):
            if first > 0:
                await asyncio.sleep(0)
            page = keys[first : first + PAGE_RECORDS]
            records += await self._read(partial(self._reader.get_many, page))
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        return await self._read(lambda: self._reader.ceiling(key.path, within))

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        low, high = key_order.range_bounds(start.path, end)
        while True:
            page = await self._read(partial(self._reader.records_between, low, high, records_max=PAGE_RECORDS))
            for record in page:
                yield record
            if len(page) < PAGE_RECORDS:
                return
            low = key_order.encode(page[-1].path) + b"\x00"
            await asyncio.sleep(0)

    async def list(self, start: Key, end: str) -> list[str]:
        low, high = key_order.range_bounds(start.path, end)
        paths: list[str] = []
        while True:
            page = await self._read(partial(self._reader.paths_between, low, high, keys_max=PAGE_RECORDS))
            paths += page
            if len(page) < PAGE_RECORDS:
                return paths
            low = key_order.encode(page[-1]) + b"\x00"
            await asyncio.sleep(0)

    async def open_session(self, *, timeout_ms: int) -> Session:
        assert timeout_ms >= SESSION_TIMEOUT_MS_MIN, f"session timeout too short: timeout_ms={timeout_ms}"
        outcome = await self._commits.submit(lambda transaction: transaction.open_session(timeout_ms=timeout_ms))
        if isinstance(outcome, NotApplied | Unknown):
            # Should it exist after all it holds no record and ends unrenewed: as good as not opened.
            raise Unavailable(f"session not opened: {outcome.reason}")
        if self._is_closed:
            raise Unavailable("session not opened: the metadata store is closed")
        session_id, renewed_ms = outcome
        session = SqliteSession(session_id, timeout_ms=timeout_ms, renewed_ms=renewed_ms, commits=self._commits, liveness=self._liveness)
        self._sessions[session_id] = session
        self._nursery.spawn(self._keep_alive(session), name=f"metadata session {session_id}")
        return session

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        subscription = self._hints.subscribe(callback, prefix)
        if not self._is_polling and not self._is_closed:
            self._is_polling = True
            # A failed look is a late hint (I10); reads and the probe say what is wrong with the file.
            with contextlib.suppress(sqlite3.Error):
                self._reader.skip_changes()
            self._nursery.spawn(self._poll(), name="metadata hints")
        return subscription

    async def probe(self) -> None:
        await self._read(self._reader.last_version)

    async def close(self) -> None:
        """Ends its sessions. Requests that have not begun are not applied."""
        if self._is_closed:
            return
        self._is_closed = True
        own_sessions = dict(self._sessions)
        try:
            if own_sessions:
                # Whatever becomes of it: leaving the owners, below, ends them, too.
                await self._commits.submit(lambda transaction: transaction.end_sessions(own_sessions))
            await self._commits.close()
            await self._nursery.__aexit__(None, None, None)
        finally:
            self._hints.cancel_all()
            self._reader.close()
            await self._blocking.run(self._writer.close)
            self._liveness.owners.leave()
            self._blocking.close()
            for session in own_sessions.values():
                session.ended()

    async def _read(self, read: Callable[[], T]) -> T:
        for _ in range(READ_ATTEMPTS_MAX):
            if self._is_closed:
                raise Unavailable("the metadata store is closed")
            try:
                found = read()
            except DeadSessionFound:
                await self._end_dead_sessions()
            except (OSError, sqlite3.Error) as error:
                # An OSError: whether the owner of a session lives could not be seen, which takes a descriptor.
                raise Unavailable(f"cannot read the metadata file: {file.reason_of(error)}: path={str(self._path)!r}") from error
            else:
                # It may have read a commit that nobody will find again, and whose outcome is therefore reported to nobody.
                if (lost := self._files.look()) is not None:
                    raise Unavailable(lost)
                return found
        raise Unavailable(f"sessions died faster than they could be ended: attempts={READ_ATTEMPTS_MAX}")

    async def _end_dead_sessions(self) -> None:
        outcome = await self._commits.submit(Transaction.end_dead_sessions)
        if isinstance(outcome, NotApplied | Unknown):
            raise Unavailable(f"{outcome.reason}: path={str(self._path)!r}")

    async def _watch_files(self) -> None:
        while True:
            self._files.look()
            if self._files.lost is not None:
                log.error("metadata_file_lost", cause=self._files.lost, effect=LOST_EFFECT, fix=LOST_FIX, pid=os.getpid())
                self._on_lost(self._files.lost)
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _keep_alive(self, session: SqliteSession) -> None:
        try:
            await session.keep_alive()
        finally:
            self._sessions.pop(session.session_id, None)

    async def _poll(self) -> None:
        try:
            while self._hints:
                await asyncio.sleep(POLL_INTERVAL_S)
                with contextlib.suppress(sqlite3.Error):
                    self._hints.publish(self._reader.foreign_changes())
        finally:
            self._is_polling = False

    def _on_commit(self, changed: Sequence[KeyChange], ended_sessions: Sequence[int]) -> None:
        if self._hints:
            self._hints.publish(changed)
        for session_id in ended_sessions:
            if (session := self._sessions.get(session_id)) is not None:
                session.ended()
