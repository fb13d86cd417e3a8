"""Purging deleted topics: all that they left goes, whenever it arrives, and nothing of any other topic, whatever fails on the way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import CompactionPolicy
from compactor.purge import Purge, PurgePolicy, PurgeResult
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import Deletions, accept_older
from storage.catalog.topics import Topic, Topics
from storage.errors import Corrupt, OutcomeUnknown, StorageError, Unavailable
from storage.formats.manifest import CompactionAttempt, CompactionState, LogState, encode_attempt
from storage.formats.segment import segment_key, segments_of_topic
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, DeleteRange, Key, NotApplied, Put, Record, Unknown, WriteOp, WriteOutcome
from storage.objects.port import ObjectStat
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.rig import Rig, rig

PARTITIONS = 2
AGAIN = PurgePolicy(pause_s=0.0, pause_s_max=0.0)


class OffsetClock(SystemClock):
    later_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


class Setting(NamedTuple):
    broker: Rig
    topics: Topics
    clock: OffsetClock

    def purge(
        self, *, metadata: Any = None, objects: Any = None, policy: PurgePolicy = AGAIN, limits: CompactorLimits = DEFAULT_LIMITS
    ) -> Purge:
        blobs: Any = objects or self.broker.objects
        store: Any = metadata or self.broker.shared
        deletions = Deletions(store, blobs, ids=IdSource(clock=self.clock), clock=self.clock)
        return Purge(metadata=store, objects=blobs, deletions=deletions, clock=self.clock, policy=policy, limits=limits)

    async def topic(self, name: str) -> Topic:
        """Its partitions have segments, pending entries, index chunks and a page."""
        topic = await self.topics.create(name, partition_count=PARTITIONS, replication_factor=1, configs={})
        for number in range(PARTITIONS):
            partition = topic.partition(number)
            for count in (20, 20, 40):
                for _ in range(count):
                    await self.broker.send(record_batch(b"x" * 50), partition=partition)
                if count == 20:
                    async with compacting(self.broker.shared, self.broker.objects, policy=CompactionPolicy(entries_due=1)) as compaction:
                        await compaction.run(partition)
            await self.put(PartitionKeys(partition).producer_page("1-1-1-1-1"))
            await self.put(PartitionKeys(partition).compaction, encode_attempt(ATTEMPT))
        return topic

    async def deleted(self, name: str) -> Topic:
        topic = await self.topic(name)
        await self.topics.delete(topic)
        return topic

    async def put(self, key: Key, value: bytes = b"{}") -> None:
        assert isinstance(await self.broker.shared.write([Put(key, value, None)]), Applied)

    async def left_of(self, topic: Topic) -> list[str]:
        """Keys and objects, manifests excepted."""
        found = []
        for number in range(PARTITIONS):
            names = PartitionKeys(topic.partition(number))
            for first, end in names.lists():
                found += await self.broker.shared.list(first, end)
            found += [one.path for one in await self.broker.shared.get_many([names.compaction]) if one is not None]
        return found + [one.key async for one in self.broker.objects.inner.list(segments_of_topic(topic.topic_id))]

    async def read_all(self, topic: Topic) -> list[bytes]:
        return [await self.broker.read_all(topic.partition(number)) for number in range(PARTITIONS)]


ATTEMPT = CompactionAttempt(state=CompactionState.WRITING_SEGMENT, cursor=0, object_id=ObjectId("01BX5ZZKBKACTAV9WEVGEMMVS0"))


@contextlib.asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with rig() as broker:
        clock = OffsetClock()
        topics = Topics(broker.shared, clock=clock, ids=IdSource(clock=clock))
        try:
            yield Setting(broker, topics, clock)
        finally:
            topics.close()


async def test_all_that_a_deleted_topic_left_goes_but_its_tombstones_and_its_id() -> None:
    async with setting() as it:
        kept, gone = await it.topic("kept"), await it.deleted("gone")
        before = await it.left_of(kept), await it.read_all(kept)
        left = await it.left_of(gone)
        done = await it.purge().run()

        assert done.keys + done.objects == len(left) > 10
        assert done.objects == 2 * PARTITIONS
        assert done.object_bytes > 0
        assert (done.partitions, done.is_round, done.failed) == (PARTITIONS, True, {})
        assert await it.left_of(gone) == []
        assert (await it.left_of(kept), await it.read_all(kept)) == before
        assert [(await it.broker.manifest(gone.partition(number))).log_state for number in range(PARTITIONS)] == [LogState.DELETED] * 2
        assert await it.broker.shared.get_many([keys.topic_id(gone.topic_id)]) != [None]


async def test_a_topic_that_is_being_deleted_is_left_alone_until_its_id_says_so() -> None:
    async with setting() as it:
        topic = await it.topic("one")
        before = await it.left_of(topic)

        class UntilTheEnd(Failing):
            async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
                if any(isinstance(op, Put) and op.key == keys.topic_id(topic.topic_id) for op in ops):
                    return NotApplied("not yet")
                return await self._inner.write(ops)  # type: ignore[no-any-return]

        half = Topics(UntilTheEnd(it.broker.shared), clock=it.clock, ids=IdSource(clock=it.clock))
        with pytest.raises(Unavailable):
            await half.delete(topic)
        half.close()
        states = [(await it.broker.manifest(topic.partition(number))).log_state for number in range(PARTITIONS)]
        done = await it.purge().run()

        assert states == [LogState.DELETED] * 2
        assert (done.partitions, done.keys, done.objects) == (0, 0, 0)
        assert await it.left_of(topic) == before


async def test_what_arrives_after_its_topic_is_gone_goes_with_a_later_look() -> None:
    async with setting() as it:
        topic = await it.deleted("one")
        upkeep = it.purge()
        await upkeep.run()
        names = PartitionKeys(topic.partition(1))
        for key in (names.index(7), names.segment(7), names.producer_page("1-1-1-1-1"), names.compaction):
            await it.put(key)
        await it.broker.objects.inner.put_if_absent(segment_key(topic.partition(1), ATTEMPT.object_id), [b"late"])
        late = await it.left_of(topic)
        done = await upkeep.run()

        assert len(late) == 5
        assert (done.keys, done.objects) == (4, 1)
        assert await it.left_of(topic) == []


async def test_a_topic_that_has_nothing_left_is_looked_at_less_and_less_often() -> None:
    async with setting() as it:
        topic = await it.deleted("one")
        upkeep = it.purge(policy=PurgePolicy(pause_s=60.0, pause_s_max=86_400.0))
        looks = []
        for minute in range(3 * 24 * 60):
            it.clock.later_s = 60.0 * minute + 1.0
            if (await upkeep.run()).partitions:
                looks.append(minute)
        await it.put(PartitionKeys(topic.partition(0)).index(7))
        found = []
        for minute in range(3 * 24 * 60, 4 * 24 * 60 + 5):
            it.clock.later_s = 60.0 * minute + 1.0
            if (done := await upkeep.run()).partitions:
                found.append((minute, done.keys))

        assert looks[:6] == [0, 1, 3, 7, 15, 31]
        assert len(looks) <= 14
        assert [number for _, number in found[:2]] == [1, 0]
        assert found[1][0] - found[0][0] == 1, "it is looked at soon again where something was found"


async def test_a_run_does_no_more_than_it_may_and_the_next_goes_on() -> None:
    limits = CompactorLimits(purge_partitions_together=1, purge_objects_per_delete=1)
    async with setting() as it:
        topics = [await it.deleted(f"topic-{number}") for number in range(3)]
        policy = PurgePolicy(partitions_per_run=1, objects_per_run=3, pause_s=1e6, pause_s_max=1e6)
        upkeep = it.purge(policy=policy, limits=limits)
        runs: list[PurgeResult] = []
        while not runs or not runs[-1].is_round:
            runs.append(await upkeep.run())

        assert max(one.partitions for one in runs) == 1
        assert max(one.objects for one in runs) <= 3
        assert sum(one.partitions for one in runs) == 3 * PARTITIONS
        assert [await it.left_of(topic) for topic in topics] == [[], [], []]
        assert await upkeep.run() == PurgeResult(0, 0, 0, 0, True, {})


async def test_a_round_goes_through_any_number_of_records() -> None:
    async with setting() as it:
        kept, gone = await it.topic("kept"), await it.deleted("gone")
        before = await it.left_of(kept)
        upkeep = it.purge(limits=CompactorLimits(purge_records_per_run=1))
        rounds = [(await upkeep.run()).is_round for _ in range(6)]

        assert rounds == [False, False, True] * 2
        assert await it.left_of(gone) == []
        assert await it.left_of(kept) == before


async def test_others_have_their_share() -> None:
    async with setting() as it:
        mine, theirs = await it.deleted("mine"), await it.deleted("theirs")
        before = await it.left_of(theirs)
        done = await it.purge().run(is_share=lambda topic_id: topic_id == mine.topic_id)

        assert done.partitions == PARTITIONS
        assert await it.left_of(mine) == []
        assert await it.left_of(theirs) == before


class Failing:
    """The store inside; call `number` of those that change something fails in that way."""

    def __init__(self, inner: Any, number: int = 0, way: str = "") -> None:
        self._inner = inner
        self._left = number
        self._way = way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _fails(self) -> bool:
        self._left -= 1
        return not self._left

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if not self._fails():
            return await self._inner.write(ops)  # type: ignore[no-any-return]
        if self._way == "refused":
            return NotApplied("refused")
        if self._way == "reply lost":
            await self._inner.write(ops)
        return Unknown(self._way)

    async def delete_many(self, names: Sequence[str]) -> None:
        if self._fails():
            if self._way == "reply lost":
                await self._inner.delete_many(names)
            raise Unavailable("refused") if self._way == "refused" else OutcomeUnknown(self._way)
        await self._inner.delete_many(names)


@pytest.mark.parametrize("way", ["refused", "request lost", "reply lost"])
@pytest.mark.parametrize("number", range(1, 9))
async def test_whatever_write_fails_the_rest_is_done_and_a_later_look_does_that(number: int, way: str) -> None:
    async with setting() as it:
        topics = [await it.deleted("one"), await it.deleted("two")]
        failing = it.purge(metadata=Failing(it.broker.shared, number, way))
        done = await failing.run()
        left = [await it.left_of(topic) for topic in topics]
        await failing.run()

        assert sum(map(bool, left)) <= 1
        assert len(done.failed) <= 1
        assert [await it.left_of(topic) for topic in topics] == [[], []]


@pytest.mark.parametrize("way", ["refused", "request lost", "reply lost"])
async def test_objects_that_were_not_deleted_go_with_a_later_look(way: str) -> None:
    async with setting() as it:
        topic = await it.deleted("one")
        upkeep = it.purge(objects=Failing(it.broker.objects, 1, way))
        done = await upkeep.run()
        failed = list(done.failed)
        await upkeep.run()

        assert failed == [segments_of_topic(topic.topic_id)]
        assert await it.left_of(topic) == []


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "behind"])
async def test_a_purge_that_is_killed_at_any_effect_is_finished_by_another(when: str) -> None:
    async with setting() as it:
        kept = await it.topic("kept")
        before = await it.read_all(kept)
        for number in range(1, 100):
            topic = await it.deleted(f"topic-{number}")

            class Dying(Failing):
                async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
                    return await self._die(self._inner.write(ops))  # type: ignore[no-any-return]

                async def delete_many(self, names: Sequence[str]) -> None:
                    await self._die(self._inner.delete_many(names))

                async def _die(self, effect: Any) -> Any:
                    is_last = self._fails()
                    if is_last and when == "before":
                        effect.close()
                        raise Killed
                    done = await effect
                    if is_last:
                        raise Killed
                    return done

            counted = Dying(it.broker.shared, number)
            objects = Dying(it.broker.objects, 1 if number % 9 == 0 else 0)
            try:
                await it.purge(metadata=counted, objects=objects).run()
            except (Killed, ExceptionGroup):
                await it.purge().run()
            else:
                break
            assert await it.left_of(topic) == []

        assert 8 < number < 99
        assert await it.read_all(kept) == before


async def test_two_purges_at_once_do_no_more_than_one() -> None:
    async with setting() as it:
        kept, gone = await it.topic("kept"), await it.deleted("gone")
        before = await it.read_all(kept)

        class Slow(Failing):
            async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
                await asyncio.sleep(0)
                return await self._inner.write(ops)  # type: ignore[no-any-return]

        done = await asyncio.gather(*(it.purge(metadata=Slow(it.broker.shared)).run() for _ in range(2)))

        assert [one.failed for one in done] == [{}, {}]
        assert await it.left_of(gone) == []
        assert await it.read_all(kept) == before


async def test_segments_stay_when_older_metadata_are_accepted_after_they_were_listed() -> None:
    async with setting() as it:
        gone = await it.deleted("gone")
        segments = [one.key async for one in it.broker.objects.inner.list(segments_of_topic(gone.topic_id))]

        class Accepting(Failing):
            async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
                async for one in self._inner.list(prefix, start_after=start_after):
                    yield one
                if prefix == segments_of_topic(gone.topic_id):
                    await accept_older(it.broker.shared, self._inner, IdSource(clock=it.clock), it.clock)

        done = await it.purge(objects=Accepting(it.broker.objects)).run()

        assert segments
        assert [one.key async for one in it.broker.objects.inner.list(segments_of_topic(gone.topic_id))] == segments
        assert [str(error) for error in done.failed.values()] == [
            "older metadata were accepted meanwhile, or objects that live entries name are missing: nothing is deleted"
        ]


class Changed(Failing):
    """The store inside; records at `path` read as `value` says: None for one that is not there."""

    def __init__(self, inner: Any, path: str, value: bytes | None) -> None:
        super().__init__(inner)
        self._path = path
        self._value = value

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        found: list[Record | None] = await self._inner.get_many(wanted)
        return [self._changed(one) for one in found]

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        async for one in self._inner.range_scan(start, end):
            if (changed := self._changed(one)) is not None:
                yield changed

    def _changed(self, one: Record | None) -> Record | None:
        if one is None or one.path != self._path:
            return one
        return None if self._value is None else one._replace(value=self._value)


@pytest.mark.parametrize("value", [None, b'{"fmt":1}', b"not a record"], ids=["absent", "open", "corrupt"])
async def test_a_partition_without_a_tombstone_is_left_alone_and_said(value: bytes | None) -> None:
    async with setting() as it:
        topic, other = await it.deleted("one"), await it.deleted("two")
        before = await it.left_of(topic)
        path = PartitionKeys(topic.partition(1)).manifest.path
        done = await it.purge(metadata=Changed(it.broker.shared, path, value)).run()
        left = await it.left_of(topic)

        assert list(done.failed) == [str(topic.partition(1))]
        assert isinstance(done.failed[str(topic.partition(1))], Corrupt if value == b"not a record" else StorageError)
        assert [one for one in left if one.startswith("llog/")] == [one for one in before if "partitions/00001" in one]
        assert await it.left_of(other) == []


async def test_a_record_of_an_id_that_cannot_be_read_holds_up_no_other() -> None:
    async with setting() as it:
        topic, other = await it.deleted("one"), await it.deleted("two")
        path = keys.topic_id(topic.topic_id).path
        before = await it.left_of(topic)
        done = await it.purge(metadata=Changed(it.broker.shared, path, b"not a record")).run()

        assert list(done.failed) == [path]
        assert await it.left_of(topic) == before
        assert await it.left_of(other) == []


async def test_partitions_that_fail_end_a_run_and_the_next_goes_on_behind_them() -> None:
    limits = CompactorLimits(purge_failed_max=1, purge_partitions_together=1)
    async with setting() as it:
        topics = sorted([await it.deleted("one"), await it.deleted("two")], key=lambda topic: topic.topic_id)
        path = PartitionKeys(topics[0].partition(0)).manifest.path
        upkeep = it.purge(metadata=Changed(it.broker.shared, path, None), policy=PurgePolicy(pause_s=1e6), limits=limits)
        first, second = await upkeep.run(), await upkeep.run()

        assert (first.partitions, first.is_round, len(first.failed)) == (1, False, 1)
        assert (second.partitions, second.is_round, second.failed) == (3, True, {})
        assert await it.left_of(topics[1]) == []


async def test_topics_beyond_those_that_are_remembered_are_looked_at_in_each_round() -> None:
    async with setting() as it:
        for number in range(3):
            await it.deleted(f"topic-{number}")
        upkeep = it.purge(policy=PurgePolicy(pause_s=1e6), limits=CompactorLimits(purged_topics_kept_max=1))
        partitions = [(await upkeep.run()).partitions for _ in range(3)]

        assert partitions == [3 * PARTITIONS, 2 * PARTITIONS, 2 * PARTITIONS]


async def test_ranges_of_a_partition_hold_no_key_of_another() -> None:
    topic_id = TopicId("00000000-0000-4000-8000-000000000001")
    async with setting() as it:
        numbers = (0, 1, 10, 99_999)
        for number in numbers:
            names = PartitionKeys(PartitionId(topic_id, number))
            for key in (names.manifest, names.compaction, names.index(0), names.index(10**20 - 1), names.segment(5)):
                await it.put(key)
        names = PartitionKeys(PartitionId(topic_id, 1))
        for first, end in names.lists():
            assert isinstance(await it.broker.shared.write([DeleteRange(first, end)]), Applied)
        left = dict.fromkeys(numbers, 0)
        for number in numbers:
            for first, end in PartitionKeys(PartitionId(topic_id, number)).lists():
                left[number] += len(await it.broker.shared.list(first, end))

        assert left == {0: 3, 1: 0, 10: 3, 99_999: 3}
        assert None not in await it.broker.shared.get_many([names.manifest, names.compaction])
