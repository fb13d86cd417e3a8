"""Virtual time: it passes when nothing runs, and a program that waits for nothing is found out."""

import asyncio
import random
import time
import weakref

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


def order_of_turns(loop: asyncio.AbstractEventLoop, seed: int) -> list[int]:
    """Of calls and timers that make others and cancel others, many of them due at the same time. Nothing is due within a second."""
    chance = random.Random(seed)
    order: list[int] = []
    handles: list[asyncio.Handle] = []

    def run(number: int) -> None:
        order.append(number)
        for _ in range(chance.choice((0, 1, 1, 2, 3)) if len(handles) < 3_000 else 0):
            name = len(handles)
            handles.append(loop.call_later(chance.randrange(4) / 1_000, run, name) if chance.random() < 0.7 else loop.call_soon(run, name))
        for _ in range(chance.randrange(3)):
            chance.choice(handles).cancel()

    handles += [loop.call_at(loop.time() + 1 + chance.randrange(3), run, name) for name in range(200)]
    loop.call_at(loop.time() + 10, loop.stop)
    loop.run_forever()
    loop.close()
    return order


class StandingClock(asyncio.SelectorEventLoop):
    """Asyncio's own loop, but that it waits for nothing: where it would, the clock goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> list[object]:
            self.now_s += timeout or 0.0
            return select(0)

        self._selector.select = jump
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize("seed", range(5))
def test_what_runs_when_is_as_in_a_loop_of_asyncio(seed: int) -> None:
    order = order_of_turns(VirtualLoop(), seed)

    assert len(order) > 1_000
    assert order == order_of_turns(StandingClock(), seed)


def test_what_is_cancelled_or_over_is_kept_by_nobody() -> None:
    class Thing:
        def use(self) -> None:
            pass

    async def look() -> list[bool]:
        loop = asyncio.get_running_loop()
        things = [Thing(), Thing(), Thing()]
        kept = [weakref.ref(thing) for thing in things]
        loop.call_soon(things[0].use)
        handles = [loop.call_later(60, thing.use) for thing in things[1:]]
        things.clear()
        handles[0].cancel()
        await asyncio.sleep(1)
        return [one() is not None for one in kept]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(look()) == [False, False, True]


def test_a_call_that_fails_is_told_and_the_next_one_runs() -> None:
    told: list[object] = []

    async def fail_and_go_on() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        loop.call_soon([].pop)
        loop.call_soon(told.append, "next")
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(fail_and_go_on())

    assert ([type(one) for one in told], told[1]) == ([IndexError, str], "next")


def test_a_wall_clock_may_jump_while_the_other_goes_on() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    before_ms, before_s = clock.now_ms(), clock.monotonic_s()

    clock.skew_ms -= 3_600_000
    loop.close()

    assert clock.now_ms() == before_ms - 3_600_000
    assert clock.monotonic_s() == before_s
