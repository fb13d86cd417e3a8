"""The budget of what goes early: a bulk load leaves a place in it to small batches, and a pause leads to no second state."""

import asyncio
from itertools import pairwise

import pytest

from runtime.clock import SystemClock
from sim.loop import VirtualClock, VirtualLoop
from storage.limits import KIB, MIB
from storage.log.batch import Appended
from storage.log.flush import (
    COMMIT_COST_BYTES,
    CONFLICTS_MAX,
    FULL_S,
    GATHERS_S,
    GATHERS_S_MAX,
    NO_EARLY,
    ON_OXIA,
    ON_SQLITE,
    SMALL_BYTES,
    ByteBudget,
    EarlySettings,
    FlushSettings,
    Gathered,
    early_settings,
)
from storage.log.limits import LogLimits
from storage.metadata import keys
from storage.metadata.port import Put
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import PartitionId
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig
from tests.unit.storage.log.test_early import EARLY, OTHER, counted, of_size, reasons, with_other

AT_ONCE = FlushSettings(interval_s=0.0, gather_s=0.01)
PUT_S = 0.1
WRITE_S = 0.004
ROUND_TRIP_S = 0.002
IN_FLIGHT_MAX = 5
EVERY_S = 0.005
RECORD_BYTES = 1_100
PAUSED_AT_S = 2.0


class Waited(SystemClock):
    """Time that passes when a test says so."""

    passed_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.passed_s


def test_a_budget_has_a_turn_for_each_and_the_turns_come_one_after_the_other() -> None:
    budget = ByteBudget(EarlySettings(bytes_per_s=1_000, wait_max_s=0.1))

    assert [budget.take(125, 100.0) for _ in range(3)] == [0.0, 0.0, None], "a quarter of a second is kept"
    assert budget.take(50, 100.0) == pytest.approx(0.05)
    assert budget.take(50, 100.0) == pytest.approx(0.1)
    assert budget.take(50, 100.0) is None, "its turn comes too late"
    assert budget.take(50, 100.1) == pytest.approx(0.05)
    assert [budget.take(125, 200.0) for _ in range(3)] == [0.0, 0.0, None], "no more is kept, however long nothing came"


def test_the_last_quarter_of_what_a_budget_keeps_is_for_small_batches() -> None:
    budget = ByteBudget(EarlySettings(bytes_per_s=MIB))

    assert budget.take(192 * KIB, 100.0) == 0.0
    assert budget.take(SMALL_BYTES + 1, 100.0) is None
    assert budget.take(SMALL_BYTES, 100.0) == 0.0


@pytest.mark.parametrize("bytes_per_s", [1, 1_000, 1 << 30])
def test_a_budget_that_is_whole_has_a_turn_for_any_small_batch(bytes_per_s: int) -> None:
    budget = ByteBudget(EarlySettings(bytes_per_s=bytes_per_s))

    assert budget.take(COMMIT_COST_BYTES + 100, 100.0) == 0.0
    assert (budget.take(COMMIT_COST_BYTES + 100, 100.0) is None) == (bytes_per_s < 1 << 30)


def test_the_metadata_store_says_how_large_a_budget_is_unless_a_setting_does() -> None:
    assert (early_settings(None, is_shared=True), early_settings(None, is_shared=False)) == (ON_OXIA, ON_SQLITE)
    assert early_settings(5, is_shared=True) == EarlySettings(5, ON_OXIA.wait_max_s)
    assert early_settings(0, is_shared=False).bytes_per_s == NO_EARLY.bytes_per_s


async def test_a_partition_that_the_budget_has_no_turn_for_gathers_for_a_while_and_twice_as_long_the_next_time() -> None:
    clock = Waited()
    async with rig(early=EarlySettings(bytes_per_s=1), flush=AT_ONCE, clock=clock) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        waits = []
        for _ in range(6):
            await broker.send(of_size(100))
            began_s = clock.passed_s
            queue = broker.parts.partitions.get(PARTITION).commit_queue
            clock.passed_s = queue.gathers_until_s
            waits.append(clock.passed_s - began_s)
        assert counted(broker, "early_commits_total") == 1
        clock.passed_s += 10_000
        await broker.send(of_size(100))

        assert waits == [GATHERS_S, 2 * GATHERS_S, 4 * GATHERS_S, 8 * GATHERS_S, GATHERS_S_MAX, GATHERS_S_MAX]
        assert counted(broker, "early_commits_total") == 2
        assert reasons(broker) == {Gathered.BUDGET: 6}


async def test_a_batch_whose_turn_is_near_waits_for_it_and_takes_along_what_arrives() -> None:
    budget = EarlySettings(bytes_per_s=40_000, wait_max_s=0.1)
    async with rig(early=budget, flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker:
        await broker.send(of_size(9_000 - COMMIT_COST_BYTES))
        sent = [broker.send(of_size(300)) for _ in range(3)]
        results = [await one for one in sent]

        assert [result.base_offset for (result,) in results if isinstance(result, Appended)] == [1, 2, 3]
        assert (counted(broker, "early_commits_total"), reasons(broker)) == (2, {})


async def test_after_a_manifest_had_no_room_batches_are_gathered_for_a_while() -> None:
    clock = Waited()
    async with rig(early=EARLY, flush=AT_ONCE, clock=clock, limits=LogLimits(manifest_bytes_max=100)) as broker:
        (refused,) = await broker.send(of_size(100))
        assert "manifest is full" in str(refused)
        await broker.send(of_size(100))
        assert reasons(broker) == {Gathered.FULL: 1}
        clock.passed_s += FULL_S
        await broker.send(of_size(100))

        assert reasons(broker) == {Gathered.FULL: 1}


async def test_a_batch_is_gathered_while_others_commit_to_the_partition() -> None:
    async with rig(early=EARLY, flush=AT_ONCE) as broker:
        broker.parts.partitions.get(PARTITION).commit_queue.conflict_share = 2 * CONFLICTS_MAX
        await broker.send(of_size(3_000))

        assert reasons(broker) == {Gathered.CONFLICTS: 1}


class Producer:
    """A record every `every_s`, and as many requests under way as an idempotent producer has, each with all that has waited for it."""

    def __init__(
        self, broker: Rig, clock: VirtualClock, *, pause_s: float, every_s: float, partition: PartitionId = PARTITION, record_bytes: int
    ) -> None:
        """The broker takes no requests for `pause_s` from PAUSED_AT_S on."""
        self._broker = broker
        self._clock = clock
        self._every_s = every_s
        self._resumes_s = PAUSED_AT_S + pause_s
        self._partition = partition
        self._record_bytes = record_bytes
        self._waiting: list[float] = []
        self._under_way = 0
        self.latencies_s: dict[float, float] = {}
        """How long after it was written a record was acknowledged, by when that was."""

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(round(seconds / self._every_s)):
                self._waiting.append(self._clock.monotonic_s())
                self._send(group)
                await asyncio.sleep(self._every_s)

    def _send(self, group: asyncio.TaskGroup) -> None:
        if self._waiting and self._under_way < IN_FLIGHT_MAX:
            records, self._waiting = self._waiting[:900], self._waiting[900:]
            self._under_way += 1
            group.create_task(self._produce(records, group))

    async def _produce(self, records: list[float], group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(ROUND_TRIP_S)
        if PAUSED_AT_S <= self._clock.monotonic_s() < self._resumes_s:
            await asyncio.sleep(self._resumes_s - self._clock.monotonic_s())
        (result,) = await self._broker.send(of_size(HEADER_BYTES + self._record_bytes * len(records)), partition=self._partition)
        assert isinstance(result, Appended)
        now_s = self._clock.monotonic_s()
        self.latencies_s |= {written_s: now_s - written_s for written_s in records}
        self._under_way -= 1
        self._send(group)


def longest_s(
    *,
    pause_s: float,
    producers: int = 1,
    every_s: float = EVERY_S,
    beside: bool = False,
    back_within_s: float = 1.0,
    early: EarlySettings = ON_OXIA,
) -> float:
    """The longest latency of records that were written `back_within_s` after such a pause, or later. A PUT takes PUT_S, a commit
    WRITE_S.
    """

    async def scenario() -> float:
        clock = VirtualClock(asyncio.get_running_loop())
        async with rig(early=early, flush=FlushSettings(), clock=clock) as broker, asyncio.TaskGroup() as group:
            broker.objects.put_s, broker.metadata.write_s = PUT_S, WRITE_S
            all_of_them = [
                Producer(broker, clock, pause_s=pause_s, every_s=every_s * producers, record_bytes=RECORD_BYTES) for _ in range(producers)
            ]
            if beside:
                await with_other(broker)
                group.create_task(bulk(broker))
            since_s = PAUSED_AT_S + pause_s + back_within_s
            await asyncio.gather(*[producer.run(since_s + 3.0) for producer in all_of_them])
            return max(late_s for producer in all_of_them for written_s, late_s in producer.latencies_s.items() if written_s > since_s)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def bulk(broker: Rig) -> None:
    """10 MB/s in batches of 100 KB to another partition: far above the budget."""
    for _ in range(1_000):
        broker.send(of_size(100_000), partition=OTHER)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a bulk load"])
@pytest.mark.parametrize(("producers", "pause_s"), [(1, 0.0), (2, 0.2), (4, 1.0), (8, 5.0)])
def test_producers_that_a_pause_made_batch_are_soon_as_fast_as_before(pause_s: float, producers: int, beside: bool) -> None:
    assert longest_s(pause_s=pause_s, producers=producers, beside=beside) < PUT_S / 5


@pytest.mark.parametrize("pause_s", [0.0, 0.2, 5.0])
def test_at_two_thousand_records_a_second_a_pause_leads_to_no_second_state(pause_s: float) -> None:
    assert longest_s(pause_s=pause_s, every_s=0.0005) < PUT_S / 2


def test_without_early_slices_they_would_wait_for_objects() -> None:
    """The scenario above shows what it is about."""
    assert longest_s(pause_s=0.0, early=NO_EARLY) > PUT_S


def test_from_load_to_load_there_is_one_step_at_the_budget() -> None:
    """1 KiB records at 100 to 10,000 a second. Below the budget a commit's wait, above it an object's."""
    rates = [100 * 1.5**n for n in range(12)]
    latencies_s = [longest_s(pause_s=0.0, every_s=1 / rate, back_within_s=0.5) for rate in rates]

    steps = [rate for rate, (one, next_one) in zip(rates[1:], pairwise(latencies_s), strict=True) if next_one > 2.5 * one]
    assert latencies_s[0] < PUT_S / 5
    assert len(steps) <= 1
    assert all(rate * RECORD_BYTES > ON_OXIA.bytes_per_s / 2 for rate in steps)


def test_a_producer_of_medium_batches_that_waits_for_nothing_is_held_by_the_budget_and_by_no_object() -> None:
    """Java's `batch.size` and five requests under way, which as objects would be 0.8 MB/s here."""
    seconds, size_bytes = 10.0, 16 * KIB

    async def scenario() -> int:
        clock = VirtualClock(asyncio.get_running_loop())
        sent = 0
        async with rig(early=ON_OXIA, flush=FlushSettings(), clock=clock) as broker:
            broker.objects.put_s, broker.metadata.write_s = PUT_S, WRITE_S

            async def one_after_the_other() -> None:
                nonlocal sent
                while clock.monotonic_s() < seconds:
                    (result,) = await broker.send(of_size(size_bytes))
                    assert isinstance(result, Appended)
                    sent += size_bytes
                    await asyncio.sleep(ROUND_TRIP_S)

            await asyncio.gather(*[one_after_the_other() for _ in range(IN_FLIGHT_MAX)])
        return sent

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(scenario()) / seconds > 0.8 * ON_OXIA.bytes_per_s


async def test_slices_of_many_partitions_that_arrive_together_share_one_object() -> None:
    limits = LogLimits(early_age_s=0.05, early_delete_after_s=0.0, early_delete_pause_s=0.0)
    async with rig(early=EARLY, flush=AT_ONCE, limits=limits) as broker:
        count = 100
        await broker.shared.write([Put(keys.PartitionKeys(PartitionId(TOPIC, 1 + n)).manifest, b'{"fmt":1}', None) for n in range(count)])
        results = await asyncio.gather(*(broker.send(of_size(300), partition=PartitionId(TOPIC, 1 + n)) for n in range(count)))
        await broker.parts.appender.store_early()

        assert all(isinstance(result, Appended) for (result,) in results)
        assert len(broker.objects.put_keys) == 1
        assert reasons(broker) == {}
