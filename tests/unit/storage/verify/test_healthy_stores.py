"""Nothing is found where nothing is wrong: whatever a log has been through, and while it goes on."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from compactor.compaction import CompactionEnd
from compactor.plan import NO_LIMIT, RetentionLimits, TidyPolicy
from compactor.retention import Retention
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.topics import Topics
from storage.errors import OutcomeUnknown, Unavailable
from storage.formats.manifest import LogState
from storage.metadata.port import DeleteRange, Key, NotApplied, Put, Record
from storage.objects.port import ObjectStat
from storage.verify.findings import FindingKind
from storage.verify.partitions import count_offsets
from storage.verify.reading import DEFAULT_LIMITS, StoreReading, VerifyLimits
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting, merging
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import (
    DEEP,
    DELETING,
    KEYS,
    NAME,
    change_manifest,
    compact,
    fill,
    fill_both,
    index_chunks,
    kept,
    make_topic,
    objects_of,
    three_segments,
    verify,
    wal_of,
)


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


async def assert_sound(broker: Rig, *, limits: VerifyLimits = DEFAULT_LIMITS) -> Any:
    result = await verify(broker, depth=DEEP, limits=limits)
    assert result.findings.kept == []
    return result.checked


async def test_a_topic_without_records(broker: Rig) -> None:
    checked = await assert_sound(broker)
    assert (checked.partitions, checked.objects) == (2, 0)


async def test_entries_in_the_index_and_in_the_manifest(broker: Rig) -> None:
    await fill_both(broker, 60)
    checked = await assert_sound(broker)
    assert (checked.partitions, checked.entries, checked.objects, checked.segments) == (2, 120, 120, 0)
    assert checked.deep_bytes == 2 * (await broker.manifest()).bytes_total


async def test_segments_and_entries_behind_them(broker: Rig) -> None:
    await three_segments(broker)
    checked = await assert_sound(broker)
    assert (checked.segments, checked.entries) == (3, 20)


@pytest.mark.parametrize("log_start", [0, 1, 37, 79, 80, 81, 119, 120, 121, 141, 160])
async def test_records_that_were_deleted(broker: Rig, log_start: int) -> None:
    await three_segments(broker)
    await broker.parts.trimmer.trim(PARTITION, log_start)
    await assert_sound(broker)


async def test_a_log_that_was_compacted_after_its_beginning_had_been_deleted(broker: Rig) -> None:
    await fill(broker)
    await broker.parts.trimmer.trim(PARTITION, 11)
    await compact(broker)
    await fill(broker, begin=40)
    await broker.parts.trimmer.trim(PARTITION, 131)
    await compact(broker)
    await fill(broker, 1, begin=80)
    await assert_sound(broker)


async def test_late_chunks_below_the_cursor_mean_nothing(broker: Rig) -> None:
    await fill(broker)
    await compact(broker)
    await fill(broker, begin=40)
    assert (await broker.manifest()).pending
    await assert_sound(broker)


async def test_batches_that_were_sent_twice_and_times_that_fall(broker: Rig) -> None:
    for number in range(30):
        batch = record_batch(b"a", b"b", producer_id=5, producer_epoch=0, base_sequence=2 * number, base_timestamp=10_000 - 7 * number)
        plain = [broker.send(record_batch(b"x", base_timestamp=20_000 - number)) for _ in range(3)]
        await broker.send(bytearray(batch), record_batch(b"y"), bytearray(batch))
        for one in plain:
            await one
    await assert_sound(broker)
    await compact(broker)
    await assert_sound(broker)


async def test_a_topic_that_was_deleted_leaves_nothing_to_find(broker: Rig) -> None:
    await fill_both(broker)
    clock = SystemClock()
    topics = Topics(broker.shared, clock=clock, ids=IdSource(clock=clock))
    await delete_topic(topics)
    topics.close()
    checked = await assert_sound(broker)
    assert checked.partitions == 0


async def test_a_topic_in_deletion_is_left_alone(broker: Rig) -> None:
    await make_topic(broker.shared, state=DELETING)
    await change_manifest(broker, log_state=LogState.DELETED)
    assert (await assert_sound(broker)).partitions == 0


async def test_a_log_of_many_pages(broker: Rig) -> None:
    await three_segments(broker)
    await fill(broker, 150, begin=80)
    await assert_sound(broker, limits=VerifyLimits(chunks_per_page=2, segments_per_page=1))


async def test_an_attempt_that_a_compactor_left_is_named_and_nothing_is_wrong(broker: Rig) -> None:
    await fill(broker)
    async with compacting(broker.shared, broker.objects) as compaction:
        broker.objects.puts_fail = Unavailable("no puts")
        with pytest.raises(Unavailable):
            await compaction.run(PARTITION)
        broker.objects.puts_fail = None
    result = await verify(broker)
    (left,) = result.findings.kept
    assert (left.kind, left.key) == (FindingKind.COMPACTION_LEFT, KEYS.compaction.path)
    assert result.findings.is_sound


async def test_offsets_are_counted_for_a_bar_and_all_of_them_are_gone_through(broker: Rig) -> None:
    await three_segments(broker)
    gone_through: list[int] = []
    await verify(broker, moved=gone_through.append)
    assert sum(gone_through) == await count_offsets(StoreReading(broker.shared, objects_of(broker), concurrency=1)) == 160


# While others write


SMALL_PAGES = VerifyLimits(chunks_per_page=1, segments_per_page=1, second_look_s=0.0)


ACTS_MAX = 24


class Interleaved:
    """A store before which something happens: `act` runs before each call whose number `when` takes, and only then the call."""

    def __init__(self, inner: Any, act: Callable[[int], Awaitable[None]]) -> None:
        self._inner = inner
        self._act = act
        self.calls = 0

    async def _before(self) -> None:
        self.calls += 1
        await self._act(self.calls)

    async def get_many(self, wanted: Any) -> list[Record | None]:
        await self._before()
        return list(await self._inner.get_many(wanted))

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        await self._before()
        async for record in self._inner.range_scan(start, end):
            yield record
            await self._before()

    async def stat(self, key: str) -> ObjectStat:
        await self._before()
        found: ObjectStat = await self._inner.stat(key)
        return found

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._before()
        found: bytes = await self._inner.get_range(key, start, end)
        return found


class Upkeep:
    """Appends, compactions that delete the objects they have copied, trims that delete what is below them, rings that are drained."""

    def __init__(self, broker: Rig, seed: int = 0) -> None:
        self._broker = broker
        self._chance = random.Random(seed)
        self._turn = asyncio.Lock()
        self._next: list[str] = []
        self.done: list[str] = []

    async def at_objects(self, _: int) -> None:
        await self._act(0.03)

    async def at_metadata(self, _: int) -> None:
        await self._act(0.5)

    async def _act(self, chance: float) -> None:
        async with self._turn:
            if len(self.done) == ACTS_MAX or self._chance.random() > chance:
                return
            if not self._next:
                self._next = self._chance.sample(["append", "append", "compact", "trim", "drain"], 5)
            name = self._next.pop()
            await getattr(self, name)()
            self.done.append(name)

    async def append(self) -> None:
        await fill(self._broker, self._chance.randrange(1, 20))

    async def compact(self) -> None:
        before = await self._named()
        async with compacting(self._broker.shared, self._broker.objects) as compaction:
            assert (await compaction.run(PARTITION)).ended in (CompactionEnd.COMPACTED, CompactionEnd.NOTHING_DUE)
        await objects_of(self._broker).delete_many(sorted(before - await self._named()))

    async def drain(self) -> None:
        """As if nobody had appended for long."""
        policy = TidyPolicy(idle_ms=-60_000)
        await Retention(self._broker.shared, SystemClock(), policy=policy).run(PARTITION, RetentionLimits(NO_LIMIT, NO_LIMIT))
        assert (await self._broker.manifest()).pending == ()

    async def trim(self) -> None:
        manifest = await self._broker.manifest()
        await self.trim_to(self._chance.randrange(manifest.log_start, min(manifest.sequence_counter, manifest.log_start + 90) + 1))

    async def trim_to(self, target: int) -> None:
        await self._broker.parts.trimmer.trim(PARTITION, target)
        start = (await self._broker.manifest()).log_start
        for key in (KEYS.index, KEYS.segment):
            await self._broker.shared.write([DeleteRange(key(0), key(start).path)])

    async def _named(self) -> set[str]:
        """The WAL objects that entries at or above the cursor name."""
        manifest = await self._broker.manifest()
        indexed = [entry for chunk in await index_chunks(self._broker) for entry in chunk.entries]
        return {wal_of(entry) for entry in (*indexed, *manifest.pending) if entry.last >= manifest.compaction_cursor}


async def one_segment_and_many_entries(broker: Rig) -> None:
    await fill(broker, 60)
    await compact(broker)
    await fill(broker, 200)


async def three_segments_and_more_entries(broker: Rig) -> None:
    await three_segments(broker)
    await fill(broker, 60, begin=80)


@pytest.mark.parametrize("seed", range(60))
async def test_nothing_is_found_while_brokers_append_and_compactors_move_and_delete(seed: int) -> None:
    async with kept(one_segment_and_many_entries) as broker:
        upkeep = Upkeep(broker, seed)

        result = await verify(
            broker,
            depth=DEEP,
            metadata=Interleaved(broker.shared, upkeep.at_metadata),
            objects=Interleaved(objects_of(broker), upkeep.at_objects),
            limits=SMALL_PAGES,
        )

        assert upkeep.done
        assert [one for one in result.findings.kept if one.kind is not FindingKind.COMPACTION_LEFT] == []
        assert result.checked.partitions == 2
        await assert_sound(broker, limits=SMALL_PAGES)


@pytest.mark.parametrize("when", range(1, 12))
async def test_a_topic_that_is_deleted_meanwhile_is_nothing_to_report(broker: Rig, when: int) -> None:
    await fill_both(broker)
    clock = SystemClock()
    topics = Topics(broker.shared, clock=clock, ids=IdSource(clock=clock))

    async def act(number: int) -> None:
        if number == when:
            await delete_topic(topics)

    result = await verify(broker, depth=DEEP, metadata=Interleaved(broker.shared, act))
    topics.close()
    assert result.findings.kept == []


@pytest.mark.parametrize("store", ["metadata", "objects"])
@pytest.mark.parametrize(
    "acts",
    [
        ("trim_half",),
        ("trim_all",),
        ("compact",),
        ("compact", "trim_half"),
        ("append", "compact", "compact"),
        ("drain",),
        ("drain", "append"),
        ("drain", "compact"),
    ],
)
async def test_nothing_is_found_wherever_entries_move(store: str, acts: tuple[str, ...]) -> None:
    found = {when: kinds for when in range(1, 25) if (kinds := await found_while_entries_move(store, when, acts))}
    assert found == {}


async def found_while_entries_move(store: str, when: int, acts: tuple[str, ...]) -> list[FindingKind]:
    """Walk the log, do `acts` right before call number `when`, and return what was found."""
    async with kept(three_segments_and_more_entries) as broker:
        upkeep = Upkeep(broker)

        async def act(number: int) -> None:
            for name in acts if number == when else ():
                match name:
                    case "trim_half":
                        await upkeep.trim_to((await broker.manifest()).sequence_counter // 2 + 3)
                    case "trim_all":
                        await upkeep.trim_to((await broker.manifest()).sequence_counter)
                    case _:
                        await getattr(upkeep, name)()

        inner = broker.shared if store == "metadata" else objects_of(broker)
        result = await verify(broker, depth=DEEP, limits=SMALL_PAGES, **{store: Interleaved(inner, act)})
        return [one.kind for one in result.findings.kept if one.kind is not FindingKind.COMPACTION_LEFT]


class BehindOnce:
    """A store whose first scan of a range is answered by a node that knows nothing of it yet."""

    def __init__(self, inner: Any, prefix: str, before_the_second: Callable[[], Awaitable[object]] | None = None) -> None:
        self._inner = inner
        self._prefix = prefix
        self._before_the_second = before_the_second
        self.scans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        if start.path.startswith(self._prefix):
            self.scans += 1
            if self.scans == 1:
                return
            if self.scans == 2 and self._before_the_second is not None:
                await self._before_the_second()
        async for record in self._inner.range_scan(start, end):
            yield record


@pytest.mark.parametrize("prefix", [KEYS.index_prefix, KEYS.segments_prefix])
async def test_a_hole_that_is_gone_at_the_second_look_is_none(broker: Rig, prefix: str) -> None:
    await three_segments(broker)
    await fill(broker, 60, begin=80)
    behind = BehindOnce(broker.shared, prefix)

    result = await verify(broker, metadata=behind, limits=VerifyLimits(second_look_s=0.0))

    assert behind.scans > 1
    assert result.findings.kept == []


async def test_entries_that_move_just_before_the_second_look_are_no_hole(broker: Rig) -> None:
    await fill(broker, 60)
    behind = BehindOnce(broker.shared, KEYS.index_prefix, lambda: compact(broker))

    result = await verify(broker, metadata=behind, limits=VerifyLimits(second_look_s=0.0))

    assert behind.scans > 1
    assert result.findings.kept == []


async def delete_topic(topics: Topics) -> None:
    topic = (await topics.lookup_now([NAME]))[NAME]
    await topics.delete(topic)


async def test_a_store_that_does_not_answer_once_is_asked_again(broker: Rig) -> None:
    await fill(broker)

    async def act(number: int) -> None:
        if number in (1, 4, 9, 15):
            raise Unavailable("not now")

    stores = {"metadata": Interleaved(broker.shared, act), "objects": Interleaved(objects_of(broker), act)}
    result = await verify(broker, **stores, limits=VerifyLimits(pause_s=0.0))
    assert result.findings.kept == []
    assert result.checked.entries == 40


async def test_a_store_that_does_not_answer_at_all_ends_it(broker: Rig) -> None:
    await fill(broker)

    async def act(number: int) -> None:
        raise Unavailable("never")

    with pytest.raises(ExceptionGroup) as raised:
        await verify(broker, objects=Interleaved(objects_of(broker), act), limits=VerifyLimits(pause_s=0.0))
    assert raised.group_contains(Unavailable)
    assert len(asyncio.all_tasks()) < 20


@pytest.mark.parametrize("stop_at", [None, "committed", "half put"])
async def test_merged_segments_are_whole_and_so_is_a_merge_that_is_under_way(broker: Rig, stop_at: str | None) -> None:
    await three_segments(broker)
    for begin in (200, 220, 240):
        await fill(broker, 20, begin=begin)
        await compact(broker)
    stopping = StopsMerging(broker.shared, stop_at)
    async with merging(stopping, broker.objects) as merger:
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await merger.run(PARTITION)
    manifest = await broker.manifest()
    result = await verify(broker, depth=DEEP)

    assert (manifest.rewritten is None) == (stop_at is None)
    assert result.findings.kept == []


class StopsMerging:
    """A store that takes no more writes once a merge was committed, or once one of its keys was put."""

    def __init__(self, inner: Any, stop_at: str | None) -> None:
        self._inner = inner
        self._stop_at = stop_at
        self._is_committed = self._is_stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Any) -> Any:
        if self._is_stopped:
            return NotApplied("stopped")
        if self._is_committed and self._stop_at == "half put":
            self._is_stopped = True
            return await self._inner.write(ops[:1])
        outcome = await self._inner.write(ops)
        if any(isinstance(op, Put) and b'"rewritten"' in op.value for op in ops):
            self._is_committed, self._is_stopped = True, self._stop_at == "committed"
        return outcome
