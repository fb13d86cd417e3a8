"""How long answering holds the event loop: a broker in this process, a client on the same loop, and a look at every turn of the loop.

    python -m bench.held_loop --topics 100 --partitions 10 --requests 200

Prints JSON in its last line: for each request the longest turn, in milliseconds of CPU of the loop's thread. CPU, because a machine that
does other things, too, takes the thread off its processor in between, which no broker can help. What the client does in a turn is charged
to the broker.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from bench.clients import create_topics
from bench.metadata_wire import metadata_request
from bench.processes import HOST
from broker.assembly import open_broker
from forebay.processes.serve import GC_THRESHOLDS
from process.settings.listeners import Listener
from process.settings.model import Settings


class Turns:
    """A call-back that runs in every turn of the loop while `start` is in force."""

    def __init__(self) -> None:
        self._handle: asyncio.Handle | None = None
        self._began_s = self._last_s = 0.0
        self.longest_s = 0.0
        self.total_s = 0.0

    def start(self) -> None:
        self.longest_s = 0.0
        self._began_s = self._last_s = time.thread_time()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> float:
        """The longest turn since `start`, in seconds of CPU; `total_s` is what all of them took."""
        assert self._handle is not None, "not started"
        self._handle.cancel()
        self.total_s = time.thread_time() - self._began_s
        return max(self.longest_s, time.thread_time() - self._last_s)

    def _turn(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self._handle = asyncio.get_running_loop().call_soon(self._turn)


async def measure(*, topics: int, partitions: int, requests: int, are_named: bool) -> list[float]:
    """Milliseconds of CPU of the longest turn while each of a number of requests is answered."""
    settings = Settings.model_validate(
        {
            "kafka": {"listeners": (Listener("PLAINTEXT", HOST, 0),)},
            "storage": {"url": "memory://"},
            "metadata": {"url": "memory://"},
        }
    )
    names = [f"held-{number:04}" for number in range(topics)]
    frame = metadata_request(names if are_named else None)
    turns, held_ms = Turns(), []
    async with open_broker(settings, announce=_silent) as broker:
        port = broker.listeners[0].port
        await asyncio.to_thread(create_topics, f"{HOST}:{port}", names, partitions)
        reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
        await _ask(reader, writer, frame)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        for _ in range(requests):
            turns.start()
            await _ask(reader, writer, frame)
            held_ms.append(1e3 * turns.stop())
        writer.close()
    return held_ms


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> bytes:
    writer.write(frame)
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def _silent(_stage: str, _facts: dict[str, Any]) -> None:
    """Nobody reads what stages there are."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.held_loop")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--all", action="store_true", help="ask for all topics instead of naming them")
    given = parser.parse_args(arguments)
    measured = measure(topics=given.topics, partitions=given.partitions, requests=given.requests, are_named=not given.all)
    print(json.dumps(uvloop.run(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
