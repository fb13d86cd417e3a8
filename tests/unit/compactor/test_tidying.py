"""Tidying a partition to which nobody appends: what leaves its record can be found elsewhere, whoever writes or fails meanwhile."""

import asyncio
from typing import Any

import pytest

from compactor.plan import NO_LIMIT, RetentionLimits
from compactor.references import References
from compactor.retention import Retention
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.errors import OutcomeUnknown, Unavailable
from storage.formats.manifest import LogState, Manifest, PageRef, ProducerPage, WriterEntry, decode_chunk, encode
from storage.log.decide import drained
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata.port import ABSENT, Key, Put
from tests.kit.record_batches import record_batch
from tests.unit.compactor.aging import ENDLESS, HOUR, IDLE_S, KEYS, POLICY, Aging, Counting, Meanwhile, aging, base_offsets
from tests.unit.compactor.compacting import PAIRS, compacting, index_ends, merging
from tests.unit.compactor.crashing import Crash, Crashing
from tests.unit.storage.log.rig import PARTITION, FaultyMetadata, Rig, rig
from tests.unit.storage.verify.stores import DEEP, found, make_topic

RING = 5
"""Entries that are pending, of two records each."""


async def chunk_of(log: Aging, last: int) -> Any:
    (record,) = await log.broker.shared.get_many([KEYS.index(last)])
    return None if record is None else decode_chunk(record.value, path=record.path)


async def check_drained(log: Aging, before: Manifest) -> None:
    """The ring of `before` has left, once and whole, nothing else has changed, and the log is what it was."""
    manifest = await log.broker.manifest()

    assert manifest.pending == ()
    assert manifest.sequence_counter == before.sequence_counter
    assert await chunk_of(log, before.sequence_counter - 1) == drained(before)
    assert not log.retention().is_due(PARTITION, manifest, ENDLESS)
    await check_whole(log)


async def check_whole(log: Aging) -> None:
    """Every offset can be read by who has read nothing before, and nothing is wrong with the stores."""
    manifest = await log.broker.manifest()
    begin = -(-manifest.log_start // 2) * 2

    assert await base_offsets(log.broker, begin) == [*range(begin, manifest.sequence_counter, 2)]
    await make_topic(log.broker.shared, partitions=1)
    assert await found(log.broker, depth=DEEP) == []


# Producers and their pages


async def test_producers_that_expired_in_an_idle_partition_go_with_their_pages_in_one_write() -> None:
    async with aging() as log:
        await log.broker.send(record_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0))
        page = KEYS.producer_page("1-1-1-1-0")
        await log.broker.shared.write([Put(page, encode(ProducerPage(producers={})), ABSENT)])
        await log.change(pages=(PageRef("1-1-1-1-0", 10, 19, log.clock.now_ms()),))
        early = await log.broker.manifest()
        assert not log.retention().is_due(PARTITION, early, ENDLESS)
        await log.run(ENDLESS)
        assert await log.broker.manifest() == early
        log.clock.advance(86_400 + 60)
        counting = Counting(log.broker.shared)
        assert log.retention().is_due(PARTITION, early, ENDLESS)
        await log.retention(counting).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()

        assert (manifest.producers, manifest.pages) == ({}, ())
        assert await log.broker.shared.get_many([page]) == [None]
        assert counting.calls == ["get_many", "get_many", "write", "write"]
        assert not log.retention().is_due(PARTITION, manifest, ENDLESS)


async def test_pages_stay_when_the_write_that_would_drop_them_was_not_needed() -> None:
    async with aging() as log:
        page = KEYS.producer_page("1-1-1-1-0")
        await log.broker.shared.write([Put(page, encode(ProducerPage(producers={})), ABSENT)])
        await log.append(1)
        await log.change(pages=(PageRef("1-1-1-1-0", 10, 19, log.clock.now_ms()),))
        log.clock.advance(86_400 + 60)

        async def append() -> None:
            """It uses a producer of the page."""
            now_ms = log.clock.now_ms()
            await log.change(pages=(PageRef("1-1-1-1-0", 10, 19, now_ms),), last_append_ms=now_ms)

        await log.retention(Meanwhile(log.broker.shared, append)).run(PARTITION, ENDLESS)

        assert len((await log.broker.manifest()).pages) == 1
        assert await log.broker.shared.get_many([page]) != [None]


async def test_an_idle_ring_that_is_compacted_goes_and_appends_and_reads_go_on() -> None:
    async with aging(new=20) as log:
        await log.compact()
        assert len((await log.broker.manifest()).pending) > 0
        log.clock.advance(IDLE_S)
        await log.run(ENDLESS)
        manifest = await log.broker.manifest()

        assert (manifest.pending, manifest.sequence_counter, manifest.compaction_cursor) == ((), 40, 40)
        assert await base_offsets(log.broker, 0) == [*range(0, 40, 2)]
        await log.append(DEFAULT_LIMITS.pending_entries_max + 3)
        assert await base_offsets(log.broker, 0) == [*range(0, 40 + 2 * DEFAULT_LIMITS.pending_entries_max + 6, 2)]
        await log.compact()
        assert await base_offsets(log.broker, 0) == [*range(0, 40 + 2 * DEFAULT_LIMITS.pending_entries_max + 6, 2)]


async def test_a_chunk_of_a_ring_that_has_gone_may_come_late_and_means_nothing() -> None:
    async with aging(new=DEFAULT_LIMITS.pending_entries_max) as log:
        await log.compact()
        async with rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other:
            other.metadata.faults.append("late")
            sent = other.send(record_batch(b"late", b"y"))
            await other.metadata.until_late()
            log.clock.advance(IDLE_S)
            await log.run(ENDLESS)
            assert (await log.broker.manifest()).pending == ()
            await other.metadata.deliver_late()
            await sent

        assert (await log.broker.manifest()).sequence_counter == 2 * DEFAULT_LIMITS.pending_entries_max + 2
        assert await base_offsets(log.broker, 0) == [*range(0, 2 * DEFAULT_LIMITS.pending_entries_max + 2, 2)]


# The ring


@pytest.mark.parametrize("limits", [ENDLESS, HOUR, RetentionLimits(NO_LIMIT, 1 << 40)])
@pytest.mark.parametrize("before_ring", [0, DEFAULT_LIMITS.pending_entries_max])
async def test_a_ring_to_which_nobody_appends_leaves_in_one_write_and_is_never_written_again(
    limits: RetentionLimits, before_ring: int
) -> None:
    async with aging(new=before_ring + RING) as log:
        before = await log.broker.manifest()
        assert not log.retention().is_due(PARTITION, before, ENDLESS)
        log.clock.advance(IDLE_S)
        faulty, upkeep = FaultyMetadata(log.broker.shared), log.retention()
        assert upkeep.is_due(PARTITION, before, limits)
        await log.retention(faulty).run(PARTITION, limits)
        (ops,) = faulty.writes

        assert [op.key for op in ops if isinstance(op, Put)] == [KEYS.index(before.sequence_counter - 1), KEYS.manifest], "the chunk first"
        await check_drained(log, before)
        counting = Counting(log.broker.shared)
        await log.retention(counting).run(PARTITION, limits)
        assert "write" not in counting.calls


async def test_appends_begin_a_ring_of_their_own_and_the_log_is_compacted_as_ever() -> None:
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        await log.run(ENDLESS)
        await log.append(DEFAULT_LIMITS.pending_entries_max + 3)
        manifest = await log.broker.manifest()

        assert [entry.base for entry in manifest.pending] == [
            *range(2 * (RING + DEFAULT_LIMITS.pending_entries_max), manifest.sequence_counter, 2)
        ]
        assert await index_ends(log.broker.shared) == [2 * RING - 1, 2 * (RING + DEFAULT_LIMITS.pending_entries_max) - 1]
        await check_whole(log)
        await log.compact()
        assert await index_ends(log.broker.shared) == []
        await check_whole(log)


async def test_what_nobody_can_read_any_more_leaves_without_a_chunk() -> None:
    async with aging(old=RING) as log:
        log.clock.advance(IDLE_S)
        done = await log.run(HOUR)
        manifest = await log.broker.manifest()

        assert (done.log_start, manifest.log_start, manifest.pending) == (2 * RING, 2 * RING, ())
        assert await index_ends(log.broker.shared) == []
        await log.append(2)
        await check_whole(log)


async def test_log_start_moves_in_the_write_that_drains_the_ring_and_what_stays_can_be_read() -> None:
    async with aging(old=RING, new=RING) as log:
        log.clock.advance(IDLE_S)
        faulty = FaultyMetadata(log.broker.shared)
        done = await log.retention(faulty).run(PARTITION, HOUR)

        assert (done.log_start, len(faulty.writes)) == (2 * RING, 1)
        assert await index_ends(log.broker.shared) == [4 * RING - 1]
        await check_whole(log)


# Beside commits


async def test_a_commit_that_is_faster_keeps_its_ring_and_the_chunk_that_was_left_is_true() -> None:
    """Overlapping chunks: that of the drain has `RING` entries of the ring, that of the later commit all of them."""
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        clock = log.clock

        async def append() -> None:
            await log.append(1)
            await log.change(last_append_ms=clock.now_ms())

        await log.retention(Meanwhile(log.broker.shared, append)).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()
        assert len(manifest.pending) == RING + 1, "somebody appends: it is left to commits"
        assert await index_ends(log.broker.shared) == [2 * RING - 1]
        await check_whole(log)
        await log.append(DEFAULT_LIMITS.pending_entries_max)

        assert await index_ends(log.broker.shared) == [2 * RING - 1, 2 * DEFAULT_LIMITS.pending_entries_max - 1]
        whole = await chunk_of(log, 2 * DEFAULT_LIMITS.pending_entries_max - 1)
        assert whole.entries[:RING] == (await chunk_of(log, 2 * RING - 1)).entries
        await check_whole(log)


async def test_a_drain_takes_the_ring_of_the_record_that_it_replaces() -> None:
    """Somebody has appended, and by the clock nobody has for long: the ring has one entry more."""
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        await log.retention(Meanwhile(log.broker.shared, lambda: log.append(1))).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()

        assert manifest.pending == ()
        assert await index_ends(log.broker.shared) == [2 * RING - 1, 2 * RING + 1]
        await check_whole(log)


@pytest.mark.parametrize("count", [RING, DEFAULT_LIMITS.pending_entries_max])
async def test_a_commit_at_the_record_of_before_the_drain_lands_behind_it_once(count: int) -> None:
    """The commit has the same ring to drain if that is full: the chunk is there already, and is the same."""
    async with aging(new=count) as log, rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other:
        before = await log.broker.manifest()
        await other.parts.manifest_reads.refresh([other.parts.partitions.get(PARTITION)])
        other.metadata.faults.append("late")
        sent = other.send(record_batch(b"late", b"y"))
        await other.metadata.until_late()
        log.clock.advance(IDLE_S)
        await log.run(ENDLESS)
        await other.metadata.deliver_late()
        await sent
        manifest = await log.broker.manifest()

        assert [entry.base for entry in manifest.pending] == [2 * count]
        assert await chunk_of(log, 2 * count - 1) == drained(before)
        await check_whole(log)


# Faults


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "refused"])
async def test_a_drain_without_an_answer_is_made_up_for(fault: str) -> None:
    async with aging(new=RING) as log:
        before = await log.broker.manifest()
        log.clock.advance(IDLE_S)
        faulty = FaultyMetadata(log.broker.shared)
        faulty.faults.append(fault)
        try:
            await log.retention(faulty).run(PARTITION, ENDLESS)
        except (Unavailable, OutcomeUnknown):
            await log.run(ENDLESS)
        await faulty.deliver_late()

        await check_drained(log, before)


async def test_a_drain_that_arrives_when_others_have_appended_leaves_a_true_chunk_and_nothing_else() -> None:
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        faulty = FaultyMetadata(log.broker.shared)
        faulty.faults.append("late")
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(log.retention(faulty).run(PARTITION, ENDLESS))
            await faulty.until_late()
            draining.cancel()
        await log.append(3)
        await faulty.deliver_late()

        assert len((await log.broker.manifest()).pending) == RING + 3
        assert await index_ends(log.broker.shared) == [2 * RING - 1]
        await check_whole(log)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_one_that_dies_at_its_write_leaves_all_or_nothing(is_done: bool) -> None:
    async with aging(new=RING) as log:
        before = await log.broker.manifest()
        log.clock.advance(IDLE_S)
        with pytest.raises(Crash):
            await log.retention(Crashing(log.broker.shared, at=0, is_done=is_done, shared=[0])).run(PARTITION, ENDLESS)
        assert ((await log.broker.manifest()).pending == (), await index_ends(log.broker.shared) != []) == (is_done, is_done)
        await check_whole(log)
        await log.run(ENDLESS)

        await check_drained(log, before)


async def test_a_topic_that_is_deleted_meanwhile_keeps_its_tombstone() -> None:
    """The chunk is left behind, as any late one is, and the purge finds it."""
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        closed = Meanwhile(log.broker.shared, lambda: log.change(log_state=LogState.DELETED))
        await log.retention(closed).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()

        assert (manifest.log_state, len(manifest.pending)) == (LogState.DELETED, RING)
        assert await index_ends(log.broker.shared) == [2 * RING - 1]


# Beside other upkeep


@pytest.mark.parametrize("at", range(8))
async def test_a_drain_at_any_step_of_a_compaction_harms_neither(at: int) -> None:
    async with aging(new=DEFAULT_LIMITS.pending_entries_max + RING) as log:
        log.clock.advance(IDLE_S)

        async def drain() -> None:
            await log.run(ENDLESS)

        async with compacting(Meanwhile(log.broker.shared, drain, at=at), log.broker.objects) as compaction:
            await compaction.run(PARTITION)
        await log.run(ENDLESS)
        manifest = await log.broker.manifest()

        assert (manifest.compaction_cursor, manifest.pending) == (manifest.sequence_counter, ())
        await check_whole(log)
        await log.append(3)
        await check_whole(log)


async def test_a_compaction_that_is_faster_than_the_drain_makes_its_chunk_one_that_means_nothing() -> None:
    async with aging(new=RING) as log:
        log.clock.advance(IDLE_S)
        await log.retention(Meanwhile(log.broker.shared, log.compact)).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()

        assert (manifest.pending, manifest.compaction_cursor) == ((), 2 * RING)
        assert await index_ends(log.broker.shared) == [2 * RING - 1], (
            "as any that comes late: it goes with the next compaction, or retention"
        )
        await check_whole(log)
        await log.append(3)
        await log.compact()
        assert await index_ends(log.broker.shared) == []
        await check_whole(log)


@pytest.mark.parametrize("at", range(6))
async def test_a_drain_at_any_step_of_a_merge_harms_neither(at: int) -> None:
    async with aging(new=0) as log:
        for _ in range(4):
            await log.append(2)
            await log.compact()
        await log.append(RING)
        log.clock.advance(IDLE_S)

        async def drain() -> None:
            await log.run(ENDLESS)

        async with merging(Meanwhile(log.broker.shared, drain, at=at), log.broker.objects, policy=PAIRS) as merger:
            done = await merger.run(PARTITION)
        await log.run(ENDLESS)
        manifest = await log.broker.manifest()

        assert done.merged is not None
        assert (manifest.pending, manifest.rewritten) == ((), None)
        await check_whole(log)


class BeforeList:
    """The store inside; `act` happens before a list of its keys is made."""

    def __init__(self, inner: Any, act: Any) -> None:
        self._inner = inner
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list(self, start: Key, end: str) -> Any:
        await self._act()
        return await self._inner.list(start, end)


@pytest.mark.parametrize("when", ["before all", "before the floor", "between the looks"])
async def test_a_collector_sees_an_entry_in_the_record_or_in_the_index_wherever_the_drain_falls(when: str) -> None:
    async with aging(new=RING) as log:
        named = {entry.object_id for entry in (await log.broker.manifest()).pending}
        log.clock.advance(IDLE_S)
        drained_at: list[bool] = []

        async def drain() -> None:
            if not drained_at:
                drained_at.append(True)
                await log.run(ENDLESS)

        if when == "before all":
            await drain()
        store: Any = Meanwhile(log.broker.shared, drain) if when == "before the floor" else BeforeList(log.broker.shared, drain)
        session = await log.broker.shared.open_session(timeout_ms=10_000)
        references = References(store, session=session, ids=IdSource(clock=SystemClock()))
        seen = [await references.revoke_wal(PARTITION, max(named)) for _ in range(2)]  # the second finds the floor high enough
        await session.close()

        assert drained_at
        assert (await log.broker.manifest()).pending == ()
        assert seen == [named, named]


# Readers


async def read_each(broker: Rig, end: int) -> list[int]:
    """The base of the batch that a broker gives for each offset, by the manifest that it knows."""
    bases = []
    for offset in range(end):
        run = await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), offset, bytes_max=1)
        piece = run.from_offset(offset, 1, at_least_one=True)
        assert piece is not None
        bases.append(int.from_bytes(piece[0][0][:8], "big"))
    return bases


@pytest.mark.parametrize("knows", ["the record of before", "the record of after", "a shorter chunk of the same ring"])
async def test_a_broker_reads_every_offset_whatever_it_remembers(knows: str) -> None:
    async with aging(new=3) as log, rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other:
        view = other.parts.partitions.get(PARTITION)
        log.clock.advance(IDLE_S)
        if knows == "a shorter chunk of the same ring":
            # That of a drain which lost: the ring goes on behind it.
            await log.retention(Meanwhile(log.broker.shared, lambda: log.append(2))).run(PARTITION, ENDLESS)
            await other.parts.manifest_reads.refresh([view])
            assert await read_each(other, 6) == [0, 0, 2, 2, 4, 4]
        else:
            await log.append(2)
            await other.parts.manifest_reads.refresh([view])
            await log.run(ENDLESS)
            if knows == "the record of after":
                await other.parts.manifest_reads.refresh([view])
        assert (await log.broker.manifest()).pending == ()

        assert await read_each(other, 10) == [2 * (offset // 2) for offset in range(10)]


async def test_offsets_by_time_are_the_same_after_the_ring_was_drained() -> None:
    async with aging(new=0) as log:
        for age_h in (5, 3, 4, 1, 2):
            await log.append(1, age_h=age_h)
        now_ms = log.clock.now_ms()

        async def answers() -> list[object]:
            async with rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other:
                search = other.parts.time_search
                times = [await search.first_at_or_after(PARTITION, now_ms - half * 1_800_000) for half in range(12)]
                return [*times, await search.of_maximum(PARTITION)]

        before = await answers()
        log.clock.advance(IDLE_S)
        await log.run(ENDLESS)

        assert (await log.broker.manifest()).pending == ()
        assert len({str(one) for one in before}) == 4
        assert await answers() == before


# Writers


async def test_entries_of_dead_brokers_leave_with_the_ring_by_what_the_record_says_that_is_replaced() -> None:
    async with aging(new=RING) as log:
        await log.change(writers={epoch: WriterEntry(1, 1) for epoch in (1, 2, 7)})
        log.clock.advance(IDLE_S)
        asked: list[list[int]] = []

        def gone(epochs: Any) -> set[int]:
            asked.append(sorted(epochs))
            return {1, 2, 3} & set(epochs)

        async def name_others() -> None:
            await log.change(writers={epoch: WriterEntry(1, 1) for epoch in (2, 3, 7, 8)})

        store: Any = Meanwhile(log.broker.shared, name_others)
        await Retention(store, log.clock, policy=POLICY, gone=gone).run(PARTITION, ENDLESS)
        manifest = await log.broker.manifest()

        assert asked[-1] == [2, 3, 7, 8]
        assert (sorted(manifest.writers), manifest.pending) == ([7, 8], ())


async def test_without_anything_known_of_brokers_their_entries_stay() -> None:
    async with aging(new=RING) as log:
        await log.change(writers={epoch: WriterEntry(1, 1) for epoch in range(1, 12)})
        log.clock.advance(IDLE_S)
        await log.run(ENDLESS)

        assert len((await log.broker.manifest()).writers) == 11
