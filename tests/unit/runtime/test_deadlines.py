"""Work that seldom waits, and its deadline."""

import asyncio

import pytest

from runtime.deadlines import within

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
