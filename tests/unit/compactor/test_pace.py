"""How fast a compactor moves bytes, under virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from compactor.assembly import SUCCESS_AGE_MAX_S, CompactorHealth
from compactor.compaction import RoundReport
from compactor.measures import Measures
from compactor.pace import BURST_S, FASTER_EVERY_S, Pace, PacedObjects
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from sim.loop import VirtualClock, VirtualLoop
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from tests.kit.objects_contract import ObjectStoreContract

BYTES_PER_S = 1_000


class TestPacedObjects(ObjectStoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        yield PacedObjects(MemoryObjectStore(clock=SystemClock()), Pace(2**30, clock=SystemClock(), telemetry=Telemetry()))


def passed_s(work: Callable[[Pace], Awaitable[object]], *, bytes_per_s: int = BYTES_PER_S) -> float:
    """The time that `work` takes with a pace that has rested."""
    loop = VirtualLoop()

    async def run() -> float:
        await asyncio.sleep(10 * BURST_S)
        clock = VirtualClock(loop)
        pace = Pace(bytes_per_s, clock=clock, telemetry=Telemetry())
        pace.begin_cycle()
        began_s = clock.monotonic_s()
        await work(pace)
        return clock.monotonic_s() - began_s

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


def test_bytes_pass_at_the_pace_whoever_asks_for_them() -> None:
    async def work(pace: Pace) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(wait_often(pace))

    async def wait_often(pace: Pace) -> None:
        for _ in range(10):
            await pace.wait(100)

    # The last of 40 waits until the 39 before it have had their time.
    assert abs(passed_s(work) - 39 * 100 / BYTES_PER_S) < BURST_S


def test_what_comes_after_a_rest_passes_at_once_and_the_rest_is_not_saved_up() -> None:
    async def work(pace: Pace) -> None:
        await pace.wait(int(BURST_S * BYTES_PER_S))
        await pace.wait(1)

    async def much(pace: Pace) -> None:
        await asyncio.sleep(100)
        for _ in range(101):
            await pace.wait(BYTES_PER_S)

    assert passed_s(work) < 1e-6 + BURST_S
    assert 100 - BURST_S - 1e-6 <= passed_s(much) - 100 <= 100


def test_one_that_is_larger_than_a_second_delays_those_behind_it_and_not_itself() -> None:
    async def work(pace: Pace) -> None:
        await pace.wait(60 * BYTES_PER_S)

    async def followed(pace: Pace) -> None:
        await work(pace)
        await pace.wait(1)

    assert passed_s(work) == 0
    assert abs(passed_s(followed) - 60) <= BURST_S


def test_no_limit_means_no_wait() -> None:
    async def work(pace: Pace) -> None:
        for _ in range(10):
            await pace.wait(2**40)

    assert passed_s(work, bytes_per_s=0) == 0


def test_a_cycle_with_much_to_do_is_twice_as_fast_after_each_five_minutes_and_the_next_begins_slowly() -> None:
    paces: list[int] = []

    async def work(pace: Pace) -> None:
        for _ in range(3):
            paces.append(pace.bytes_per_s)
            await asyncio.sleep(FASTER_EVERY_S)
        pace.begin_cycle()
        paces.append(pace.bytes_per_s)

    passed_s(work)

    assert paces == [BYTES_PER_S, 2 * BYTES_PER_S, 4 * BYTES_PER_S, BYTES_PER_S]


def test_what_waits_stays_bounded_when_three_times_the_pace_is_appended() -> None:
    cycles: list[float] = []

    async def work(pace: Pace) -> None:
        appended_per_s, cycle_s = 3 * BYTES_PER_S, 60.0
        for _ in range(40):
            pace.begin_cycle()
            left = appended_per_s * cycle_s
            cycle_s = await moved(pace, left)
            cycles.append(cycle_s)

    async def moved(pace: Pace, left: float) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while left > 0:
            await pace.wait(10 * BYTES_PER_S)
            left -= 10 * BYTES_PER_S
        return loop.time() - began_s

    passed_s(work)

    assert FASTER_EVERY_S < max(cycles) < 5 * FASTER_EVERY_S
    assert cycles[-1] < 5 * FASTER_EVERY_S


def test_what_waited_is_counted() -> None:
    loop = VirtualLoop()
    telemetry = Telemetry()

    async def run() -> None:
        pace = Pace(BYTES_PER_S, clock=VirtualClock(loop), telemetry=telemetry)
        for _ in range(11):
            await pace.wait(BYTES_PER_S)

    loop.run_until_complete(run())
    loop.close()

    waited_s = telemetry.registry.get_sample_value("forebay_compactor_paced_seconds_total")
    assert waited_s is not None
    assert 10 - BURST_S <= waited_s <= 10


def test_a_compactor_whose_cycle_takes_long_is_ready_while_its_rounds_end() -> None:
    loop = VirtualLoop()

    async def run() -> list[str]:
        clock = VirtualClock(loop)
        measures = Measures(Telemetry(), clock)
        health = CompactorHealth(measures, interval_s=0, clock=clock)
        measures.succeeded_at_s = clock.monotonic_s()
        found = []
        for progress in (lambda: measures.note_round(RoundReport()), measures.note_merge):
            await asyncio.sleep(SUCCESS_AGE_MAX_S - 1)
            progress()
            await asyncio.sleep(SUCCESS_AGE_MAX_S - 1)
            found.append(health.sum_up().status)
        await asyncio.sleep(2)
        return [*found, health.sum_up().status]

    assert loop.run_until_complete(run()) == ["ready", "ready", "degraded"]
    loop.close()
