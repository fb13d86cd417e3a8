"""A proxy that moves a server further away: each piece of an answer is passed on a fixed time after it came, and requests at once.

    python -m bench.latency_proxy --to 127.0.0.1:7070 --ms 30

It knows no HTTP, and needs none: since every piece is late by the same time, a whole answer is late by it once, however long it is, however
long its request was, and whatever the connection carried before.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from bench.results import KIB
from runtime.clock import SystemClock
from runtime.supervision import Nursery

HOST: Final = "127.0.0.1"
PIECE_BYTES_MAX: Final = 256 * KIB
PIECES_MAX: Final = 256
"""The most that a connection holds back: what a server sends beyond it waits in the socket."""

_Held = asyncio.Queue[tuple[float, bytes]]

_clock = SystemClock()


class LatencyProxy:
    """Relays connections to the server at `host`:`port`, each on one of its own."""

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._host = host
        self._port = port
        self._delay_s = delay_s

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection until one end closes it."""
        try:
            with contextlib.suppress(OSError):  # no server, so no connection
                server_reader, server_writer = await asyncio.open_connection(self._host, self._port, limit=PIECE_BYTES_MAX)
                try:
                    await self._relay(reader, writer, server_reader, server_writer)
                finally:
                    server_writer.close()
        finally:
            writer.close()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        held = _Held(PIECES_MAX)
        async with Nursery() as nursery:
            nursery.spawn(_pass_on(reader, server_writer), name="requests")
            nursery.spawn(self._hold(server_reader, held), name="answers")
            await _release(held, writer)

    async def _hold(self, reader: asyncio.StreamReader, held: _Held) -> None:
        """Keep what comes with the time at which it is due. The last piece is empty: the server has closed."""
        is_open = True
        while is_open:
            try:
                piece = await reader.read(PIECE_BYTES_MAX)
            except OSError:
                piece = b""
            await held.put((_clock.monotonic_s() + self._delay_s, piece))
            is_open = bool(piece)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # an end that is gone closes the other way, too
        while piece := await reader.read(PIECE_BYTES_MAX):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()


async def _release(held: _Held, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the client is gone
        while True:
            due_s, piece = await held.get()
            await _until(due_s)
            if not piece:
                return
            writer.write(piece)
            await writer.drain()


async def _until(due_s: float) -> None:
    """A loop may wake half a millisecond early."""
    while (early_s := due_s - _clock.monotonic_s()) > 0:  # noqa: ASYNC110 - time is what is waited for
        await asyncio.sleep(early_s)


async def _serve(proxy: LatencyProxy) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = await asyncio.start_server(proxy.accept, HOST, 0, limit=PIECE_BYTES_MAX)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"event": "latency proxy listening", "address": f"{HOST}:{port}"}) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    server.close()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="the server")
    parser.add_argument("--ms", required=True, type=float, help="how late answers are")
    given = parser.parse_args(arguments)
    host, _, port = given.to.rpartition(":")
    uvloop.run(_serve(LatencyProxy(host, int(port), given.ms / 1e3)))


if __name__ == "__main__":
    main(sys.argv[1:])
