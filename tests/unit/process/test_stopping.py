import asyncio
import signal
import threading

from process.stopping import EXIT_INTERRUPTED, Deadline, StopRequest


async def test_the_first_signal_asks_and_an_interrupt_after_it_ends() -> None:
    ended: list[int] = []
    stop = StopRequest(exit_now=ended.append)
    stop.started()

    stop.receive(signal.SIGTERM)
    stop.receive(signal.SIGTERM)
    await stop.wait()
    before = list(ended)
    stop.receive(signal.SIGINT)

    assert (stop.is_asked, stop.signal_name) == (True, "SIGTERM")
    assert (before, ended) == ([], [EXIT_INTERRUPTED])


async def test_a_signal_during_the_start_cancels_it() -> None:
    requests: list[StopRequest] = []

    async def start() -> None:
        requests.append(StopRequest(exit_now=lambda code: None))
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start())
        await asyncio.sleep(0)
        requests[0].receive(signal.SIGINT)

    assert starting.cancelled()
    assert requests[0].is_asked


def test_a_missed_deadline_calls_back_and_a_cancelled_one_does_not() -> None:
    missed = threading.Event()
    deadline, idle = Deadline(missed.set), Deadline(missed.set)

    idle.cancel()
    deadline.start(60.0)
    deadline.cancel()
    in_time = missed.is_set()
    deadline.start(0.0)

    assert missed.wait(25)
    assert not in_time
