"""Hedged reads, under virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from sim.loop import VirtualClock, VirtualLoop
from storage.errors import NotFound, Unavailable
from storage.objects.hedged import (
    BUDGET_MAX,
    BUDGET_SHARE,
    WARM_READS,
    WINDOW_READS,
    HedgedObjectStore,
    LatencyWindow,
    _first_answer,
)
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from storage.objects.requests import ATTEMPT
from tests.kit.objects_contract import ObjectStoreContract

USUAL_S = 0.1


class Reads(MemoryObjectStore):
    """Every read takes USUAL_S, or what `plan` says of it next: seconds, and an error to end with."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.plan: list[tuple[float, Exception | None]] = []
        self.begun = 0
        self.cancelled = 0
        self.attempts: list[str] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.begun += 1
        self.attempts.append(ATTEMPT.get())
        seconds, error = self.plan.pop(0) if self.plan else (USUAL_S, None)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if error is not None:
            raise error
        return b"x" * (end - start)


class Hedged:
    def __init__(self) -> None:
        self.reads = Reads()
        self.telemetry = Telemetry()
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.store = HedgedObjectStore(self.reads, clock=self.clock, telemetry=self.telemetry)

    async def warm(self) -> None:
        for _ in range(WARM_READS):
            await self.store.get_range("a", 0, 1)
        self.reads.begun = 0

    async def timed(self) -> float:
        began_s = self.clock.monotonic_s()
        await self.store.get_range("a", 0, 1)
        return self.clock.monotonic_s() - began_s

    def hedges(self) -> tuple[float, float]:
        """Won, lost."""
        sample = self.telemetry.registry.get_sample_value
        name = "forebay_object_store_hedges_total"
        return sample(name, {"outcome": "won"}) or 0.0, sample(name, {"outcome": "lost"}) or 0.0


def run(scenario: Callable[[Hedged], Awaitable[None]]) -> None:
    async def main() -> None:
        hedged = Hedged()
        await hedged.warm()
        await scenario(hedged)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


class TestHedgedObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        store = HedgedObjectStore(MemoryObjectStore(clock=SystemClock()), clock=SystemClock(), telemetry=Telemetry())
        await store.put_if_absent("warm", [b"x"])
        for _ in range(WARM_READS):
            await store.get_range("warm", 0, 1)
        await store.delete_many(["warm"])
        yield store
        await store.close()


def test_reads_in_the_usual_time_are_sent_once() -> None:
    async def scenario(hedged: Hedged) -> None:
        for _ in range(100):
            assert await hedged.timed() == pytest.approx(USUAL_S)

        assert hedged.reads.begun == 100
        assert hedged.hedges() == (0, 0)

    run(scenario)


def test_a_late_read_is_overtaken_by_the_second_and_cancelled() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(30.0, None)]

        assert await hedged.timed() < 3 * USUAL_S
        assert (hedged.reads.begun, hedged.reads.cancelled) == (2, 1)
        assert hedged.hedges() == (1, 0)

    run(scenario)


def test_the_second_is_counted_as_a_hedge_and_the_next_read_is_not() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(30.0, None)]

        await hedged.timed()
        await hedged.timed()

        assert hedged.reads.attempts[-3:] == ["first", "hedge", "first"]

    run(scenario)


def test_the_first_may_still_win() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(2 * USUAL_S, None), (30.0, None)]

        assert await hedged.timed() == pytest.approx(2 * USUAL_S)
        assert hedged.hedges() == (0, 1)

    run(scenario)


@pytest.mark.parametrize("plan", [[(0.15, Unavailable("late")), (0.5, None)], [(0.5, None), (0.01, Unavailable("second"))]])
def test_an_error_waits_for_the_other_request(plan: list[tuple[float, Exception | None]]) -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = plan

        assert await hedged.timed() > 0.4

    run(scenario)


def test_when_both_fail_the_read_fails() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(0.3, NotFound("first")), (0.05, Unavailable("second"))]

        with pytest.raises(NotFound, match="first"):
            await hedged.timed()
        assert hedged.hedges() == (0, 1)

    run(scenario)


def test_an_early_error_is_not_hedged() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(0.01, NotFound("absent"))]

        with pytest.raises(NotFound):
            await hedged.timed()
        assert hedged.reads.begun == 1

    run(scenario)


def test_a_store_that_is_slow_as_a_whole_is_not_asked_twice_for_everything() -> None:
    async def scenario(hedged: Hedged) -> None:
        reads = 1_000
        for number in range(reads):
            # Ever slower, so that nearly each read is later than the window expects.
            hedged.reads.plan = [(USUAL_S * 1.008**number, None)] * 2
            await hedged.timed()

        assert 10 < hedged.reads.begun - reads <= BUDGET_MAX + BUDGET_SHARE * (reads + WARM_READS)

    run(scenario)


def test_nothing_is_hedged_before_the_usual_time_is_known() -> None:
    async def main() -> None:
        hedged = Hedged()
        hedged.reads.plan = [(30.0, None)]

        assert await hedged.timed() == pytest.approx(30.0)
        assert hedged.reads.begun == 1

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_sizes_are_timed_apart() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(30.0, None)]
        await hedged.store.get_range("a", 0, 4 << 20)

        assert hedged.reads.begun == 1

    run(scenario)


def test_a_cancelled_read_leaves_nothing_behind() -> None:
    async def scenario(hedged: Hedged) -> None:
        hedged.reads.plan = [(30.0, None), (30.0, None)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await hedged.timed()

        assert (hedged.reads.begun, hedged.reads.cancelled) == (2, 2)
        assert len(asyncio.all_tasks()) == 1

    run(scenario)


def test_the_window_forgets() -> None:
    window = LatencyWindow()
    assert window.quantile_s(0.95) == 0.0
    for _ in range(WINDOW_READS):
        window.add(10.0)
    assert 10.0 <= window.quantile_s(0.95) <= 12.5
    for _ in range(WINDOW_READS - 40):
        window.add(0.01)

    assert 0.01 <= window.quantile_s(0.95) <= 0.0125
    assert 10.0 <= window.quantile_s(0.97) <= 12.5
    assert len(window) == WINDOW_READS


def test_times_outside_the_buckets_are_counted() -> None:
    window = LatencyWindow()
    window.add(0.0)
    assert 0 < window.quantile_s(0.5) <= 0.001
    window.add(1e9)
    window.add(1e9)

    assert window.quantile_s(0.95) > 500


async def test_bytes_count_when_both_have_ended_and_one_failed() -> None:
    async def ends_in(outcome: bytes | Exception) -> bytes | Exception:
        return outcome

    answers = []
    # Many times, because a set of tasks has no order.
    for number in range(40):
        outcomes: list[bytes | Exception] = [Unavailable("failed"), b"x"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ends_in(outcome)) for outcome in outcomes[:: 1 if number % 2 else -1]]
        answers.append((await _first_answer(tasks))[0])

    assert answers == [b"x"] * 40
