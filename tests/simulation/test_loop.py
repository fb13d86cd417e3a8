"""Virtual time: it passes when nothing runs, and a program that waits for nothing is found out."""

import asyncio
import time

import pytest

from sim.loop import Deadlock, VirtualClock, VirtualLoop


def test_a_day_passes_in_no_time() -> None:
    began_s = time.perf_counter()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(86_400))
        slept_s = runner.get_loop().time()

    assert slept_s == pytest.approx(86_400)
    assert time.perf_counter() - began_s < 5


def test_timers_run_in_the_order_of_their_times() -> None:
    order: list[int] = []

    async def note(number: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append(number)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number, delay_s in ((3, 0.3), (1, 0.1), (2, 0.2)):
                group.create_task(note(number, delay_s))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(all_of_them())

    assert order == [1, 2, 3]


def test_a_deadlock_is_told() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(Deadlock):
        runner.run(asyncio.Event().wait())


def test_deadlines_are_kept_in_virtual_time() -> None:
    async def wait_in_vain() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ended_s = runner.run(wait_in_vain())

    assert ended_s == pytest.approx(30)


def test_a_wall_clock_may_jump_while_the_other_goes_on() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    before_ms, before_s = clock.now_ms(), clock.monotonic_s()

    clock.skew_ms -= 3_600_000
    loop.close()

    assert clock.now_ms() == before_ms - 3_600_000
    assert clock.monotonic_s() == before_s
