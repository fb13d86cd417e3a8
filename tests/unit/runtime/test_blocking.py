"""The pool for calls that block."""

import threading

import pytest

from runtime.blocking import Blocking, InlineBlocking, ThreadBlocking


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
