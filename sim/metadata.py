"""The metadata store as one broker reaches it: latency, faults on both sides of every call, silent shards, old leaders, lost hints.

The store is the real one in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from sim.faults import Fault, Wire
from sim.shards import OldView, Shards
from storage.errors import Unavailable
from storage.metadata.memory import MemoryMetadataStore, MemorySession
from storage.metadata.port import DeleteRange, Key, NotApplied, OnChange, Record, Session, Subscription, Unknown, WriteOp, WriteOutcome


class SimMetadata:
    """A `MetadataStore`. `root` outlives the broker: it takes what arrives after its sender has died."""

    def __init__(self, root: MemoryMetadataStore, wire: Wire, shards: Shards | None = None) -> None:
        self._root = root
        self._inner = root.client()
        self._wire = wire
        self._shards = shards
        self._old: dict[int, OldView] = {}
        self._was_old_at_s = float("-inf")
        self._sessions: list[MemorySession] = []

    def crash(self) -> None:
        self._inner.crash()

    def lose_session(self) -> None:
        """No more keep-alives: the session ends when its timeout has passed, whatever the broker does meanwhile."""
        for session in self._sessions:
            session.stop_keeping_alive()

    def depose(self, shard: int) -> None:
        """The leader this broker reads that shard from is none any more from now on: its answers are those of now, until `find_leaders`."""
        assert self._shards is not None
        self._old.setdefault(shard, self._shards.view(shard))

    def find_leaders(self) -> None:
        if self._old:
            self._old.clear()
            self._was_old_at_s = self._wire.now_s

    def may_have_read_old(self, since_s: float) -> bool:
        """Whether a read issued since then may have been answered by a deposed leader."""
        return bool(self._old) or self._was_old_at_s >= since_s

    def shard_of(self, partition_key: str) -> int:
        return self._inner.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        fault = self._wire.plan.of_write()
        self._wire.note("write", fault)
        if self._shards is not None:
            self._shards.note_names(ops)
        there, back = self._wire.legs(fault)
        try:
            await self._wire.travel(there)
            await self._reach([op.start if isinstance(op, DeleteRange) else op.key for op in ops])
        except asyncio.CancelledError:
            # It is on its way: nobody can call it back.
            if fault is not Fault.REQUEST_LOST and self._wire.plan.coin():
                self._wire.deliver_later(lambda: self._apply(self._root, ops))
            raise
        outcome: WriteOutcome
        match fault:
            case Fault.NONE | Fault.SLOW:
                outcome = await self._apply(self._inner, ops)
            case Fault.REQUEST_LOST:
                outcome = Unknown("request lost")
            case Fault.REPLY_LOST:
                await self._apply(self._inner, ops)
                outcome = Unknown("reply lost")
            case Fault.LATE:
                self._wire.deliver_later(lambda: self._apply(self._root, ops))
                outcome = Unknown("late")
            case Fault.REFUSED:
                outcome = NotApplied("refused")
        await self._wire.travel(back)
        return outcome

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        back = await self._ask("get_many", keys)
        found = await self._inner.get_many(keys)
        if self._old:
            found = [record if (old := self._old_of(key)) is None else old.get(key.path) for key, record in zip(keys, found, strict=True)]
        await self._wire.travel(back)
        return found

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        back = await self._ask("get_ceiling", [key])
        old = self._old_of(key)
        found = await self._inner.get_ceiling(key, within=within) if old is None else old.ceiling(key.path, within)
        await self._wire.travel(back)
        return found

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        back = await self._ask("range_scan", [start])
        old = self._old_of(start)
        found = [record async for record in self._inner.range_scan(start, end)] if old is None else old.between(start.path, end)
        await self._wire.travel(back)
        for record in found:
            yield record

    async def list(self, start: Key, end: str) -> list[str]:
        back = await self._ask("list", [start])
        old = self._old_of(start)
        found = await self._inner.list(start, end) if old is None else [record.path for record in old.between(start.path, end)]
        await self._wire.travel(back)
        return found

    async def open_session(self, *, timeout_ms: int) -> Session:
        await self._ask("open_session", ())
        session = await self._inner.open_session(timeout_ms=timeout_ms)
        assert isinstance(session, MemorySession)
        self._sessions = [session]
        return _SlowlyClosed(session, self._wire)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        return _Hearing(self._inner, self._wire, callback, prefix, self._is_hidden)

    async def probe(self) -> None:
        await self._ask("probe", ())

    async def close(self) -> None:
        await self._inner.close()

    async def _apply(self, client: MemoryMetadataStore, ops: Sequence[WriteOp]) -> WriteOutcome:
        return await (client.write(ops) if self._shards is None else self._shards.write(client, ops))

    async def _ask(self, call: str, keys: Sequence[Key]) -> Fault:
        """The way there. Returns what happens on the way back."""
        fault = self._wire.plan.of_scan() if call == "range_scan" else self._wire.plan.of_read()
        self._wire.note(call, fault)
        there, back = self._wire.legs(fault)
        await self._wire.travel(there)
        await self._reach(keys)
        if fault is Fault.REFUSED:
            raise Unavailable(f"refused: op={call}")
        return back

    async def _reach(self, keys: Sequence[Key]) -> None:
        if self._shards is not None:
            await self._shards.reach(keys)

    def _old_of(self, key: Key) -> OldView | None:
        return self._old.get(self.shard_of(key.partition_key)) if self._old else None

    def _is_hidden(self, path: str) -> bool:
        """A deposed leader tells nobody what changes under its successor."""
        return bool(self._old) and self._shards is not None and self._shards.of_path(path) in self._old


class _SlowlyClosed:
    """A session that takes its time to end: its owner waits for an answer, as from every other request."""

    def __init__(self, session: MemorySession, wire: Wire) -> None:
        self._session = session
        self._wire = wire

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_lost(self) -> bool:
        return self._session.is_lost

    async def wait_lost(self) -> None:
        await self._session.wait_lost()

    async def close(self) -> None:
        self._session.stop_keeping_alive()
        fault = self._wire.plan.of_read()
        self._wire.note("close_session", fault)
        await self._wire.travel(fault)
        await asyncio.sleep(self._wire.plan.close_s())
        if fault is Fault.REFUSED:
            raise Unavailable("refused: op=close_session")
        await self._session.close()
        await self._wire.travel()


class _Hearing:
    """A subscription whose hints are dropped, repeated or late."""

    def __init__(self, inner: MemoryMetadataStore, wire: Wire, callback: OnChange, prefix: str, is_hidden: Callable[[str], bool]) -> None:
        self._is_hidden = is_hidden
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._callback: OnChange | None = callback
        self._subscription = inner.subscribe(self._hear, prefix=prefix)

    def cancel(self) -> None:
        self._callback = None
        self._subscription.cancel()

    def _hear(self, path: str, version: int | None) -> None:
        if self._is_hidden(path):
            return
        for delay_s in self._wire.plan.hint_delays_s():
            self._loop.call_later(delay_s, self._deliver, path, version)

    def _deliver(self, path: str, version: int | None) -> None:
        if self._callback is not None:
            self._callback(path, version)
