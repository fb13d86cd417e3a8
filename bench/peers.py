"""The stores of a case without a broker in front: what a PUT and a conditional write take, and what lies there."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bench.stores import NATIVE, Place
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.formats.wal import decode_header, header_bytes
from storage.limits import FLUSH_PARTITIONS_MAX
from storage.metadata.port import Applied, Key, Put, Status
from storage.opening import Stores, open_stores

WAL_PREFIX: Final = "wal/"
PEER_PREFIX: Final = "bench-peer/"
_PEER_KEY: Final = Key("bench/peer", "bench/peer")

T = TypeVar("T")
_clock = SystemClock()
_ids = IdSource(clock=_clock)


class PeerFailed(Exception):
    """The stores did not do for a peer what they do for a broker."""


def with_stores(place: Place, work: Callable[[Stores], Awaitable[T]]) -> T:
    """Do the work on the stores of a case, opened as a broker opens them. Metadata is the brokers' own only where it is a server."""
    return asyncio.run(_with_stores(place, work))


async def _with_stores(place: Place, work: Callable[[Stores], Awaitable[T]]) -> T:
    async with open_stores(
        storage_url=place.storage_url,
        metadata_url=place.metadata_url if place.store == NATIVE else "memory://",
        clock=_clock,
        ids=_ids,
        telemetry=Telemetry(),
    ) as stores:
        return await work(stores)


async def put_s(stores: Stores, *, size_bytes: int) -> float:
    """Seconds that the PUT of a new object took."""
    body, key = os.urandom(size_bytes), f"{PEER_PREFIX}{_ids.next_ulid()}"
    began_s = _clock.monotonic_s()
    await stores.objects.put_if_absent(key, [body])
    return _clock.monotonic_s() - began_s


async def write_s(stores: Stores, *, value_bytes: int) -> float:
    """Seconds that a write of one record took. Raise `PeerFailed` unless it was applied."""
    began_s = _clock.monotonic_s()
    outcome = await stores.metadata.write([Put(_PEER_KEY, bytes(value_bytes), None)])
    seconds = _clock.monotonic_s() - began_s
    if not isinstance(outcome, Applied) or outcome.results[0].status is not Status.OK:
        raise PeerFailed(f"a write without a condition was not applied: {outcome}")
    return seconds


def last_wal_object(place: Place) -> str:
    """The greatest key of a WAL object, empty if there is none."""
    return max(with_stores(place, lambda stores: _wal_keys(stores, after="")), default="")


def slices_after(place: Place, key: str) -> int:
    """Slices in all WAL objects above a key, as their headers say: one for each partition of each flush."""
    return with_stores(place, lambda stores: _slices(stores, after=key))


async def _wal_keys(stores: Stores, *, after: str) -> list[str]:
    return [stat.key async for stat in stores.objects.list(WAL_PREFIX, start_after=after)]


async def _slices(stores: Stores, *, after: str) -> int:
    count = 0
    async for stat in stores.objects.list(WAL_PREFIX, start_after=after):
        end = min(stat.size_bytes, header_bytes(FLUSH_PARTITIONS_MAX))
        count += len(decode_header(await stores.objects.get_range(stat.key, 0, end), key=stat.key).slices)
    return count
