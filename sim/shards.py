"""The shards of the metadata store as its clients reach them: any may fall silent for all, and a deposed leader may answer from the past.

Oxia answers a read from whoever believes to lead: a broker that still asks a deposed leader learns what was true when that was deposed,
and nothing more. A write is judged by the leader of the day, whoever is asked (docs/design/reading.md).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from sim.retention_watch import RetentionWatch
from sim.segment_watch import SegmentWatch
from storage.metadata import key_order
from storage.metadata.keys import BROKERS_PREFIX, CLUSTER, CONTROL_SUFFIX, partition_of_control, topic_id
from storage.metadata.memory import MemoryMetadataStore, SharedRecords
from storage.metadata.port import DeleteRange, Key, Put, Record, WriteOp, WriteOutcome
from storage.vocabulary import PartitionId

TOPIC_IDS: Final = topic_id("").path


class _Writers(msgspec.Struct):
    """The part of a control record that names its writers."""

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
        self.retention = RetentionWatch(complain)
        self.retention.place_of = self._place_of
        self.topic_names: dict[str, str] = {}
        """By topic id, of all that anybody ever tried to publish."""

    async def write(self, client: MemoryMetadataStore, ops: Sequence[WriteOp]) -> WriteOutcome:
        """Have it done. Whoever puts a control record may leave out entries of `writers`, but none of a broker that is registered."""
        controls = [(op, self._writers_of(op.key)) for op in ops if isinstance(op, Put) and op.key.path.endswith(CONTROL_SUFFIX)]
        records = self._records.shards[self.of(_key(ops[0]))].records if ops else {}
        watched = self.retention.before(ops, records)
        outcome = await client.write(ops)
        self.retention.after(watched, records)
        for op, before in controls:
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
        """The shard of a key that a hint names, which comes without its partition key. Those of groups are not in this world."""
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

    def control_records(self) -> dict[PartitionId, Record]:
        """The control records of every partition there ever was: nothing removes them."""
        found = {
            partition: record
            for shard in self._records.shards
            for path, record in shard.records.items()
            if (partition := partition_of_control(path)) is not None
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
