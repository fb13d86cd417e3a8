import asyncio
import gc
import random

import pytest

from runtime.singleflight import SingleFlight
from storage.errors import Unavailable


class Source:
    """Counts its calls; each waits until the test lets it go."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self._gate = asyncio.Event()
        self._began = asyncio.Event()

    async def call(self) -> str:
        self.started += 1
        self._began.set()
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"call {self.started}"

    async def began(self) -> None:
        await self._began.wait()

    def let_go(self) -> None:
        self._gate.set()


async def turns(count: int = 3) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_concurrent_callers_of_one_key_share_one_call() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(flights.run("a", source.call)) for _ in range(10)]
        await source.began()
        source.let_go()

    assert {caller.result() for caller in callers} == {"call 1"}
    assert source.started == 1
    assert len(flights) == 0


async def test_different_keys_do_not_wait_for_each_other() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    slow, fast = Source(), Source()
    fast.let_go()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(flights.run("slow", slow.call))
        await slow.began()

        assert await flights.run("fast", fast.call) == "call 1"
        assert "slow" in flights
        assert not waiting.done()
        slow.let_go()


async def test_a_call_after_the_first_has_ended_is_a_new_one() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    source.let_go()

    assert [await flights.run("a", source.call) for _ in range(2)] == ["call 1", "call 2"]


async def test_a_result_may_be_none() -> None:
    flights: SingleFlight[str, None] = SingleFlight()
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(flights.run("a", call))

    assert calls == 1


async def test_an_exception_reaches_every_waiter_and_is_not_kept() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    calls = 0

    async def call() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise Unavailable("once")
        return "second"

    async def attempt() -> str:
        try:
            return await flights.run("a", call)
        except Unavailable as error:
            return str(error)

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt()) for _ in range(3)]

    assert [task.result() for task in attempts] == ["once"] * 3
    assert await attempt() == "second"


async def test_an_exception_that_only_its_own_caller_waits_for_is_not_reported_as_lost() -> None:
    lost: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    flights: SingleFlight[str, str] = SingleFlight()

    async def call() -> str:
        raise Unavailable("x")

    async def attempt() -> bool:
        try:
            await flights.run("a", call)
        except Unavailable:
            return True
        return False

    assert await attempt()
    # A future reports an exception that nobody saw when it is collected.
    gc.collect()
    assert lost == []


async def test_cancelling_one_who_waits_does_not_disturb_the_call() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(flights.run("a", source.call))
        second = group.create_task(flights.run("a", source.call))
        third = group.create_task(flights.run("a", source.call))
        await turns()
        second.cancel()
        await turns()
        source.let_go()

    assert second.cancelled()
    assert (first.result(), third.result()) == ("call 1", "call 1")
    assert (source.started, source.cancelled) == (1, 0)


async def test_when_the_caller_who_runs_the_call_is_cancelled_another_runs_it_for_all() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(flights.run("a", source.call)) for _ in range(5)]
        await turns()
        callers[0].cancel()
        await turns()
        callers[1].cancel()
        await turns()
        source.let_go()

    assert [caller.cancelled() for caller in callers] == [True, True, False, False, False]
    assert {caller.result() for caller in callers[2:]} == {"call 3"}
    assert (source.started, source.cancelled) == (3, 2)


async def test_a_newcomer_shares_a_call_that_was_handed_over() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(flights.run("a", source.call))
        second = group.create_task(flights.run("a", source.call))
        await turns()
        first.cancel()
        await asyncio.sleep(0)
        newcomer = group.create_task(flights.run("a", source.call))
        await turns()
        source.let_go()

    assert second.result() == newcomer.result() == "call 2"


async def test_when_all_who_wait_are_cancelled_the_call_is_cancelled() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(flights.run("a", source.call)) for _ in range(3)]
        await turns()
        for caller in callers:
            caller.cancel()

    assert (source.started, source.cancelled) == (1, 1)
    assert len(flights) == 0


async def test_a_deadline_of_one_caller_is_not_the_deadline_of_another() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    source = Source()

    async def hasty() -> bool:
        try:
            async with asyncio.timeout(0):
                await flights.run("a", source.call)
        except TimeoutError:
            return True
        return False

    async with asyncio.TaskGroup() as group:
        first = group.create_task(hasty())
        patient = group.create_task(flights.run("a", source.call))
        await first
        await turns()
        source.let_go()

    assert first.result()
    assert patient.result() == "call 2"


@pytest.mark.parametrize("seed", range(50))
async def test_whoever_is_not_cancelled_gets_an_answer_from_as_few_calls_as_possible(seed: int) -> None:
    chance = random.Random(seed)
    flights: SingleFlight[int, int] = SingleFlight()
    running: set[int] = set()
    restarts = 0

    async def call(key: int) -> int:
        nonlocal restarts
        assert key not in running, "two calls for one key at the same time"
        running.add(key)
        try:
            for _ in range(chance.randint(0, 6)):
                await asyncio.sleep(0)
        finally:
            running.remove(key)
        return key

    async def caller(key: int) -> int:
        for _ in range(chance.randint(0, 10)):
            await asyncio.sleep(0)
        return await flights.run(key, lambda: call(key))

    async with asyncio.TaskGroup() as group:
        tasks = {group.create_task(caller(number % 3)): number % 3 for number in range(40)}
        for task in chance.sample(list(tasks), 20):
            await asyncio.sleep(0)
            task.cancel()

    assert all(task.cancelled() or task.result() == key for task, key in tasks.items())
    assert sum(task.cancelled() for task in tasks) <= 20
    assert len(flights) == 0
