"""A program that puts objects into a disk store until it is killed, and says on standard output which puts returned."""

import asyncio
import hashlib
import sys
from pathlib import Path

from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from storage.objects.disk import DiskObjectStore

WRITERS = 6


def body_of(key: str) -> bytes:
    """The bytes of a key: of its own size, and unlike those of any other."""
    digest = hashlib.sha256(key.encode()).digest()
    return digest * (1 + digest[0] * 40)  # 32 bytes to 320 KiB


async def write(store: DiskObjectStore, writer: int, round_name: str) -> None:
    number = 0
    while True:
        # Many folders, so that kills also meet the making of folders.
        key = f"{round_name}/{number % 5}/{writer}-{number // 50}/{number:06}"
        body = body_of(key)
        await store.put_if_absent(key, [body[:1000], body[1000:]])
        sys.stdout.write(f"{key}\n")
        sys.stdout.flush()
        number += 1


async def main(root: Path, round_name: str) -> None:
    store = await DiskObjectStore.open(root, blocking=ThreadBlocking(threads=WRITERS, name="disk"), clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write(store, writer, round_name))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
