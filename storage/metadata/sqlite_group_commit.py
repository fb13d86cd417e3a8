"""Group commit: what arrives while a transaction is under way goes into the next one together, with one fsync for all.

A request that cannot be queued, or whose transaction failed before COMMIT, certainly did not happen (`NotApplied`).
When COMMIT itself fails the outcome is `Unknown`: the disk may have taken it. So it is when the file turns out not to be there any more
(sqlite_files.py): the commit may have been before that, or into a file that nobody will find again.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from runtime.blocking import Blocking
from storage.limits import MIB, WRITE_REQUEST_BYTES_MAX
from storage.metadata.port import KeyChange, NotApplied, Unknown
from storage.metadata.sqlite_files import DatabaseFiles
from storage.metadata.sqlite_owners import Liveness
from storage.metadata.sqlite_schema import reason_of
from storage.metadata.sqlite_transaction import Transaction

BUSY_PAUSE_S: Final = 0.000_5
"""Between two attempts to begin while another process commits. SQLite's own waiting backs off to 100 ms and starves the unlucky."""
BATCH_REQUESTS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 1 * MIB
QUEUE_REQUESTS_MAX: Final = 4_096
QUEUE_BYTES_MAX: Final = 16 * MIB

assert WRITE_REQUEST_BYTES_MAX <= BATCH_BYTES_MAX <= QUEUE_BYTES_MAX, "a legal request fits a batch, and a batch the queue"

T = TypeVar("T")


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
