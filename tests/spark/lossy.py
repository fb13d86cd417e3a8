"""A proxy in front of a broker that loses acknowledgements: Produce is done, and its answer never arrives, for the connection is gone.

with lossy() as proxy:
    proxy.target = (host, port)
    with proxy.losing(every=3): ...
"""

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from typing import Final

from tests.kit.listening import HOST, listening

PRODUCE: Final = 0
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
        return f"{HOST}:{self.port}"

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
    with listening(proxy.serve, name="lossy proxy") as proxy.port:
        yield proxy


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, with its size."""
    size = await reader.readexactly(_SIZE.size)
    return size + await reader.readexactly(_SIZE.unpack(size)[0])
