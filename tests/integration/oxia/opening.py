"""Stores on Oxia for tests, and waiting for what they do."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from services.oxia import OxiaServer
from storage.metadata.oxia.limits import DEFAULT_LIMITS, OxiaLimits
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import Key

TIMEOUT_S = 60.0
clock = SystemClock()


@asynccontextmanager
async def opened(url: str, *, limits: OxiaLimits = DEFAULT_LIMITS) -> AsyncIterator[OxiaMetadataStore]:
    async with Nursery() as nursery:
        store = await OxiaMetadataStore.open(parse_oxia_url(url), clock=clock, chance=random.Random(), nursery=nursery, limits=limits)
        try:
            yield store
        finally:
            await store.close()


async def seconds_until(condition: Callable[[], Awaitable[bool]]) -> float:
    """How long it took until it held; fail after `TIMEOUT_S`."""
    started_s = clock.monotonic_s()
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.02)
    return clock.monotonic_s() - started_s


async def until_connected(store: OxiaMetadataStore, address: str) -> None:
    """Return when there is a connection of our own to the node, after an answer through gRPC."""

    async def is_connected() -> bool:
        return bool(store._calls.nodes.at(address)._direct._connections)

    await seconds_until(is_connected)


async def pause(server: OxiaServer) -> None:
    """Pause it, and return when its last thread has stopped: one that still runs may answer."""
    await asyncio.to_thread(server.pause)

    async def stands_still() -> bool:
        return _thread_states(server.pid) == {"T"}

    await seconds_until(stands_still)


def _thread_states(pid: int) -> set[str]:
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def on_every_shard(store: OxiaMetadataStore, *, shards: int) -> list[Key]:
    """One key on each."""
    keys: dict[int, Key] = {}
    for number in range(1_000):
        partition_key = f"topic/{number}"
        keys.setdefault(store.shard_of(partition_key), Key(f"llog/{number}/meta/control", partition_key))
    assert len(keys) == shards
    return [keys[shard] for shard in sorted(keys)]
