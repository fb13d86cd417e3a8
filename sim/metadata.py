"""The metadata store as one broker reaches it: latency, faults on both sides of every call, silent shards, old leaders, lost hints.

The shards are those of the real store in memory. Any may fall silent for all, and a deposed leader may answer from the past.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from sim.faults import Fault, Wire
from sim.watches import PageWatch, RetentionWatch, SegmentWatch
from storage.errors import Unavailable
from storage.metadata import key_order
from storage.metadata.keys import BROKERS_PREFIX, CLUSTER, MANIFEST_SUFFIX, partition_of_manifest, topic_id
from storage.metadata.memory import MemoryMetadataStore, MemorySession, SharedRecords
from storage.metadata.port import DeleteRange, Key, NotApplied, OnChange, Put, Record, Session, Subscription, Unknown, WriteOp, WriteOutcome
from storage.vocabulary import PartitionId

TOPIC_IDS: Final = topic_id("").path


class _Writers(msgspec.Struct):
    """The part of a manifest that names its writers."""

    writers: dict[int, object] = {}


_writers = msgspec.json.Decoder(_Writers)


class Shards:
    """What is wrong with each shard just now, for all brokers alike."""

    def __init__(
        self, records: SharedRecords, store: MemoryMetadataStore, loop: asyncio.AbstractEventLoop, complain: Callable[[str], None]
    ) -> None:
        self.count = len(records.shards)
        self._records = records
        self._store = store
        self._loop = loop
        self._complain = complain
        self._silent_until_s = [0.0] * self.count
        self._segments = SegmentWatch(complain)
        self.early_pages = PageWatch(complain)
        self.retention = RetentionWatch(complain)
        self.retention.place_of = self._place_of
        self.topic_names: dict[str, str] = {}
        """By topic id, of all that anybody ever tried to publish."""

    async def write(self, client: MemoryMetadataStore, ops: Sequence[WriteOp]) -> WriteOutcome:
        """Have it done. Whoever puts a manifest may leave out entries of `writers`, but none of a broker that is registered."""
        manifests = [(op, self._writers_of(op.key)) for op in ops if isinstance(op, Put) and op.key.path.endswith(MANIFEST_SUFFIX)]
        records = self._records.shards[self.of(_key(ops[0]))].records if ops else {}
        self.early_pages.look(ops)
        watched = self.retention.before(ops, records)
        outcome = await client.write(ops)
        self.retention.after(watched, records)
        for op, before in manifests:
            # What a failed put would have dropped is there still.
            for epoch in sorted((before - self._writers_of(op.key)) & self.registered_epochs() if before else ()):
                self._complain(f"dropped: the entry of epoch {epoch}, which is registered: {op.key.path}")
        if ops:
            key = ops[0].start if isinstance(ops[0], DeleteRange) else ops[0].key
            self._segments.look(ops, self._records.shards[self.of(key)].records)
        return outcome

    def _place_of(self, partition: PartitionId) -> str | None:
        name = self.topic_names.get(partition.topic_id)
        return None if name is None else f"{name}/{partition.partition}"

    def _writers_of(self, key: Key) -> set[int]:
        record = self._records.shards[self.of(key)].records.get(key.path)
        return set() if record is None else set(_writers.decode(record.value).writers)

    def note_names(self, ops: Sequence[WriteOp]) -> None:
        for op in ops:
            if isinstance(op, Put) and op.key.path.startswith(TOPIC_IDS):
                self.topic_names[op.key.path.removeprefix(TOPIC_IDS)] = msgspec.json.decode(op.value)["name"]

    def silence(self, shard: int, duration_s: float) -> None:
        """Nothing that is asked of it is answered for a while; what was sent arrives when it is over."""
        self._silent_until_s[shard] = max(self._silent_until_s[shard], self._loop.time() + duration_s)

    def heal(self) -> None:
        self._silent_until_s = [0.0] * self.count

    async def reach(self, keys: Iterable[Key]) -> None:
        """Return when every shard that has one of `keys` answers."""
        for shard in sorted({self.of(key) for key in keys}):
            while (left_s := self._silent_until_s[shard] - self._loop.time()) > 0:  # noqa: ASYNC110 - of virtual time; `heal` shortens it
                await asyncio.sleep(min(left_s, 0.5))

    def of(self, key: Key) -> int:
        return self._store.shard_of(key.partition_key)

    def of_path(self, path: str) -> int:
        """The shard of a key that a hint names, which comes without its partition key. Those of groups are not in this world, and nobody
        waits for hints of early pages.
        """
        parts = path.split("/")
        if len(parts) > 3 and parts[2] == "partitions":
            return self._store.shard_of(f"{parts[1]}/{int(parts[3])}")
        return self._store.shard_of(parts[0])

    def view(self, shard: int) -> "OldView":
        """What a leader that is deposed now will go on answering."""
        return OldView(dict(self._records.shards[shard].records))

    def registered_epochs(self) -> set[int]:
        """The epochs of the brokers whose records are there now."""
        records = self._records.shards[self.of(CLUSTER)].records
        return {record.version for path, record in records.items() if path.startswith(BROKERS_PREFIX)}

    def deleted_topics(self) -> set[str]:
        """The ids that topic-ids says are deleted."""
        records = self._records.shards[self.of(CLUSTER)].records
        return {
            path.removeprefix(TOPIC_IDS)
            for path, record in records.items()
            if path.startswith(TOPIC_IDS) and msgspec.json.decode(record.value).get("deleted_logs") is not None
        }

    def manifests(self) -> dict[PartitionId, Record]:
        """The manifests of every partition there ever was: nothing removes them."""
        found = {
            partition: record
            for shard in self._records.shards
            for path, record in shard.records.items()
            if (partition := partition_of_manifest(path)) is not None
        }
        return dict(sorted(found.items()))


def _key(op: WriteOp) -> Key:
    return op.start if isinstance(op, DeleteRange) else op.key


class OldView:
    """The records of one shard as they were at one moment."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records

    def get(self, path: str) -> Record | None:
        return self._records.get(path)

    def ceiling(self, path: str, within: str) -> Record | None:
        low, prefix = key_order.ceiling_bounds(path, within)
        found = min((key for other in self._records if (key := key_order.encode(other)) >= low), default=None)
        return self._records[key_order.decode(found)] if found is not None and found.startswith(prefix) else None

    def between(self, start: str, end: str) -> list[Record]:
        low, high = key_order.range_bounds(start, end)
        found = sorted(key for path in self._records if low <= (key := key_order.encode(path)) < high)
        return [self._records[key_order.decode(key)] for key in found]


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


class Pausing(SimMetadata):
    _left = 0

    def pause_at(self, number: int, pause: Callable[[], None]) -> None:
        """Call `pause` when the write of that number is about to be sent, those of claims not counted."""
        self._left, self._do_pause = number, pause

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if not _is_of_claim(ops[0]):
            self._left -= 1
            if not self._left:
                self._do_pause()
        return await super().write(ops)


class OldSegments(Pausing):
    """Where the leader of a shard was deposed, it may be that `only_segments` are old."""

    only_segments = False

    def _old_of(self, key: Key) -> OldView | None:
        return super()._old_of(key) if not self.only_segments or "/segments/" in key.path else None


def _is_of_claim(op: WriteOp) -> bool:
    return not isinstance(op, DeleteRange) and op.key.path.endswith("/compactor-claim")
