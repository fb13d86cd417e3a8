"""Group commit: what arrives while a transaction is under way goes into the next one together, with one fsync for all.

A request that cannot be queued, or whose transaction failed before COMMIT, certainly did not happen (`NotApplied`).
When COMMIT itself fails the outcome is `Unknown`: the disk may have taken it. So it is when the file turns out not to be there any more
(`DatabaseFiles`): the commit may have been before that, or into a file that nobody will find again.

`Transaction` is what happens between BEGIN IMMEDIATE and COMMIT: requests, sessions, counters. Plain SQL, on the thread that commits.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from runtime.blocking import Blocking
from storage.limits import METADATA_VALUE_BYTES_MAX, MIB, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata import key_order
from storage.metadata.port import ABSENT, Delete, DeleteRange, KeyChange, NotApplied, OpResult, Put, Status, Unknown, WriteOp
from storage.metadata.sqlite.file import CHANGES_KEPT, DatabaseFiles, reason_of
from storage.metadata.sqlite.owners import Liveness

CHANGE_PATHS_MAX: Final = 1_000
"""Paths that one commit leaves for the subscribers of other processes; what is above is a missing hint."""
_PUT: Final = """
INSERT INTO records (k, version, session, value) VALUES (?, ?, ?, ?)
ON CONFLICT (k) DO UPDATE SET version = excluded.version, session = excluded.session, value = excluded.value
"""
_REPLACE: Final = "UPDATE records SET version = ?, value = ? WHERE k = ? AND version = ? AND session IS NULL"
_ADD: Final = "INSERT INTO records (k, version, session, value) VALUES (?, ?, NULL, ?) ON CONFLICT (k) DO NOTHING"
_CURRENT: Final = "SELECT version, session FROM records WHERE k = ?"
_KINDS: Final = (Put, Delete, DeleteRange)
BUSY_PAUSE_S: Final = 0.000_5
"""Between two attempts to begin while another process commits. SQLite's own waiting backs off to 100 ms and starves the unlucky."""
BATCH_REQUESTS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 1 * MIB
QUEUE_REQUESTS_MAX: Final = 4_096
QUEUE_BYTES_MAX: Final = 16 * MIB

T = TypeVar("T")


class EncodedOp(NamedTuple):
    """One op of a request, checked and encoded before it is queued: what is wrong with it is its own caller's business."""

    place: int
    """Its index in the request."""
    op: WriteOp
    start: bytes
    end: bytes


class Prepared(NamedTuple):
    steps: list[EncodedOp]
    """In the order of application."""
    size_bytes: int


def prepare(ops: Sequence[WriteOp]) -> Prepared:
    """Puts, then deletes, then range deletes."""
    assert len(ops) <= WRITE_REQUEST_OPS_MAX, f"too many ops in one request: {len(ops)}"
    steps: list[EncodedOp] = []
    size_bytes = 0
    for kind in _KINDS:
        for place, op in enumerate(ops):
            if type(op) is not kind:
                continue
            match op:
                case Put():
                    assert len(op.value) <= METADATA_VALUE_BYTES_MAX, f"value too large: key={op.key.path!r} bytes={len(op.value)}"
                    step = EncodedOp(place, op, key_order.encode(op.key.path), b"")
                    size_bytes += len(op.value)
                case Delete():
                    step = EncodedOp(place, op, key_order.encode(op.key.path), b"")
                case DeleteRange():
                    step = EncodedOp(place, op, *key_order.range_bounds(op.start.path, op.end))
            size_bytes += len(step.start) + len(step.end)
            steps.append(step)
    assert size_bytes <= WRITE_REQUEST_BYTES_MAX, f"request too large: bytes={size_bytes} ops={len(ops)}"
    return Prepared(steps, size_bytes)


class Transaction:
    """One open transaction. `changed` and `ended_sessions` are for those who want to hear of it after the commit."""

    def __init__(self, connection: sqlite3.Connection, liveness: Liveness) -> None:
        self._connection = connection
        self._liveness = liveness
        self._version, self._session, self._change = connection.execute("SELECT version, session, change FROM counters").fetchall()[0]
        self._counters_read = (self._version, self._session)
        self._alive: dict[int, bool] = {}
        self.changed: list[KeyChange] = []
        self.ended_sessions: list[int] = []

    def apply(self, steps: Sequence[EncodedOp]) -> tuple[OpResult, ...]:
        """One request; the results in the order of its ops."""
        results: dict[int, OpResult] = {}
        for step in steps:
            match step.op:
                case Put():
                    results[step.place] = self._put(step.op, step.start)
                case Delete():
                    results[step.place] = self._delete(step.op, step.start)
                case DeleteRange():
                    results[step.place] = self._delete_range(step.start, step.end)
        return tuple(results[place] for place in range(len(steps)))

    def open_session(self, *, timeout_ms: int) -> tuple[int, int]:
        """Its id, and when its time began."""
        self._session += 1
        now_ms = self._liveness.now_ms()
        self._connection.execute(
            "INSERT INTO sessions (id, owner, boot, renewed_ms, timeout_ms) VALUES (?, ?, ?, ?, ?)",
            (self._session, self._liveness.owners.own_id, self._liveness.boot_id, now_ms, timeout_ms),
        )
        return self._session, now_ms

    def renew_session(self, session_id: int) -> int | None:
        """When its time began again; None if it is dead. Whoever keeps alive also looks after the dead."""
        self.end_dead_sessions()
        if not self._is_alive(session_id):
            return None
        now_ms = self._liveness.now_ms()
        self._connection.execute("UPDATE sessions SET renewed_ms = ? WHERE id = ?", (now_ms, session_id))
        return now_ms

    def end_session(self, session_id: int) -> None:
        """The session and its records go; no error if it is gone already."""
        rows = self._connection.execute("SELECT k FROM records WHERE session = ?", (session_id,)).fetchall()
        self._connection.execute("DELETE FROM records WHERE session = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        self._alive[session_id] = False
        self.changed += [(key_order.decode(row[0]), None) for row in rows]
        self.ended_sessions.append(session_id)

    def end_sessions(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            self.end_session(session_id)

    def end_dead_sessions(self) -> None:
        self.end_sessions(self._liveness.dead_sessions(self._connection))

    def finish(self) -> None:
        """Write what the whole batch shares, before COMMIT."""
        if self.changed:
            self._change += 1
            paths = "\n".join([path for path, _ in self.changed[:CHANGE_PATHS_MAX]])
            self._connection.execute(
                "INSERT OR REPLACE INTO changes (slot, change, owner, paths) VALUES (?, ?, ?, ?)",
                (self._change % CHANGES_KEPT, self._change, self._liveness.owners.own_id, paths),
            )
        if self.changed or self._counters_read != (self._version, self._session):
            self._connection.execute(
                "UPDATE counters SET version = ?, session = ?, change = ?", (self._version, self._session, self._change)
            )

    def _put(self, op: Put, key: bytes) -> OpResult:
        version = self._version + 1
        if op.session is not None or op.expected_version is None or not self._put_plainly(op, key, version):
            current = self._current(key)
            if op.expected_version is not None and op.expected_version != current:
                return OpResult(Status.UNEXPECTED_VERSION, None)
            if op.session is not None and not self._is_alive(op.session):
                return OpResult(Status.SESSION_DOES_NOT_EXIST, None)
            self._connection.execute(_PUT, (key, version, op.session, op.value))
        self._version = version
        self.changed.append((op.key.path, version))
        return OpResult(Status.OK, version)

    def _put_plainly(self, op: Put, key: bytes, version: int) -> bool:
        """The usual case in one statement: no session before or after, and the condition holds."""
        if op.expected_version == ABSENT:
            return self._connection.execute(_ADD, (key, version, op.value)).rowcount == 1
        return self._connection.execute(_REPLACE, (version, op.value, key, op.expected_version)).rowcount == 1

    def _delete(self, op: Delete, key: bytes) -> OpResult:
        current = self._current(key)
        if op.expected_version is not None and op.expected_version != current:
            return OpResult(Status.UNEXPECTED_VERSION, None)
        if current == ABSENT:
            return OpResult(Status.KEY_NOT_FOUND, None)
        self._connection.execute("DELETE FROM records WHERE k = ?", (key,))
        self.changed.append((op.key.path, None))
        return OpResult(Status.OK, None)

    def _delete_range(self, start: bytes, end: bytes) -> OpResult:
        rows = self._connection.execute("SELECT k FROM records WHERE k >= ? AND k < ?", (start, end)).fetchall()
        self._connection.execute("DELETE FROM records WHERE k >= ? AND k < ?", (start, end))
        self.changed += [(key_order.decode(row[0]), None) for row in rows]
        return OpResult(Status.OK, None)

    def _current(self, key: bytes) -> int:
        """The version of the record, or ABSENT; a record of a dead session goes first."""
        rows = self._connection.execute(_CURRENT, (key,)).fetchall()
        if not rows:
            return ABSENT
        version, session_id = rows[0]
        if session_id is not None and not self._is_alive(session_id):
            self.end_session(session_id)
            return ABSENT
        assert isinstance(version, int)
        return version

    def _is_alive(self, session_id: int) -> bool:
        alive = self._alive.get(session_id)
        if alive is None:
            alive = self._alive[session_id] = self._liveness.is_alive(self._connection, session_id)
        return alive


assert WRITE_REQUEST_BYTES_MAX <= BATCH_BYTES_MAX <= QUEUE_BYTES_MAX, "a legal request fits a batch, and a batch the queue"


@dataclass(frozen=True, slots=True)
class _Request:
    work: Callable[[Transaction], Any]
    size_bytes: int
    done: "asyncio.Future[Any]"


@dataclass(frozen=True, slots=True)
class _Committed:
    values: list[Any]
    changed: list[KeyChange]
    ended_sessions: list[int]


class GroupCommit:
    """The only user of the writing connection.

    `busy_timeout_s`: about how long a transaction waits for one of another process before it is given up.
    `committed(changes, ended sessions)` is called on the loop after each commit, before those who wait for it hear of it.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        files: DatabaseFiles,
        liveness: Liveness,
        blocking: Blocking,
        busy_timeout_s: float,
        committed: Callable[[list[KeyChange], list[int]], None],
    ) -> None:
        self._connection = connection
        self._files = files
        self._liveness = liveness
        self._blocking = blocking
        self._begin_attempts = int(busy_timeout_s / BUSY_PAUSE_S) + 1
        self._committed = committed
        self._queue: deque[_Request] = deque()
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_closed = False
        self.transactions = 0
        """Committed so far."""

    async def submit(self, work: Callable[[Transaction], T], *, size_bytes: int = 0) -> T | NotApplied | Unknown:
        """What `work` returned, once it is durable. It runs on the blocking pool. Cancelled: unknown."""
        if self._is_closed:
            return NotApplied("the metadata store is closed")
        if len(self._queue) >= QUEUE_REQUESTS_MAX or self._queue_bytes + size_bytes > QUEUE_BYTES_MAX:
            return NotApplied(f"the metadata queue is full: requests={len(self._queue)} bytes={self._queue_bytes}")
        request = _Request(work, size_bytes, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._queue_bytes += size_bytes
        self._wake.set()
        outcome: T | NotApplied | Unknown = await request.done
        return outcome

    async def run(self) -> None:
        """Commit until closed. Belongs into the nursery of the store."""
        batch: list[_Request] = []
        try:
            while not self._is_closed:
                batch = self._take_batch()
                if batch:
                    works = [request.work for request in batch]
                    self._settle(batch, await self._blocking.run(partial(self._transact, works)))
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._is_closed = True
            _resolve(batch, Unknown("the metadata store stopped in the middle of a commit"))
            _resolve(list(self._queue), NotApplied("the metadata store is closed"))
            self._queue.clear()
            self._stopped.set()

    async def close(self) -> None:
        """Refuse what has not begun and wait for the commit under way, which ends as soon as the disk and the busy timeout allow."""
        self._is_closed = True
        self._wake.set()
        await self._stopped.wait()

    def _take_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        batch_bytes = 0
        while self._queue and len(batch) < BATCH_REQUESTS_MAX:
            request = self._queue[0]
            if batch and batch_bytes + request.size_bytes > BATCH_BYTES_MAX:
                break
            self._queue.popleft()
            self._queue_bytes -= request.size_bytes
            if not request.done.done():
                batch.append(request)
                batch_bytes += request.size_bytes
        return batch

    def _settle(self, batch: list[_Request], outcome: _Committed | NotApplied | Unknown) -> None:
        if isinstance(outcome, NotApplied | Unknown):
            _resolve(batch, outcome)
            return
        self.transactions += 1
        self._committed(outcome.changed, outcome.ended_sessions)
        for request, value in zip(batch, outcome.values, strict=True):
            if not request.done.done():
                request.done.set_result(value)

    def _transact(self, works: list[Callable[[Transaction], Any]]) -> _Committed | NotApplied | Unknown:
        """Runs on the pool."""
        connection = self._connection
        if (lost := self._files.look()) is not None:
            return NotApplied(lost)
        try:
            self._begin()
        except sqlite3.Error as error:
            return NotApplied(f"the metadata file takes no transaction: {reason_of(error)}")
        try:
            transaction = Transaction(connection, self._liveness)
            values = [work(transaction) for work in works]
            transaction.finish()
        except (OSError, sqlite3.Error) as error:
            # An OSError: whether the owner of a session lives could not be seen, which takes a descriptor.
            self._roll_back()
            return NotApplied(f"the metadata transaction was rolled back: {reason_of(error)}")
        except BaseException:
            self._roll_back()
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return Unknown(f"the metadata commit failed: {reason_of(error)}")
        if (lost := self._files.look()) is not None:
            return Unknown(lost)
        return _Committed(values, transaction.changed, transaction.ended_sessions)

    def _begin(self) -> None:
        for attempt in range(1, self._begin_attempts + 1):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == self._begin_attempts:
                    raise
            time.sleep(BUSY_PAUSE_S)

    def _roll_back(self) -> None:
        # Some errors roll back by themselves; where even this fails the next BEGIN is refused, and says why.
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def _resolve(requests: list[_Request], outcome: NotApplied | Unknown) -> None:
    for request in requests:
        if not request.done.done():
            request.done.set_result(outcome)
