"""CPU seconds per GiB of this process for puts and ranged gets through the port, with each client, against a server of its own.

    python -m tests.integration.s3.measure

In parentheses the event loop's thread alone. Wall clock is not shown: the server shares the machine.
"""

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Final, get_args

import uvloop

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from services.versitygw import S3Server, running_s3
from storage.limits import KIB, MIB
from storage.objects.port import ObjectStore
from storage.objects.s3.location import parse_s3_url
from storage.objects.s3.store import S3ClientName, open_s3

PUT_BYTES: Final = 8 * MIB
PUTS: Final = 96
GETS: Final = ((64 * KIB, 2_000), (1 * MIB, 400), (4 * MIB, 100))
AT_ONCE: Final = 4


class Used:
    """CPU seconds between its making and `per_gib`, per GiB."""

    def __init__(self) -> None:
        self._process_s, self._thread_s = time.process_time(), time.thread_time()

    def per_gib(self, count: int, size_bytes: int) -> str:
        process_s, thread_s = time.process_time() - self._process_s, time.thread_time() - self._thread_s
        gib = count * size_bytes / (1 << 30)
        return f"{process_s / gib:6.3f} ({thread_s / gib:6.3f}) CPU s/GiB, {process_s / count * 1e6:8.0f} us each"


async def put_all(store: ObjectStore, bodies: list[bytes]) -> None:
    numbers = iter(range(PUTS))

    async def work() -> None:
        for number in numbers:
            await store.put_if_absent(f"put/{number}", bodies)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def get_all(store: ObjectStore, size_bytes: int, count: int, chance: random.Random) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            start = chance.randrange(PUT_BYTES - size_bytes + 1)
            await store.get_range(f"put/{number % PUTS}", start, start + size_bytes)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def measure(server: S3Server, client: S3ClientName) -> None:
    chance = random.Random(1)
    location = parse_s3_url(server.url(prefix=f"measure-{client}"))
    store = await open_s3(location, client=client, clock=SystemClock(), chance=chance, telemetry=Telemetry())
    try:
        await store.probe()
        body = chance.randbytes(PUT_BYTES)
        pieces = [body[start : start + PUT_BYTES // 32] for start in range(0, PUT_BYTES, PUT_BYTES // 32)]
        used = Used()
        await put_all(store, pieces)
        print(f"{client:9} put  8 MiB   {used.per_gib(PUTS, PUT_BYTES)}")
        for size_bytes, count in GETS:
            used = Used()
            await get_all(store, size_bytes, count, chance)
            print(f"{client:9} get {size_bytes // KIB:5} KiB {used.per_gib(count, size_bytes)}")
    finally:
        await store.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        os.environ.update(server.environ)
        for client in get_args(S3ClientName):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure(server, client))


if __name__ == "__main__":
    main()
