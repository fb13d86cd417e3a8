"""A proxy on a loop of its own in a thread of its own: for tests whose loop is busy or blocked, and for those that have none.

    with in_thread(oxia_proxy(server.address)) as (proxy, run):
        proxy.plan.add(Rule(Fault.REFUSE))
        run(proxy.down())

Plans may be changed from any thread; the coroutines of a proxy run on its own loop, which is what `run` is for.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

RUN_WITHIN_S: Final = 30.0

_Proxy = TypeVar("_Proxy")


class Run(Protocol):
    """Run a coroutine on the proxy's loop and wait for it. Raise what it raises, or TimeoutError after 30 s."""

    def __call__(self, coroutine: Coroutine[Any, Any, None]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Begun(Generic[_Proxy]):
    proxy: _Proxy
    loop: asyncio.AbstractEventLoop
    leave: asyncio.Event


@contextlib.contextmanager
def in_thread(opening: contextlib.AbstractAsyncContextManager[_Proxy]) -> Iterator[tuple[_Proxy, Run]]:
    """The proxy `opening` makes, serving while the block runs, and a way to call it. It is entered and left on the same loop."""
    ready: concurrent.futures.Future[_Begun[_Proxy]] = concurrent.futures.Future()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="fault proxy") as thread:
        serving = thread.submit(asyncio.run, _serve(opening, ready))
        begun = ready.result(RUN_WITHIN_S)

        def run(coroutine: Coroutine[Any, Any, None]) -> None:
            asyncio.run_coroutine_threadsafe(coroutine, begun.loop).result(RUN_WITHIN_S)

        try:
            yield begun.proxy, run
        finally:
            begun.loop.call_soon_threadsafe(begun.leave.set)
            serving.result(RUN_WITHIN_S)


async def _serve(opening: contextlib.AbstractAsyncContextManager[_Proxy], ready: "concurrent.futures.Future[_Begun[_Proxy]]") -> None:
    try:
        async with opening as proxy:
            leave = asyncio.Event()
            ready.set_result(_Begun(proxy, asyncio.get_running_loop(), leave))
            await leave.wait()
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise
