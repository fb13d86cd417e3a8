"""Batches that travel in their commit: no object, the same order, the same answers."""

import asyncio
from collections.abc import Sequence

import pytest

from runtime.clock import SystemClock
from storage.errors import Corrupt, StorageError, Unavailable
from storage.formats.levels import LEVEL_OF_INLINE
from storage.formats.manifest import Entry, inline_bytes
from storage.log.batch import Appended
from storage.log.commit import CONFLICT_MEMORY
from storage.log.flush import CONFLICTS_MAX, CommitBudget, FlushSettings, InlineSettings, NotInlined
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.reader import read_inline
from storage.log.writer import TURNS_MAX, UPLOADS_MAX
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import ObjectId, PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig, until_put

KIB = InlineSettings(bytes_max=1_024)
SLOW = FlushSettings(interval_s=60.0, gather_s=60.0)
"""What is gathered is not sealed within a test."""
OTHER = PartitionId(TOPIC, 1)


def of_size(size_bytes: int, fill: bytes = b"x") -> bytearray:
    return batch_bytes(payload=fill * (size_bytes - HEADER_BYTES))


def counted(broker: Rig, name: str, **labels: str) -> float | None:
    return broker.telemetry.registry.get_sample_value(f"forebay_{name}_total", labels)


def reasons(broker: Rig) -> dict[str, float]:
    """Why batches were gathered, and how many."""
    return {one: value for one in NotInlined if (value := counted(broker, "not_inlined_batches", reason=one))}


def offsets(results: Sequence[Sequence[Appended | StorageError]]) -> list[int]:
    return [result.base_offset for (result,) in results if isinstance(result, Appended)]


async def test_a_small_batch_is_appended_at_once_without_an_object() -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        assert await broker.send(of_size(1_024)) == [Appended(0, 0)]
        assert await broker.send(of_size(200)) == [Appended(1, 0)]

        assert broker.objects.put_keys == []
        assert [entry.is_inline for entry in (await broker.manifest()).pending] == [True, True]
        assert (await broker.manifest()).bytes_total == 1_224
        assert len(await broker.read_all()) == 1_224
        assert (counted(broker, "inline_commits"), counted(broker, "inline_bytes"), reasons(broker)) == (2, 1_224, {})


async def test_a_large_batch_goes_into_an_object_and_what_is_behind_it_does_not_overtake_it() -> None:
    async with rig(inline=KIB, flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        results = await asyncio.gather(
            *(
                broker.send(batch)
                for batch in (
                    of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1, b"a"),
                    of_size(200, b"b"),
                    of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1, b"c"),
                )
            )
        )

        assert offsets(results) == [0, 1, 2]
        assert len(broker.objects.put_keys) == 1
        assert [entry.is_inline for entry in (await broker.manifest()).pending] == [False]
        assert reasons(broker) == {NotInlined.LARGE: 2, NotInlined.QUEUED: 1}


async def test_a_small_batch_waits_for_the_object_before_it() -> None:
    async with rig(inline=KIB) as broker:
        broker.objects.gate = asyncio.Event()
        first = broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1))
        await until_put(broker, 1)
        second = broker.send(of_size(200))
        await asyncio.sleep(0.02)
        assert not second.done()
        broker.objects.gate.set()

        assert offsets([await first, await second]) == [0, 1]
        assert [entry.is_inline for entry in (await broker.manifest()).pending] == [False, True]


async def test_what_arrives_while_a_commit_is_under_way_goes_into_the_next_one_as_far_as_it_fits() -> None:
    async with rig(inline=KIB, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(300)) for _ in range(4)]  # the fourth has no room there, and begins another
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4, 5]
        assert [(entry.base, entry.last, entry.is_inline) for entry in (await broker.manifest()).pending] == [
            (0, 0, True),
            (1, 1, True),
            (2, 4, True),
            (5, 5, True),
        ]
        assert broker.objects.put_keys == []
        assert (counted(broker, "inline_commits"), counted(broker, "inline_bytes"), reasons(broker)) == (4, 1_400, {})


async def test_what_arrives_behind_as_many_commits_as_may_wait_is_gathered() -> None:
    no_larger = InlineSettings(bytes_max=DEFAULT_LIMITS.larger_commit_bytes_max)
    async with rig(inline=no_larger, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max)) for _ in range(DEFAULT_LIMITS.queued_commits_max)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == list(range(1, DEFAULT_LIMITS.queued_commits_max + 2))
        assert (counted(broker, "inline_commits"), reasons(broker)) == (DEFAULT_LIMITS.queued_commits_max + 2, {NotInlined.FULL: 1})
        assert broker.objects.put_keys == [], "what was gathered was small, too"


async def test_a_flush_that_time_made_due_and_that_is_small_stores_no_object() -> None:
    no_budget = InlineSettings(bytes_max=1_024, commits_per_s=0.001)
    async with rig(inline=no_budget, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        await broker.shared.write([Put(keys.PartitionKeys(OTHER).manifest, b'{"fmt":1}', None)])
        results = await asyncio.gather(*(broker.send(of_size(300), partition=PartitionId(TOPIC, n % 2)) for n in range(6)))

        assert offsets(results) == [0, 0, 1, 1, 2, 2]
        assert reasons(broker) == {NotInlined.BUDGET: 1, NotInlined.QUEUED: 2}
        assert broker.objects.put_keys == []


async def test_a_small_flush_of_which_all_was_refused_meanwhile_commits_nothing() -> None:
    no_budget = InlineSettings(bytes_max=1_024, commits_per_s=0.001)
    async with rig(inline=no_budget, flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        assert await broker.send(of_size(200)) == [Appended(0, 0)], "one commit is in the budget from the start"
        refused = broker.send(of_size(200))
        appender = broker.parts.appender
        for batch in [one for batches in appender._open.batches.values() for one in batches]:
            batch.settle(Unavailable("not now"))
        gathered = appender._open
        async with asyncio.timeout(25):
            while appender._open is gathered:  # noqa: ASYNC110 - a timer replaces it
                await asyncio.sleep(0.005)
        result = await broker.send(of_size(200))

        assert isinstance((await refused)[0], Unavailable)
        assert result == [Appended(1, 0)]
        assert counted(broker, "inline_commits") == 2


async def with_partitions(broker: Rig, count: int) -> None:
    await broker.shared.write([Put(keys.PartitionKeys(PartitionId(TOPIC, 1 + n)).manifest, b'{"fmt":1}', None) for n in range(count)])


def sent_to(broker: Rig, partitions: range) -> list["asyncio.Future[list[Appended | StorageError]]"]:
    return [broker.send(of_size(100), partition=PartitionId(TOPIC, 1 + n)) for n in partitions]


async def test_batches_of_more_partitions_than_may_carry_at_a_time_go_into_one_object_and_the_next_are_carried_again() -> None:
    async with rig(inline=KIB, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        await with_partitions(broker, 2 * DEFAULT_LIMITS.inline_commits_at_once_max + 1)
        results = await asyncio.gather(*sent_to(broker, range(2 * DEFAULT_LIMITS.inline_commits_at_once_max + 1)))

        assert offsets(results) == [0] * (2 * DEFAULT_LIMITS.inline_commits_at_once_max + 1)
        assert reasons(broker) == {NotInlined.MANY: DEFAULT_LIMITS.inline_commits_at_once_max + 1}
        assert (counted(broker, "inline_commits"), len(broker.objects.put_keys)) == (DEFAULT_LIMITS.inline_commits_at_once_max, 1)

        await asyncio.gather(*sent_to(broker, range(DEFAULT_LIMITS.inline_commits_at_once_max)))
        assert (counted(broker, "inline_commits"), len(broker.objects.put_keys)) == (2 * DEFAULT_LIMITS.inline_commits_at_once_max, 1)


async def test_of_a_request_for_more_partitions_than_may_carry_at_a_time_none_is_carried() -> None:
    async with rig(inline=KIB, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        await with_partitions(broker, DEFAULT_LIMITS.inline_commits_at_once_max + 1)
        results = await asyncio.gather(
            *(
                broker.send(of_size(100), partition=PartitionId(TOPIC, 1 + n), together=DEFAULT_LIMITS.inline_commits_at_once_max + 1)
                for n in range(DEFAULT_LIMITS.inline_commits_at_once_max + 1)
            )
        )

        assert offsets(results) == [0] * (DEFAULT_LIMITS.inline_commits_at_once_max + 1)
        assert reasons(broker) == {NotInlined.MANY: DEFAULT_LIMITS.inline_commits_at_once_max + 1}
        assert (counted(broker, "inline_commits"), len(broker.objects.put_keys)) == (0, 1)


async def test_small_batches_of_any_number_of_partitions_are_carried_while_uploads_have_no_place() -> None:
    count = 3 * DEFAULT_LIMITS.inline_commits_at_once_max
    async with rig(inline=KIB, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        await with_partitions(broker, count)
        broker.objects.gate = gate = asyncio.Event()
        large = []
        for _ in range(UPLOADS_MAX):
            large.append(broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1)))
            async with asyncio.timeout(25):
                while broker.parts.appender._open.batches:  # noqa: ASYNC110 - a timer seals it
                    await asyncio.sleep(0.001)
        async with asyncio.timeout(25):
            small = await asyncio.gather(*sent_to(broker, range(count)))

        assert offsets(small) == [0] * count
        assert reasons(broker) == {NotInlined.LARGE: UPLOADS_MAX, NotInlined.MANY: count - DEFAULT_LIMITS.inline_commits_at_once_max}
        assert counted(broker, "inline_commits") == count
        gate.set()
        assert offsets([await one for one in large]) == list(range(UPLOADS_MAX))
        assert len(broker.objects.put_keys) == UPLOADS_MAX


async def test_commits_wait_for_others_as_long_as_each_turn_of_the_loop_brings_some() -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        await with_partitions(broker, 8)
        lone = await broker.send(of_size(100))
        one_for_the_lone, begun = len(broker.metadata.writes), []
        sent = []
        for number in range(8):
            sent += sent_to(broker, range(number, number + 1))
            await asyncio.sleep(0)
            begun.append(len(broker.parts.appender._inline_commits))
        await asyncio.gather(*sent)

        assert lone == [Appended(0, 0)]
        assert one_for_the_lone == 1
        assert begun[0] == 0, "nothing else is under way: it waits for nobody"
        assert max(begun) == TURNS_MAX, "and no longer than so many turns"


async def test_partitions_that_arrive_in_turns_of_which_none_brings_too_many_are_all_carried() -> None:
    first, second = DEFAULT_LIMITS.inline_commits_at_once_max - 12, DEFAULT_LIMITS.inline_commits_at_once_max - 4
    async with rig(inline=KIB, flush=SLOW) as broker:
        await with_partitions(broker, first + second)
        sent = sent_to(broker, range(first))
        await asyncio.sleep(0)
        sent += sent_to(broker, range(first, first + second))
        waiting = len(broker.parts.appender._inline_commits)
        results = await asyncio.gather(*sent)

        assert waiting == first + second, "they wait for each other"
        assert offsets(results) == [0] * (first + second)
        assert reasons(broker) == {}
        assert (counted(broker, "inline_commits"), len(broker.objects.put_keys)) == (first + second, 0)


async def test_commits_that_come_to_nothing_make_room_for_others_that_carry() -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        broker.metadata.faults.append("request lost")
        await with_partitions(broker, DEFAULT_LIMITS.inline_commits_at_once_max)
        first = await asyncio.gather(*sent_to(broker, range(DEFAULT_LIMITS.inline_commits_at_once_max)))
        second = await asyncio.gather(*sent_to(broker, range(DEFAULT_LIMITS.inline_commits_at_once_max)))

        assert (
            offsets([*first, *second]) == [0] * DEFAULT_LIMITS.inline_commits_at_once_max + [1] * DEFAULT_LIMITS.inline_commits_at_once_max
        )
        assert reasons(broker) == {}


async def test_a_flush_with_one_large_slice_is_an_object() -> None:
    no_budget = InlineSettings(bytes_max=1_024, commits_per_s=0.001)
    async with rig(inline=no_budget, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        await broker.shared.write([Put(keys.PartitionKeys(OTHER).manifest, b'{"fmt":1}', None)])
        assert await broker.send(of_size(200)) == [Appended(0, 0)], "one commit is in the budget from the start"
        results = await asyncio.gather(
            *(broker.send(of_size(600)) for _ in range(2)), *(broker.send(of_size(100), partition=OTHER) for _ in range(2))
        )

        assert offsets(results) == [1, 2, 0, 1]
        assert len(broker.objects.put_keys) == 1


async def test_nothing_is_inline_before_every_broker_can_read_it() -> None:
    async with rig(inline=KIB, level=LEVEL_OF_INLINE - 1) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]

        assert len(broker.objects.put_keys) == 1
        assert not inline_bytes((await broker.manifest()).pending)
        assert reasons(broker) == {NotInlined.OFF: 1}


async def test_the_ring_leaves_when_it_has_as_many_bytes_as_it_may() -> None:
    async with rig(inline=KIB) as broker:
        fit = DEFAULT_LIMITS.inline_pending_bytes_max // 1_000
        assert fit < DEFAULT_LIMITS.pending_entries_max
        for number in range(fit):
            assert await broker.send(of_size(1_000)) == [Appended(number, 0)]
        assert len((await broker.manifest()).pending) == fit
        assert await broker.send(of_size(1_000)) == [Appended(fit, 0)]

        assert [entry.base for entry in (await broker.manifest()).pending] == [fit]
        assert len(await broker.read_all()) == 1_000 * (fit + 1)


async def test_another_broker_reads_inline_batches_without_a_get() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, inline=KIB) as writer, rig(shared=shared, objects=objects, epoch=8) as reader:
        for _ in range(DEFAULT_LIMITS.pending_entries_max + 3):
            await writer.send(of_size(150))

        assert await reader.read_all() == await writer.read_all()
        assert len(await reader.read_all()) == 150 * (DEFAULT_LIMITS.pending_entries_max + 3)
        log = reader.parts.partitions.get(PARTITION)
        for offset in (0, DEFAULT_LIMITS.pending_entries_max + 1):  # in a chunk that was read, and in the ring
            spare = reader.parts.reader.stored_reads.spare(log, offset, bytes_max=1_000, at_least_one=True)
            assert getattr(spare, "base", None) == offset, "it is in memory: nobody waits for it"
        assert reader.parts.reader.stored_reads.spare(log, 0, bytes_max=149, at_least_one=False) is None


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "seen first, reply lost", "refused"])
async def test_an_inline_batch_is_appended_once_whatever_becomes_of_one_request(fault: str) -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        log = broker.parts.partitions.get(PARTITION)
        broker.metadata.on_seen_first = lambda: broker.parts.manifest_reads.refresh([log])
        assert await broker.send(of_size(100, b"a")) == [Appended(0, 0)]
        broker.metadata.faults.append(fault)
        assert await broker.send(of_size(100, b"b")) == [Appended(1, 0)]
        await broker.metadata.deliver_late()
        assert await broker.send(of_size(100, b"c")) == [Appended(2, 0)]

        assert len(await broker.read_all()) == 300


async def test_a_batch_that_was_answered_still_has_its_bytes_in_the_attempt_that_lands() -> None:
    limits = LogLimits(commit_timeout_s=0.2, overdue_check_s=0.02, commit_write_timeout_s=0.1)
    async with rig(inline=KIB, flush=SLOW, limits=limits) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults += ["request lost"] * 200
        (given_up,) = await broker.send(of_size(100, b"b"))
        assert isinstance(given_up, StorageError)
        broker.metadata.faults.clear()
        await broker.parts.appender.drain()
        (after,) = await broker.send(of_size(100, b"c"))

        assert isinstance(after, Appended)
        assert len(await broker.read_all()) == 100 * (after.base_offset + 1)


async def test_what_follows_a_lost_inline_batch_of_its_connection_is_refused_with_it() -> None:
    async with rig(inline=KIB) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = broker.send(of_size(100))
        broker.parts.appender.refuse("the broker lost its place")

        assert isinstance((await first)[0], StorageError)
        assert isinstance((await behind)[0], Unavailable)


async def test_a_partition_that_others_commit_to_gathers_until_it_is_alone_again() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with (
        rig(shared=shared, objects=objects, inline=KIB) as one,
        rig(shared=shared, objects=objects, epoch=8, inline=KIB) as other,
    ):
        queue = one.parts.partitions.get(PARTITION).commit_queue
        while queue.conflict_share <= CONFLICTS_MAX:
            await other.send(of_size(100))
            await one.send(of_size(100))
        puts = len(one.objects.put_keys)
        await one.send(of_size(100))
        assert len(one.objects.put_keys) == puts, "small, and due by time: no object is needed all the same"
        assert reasons(one) == {NotInlined.CONFLICTS: 1}
        while queue.conflict_share > CONFLICTS_MAX * CONFLICT_MEMORY:
            await one.send(of_size(100))

        assert await one.read_all() == await other.read_all()


def test_a_budget_is_spent_and_comes_back() -> None:
    budget = CommitBudget(8.0)
    assert [budget.take(100.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(100.125) for _ in range(2)] == [True, False]
    assert [budget.take(200.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(150.0) for _ in range(2)] == [False, False], "a clock that goes back gives nothing"
    assert all(CommitBudget(None).take(0.0) for _ in range(1_000))
    kept = CommitBudget(1.0, kept_max=3)
    assert [kept.take(100.0) for _ in range(4)] == [True, True, True, False], "or as many as are kept"


@pytest.mark.parametrize(("at", "bit"), [(8, 0x40), (16, 1), (40, 1), (-1, 1)], ids=["length", "magic", "body", "end"])
def test_inline_bytes_that_are_not_what_was_written_are_corrupt_and_named(at: int, bit: int) -> None:
    data = bytearray(of_size(120))
    data[at] ^= bit
    entry = Entry(5, 5, ObjectId("01J00000000000000000000000"), bytes(data), 0, 0)

    with pytest.raises(Corrupt, match=r"inline/01J00000000000000000000000.*entry=5\.\.5"):
        read_inline(PARTITION, entry, 5, bytes_max=1_000, at_least_one=True, join_below_bytes=1)


async def test_a_batch_does_not_join_a_commit_that_reads_the_record_it_will_decide_on() -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        log = broker.parts.partitions.get(PARTITION)
        first = broker.send(of_size(100))  # nothing is known of the partition: its commit reads first
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.commit_queue.commits[0].is_open
        assert not log.commit_queue.commits[0].has_begun
        second = broker.send(of_size(100))

        assert [len(commit.batches) for commit in log.commit_queue.commits] == [1, 1]
        assert offsets([await first, await second]) == [0, 1]


async def test_a_timer_that_comes_when_the_broker_has_ended_stores_and_commits_nothing() -> None:
    async with rig(inline=KIB, flush=SLOW) as broker:
        large = broker.send(of_size(20_000))
        await asyncio.sleep(0)
        appender = broker.parts.appender
        assert appender._open.batches
    appender._on_time()
    small = sent_to(broker, [0])
    await asyncio.sleep(0)

    assert [one.done() for one in (large, *small)] == [False, False]
    assert (broker.objects.put_keys, broker.metadata.writes) == ([], [])
