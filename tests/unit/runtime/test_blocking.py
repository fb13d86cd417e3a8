"""The pool for calls that block."""

import asyncio
import threading
import weakref
from functools import partial
from queue import SimpleQueue

import pytest

from runtime.blocking import Blocking, InlineBlocking, ThreadBlocking
from runtime.supervision import Nursery


@pytest.mark.parametrize("blocking", [ThreadBlocking(threads=1, name="test"), InlineBlocking()], ids=["threads", "inline"])
async def test_results_and_errors_come_back(blocking: Blocking) -> None:
    def fail() -> None:
        raise OSError("disk")

    assert await blocking.run(lambda: 6 * 7) == 42
    with pytest.raises(OSError, match="disk"):
        await blocking.run(fail)
    blocking.close()


async def test_calls_run_in_threads_of_their_own_name() -> None:
    blocking = ThreadBlocking(threads=1, name="disk")

    assert (await blocking.run(lambda: threading.current_thread().name)).startswith("disk")
    blocking.close()


async def test_no_more_threads_run_than_there_may_be_and_the_others_wait_in_line() -> None:
    blocking, gate, begun = ThreadBlocking(threads=2, name="test"), threading.Event(), SimpleQueue[str]()

    def wait() -> None:
        begun.put(threading.current_thread().name)
        gate.wait(25)

    async with Nursery() as nursery:
        tasks = [nursery.spawn(blocking.run(wait), name="call") for _ in range(5)]
        await asyncio.sleep(0)
        names = {begun.get(timeout=25) for _ in range(2)}
        gate.set()
        await asyncio.wait(tasks)
    blocking.close()

    assert names == {"test_0", "test_1"}
    assert begun.qsize() == 3


async def test_a_call_whose_caller_has_gone_does_not_begin_and_one_that_has_begun_goes_on() -> None:
    blocking, gate, begun = ThreadBlocking(threads=1, name="test"), threading.Event(), threading.Event()
    done: list[str] = []

    def wait() -> None:
        begun.set()
        gate.wait(25)
        done.append("begun")

    async with Nursery() as nursery:
        first = nursery.spawn(blocking.run(wait), name="first")
        second = nursery.spawn(blocking.run(lambda: done.append("in line")), name="second")
        await asyncio.sleep(0)
        assert begun.wait(25)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        gate.set()
        async with asyncio.timeout(25):
            assert await blocking.run(lambda: "the next") == "the next"
    blocking.close()

    assert done == ["begun"]


async def test_a_thread_that_cannot_be_started_fails_its_call_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    blocking, start = ThreadBlocking(threads=1, name="test"), threading.Thread.start

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await blocking.run(lambda: None)
    monkeypatch.setattr(threading.Thread, "start", start)

    async with asyncio.timeout(25):
        assert await blocking.run(lambda: "the next") == "the next"
    blocking.close()


async def test_an_error_that_no_future_takes_is_told_by_another() -> None:
    blocking = ThreadBlocking(threads=1, name="test")
    async with asyncio.timeout(25):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await blocking.run(lambda: next(iter(())))
    blocking.close()


async def test_closing_waits_for_calls_and_refuses_what_comes_then() -> None:
    blocking, done = ThreadBlocking(threads=1, name="test"), list[int]()
    async with Nursery() as nursery:
        calls = [nursery.spawn(blocking.run(partial(done.append, number)), name="call") for number in range(3)]
        await asyncio.sleep(0)
        blocking.close()

        assert done == [0, 1, 2]
        with pytest.raises(RuntimeError, match="the pool is closed: test"):
            await blocking.run(lambda: None)
        await asyncio.wait(calls)


def test_a_call_may_end_when_its_loop_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    blocking, gate, begun = ThreadBlocking(threads=1, name="test"), threading.Event(), threading.Event()
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)

    def wait() -> None:
        begun.set()
        gate.wait(25)

    async def leave() -> None:
        async with Nursery() as nursery:
            nursery.spawn(blocking.run(wait), name="call")
            await asyncio.sleep(0)
            assert begun.wait(25)

    asyncio.run(leave())
    gate.set()
    blocking.close()

    assert failed == []


async def test_the_pool_keeps_nothing_of_what_a_call_has_returned() -> None:
    blocking = ThreadBlocking(threads=1, name="test")

    class Returned:
        pass

    kept = weakref.ref(await blocking.run(Returned))
    await asyncio.sleep(0)  # the loop lets go of what it has called back
    blocking.close()

    assert kept() is None
