"""Background tasks have an owner."""

import asyncio
import gc
import warnings

import pytest

from runtime.supervision import Nursery


async def test_leaving_cancels_what_still_runs_and_waits_for_it() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async with Nursery() as nursery:
        nursery.spawn(work(), name="work")
        await asyncio.sleep(0)

    assert ended == ["cancelled"]


async def test_a_task_that_fails_takes_its_owner_down() -> None:
    async def fail() -> None:
        raise RuntimeError("broken part")

    async def own() -> None:
        async with Nursery() as nursery:
            nursery.spawn(fail(), name="fail")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await own()

    assert caught.group_contains(RuntimeError, match="broken part")


async def test_a_task_that_is_cancelled_alone_harms_nobody() -> None:
    async with Nursery() as nursery:
        task = nursery.spawn(asyncio.Event().wait(), name="waits")  # type: ignore[arg-type]
        task.cancel()
        await asyncio.sleep(0)

        assert task.cancelled()


async def test_a_nursery_says_when_it_takes_no_more_tasks() -> None:
    async with Nursery() as nursery:
        before = nursery.is_left

    assert (before, nursery.is_left) == (False, True)


async def test_what_a_nursery_takes_no_more_is_refused_and_does_not_warn_when_it_is_collected() -> None:
    async def never_run() -> None:
        raise AssertionError

    async with Nursery() as nursery:
        pass
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError):
            nursery.spawn(never_run(), name="too late")
        gc.collect()

    assert warned == []
