"""A batch above what commits always carry travels in one now and then, so that a producer that paused is soon as fast as before."""

import asyncio

import pytest

from runtime.clock import SystemClock
from sim.loop import VirtualClock, VirtualLoop
from storage.log.batch import Appended
from storage.log.flush import CONFLICTS_MAX, FULL_S, FlushSettings, InlineSettings, NotInlined
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata import keys
from storage.metadata.port import Put
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import PartitionId
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig, until_put
from tests.unit.storage.log.test_inline import OTHER, counted, of_size, offsets, reasons, with_partitions

INLINE = InlineSettings(bytes_max=1_024)
AT_ONCE = FlushSettings(interval_s=0.0, gather_s=0.01)
PUT_S = 0.1
WRITE_S = 0.004
ROUND_TRIP_S = 0.002
IN_FLIGHT_MAX = 5
EVERY_S = 0.005
RECORD_BYTES = 110
PAUSED_AT_S = 2.0


class Waited(SystemClock):
    """Time that passes when a test says so."""

    passed_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.passed_s


async def carried(broker: Rig) -> list[bool]:
    return [entry.is_inline for entry in (await broker.manifest()).pending]


async def test_a_larger_batch_is_carried_once_in_a_while() -> None:
    clock = Waited()
    async with rig(inline=INLINE, flush=AT_ONCE, clock=clock) as broker:
        for _ in range(2):
            assert isinstance((await broker.send(of_size(3_000)))[0], Appended)
        clock.passed_s += DEFAULT_LIMITS.larger_commit_every_s
        assert await broker.send(of_size(3_000)) == [Appended(2, 0)]

        assert await carried(broker) == [True, False, True]
        assert len(broker.objects.put_keys) == 1
        assert reasons(broker) == {NotInlined.LARGE: 1}
        assert len(await broker.read_all()) == 9_000


async def test_nothing_above_its_bound_is_carried() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        await broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1))
        await broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max))

        assert await carried(broker) == [False, True]


async def test_the_largest_leaves_with_the_ring_like_any_other() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        await broker.send(of_size(1_000))
        await broker.send(of_size(DEFAULT_LIMITS.inline_pending_bytes_max))
        assert [entry.base for entry in (await broker.manifest()).pending] == [1]
        await broker.send(of_size(1_000))

        assert [entry.base for entry in (await broker.manifest()).pending] == [2]
        assert len(await broker.read_all()) == DEFAULT_LIMITS.inline_pending_bytes_max + 2_000


async def test_a_larger_batch_waits_in_its_commit_for_an_object_before_it_and_a_second_one_does_not() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE, clock=Waited()) as broker:
        broker.objects.gate = gate = asyncio.Event()
        first = broker.send(of_size(DEFAULT_LIMITS.larger_commit_bytes_max + 1))
        await until_put(broker, 1)
        behind = [broker.send(of_size(5_000)) for _ in range(2)]
        gate.set()

        assert offsets([await first, *[await one for one in behind]]) == [0, 1, 2]
        assert reasons(broker) == {NotInlined.LARGE: 2}


async def test_a_larger_batch_is_carried_behind_a_commit_that_is_under_way() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(size)) for size in (300, 3_000, 300)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4]
        assert [(entry.base, entry.last) for entry in (await broker.manifest()).pending] == [(0, 0), (1, 1), (2, 4)]
        assert broker.objects.put_keys == []
        assert reasons(broker) == {}


async def test_small_batches_behind_a_larger_one_go_with_it_as_far_as_they_fit() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(size)) for size in (DEFAULT_LIMITS.larger_commit_bytes_max - 200, 200, 200)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4]
        assert [(entry.base, entry.last) for entry in (await broker.manifest()).pending] == [(4, 4)], "the rest in the one behind it"
        assert reasons(broker) == {}


async def test_larger_batches_that_wait_go_together_as_far_as_they_fit() -> None:
    """One commit in a second is larger, not one batch: two producers come back from a pause at the same time."""
    async with rig(inline=INLINE, flush=AT_ONCE, clock=Waited()) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(3_000)) for _ in range(3)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4]
        assert [(entry.base, entry.last) for entry in (await broker.manifest()).pending] == [(0, 0), (1, 1), (2, 3), (4, 4)]
        assert reasons(broker) == {NotInlined.LARGE: 1}


async def test_small_batches_make_a_commit_larger_once_in_a_while() -> None:
    clock = Waited()
    async with rig(inline=INLINE, flush=AT_ONCE, clock=clock) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        for number in range(2):
            broker.metadata.faults.append("late")
            first = broker.send(of_size(100))
            await broker.metadata.until_late()
            behind = [broker.send(of_size(800)) for _ in range(DEFAULT_LIMITS.queued_commits_max)]
            await broker.metadata.deliver_late()
            await asyncio.gather(first, *behind)

            assert reasons(broker) == ({NotInlined.FULL: 1} if number else {})


async def test_a_batch_that_makes_a_waiting_commit_larger_is_the_larger_one_of_its_second() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE, clock=Waited()) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(100)), broker.send(of_size(3_000))]
        await broker.metadata.deliver_late()
        await asyncio.gather(first, *behind)
        await broker.send(of_size(3_000))

        assert reasons(broker) == {NotInlined.LARGE: 1}


async def test_larger_commits_have_a_budget_of_their_own() -> None:
    """It goes as far as it says, and leaves that of small batches alone."""
    count = DEFAULT_LIMITS.larger_commits_kept_max + 2
    async with rig(inline=InlineSettings(bytes_max=1_024, commits_per_s=4.0 * (count + 2)), flush=AT_ONCE, clock=Waited()) as broker:
        await with_partitions(broker, count)
        for number in range(count):
            await broker.send(of_size(1_100), partition=PartitionId(TOPIC, 1 + number))
        await broker.send(of_size(100))

        assert reasons(broker) == {NotInlined.BUDGET: 2}
        assert counted(broker, "inline_commits") == DEFAULT_LIMITS.larger_commits_kept_max + 1


async def test_after_a_manifest_had_no_room_batches_are_gathered_for_a_while() -> None:
    clock = Waited()
    async with rig(inline=INLINE, flush=AT_ONCE, clock=clock, limits=LogLimits(manifest_bytes_max=600)) as broker:
        await broker.send(of_size(100))
        (refused,) = await broker.send(of_size(1_000))
        assert "manifest is full" in str(refused)
        assert await broker.send(of_size(100)) == [Appended(1, 0)]
        assert reasons(broker) == {NotInlined.FULL: 1}
        clock.passed_s += FULL_S
        assert await broker.send(of_size(100)) == [Appended(2, 0)]

        assert reasons(broker) == {NotInlined.FULL: 1}


async def test_a_larger_batch_is_gathered_while_others_commit_to_the_partition() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        broker.parts.partitions.get(PARTITION).commit_queue.conflict_share = 2 * CONFLICTS_MAX
        await broker.send(of_size(3_000))

        assert reasons(broker) == {NotInlined.CONFLICTS: 1}


class Producer:
    """A record every `every_s`, and as many requests under way as an idempotent producer has, each with all that has waited for it."""

    def __init__(self, broker: Rig, clock: VirtualClock, *, pause_s: float, every_s: float) -> None:
        """The broker takes no requests for `pause_s` from PAUSED_AT_S on."""
        self._broker = broker
        self._clock = clock
        self._every_s = every_s
        self._resumes_s = PAUSED_AT_S + pause_s
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
            records, self._waiting = self._waiting, []
            self._under_way += 1
            group.create_task(self._produce(records, group))

    async def _produce(self, records: list[float], group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(ROUND_TRIP_S)
        if PAUSED_AT_S <= self._clock.monotonic_s() < self._resumes_s:
            await asyncio.sleep(self._resumes_s - self._clock.monotonic_s())
        (result,) = await self._broker.send(of_size(HEADER_BYTES + RECORD_BYTES * len(records)))
        assert isinstance(result, Appended)
        now_s = self._clock.monotonic_s()
        self.latencies_s |= {written_s: now_s - written_s for written_s in records}
        self._under_way -= 1
        self._send(group)


def longest_s(*, pause_s: float, producers: int = 1, flushes_anyway: bool = False, limits: LogLimits = DEFAULT_LIMITS) -> float:
    """The longest latency of records that were written three seconds after such a pause, or later. A PUT takes PUT_S, a commit WRITE_S."""

    async def scenario() -> float:
        clock = VirtualClock(asyncio.get_running_loop())
        async with rig(inline=INLINE, flush=FlushSettings(), clock=clock, limits=limits) as broker, asyncio.TaskGroup() as group:
            broker.objects.put_s, broker.metadata.write_s = PUT_S, WRITE_S
            all_of_them = [Producer(broker, clock, pause_s=pause_s, every_s=EVERY_S * producers) for _ in range(producers)]
            if flushes_anyway:
                await broker.shared.write([Put(keys.PartitionKeys(OTHER).manifest, b'{"fmt":1}', None)])
                group.create_task(keep_flushing(broker))
            since_s = PAUSED_AT_S + pause_s + 3.0
            await asyncio.gather(*[producer.run(since_s + 3.0) for producer in all_of_them])
            return max(late_s for producer in all_of_them for written_s, late_s in producer.latencies_s.items() if written_s > since_s)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def keep_flushing(broker: Rig) -> None:
    """Another partition has an object stored in each interval, so that no flush is due at once."""
    for _ in range(1_000):
        broker.send(of_size(2 * DEFAULT_LIMITS.larger_commit_bytes_max), partition=OTHER)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("flushes_anyway", [False, True], ids=["alone", "beside flushes"])
@pytest.mark.parametrize(("producers", "pause_s"), [(1, 0.1), (2, 0.35), (4, 0.2), (8, 0.1)])
def test_producers_that_a_pause_made_batch_are_soon_as_fast_as_before(pause_s: float, producers: int, flushes_anyway: bool) -> None:
    assert longest_s(pause_s=pause_s, producers=producers, flushes_anyway=flushes_anyway) < PUT_S / 5


@pytest.mark.parametrize("flushes_anyway", [False, True], ids=["alone", "beside flushes"])
def test_producers_that_nothing_stopped_are_fast(flushes_anyway: bool) -> None:
    assert longest_s(pause_s=0.0, producers=2, flushes_anyway=flushes_anyway) < PUT_S / 5


def test_a_producer_is_as_fast_as_before_after_a_pause_that_only_an_object_has_room_for() -> None:
    assert longest_s(pause_s=2.0) < PUT_S / 5


@pytest.mark.parametrize("pause_s", [0.1, 0.2, 0.35])
def test_without_larger_commits_they_would_never_be(pause_s: float) -> None:
    """The scenario above shows what it is about."""
    assert longest_s(pause_s=pause_s, limits=LogLimits(larger_commit_bytes_max=0)) > PUT_S
