"""A proxy in front of a broker that loses acknowledgements: Produce is done, and its answer never arrives, for the connection is gone.

with lossy() as proxy:
    proxy.target = (host, port)
    with proxy.losing(every=3): ...
"""

import asyncio
import contextlib
import struct
import threading
from collections.abc import Iterator
from typing import Final

PRODUCE: Final = 0
START_WITHIN_S: Final = 10.0
_HOST: Final = "127.0.0.1"
_SIZE: Final = struct.Struct(">i")
_KEY_AND_CORRELATION: Final = struct.Struct(">hhi")


class Lossy:
    """`lost` acknowledgements so far. `target` is set before the first client comes."""

    def __init__(self) -> None:
        self.port = 0
        self.target: tuple[str, int] | None = None
        self.lost = 0
        self._every = 0
        self._seen = 0

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    @contextlib.contextmanager
    def losing(self, *, every: int) -> Iterator[None]:
        """While the block runs, the answer to each `every`-th Produce is lost."""
        self._every = every
        try:
            yield
        finally:
            self._every = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        produces: set[int] = set()
        with contextlib.closing(writer), contextlib.suppress(OSError):
            broker_reader, broker_writer = await asyncio.open_connection(*self.target)
            # Both directions end by an error: that of the first to hang up.
            with contextlib.closing(broker_writer), contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._requests(reader, broker_writer, produces))
                    tasks.create_task(self._answers(broker_reader, writer, produces))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            key, _, correlation = _KEY_AND_CORRELATION.unpack_from(frame, _SIZE.size)
            if key == PRODUCE:
                produces.add(correlation)
            writer.write(frame)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = _SIZE.unpack_from(frame, _SIZE.size)
            if correlation in produces and self._is_lost():
                raise ConnectionAbortedError
            writer.write(frame)
            await writer.drain()

    def _is_lost(self) -> bool:
        if not self._every:
            return False
        self._seen += 1
        if self._seen % self._every:
            return False
        self.lost += 1
        return True


@contextlib.contextmanager
def lossy() -> Iterator[Lossy]:
    """One that listens, in a thread of its own. Leaving closes its connections."""
    proxy = Lossy()
    ready = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        over = asyncio.Event()
        server = await asyncio.start_server(proxy.serve, _HOST, 0)
        proxy.port = server.sockets[0].getsockname()[1]
        ends.append((asyncio.get_running_loop(), over))
        ready.set()
        try:
            await over.wait()
        finally:
            server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="lossy proxy", daemon=True)
    thread.start()
    assert ready.wait(START_WITHIN_S), "the proxy did not start"
    loop, over = ends[0]
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(START_WITHIN_S)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, with its size."""
    size = await reader.readexactly(_SIZE.size)
    return size + await reader.readexactly(_SIZE.unpack(size)[0])
