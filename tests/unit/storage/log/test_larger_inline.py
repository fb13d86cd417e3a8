"""A batch above what commits always carry travels in one now and then, so that a producer that paused is soon as fast as before."""

import asyncio
from collections.abc import Iterator

import pytest

from sim.loop import VirtualClock, VirtualLoop
from storage.limits import INLINE_PENDING_BYTES_MAX
from storage.log import inline as inline_module
from storage.log.batch import Appended
from storage.log.batcher import FlushSettings
from storage.log.inline import CONFLICTS_MAX, LARGER_BYTES_MAX, LARGER_EVERY_S, Gathers, InlineSettings
from storage.metadata import keys
from storage.metadata.port import Put
from storage.recordbatch import HEADER_BYTES
from tests.unit.storage.log.rig import PARTITION, Rig, rig, until_put
from tests.unit.storage.log.test_inline import OTHER, of_size, offsets, reasons

INLINE = InlineSettings(bytes_max=1_024)
AT_ONCE = FlushSettings(interval_s=0.0, gather_s=0.01)
PUT_S = 0.1
WRITE_S = 0.004
ROUND_TRIP_S = 0.002
IN_FLIGHT_MAX = 5
EVERY_S = 0.005
RECORD_BYTES = 110
PAUSED_AT_S = 2.0


class Waited(VirtualClock):
    """Time that passes when a test says so."""

    passed_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


@pytest.fixture
def clock() -> Iterator[Waited]:
    loop = asyncio.new_event_loop()
    yield Waited(loop)
    loop.close()


async def carried(broker: Rig) -> list[bool]:
    return [entry.is_inline for entry in (await broker.control()).pending]


async def test_a_larger_batch_is_carried_once_in_a_while(clock: Waited) -> None:
    async with rig(inline=INLINE, flush=AT_ONCE, clock=clock) as broker:
        for _ in range(2):
            assert isinstance((await broker.send(of_size(3_000)))[0], Appended)
        clock.passed_s += LARGER_EVERY_S
        assert await broker.send(of_size(3_000)) == [Appended(2, 0)]

        assert await carried(broker) == [True, False, True]
        assert len(broker.objects.put_keys) == 1
        assert reasons(broker) == {Gathers.LARGE: 1}
        assert len(await broker.read_all()) == 9_000


async def test_nothing_above_its_bound_is_carried() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        await broker.send(of_size(LARGER_BYTES_MAX + 1))
        await broker.send(of_size(LARGER_BYTES_MAX))

        assert await carried(broker) == [False, True]


async def test_the_largest_leaves_with_the_ring_like_any_other() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        await broker.send(of_size(1_000))
        await broker.send(of_size(INLINE_PENDING_BYTES_MAX))
        assert [entry.base for entry in (await broker.control()).pending] == [1]
        await broker.send(of_size(1_000))

        assert [entry.base for entry in (await broker.control()).pending] == [2]
        assert len(await broker.read_all()) == INLINE_PENDING_BYTES_MAX + 2_000


async def test_a_larger_batch_does_not_wait_in_a_commit_for_an_object_before_it() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        broker.objects.gate = gate = asyncio.Event()
        first = broker.send(of_size(LARGER_BYTES_MAX + 1))
        await until_put(broker, 1)
        second = broker.send(of_size(3_000))
        await until_put(broker, 2)
        gate.set()

        assert offsets([await first, await second]) == [0, 1]
        assert reasons(broker) == {Gathers.LARGE: 2}


async def test_a_larger_batch_is_carried_behind_a_commit_that_is_under_way() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(size)) for size in (300, 3_000, 300)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4]
        assert [(entry.base, entry.last) for entry in (await broker.control()).pending] == [(0, 0), (1, 1), (2, 4)]
        assert broker.objects.put_keys == []
        assert reasons(broker) == {}


async def test_small_batches_behind_a_larger_one_go_with_it_as_far_as_they_fit() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(size)) for size in (LARGER_BYTES_MAX - 200, 200, 200)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4]
        assert reasons(broker) == {Gathers.FULL: 1}


async def test_small_batches_wait_together_for_an_object_before_them() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        broker.objects.gate = gate = asyncio.Event()
        first = broker.send(of_size(LARGER_BYTES_MAX + 1))
        await until_put(broker, 1)
        fit = LARGER_BYTES_MAX // 800
        behind = [broker.send(of_size(800)) for _ in range(fit + 1)]
        await asyncio.sleep(0)
        gate.set()

        assert offsets([await first, *[await one for one in behind]]) == list(range(fit + 2))
        assert reasons(broker) == {Gathers.LARGE: 1, Gathers.FULL: 1}
        assert len(broker.objects.put_keys) == 1, "what did not fit was small, too"


async def test_a_larger_batch_takes_of_the_budget_what_its_bytes_would() -> None:
    async with rig(inline=InlineSettings(bytes_max=1_024, commits_per_s=16.0), flush=AT_ONCE) as broker:
        await broker.send(of_size(4 * 1_024 + 1))
        await broker.send(of_size(100))

        assert await carried(broker) == [False, True]
        assert reasons(broker) == {Gathers.BUDGET: 1}


async def test_a_larger_batch_is_gathered_while_others_commit_to_the_partition() -> None:
    async with rig(inline=INLINE, flush=AT_ONCE) as broker:
        broker.parts.partitions.get(PARTITION).lane.conflict_share = 2 * CONFLICTS_MAX
        await broker.send(of_size(3_000))

        assert reasons(broker) == {Gathers.CONFLICTS: 1}


class Producer:
    """A record every 5 ms, and as many requests under way as an idempotent producer has, each with all records that have waited for it."""

    def __init__(self, broker: Rig, clock: VirtualClock, *, pause_s: float) -> None:
        """The broker takes no requests for `pause_s` from PAUSED_AT_S on."""
        self._broker = broker
        self._clock = clock
        self._resumes_s = PAUSED_AT_S + pause_s
        self._waiting: list[float] = []
        self._under_way = 0
        self.latencies_s: dict[float, float] = {}
        """How long after it was written a record was acknowledged, by when that was."""

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(round(seconds / EVERY_S)):
                self._waiting.append(self._clock.monotonic_s())
                self._send(group)
                await asyncio.sleep(EVERY_S)

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


def longest_s(*, pause_s: float, flushes_anyway: bool) -> float:
    """The longest latency of records that were written a second after such a pause, or later. A PUT takes PUT_S, a commit WRITE_S."""

    async def scenario() -> float:
        clock = VirtualClock(asyncio.get_running_loop())
        async with rig(inline=INLINE, flush=FlushSettings(), clock=clock) as broker, asyncio.TaskGroup() as group:
            broker.objects.put_s, broker.metadata.write_s = PUT_S, WRITE_S
            producer = Producer(broker, clock, pause_s=pause_s)
            if flushes_anyway:
                await broker.shared.write([Put(keys.PartitionKeys(OTHER).control, b'{"fmt":1}', None)])
                group.create_task(keep_flushing(broker))
            await producer.run(PAUSED_AT_S + pause_s + 4.0)
            return max(seconds for written_s, seconds in producer.latencies_s.items() if written_s > PAUSED_AT_S + pause_s + 1.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def keep_flushing(broker: Rig) -> None:
    """Another partition has an object stored in each interval, so that no flush is due at once."""
    for _ in range(600):
        broker.send(of_size(2 * LARGER_BYTES_MAX), partition=OTHER)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("flushes_anyway", [False, True], ids=["alone", "beside flushes"])
@pytest.mark.parametrize("pause_s", [0.05, 0.2, 0.35])
def test_a_producer_that_a_pause_made_batch_is_soon_as_fast_as_before(pause_s: float, flushes_anyway: bool) -> None:
    assert longest_s(pause_s=0.0, flushes_anyway=flushes_anyway) < PUT_S / 5
    assert longest_s(pause_s=pause_s, flushes_anyway=flushes_anyway) < PUT_S / 5


def test_a_producer_after_a_long_pause_waits_for_one_object() -> None:
    assert longest_s(pause_s=2.0, flushes_anyway=False) < PUT_S / 5


def test_without_larger_batches_it_would_never_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario above shows what it is about."""
    monkeypatch.setattr(inline_module, "LARGER_BYTES_MAX", 0)
    assert longest_s(pause_s=0.2, flushes_anyway=False) > PUT_S
