"""Work that seldom waits, and its deadline."""

import asyncio
import contextlib
import weakref
from collections.abc import Iterator

import pytest

from runtime.deadlines import within
from tests.kit.collector import no_collector

LONG_S = 60.0
SHORT_S = 0.01


async def waits(seconds: float, ended: list[str]) -> str:
    try:
        await asyncio.sleep(seconds)
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    finally:
        ended.append("ended")
    return "done"


async def test_work_that_never_waits_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once() -> int:
        return 7

    monkeypatch.setattr(asyncio, "timeout", lambda _: pytest.fail("a timer was made"))

    assert await within(LONG_S, at_once()) == 7


async def test_work_that_fails_at_once_fails() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(LONG_S, fails())


async def test_work_that_waits_gives_its_result() -> None:
    ended: list[str] = []

    assert await within(LONG_S, waits(SHORT_S, ended)) == "done"
    assert ended == ["ended"]


async def test_work_that_waits_and_fails_fails() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        await within(LONG_S, fails())


async def test_work_that_takes_too_long_is_cancelled() -> None:
    ended: list[str] = []

    with pytest.raises(TimeoutError):
        await within(SHORT_S, waits(LONG_S, ended))
    assert ended == ["cancelled", "ended"]


async def test_who_is_cancelled_cancels_the_work() -> None:
    ended: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(within(LONG_S, waits(LONG_S, ended)))
        await asyncio.sleep(0)
        task.cancel()

    assert task.cancelled()
    assert ended == ["cancelled", "ended"]


async def test_work_goes_on_after_an_error_that_it_handles() -> None:
    async def gives_up_a_part() -> str:
        try:
            async with asyncio.timeout(SHORT_S):
                await asyncio.sleep(LONG_S)
        except TimeoutError:
            await asyncio.sleep(0)
        return "went on"

    assert await within(LONG_S, gives_up_a_part()) == "went on"


async def test_a_future_that_fails_is_heard_by_the_work() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hears() -> str:
        try:
            await failed
        except ValueError as error:
            return str(error)
        return "nothing"

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(within(LONG_S, hears()))
        await asyncio.sleep(0)
        failed.set_exception(ValueError("heard"))

    assert task.result() == "heard"


async def test_work_that_is_thrown_away_is_closed() -> None:
    ended: list[str] = []
    work = within(LONG_S, waits(LONG_S, ended))
    work.send(None)

    work.close()

    assert ended == ["ended"]


@pytest.fixture
def _without_collector() -> Iterator[None]:
    with no_collector():
        yield


class Large:
    """Something whose end can be watched."""


@pytest.mark.usefixtures("_without_collector")
async def test_what_the_first_wait_brought_is_not_held_while_the_work_goes_on() -> None:
    loop = asyncio.get_running_loop()
    brings: asyncio.Future[Large] = loop.create_future()
    goes_on: asyncio.Future[None] = loop.create_future()

    async def drops(brings: asyncio.Future[Large]) -> None:
        await brings
        del brings
        await goes_on

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(within(LONG_S, drops(brings)))
        await asyncio.sleep(0)
        large = Large()
        watched = weakref.ref(large)
        brings.set_result(large)
        del brings, large
        for _ in range(3):
            await asyncio.sleep(0)
        assert watched() is None
        goes_on.set_result(None)


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize("waits_before", [0, 1])
async def test_work_whose_wait_fails_leaves_nothing_to_the_collector(waits_before: int) -> None:
    def failing() -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[None] = loop.create_future()
        loop.call_later(SHORT_S, made.set_exception, ValueError("no"))
        return made

    async def fails(request: Large) -> None:
        for _ in range(waits_before):
            await asyncio.sleep(0)
        await failing()

    async def served() -> weakref.ref[Large]:
        request = Large()
        with contextlib.suppress(ValueError):
            await within(LONG_S, fails(request))
        return weakref.ref(request)

    watched = await served()
    await asyncio.sleep(0)  # the loop holds what it calls back with

    assert watched() is None


async def test_an_error_that_the_work_has_handled_is_no_context_of_a_later_one() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failed.set_exception, ValueError("handled"))

    async def fails_later() -> None:
        with contextlib.suppress(ValueError):
            await failed
        raise KeyError("later")

    with pytest.raises(KeyError) as raised:
        await within(LONG_S, fails_later())
    assert raised.value.__context__ is None
