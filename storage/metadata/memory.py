"""The metadata store in memory: for tests, the simulation and brokers that share one process. Nothing survives it.

What Oxia promises holds here, too (port.py), on several shards, so that a caller who mixes shards in one request is found out.
Nothing here awaits while it works: `Shard` applies a request at once, in the caller's turn of the loop.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata import key_order
from storage.metadata.hints import Hints
from storage.metadata.key_order import SortedKeys
from storage.metadata.port import (
    ABSENT,
    Applied,
    Delete,
    DeleteRange,
    Key,
    KeyChange,
    NotApplied,
    OnChange,
    OpResult,
    Put,
    Record,
    Session,
    Status,
    Subscription,
    WriteOp,
    WriteOutcome,
)

UNEXPECTED_VERSION = OpResult(Status.UNEXPECTED_VERSION, None)
KEY_NOT_FOUND = OpResult(Status.KEY_NOT_FOUND, None)
SESSION_DOES_NOT_EXIST = OpResult(Status.SESSION_DOES_NOT_EXIST, None)
DELETED = OpResult(Status.OK, None)
_KINDS = (Put, Delete, DeleteRange)
SESSION_TIMEOUT_MS_MIN: Final = 2_000
TICK_S_MIN: Final = 0.001
PAGE_KEYS: Final = 256
_CLOSED: Final = "the metadata store is closed"


class Shard:
    """Applies requests one after the other; nobody sees a request half applied, since nothing here awaits."""

    __slots__ = ("_order", "ephemeral", "records", "version")

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.ephemeral: dict[str, int] = {}
        """path → session, for the records that have one."""
        self.version = 0
        self._order = SortedKeys()

    def copy(self) -> "Shard":
        """Another shard that holds the same."""
        other = Shard()
        other.put_back(self)
        return other

    def put_back(self, copy: "Shard") -> None:
        """Hold what `copy` does, and nothing else: as a store that was put back to a copy."""
        self.records, self.ephemeral, self.version = dict(copy.records), dict(copy.ephemeral), copy.version
        self._order = SortedKeys()
        for path in self.records:
            self._order.add(key_order.encode(path))

    def apply(
        self, ops: Sequence[WriteOp], has_session: Callable[[int], bool], changed: Callable[[Sequence[KeyChange]], None] | None
    ) -> tuple[OpResult, ...]:
        """Puts, then deletes, then range deletes; the results in the order of `ops`. `changed` hears of every change."""
        if len(ops) == 1 and type(ops[0]) is Put:
            return (self._put(ops[0], has_session, changed),)
        results: dict[int, OpResult] = {}
        for kind in _KINDS:
            for place, op in enumerate(ops):
                if type(op) is not kind:
                    continue
                match op:
                    case Put():
                        results[place] = self._put(op, has_session, changed)
                    case Delete():
                        results[place] = self._delete(op, changed)
                    case DeleteRange():
                        results[place] = self._delete_range(op, changed)
        return tuple(results[place] for place in range(len(ops)))

    def _put(self, op: Put, has_session: Callable[[int], bool], changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        assert len(op.value) <= METADATA_VALUE_BYTES_MAX, f"value too large: key={op.key.path!r} bytes={len(op.value)}"
        path = op.key.path
        record = self.records.get(path)
        expected = op.expected_version
        if expected is not None and expected != (ABSENT if record is None else record.version):
            return UNEXPECTED_VERSION
        if op.session is not None and not has_session(op.session):
            return SESSION_DOES_NOT_EXIST
        if record is None:
            self._order.add(key_order.encode(path))
        self.version += 1
        self.records[path] = Record(path, op.value, self.version)
        if op.session is not None:
            self.ephemeral[path] = op.session
        elif self.ephemeral:
            # As in Oxia, the last put decides whose record it is: one without a session makes it a plain one.
            self.ephemeral.pop(path, None)
        if changed is not None:
            changed(((path, self.version),))
        return OpResult(Status.OK, self.version)

    def _delete(self, op: Delete, changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        record = self.records.get(op.key.path)
        if op.expected_version is not None and op.expected_version != (ABSENT if record is None else record.version):
            return UNEXPECTED_VERSION
        if record is None:
            return KEY_NOT_FOUND
        self.remove((op.key.path,))
        if changed is not None:
            changed(((op.key.path, None),))
        return DELETED

    def _delete_range(self, op: DeleteRange, changed: Callable[[Sequence[KeyChange]], None] | None) -> OpResult:
        paths = self.paths_between(*key_order.range_bounds(op.start.path, op.end), keys_max=len(self.records))
        self.remove(paths)
        if changed is not None:
            changed([(path, None) for path in paths])
        return DELETED

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            del self.records[path]
            self.ephemeral.pop(path, None)
            self._order.remove(key_order.encode(path))

    def paths_between(self, start: bytes, end: bytes, *, keys_max: int) -> list[str]:
        return [key_order.decode(key) for key in self._order.between(start, end, keys_max=keys_max)]

    def ceiling(self, path: str, within: str) -> Record | None:
        seek, prefix = key_order.ceiling_bounds(path, within)
        found = self._order.ceiling(seek)
        return self.records[key_order.decode(found)] if found is not None and found.startswith(prefix) else None


class MemorySession:
    """Its keep-alive is a timer on the loop; a loop that stood still for longer than the timeout has lost the session."""

    def __init__(self, session_id: int, *, timeout_ms: int, shared: "SharedRecords") -> None:
        self._session_id = session_id
        self._timeout_s = timeout_ms / 1_000
        self._shared = shared
        self._ended = asyncio.Event()
        self._keeps_alive = True
        self._loop = asyncio.get_running_loop()
        self.deadline_s = shared.clock.monotonic_s() + self._timeout_s
        self._timer = self._loop.call_later(self._timeout_s / 3, self._tick)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_lost(self) -> bool:
        self._shared.end_expired_sessions()
        return self._ended.is_set()

    async def wait_lost(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        self._shared.end_session(self)

    def stop_keeping_alive(self) -> None:
        """As when its process hangs or is killed: it ends when its timeout has passed."""
        self._keeps_alive = False

    def end(self) -> None:
        self._timer.cancel()
        self._ended.set()

    def _tick(self) -> None:
        self._shared.end_expired_sessions()
        if self._ended.is_set():
            return
        now_s = self._shared.clock.monotonic_s()
        if self._keeps_alive:
            self.deadline_s = now_s + self._timeout_s
        # A pause too short for the clock to notice would be taken again and again.
        pause_s = max(min(self._timeout_s / 3, self.deadline_s - now_s), TICK_S_MIN)
        self._timer = self._loop.call_later(pause_s, self._tick)


class SharedRecords:
    """What all clients of one memory store have in common."""

    def __init__(self, *, clock: Clock, shards: int) -> None:
        assert shards > 0
        self.clock = clock
        self.shards = [Shard() for _ in range(shards)]
        self.sessions: dict[int, MemorySession] = {}
        self.hints: list[Hints] = []
        self._last_session_id = 0
        self._no_deadline_before_s = float("inf")

    def open_session(self, timeout_ms: int) -> MemorySession:
        self._last_session_id += 1
        session = MemorySession(self._last_session_id, timeout_ms=timeout_ms, shared=self)
        self.sessions[session.session_id] = session
        self._no_deadline_before_s = min(self._no_deadline_before_s, session.deadline_s)
        return session

    def end_session(self, session: MemorySession) -> None:
        if self.sessions.pop(session.session_id, None) is None:
            return
        for shard in self.shards:
            paths = [path for path, session_id in shard.ephemeral.items() if session_id == session.session_id]
            shard.remove(paths)
            self.publish([(path, None) for path in paths])
        session.end()

    def end_expired_sessions(self) -> None:
        now_s = self.clock.monotonic_s()
        if now_s < self._no_deadline_before_s:
            return
        for session in [session for session in self.sessions.values() if session.deadline_s <= now_s]:
            self.end_session(session)
        self._no_deadline_before_s = min((session.deadline_s for session in self.sessions.values()), default=float("inf"))

    def copy(self) -> list[Shard]:
        """What a backup of this moment holds."""
        return [shard.copy() for shard in self.shards]

    def put_back(self, copy: list[Shard]) -> None:
        """The store is older from now on. Sessions that are alive go on, as in Oxia; ephemeral records of others are gone."""
        for shard, older in zip(self.shards, copy, strict=True):
            shard.put_back(older)
            shard.remove([path for path, session_id in shard.ephemeral.items() if session_id not in self.sessions])

    def publish(self, changes: Sequence[KeyChange]) -> None:
        for hints in self.hints:
            hints.publish(changes)


class MemoryMetadataStore:
    """A client of records held in this process. `client()` opens further ones on the same records.

    `clock` decides when sessions end; keep-alives are timers of the running loop, so a loop of virtual time drives both.
    """

    def __init__(self, *, clock: Clock, shards: int = 4, shared: SharedRecords | None = None) -> None:
        self._clock = clock
        self._shared = SharedRecords(clock=clock, shards=shards) if shared is None else shared
        self._shards = self._shared.shards
        self._sessions: list[MemorySession] = []
        self._hints = Hints()
        self._is_closed = False

    @property
    def shared(self) -> SharedRecords:
        """What all clients of these records have in common."""
        return self._shared

    def client(self) -> "MemoryMetadataStore":
        """Another client, as of another process: closing it ends its own sessions and subscriptions only."""
        return MemoryMetadataStore(clock=self._clock, shared=self._shared)

    def shard_of(self, partition_key: str) -> int:
        return zlib.crc32(partition_key.encode()) % len(self._shards)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self._is_closed:
            return NotApplied(_CLOSED)
        if not ops:
            return Applied(())
        assert len(ops) <= WRITE_REQUEST_OPS_MAX, f"too many ops in one request: {len(ops)}"
        shared = self._shared
        if shared.sessions:
            shared.end_expired_sessions()
        changed = shared.publish if shared.hints else None
        return Applied(self._shards[self._shard_of_all(ops)].apply(ops, shared.sessions.__contains__, changed))

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._begin_read()
        return [self._shards[self.shard_of(key.partition_key)].records.get(key.path) for key in keys]

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._begin_read()
        return self._shards[self.shard_of(key.partition_key)].ceiling(key.path, within)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        shard = self._shards[self.shard_of(start.partition_key)]
        async for paths in self._pages(start, end):
            for path in paths:
                if (record := shard.records.get(path)) is not None:
                    yield record

    async def list(self, start: Key, end: str) -> list[str]:
        return [path async for paths in self._pages(start, end) for path in paths]

    async def open_session(self, *, timeout_ms: int) -> Session:
        assert timeout_ms >= SESSION_TIMEOUT_MS_MIN, f"session timeout too short: timeout_ms={timeout_ms}"
        self._begin_read()
        self._sessions = [session for session in self._sessions if not session.is_lost]
        session = self._shared.open_session(timeout_ms)
        self._sessions.append(session)
        return session

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        if self._hints not in self._shared.hints:
            self._shared.hints.append(self._hints)
        return self._hints.subscribe(callback, prefix)

    async def probe(self) -> None:
        self._begin_read()

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
        self._detach()

    def crash(self) -> None:
        """What a killed process does: no more keep-alives, call-backs or requests. Its sessions end when their timeouts have passed."""
        for session in self._sessions:
            session.stop_keeping_alive()
        self._detach()

    def _detach(self) -> None:
        self._hints.cancel_all()
        if self._hints in self._shared.hints:
            self._shared.hints.remove(self._hints)
        self._is_closed = True

    def _begin_read(self) -> None:
        if self._is_closed:
            raise Unavailable(_CLOSED)
        if self._shared.sessions:
            self._shared.end_expired_sessions()

    async def _pages(self, start: Key, end: str) -> AsyncIterator[Sequence[str]]:
        """The paths of a range, in order; other work of the loop gets its turn between two pages."""
        shard = self._shards[self.shard_of(start.partition_key)]
        low, high = key_order.range_bounds(start.path, end)
        while True:
            self._begin_read()
            paths = shard.paths_between(low, high, keys_max=PAGE_KEYS)
            yield paths
            if len(paths) < PAGE_KEYS:
                return
            low = key_order.encode(paths[-1]) + b"\x00"
            await asyncio.sleep(0)

    def _shard_of_all(self, ops: Sequence[WriteOp]) -> int:
        partition_key = _partition_key_of(ops[0])
        shard = self.shard_of(partition_key)
        for op in ops[1:]:
            other = _partition_key_of(op)
            assert other == partition_key or self.shard_of(other) == shard, f"one write, one shard: {partition_key!r} {other!r}"
        return shard


def _partition_key_of(op: WriteOp) -> str:
    return op.start.partition_key if isinstance(op, DeleteRange) else op.key.partition_key
