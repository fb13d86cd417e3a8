"""Garbage collection: what nothing refers to goes, what anything may refer to stays, whoever collects, commits or fails meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest

from compactor.collector import CollectionReport, Collector, CollectorPolicy, Footprint
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.references import References
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.collections import Deletions
from storage.catalog.topics import Topics
from storage.errors import Corrupt, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, encode
from storage.formats.segment import segment_key
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.flush import FlushSettings
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Applied, Key, NotApplied, Put, Record, Unknown, WriteOp, WriteOutcome, children_of
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting, index_ends, listed_segments, merging
from tests.unit.compactor.crashing import Crash, Crashing
from tests.unit.storage.log.rig import TOPIC, Rig, rig

AT_ONCE = CollectorPolicy(grace_ms=-3_600_000)
"""All objects are old enough, also those of clocks that are ahead."""
ONE, OTHER = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1)


class Stored(NamedTuple):
    """A log of two partitions, whose objects hold batches of both."""

    broker: Rig
    shared: MemoryMetadataStore
    blobs: MemoryObjectStore

    async def keys(self, prefix: str = "") -> list[str]:
        return [stat.key async for stat in self.blobs.list(prefix)]

    async def append(self, count: int = 1, partitions: Sequence[PartitionId] = (ONE, OTHER)) -> None:
        for number in range(count):
            await asyncio.gather(*[self.broker.send(record_batch(b"%d" % number), partition=one) for one in partitions])

    async def compact(self, *partitions: PartitionId) -> None:
        async with compacting(self.shared, self.blobs) as compaction:
            for partition in partitions or (ONE, OTHER):
                await compaction.run(partition)

    async def collect(
        self,
        metadata: object = None,
        objects: object = None,
        *,
        dry_run: bool = False,
        limits: CompactorLimits = DEFAULT_LIMITS,
        **policy: int,
    ) -> CollectionReport:
        async with self.collector(metadata, objects, limits=limits, **policy) as one:
            await one.cycle(report := CollectionReport(), dry_run=dry_run)
            return report

    @contextlib.asynccontextmanager
    async def collector(
        self,
        metadata: object = None,
        objects: object = None,
        *,
        footprint: Footprint | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
        **policy: int,
    ) -> AsyncIterator[Collector]:
        store: Any = metadata or self.shared
        blobs: Any = objects or self.blobs
        clock = SystemClock()
        session = await self.shared.open_session(timeout_ms=10_000)
        try:
            ids = IdSource(clock=clock)
            references = References(store, session=session, ids=ids, limits=limits)
            deletions = Deletions(store, blobs, ids=ids, clock=clock)
            wanted = CollectorPolicy(**{"grace_ms": AT_ONCE.grace_ms} | policy)
            yield Collector(
                metadata=store,
                objects=blobs,
                references=references,
                deletions=deletions,
                clock=clock,
                policy=wanted,
                footprint=footprint,
                limits=limits,
            )
        finally:
            await session.close()

    async def orphan(self, *partitions: PartitionId, clock: Clock | None = None) -> str:
        """An object that was put and never committed."""
        object_id = ObjectId(IdSource(clock=clock or SystemClock()).next_ulid(above=""))
        first = header_bytes(len(partitions))
        slices = [Slice(partition, first + number * 10, 10) for number, partition in enumerate(partitions)]
        await self.blobs.put_if_absent(object_key(object_id), [encode_header(object_id, 1, slices), bytes(10 * len(slices))])
        return object_key(object_id)

    async def sentinels(self) -> list[str]:
        found = []
        for keys in (PartitionKeys(ONE), PartitionKeys(OTHER)):
            for prefix in (keys.index_prefix, keys.segments_prefix):
                start, end = children_of(prefix.removesuffix("/"))
                found += [path for path in await self.shared.list(Key(start, keys.partition_key), end) if "!" in path]
        return found

    async def manifest(self, partition: PartitionId) -> Manifest:
        return await self.broker.manifest(partition)

    async def check(self, expected: Sequence[bytes]) -> None:
        """A broker that has read nothing before reads it all."""
        async with rig(shared=self.shared, objects=self.blobs, epoch=8) as other:
            assert [await other.read_all(partition) for partition in (ONE, OTHER)] == expected
        assert await self.sentinels() == []

    async def contents(self) -> list[bytes]:
        return [await self.contents_of(partition) for partition in (ONE, OTHER)]

    async def contents_of(self, partition: PartitionId) -> bytes:
        return await self.broker.read_all(partition)


@contextlib.asynccontextmanager
async def stored(count: int = 5) -> AsyncIterator[Stored]:
    shared = MemoryMetadataStore(clock=SystemClock(), shards=1)
    await shared.write([Put(PartitionKeys(OTHER).manifest, encode(Manifest()), ABSENT)])
    async with rig(shared=shared, flush=FlushSettings(interval_s=0.005, gather_s=0.0)) as broker:
        one = Stored(broker, shared, broker.objects.inner)
        await one.append(count)
        yield one


async def test_what_every_partition_has_compacted_goes_and_what_one_has_not_stays() -> None:
    async with stored() as it:
        before = await it.contents()
        nothing = await it.collect()
        await it.compact(ONE)
        half = await it.collect()
        await it.compact(OTHER)
        rest = await it.collect()

        assert (nothing.live, nothing.deleted, half.deleted) == (5, 0, 0)
        assert (rest.deleted, rest.live, rest.unsure) == (5, 2, 0), "objects go, segments stay"
        assert await it.keys("wal/") == []
        assert len(await it.keys("segments/")) == 2
        await it.check(before)


async def test_what_lies_in_the_index_stays() -> None:
    async with stored(40) as it:
        before = await it.contents()
        report = await it.collect()

        assert len(await index_ends(it.shared, ONE)) > 0
        assert (report.live, report.deleted) == (40, 0)
        await it.check(before)


async def test_an_object_that_was_never_committed_goes_once_it_is_old() -> None:
    async with stored() as it:
        orphan = await it.orphan(ONE, OTHER)
        young = await it.collect(grace_ms=60_000)
        dry = await it.collect(dry_run=True)
        still = orphan in await it.keys()
        floors = [(await it.manifest(partition)).revoked_floor for partition in (ONE, OTHER)]
        wet = await it.collect()

        assert (young.looked_at, young.deleted) == (0, 0)
        assert (dry.deleted, still, floors) == (1, True, ["", ""]), "a dry run changes nothing"
        assert (wet.deleted, wet.live, orphan in await it.keys()) == (1, 5, False)
        assert [(await it.manifest(partition)).revoked_floor for partition in (ONE, OTHER)] == [orphan.rsplit("/", 1)[1]] * 2


async def test_what_was_trimmed_goes_and_a_segment_that_begins_before_the_log_stays() -> None:
    async with stored() as it:
        await it.compact()
        await it.append(3)
        await it.broker.parts.trimmer.trim(ONE, 5)
        await it.broker.parts.trimmer.trim(OTHER, 4)
        before = [(await it.broker.read_all_from(5, ONE)), (await it.broker.read_all_from(4, OTHER))]
        report = await it.collect()
        segments = await it.keys("segments/")

        assert report.deleted == 5 + 1, "five objects, and the segment of the first partition"
        assert [key.split("/")[2] for key in segments] == ["00001"]
        assert [(await it.broker.read_all_from(5, ONE)), (await it.broker.read_all_from(4, OTHER))] == before


async def test_segments_that_lost_go_and_those_under_their_keys_stay() -> None:
    async with stored() as it:
        for _ in range(3):
            await it.append(2)
            await it.compact()
        before = await it.contents()
        lost = segment_key(ONE, ObjectId(IdSource(clock=SystemClock()).next_ulid(above="")))
        await it.blobs.put_if_absent(lost, [b"a segment"])
        await it.collect()

        assert len(await listed_segments(it.shared, ONE)) == 2
        assert lost not in await it.keys()
        assert len(await it.keys("segments/")) == 6
        await it.check(before)


async def test_the_segment_of_a_merge_that_has_put_none_of_its_keys_stays() -> None:
    """Readers ask for it first, and whoever finishes the merge puts it under its keys."""
    async with stored() as it:
        for _ in range(3):
            await it.append(2)
            await it.compact()
        before = await it.contents()
        with pytest.raises(Crash):
            async with merging(Crashing(it.shared, at=2, is_done=True, shared=[0]), it.blobs) as merger:
                await merger.run(ONE)
        merged = (await it.manifest(ONE)).rewritten
        assert merged is not None
        assert merged.object_id not in {one.object_id for one in await listed_segments(it.shared, ONE)}

        await it.collect()

        assert segment_key(ONE, merged.object_id) in await it.keys()
        await it.check(before)
        async with merging(it.shared, it.blobs) as merger:
            await merger.run(ONE)
        await it.collect()
        await it.check(before)


async def meanwhile(it: Stored, act: Callable[[], Awaitable[None]], *, before: Callable[[Sequence[WriteOp]], bool]) -> CollectionReport:
    """`act` runs right before the first write that `before` is true of is sent."""
    acted = False

    class Acting:
        def __getattr__(self, name: str) -> Any:
            return getattr(it.shared, name)

        async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
            nonlocal acted
            if not acted and before(ops):
                acted = True
                await act()
            return await it.shared.write(ops)

    report = await it.collect(Acting())
    assert acted
    return report


def revokes(ops: Sequence[WriteOp]) -> bool:
    return any(isinstance(op, Put) and op.key.path.endswith("/meta/control") for op in ops)


@contextlib.asynccontextmanager
async def committing(it: Stored) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A batch was put, and its commit is about to be sent. What is given lets it go, and returns when it is answered."""
    arrived, may_go = asyncio.Event(), asyncio.Event()
    gate: Any = it.broker.metadata
    write = gate.write

    async def held(ops: Sequence[WriteOp]) -> WriteOutcome:
        arrived.set()
        await may_go.wait()
        return await write(ops)  # type: ignore[no-any-return]

    gate.write = held
    answered = it.broker.send(record_batch(b"late"), partition=ONE)
    await arrived.wait()

    async def go() -> None:
        may_go.set()
        (answer,) = await answered
        assert not isinstance(answer, StorageError), "it was uploaded again if it had to be"

    yield go


async def test_a_commit_before_the_floor_keeps_its_object() -> None:
    async with stored() as it, committing(it) as go:
        orphan = (await it.keys("wal/"))[-1]
        report = await meanwhile(it, go, before=revokes)
        before = await it.contents()

        assert (report.deleted, orphan in await it.keys()) == (0, True)
        assert b"late" in before[0]
        await it.check(before)


async def test_a_commit_behind_the_floor_is_refused_and_its_batch_uploaded_again() -> None:
    async with stored() as it, committing(it) as go:
        orphan = (await it.keys("wal/"))[-1]
        report = await it.collect()
        await go()
        before = await it.contents()

        assert (report.deleted, orphan in await it.keys()) == (1, False)
        assert b"late" in before[0]
        await it.check(before)


async def test_entries_that_leave_the_record_for_the_index_meanwhile_are_seen() -> None:
    async with stored(10) as it:
        await it.orphan(ONE, OTHER)
        report = await meanwhile(it, lambda: it.append(12), before=revokes)
        before = await it.contents()

        assert report.deleted == 1
        await it.check(before)


async def test_two_collectors_at_once_harm_nobody() -> None:
    async with stored() as it:
        await it.compact(ONE)
        await it.append(3)
        await it.compact()
        before = await it.contents()
        orphans = [await it.orphan(ONE), await it.orphan(OTHER), await it.orphan(ONE, OTHER)]
        reports = await asyncio.gather(*[it.collect() for _ in range(3)])

        assert not set(orphans) & set(await it.keys())
        assert all(not report.failed for report in reports)
        await it.check(before)


class Stale:
    """A store whose lists and records are those of before, as a deposed leader's."""

    def __init__(self, it: Stored, *, records: bool) -> None:
        self._it = it
        self._records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it.shared, name)

    async def get_many(self, wanted: Sequence[Key]) -> Sequence[Record | None]:
        found = await self._it.shared.get_many(wanted)
        return [None if self._records and "!" in key.path else record for key, record in zip(wanted, found, strict=True)]

    async def list(self, start: Key, end: str) -> Sequence[str]:
        found = await self._it.shared.list(start, end)
        return found if self._records else [path for path in found if "!" not in path]


@pytest.mark.parametrize("records", [False, True])
async def test_what_a_deposed_leader_does_not_show_is_no_reason_to_delete(records: bool) -> None:
    async with stored(40) as it:
        orphan = await it.orphan(ONE, OTHER)
        report = await it.collect(Stale(it, records=records))

        assert (report.deleted, report.unsure) == (0, 1)
        assert orphan in await it.keys()
        assert all("older than the question" in str(error) for error in report.failed.values())


async def test_a_partition_that_is_not_there_keeps_its_objects_unless_its_topic_was_deleted() -> None:
    async with stored() as it:
        topics = Topics(it.shared, clock=SystemClock(), ids=IdSource(clock=SystemClock()), telemetry=Telemetry())
        topic = await topics.create("gone", partition_count=1, replication_factor=1, configs={})
        gone, unknown = topic.partition(0), PartitionId(TopicId("00000000-0000-4000-8000-000000000009"), 0)
        of_gone, of_unknown = await it.orphan(gone, ONE), await it.orphan(unknown, ONE)
        of_segment = segment_key(gone, ObjectId(IdSource(clock=SystemClock()).next_ulid(above="")))
        await it.blobs.put_if_absent(of_segment, [b"a segment"])
        await topics.delete(topic)
        topics.close()
        report = await it.collect()
        there = await it.keys()

        assert (of_gone in there, of_unknown in there, of_segment in there) == (False, True, False)
        assert report.unsure == 1
        assert str(unknown) in report.failed


async def test_what_cannot_be_read_keeps_what_it_may_refer_to_and_nothing_else() -> None:
    async with stored() as it:
        of_one, of_other = await it.orphan(ONE), await it.orphan(OTHER)
        keys = PartitionKeys(ONE)
        await it.shared.write([Put(keys.index(3), b"no chunk", None)])
        broken = object_key(ObjectId(IdSource(clock=SystemClock()).next_ulid(above="")))
        await it.blobs.put_if_absent(broken, [b"no header at all"])
        await it.blobs.put_if_absent("wal/readme", [b"not ours"])
        report = await it.collect()
        there = await it.keys()

        assert (of_one in there, of_other in there, broken in there, "wal/readme" in there) == (True, False, True, True)
        assert {type(error) for error in report.failed.values()} == {Corrupt}
        assert set(report.failed) == {str(ONE), broken}


class Failing:
    """A store of either kind; the call of that number fails in that way."""

    def __init__(self, inner: Any, number: int, way: str) -> None:
        self._inner = inner
        self._left = number
        self._way = way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if not self._is_struck():
            return await self._inner.write(ops)  # type: ignore[no-any-return]
        if self._way == "refused":
            return NotApplied("refused")
        if self._way == "reply lost":
            assert isinstance(await self._inner.write(ops), Applied)
        return Unknown(self._way)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not self._is_struck():
            await self._inner.delete_many(keys)
            return
        if self._way == "reply lost":
            await self._inner.delete_many(keys)
        raise Unavailable(self._way)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if self._is_struck():
            raise Unavailable(self._way)
        return await self._inner.get_range(key, start, end)  # type: ignore[no-any-return]

    def _is_struck(self) -> bool:
        self._left -= 1
        return not self._left


@pytest.mark.parametrize("way", ["refused", "request lost", "reply lost"])
@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("store", ["metadata", "objects"])
async def test_whatever_fails_nothing_live_goes_and_another_cycle_does_the_rest(store: str, number: int, way: str) -> None:
    async with stored() as it:
        await it.compact()
        await it.append(2)
        await it.orphan(ONE, OTHER)
        before = await it.contents()
        inner = it.shared if store == "metadata" else it.blobs
        failing = Failing(inner, number, way)
        with contextlib.suppress(Unavailable):
            await it.collect(failing if store == "metadata" else None, failing if store == "objects" else None)
        await it.check(before)
        await it.collect()

        assert len(await it.keys("wal/")) == 2
        await it.check(before)


async def test_a_cycle_is_bounded_and_the_next_goes_on_where_it_ended() -> None:
    async with stored(12) as it:
        await it.compact()
        async with it.collector(limits=CompactorLimits(objects_per_delete=3), objects_max=5, batch_max=2) as one:
            seen = []
            for _ in range(4):
                ended = await one.cycle(report := CollectionReport())
                seen.append((report.looked_at, report.deleted, sorted(ended)))

        assert seen == [
            (5 + 2, 5, ["llog/early/", "segments/"]),
            (5 + 2, 5, ["llog/early/", "segments/"]),
            (2 + 2, 2, ["llog/early/", "segments/", "wal/"]),
            (0 + 2, 0, ["llog/early/", "segments/", "wal/"]),
        ]


async def test_objects_of_more_slices_than_are_looked_at_together_are_left_for_another_round() -> None:
    limits = CompactorLimits(collected_slices_max=0)
    async with stored(40) as it:
        await it.compact()
        first = await it.collect(limits=limits)
        for _ in range(40):
            await it.collect(limits=limits)

        assert first.unsure > 0
        assert first.deleted > 0
        assert await it.keys("wal/") == []


async def test_a_fenced_log_is_collected_too_and_a_tombstone_refers_to_nothing() -> None:
    async with stored() as it:
        await it.compact()
        for partition, state in ((ONE, LogState.FENCED), (OTHER, LogState.DELETED)):
            (record,) = await it.shared.get_many([PartitionKeys(partition).manifest])
            assert record is not None
            manifest = Manifest(log_state=state) if state is LogState.DELETED else await it.manifest(partition)
            await it.shared.write([Put(PartitionKeys(partition).manifest, encode(manifest), record.version)])
        await it.collect()

        assert await it.keys("wal/") == []
        assert [key.split("/")[2] for key in await it.keys("segments/")] == ["00000"]


async def test_a_floor_only_rises() -> None:
    async with stored() as it:
        older, newer = sorted([await it.orphan(ONE), await it.orphan(ONE)])
        async with it.collector() as one:
            await one._references.revoke_wal(ONE, ObjectId(newer.rsplit("/", 1)[1]))
            await one._references.revoke_wal(ONE, ObjectId(older.rsplit("/", 1)[1]))

        assert (await it.manifest(ONE)).revoked_floor == newer.rsplit("/", 1)[1]
        assert await it.sentinels() == []


async def test_what_the_store_holds_is_summed_over_the_cycles_of_a_whole_list() -> None:
    telemetry = Telemetry()

    def shown() -> dict[str, float]:
        return {
            f"{sample.name.removeprefix('forebay_footprint_')} {sample.labels.get('kind', '')}": sample.value
            for family in telemetry.registry.collect()
            for sample in family.samples
            if sample.name.startswith("forebay_footprint_") and not sample.name.endswith("_age_seconds")
        }

    async with stored(5) as it:
        await it.compact(ONE)
        orphan = await it.orphan(ONE)
        footprint = Footprint(telemetry, clock=SystemClock())
        sizes = {stat.key: stat.size_bytes async for stat in it.blobs.list("")}
        async with it.collector(footprint=footprint, objects_max=2, batch_max=1) as collector:
            ended: set[str] = set()
            while "wal/" not in ended:
                assert "bytes wal" not in shown()
                ended |= await collector.cycle(CollectionReport(), dry_run=True)
        found = shown()

    wal = {key: size for key, size in sizes.items() if key.startswith("wal/")}
    assert (found["objects wal"], found["bytes wal"]) == (len(wal), sum(wal.values()))
    assert (found["objects segment"], found["bytes segment"]) == (1, sum(sizes.values()) - sum(wal.values()))
    assert (found["objects unreferenced"], found["bytes unreferenced"]) == (1, sizes[orphan])
    assert footprint.size_bytes == sum(sizes.values())
