"""A server in a thread of its own, for tests that wait in this one."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

HOST: Final = "127.0.0.1"
START_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 60.0


@contextlib.contextmanager
def listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], *, name: str) -> Iterator[int]:
    """The port on which each connection is `serve`d. Leaving closes them."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []
    ready = threading.Event()

    async def run() -> None:
        over = asyncio.Event()
        server = await asyncio.start_server(serve, HOST, 0)
        started.append((asyncio.get_running_loop(), over, server.sockets[0].getsockname()[1]))
        ready.set()
        try:
            await over.wait()
        finally:
            server.close()

    # asyncio.run cancels the connections that are still open when `run` returns.
    thread = threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True)
    thread.start()
    assert ready.wait(START_WITHIN_S), f"{name} did not start"
    loop, over, port = started[0]
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(STOP_WITHIN_S)
        assert not thread.is_alive(), f"{name} did not stop"
