"""Both stores as a verification reads them: with a deadline and a second chance for every call, and few calls at a time.

`VerifyLimits` bounds a verification and an inventory; tests lower it. A `StoreReading` has it for all that read through it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from storage.errors import EndsEarly, Unavailable
from storage.metadata.port import Key, MetadataStore, Record
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import Buffer

CALL_TIMEOUT_S: Final = 30.0
TRIES: Final = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyLimits:
    """What is read at a time, how long a reader waits before it looks again, and how much stays in memory."""

    # Calls of the stores

    pause_s: float = 0.5
    """A second try begins after twice this; the pause doubles with each further one."""

    # The walk through a partition

    chunks_per_page: int = 16
    """Index chunks in memory at a time: about 256 entries."""
    segments_per_page: int = 256
    second_look_s: float = 0.2
    """How long to wait before a hole is looked at again: for a node that answers old state, and for the one that takes its place."""

    # Objects

    objects_per_list: int = 1_000
    window_objects: int = 200_000
    """Objects in memory at a time, about 60 MiB. All metadata are read once for each window."""
    slices_kept_max: int = 100_000
    """Slices of the headers that are kept: about 30 MiB. An object whose header was dropped is read again for its next partition."""

    # Early pages

    early_pages_per_read: int = 64
    """Pages in memory at a time, values and all: at most 4 MiB."""
    early_pages_max: int = 10_000
    """Over all shards. Beyond these, it is only said that there are more."""

    # Findings

    findings_kept_max: int = 1_000
    """Beyond these, findings are counted by kind."""


DEFAULT_LIMITS: Final = VerifyLimits()


class StoreReading:
    """Calls raise `Unavailable` when the tries are used up. At most `concurrency` calls to the object store are under way.

    `limits` are those of all that read through it.
    """

    def __init__(self, metadata: MetadataStore, objects: ObjectStore, *, concurrency: int, limits: VerifyLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._metadata = metadata
        self._objects = objects
        self._turns = asyncio.Semaphore(concurrency)

    async def records(self, keys: Sequence[Key]) -> list[Record | None]:
        return await self._tried(lambda: self._metadata.get_many(keys))

    async def records_since(self, keys: Sequence[Key], *, manifest: Key, known_version: int) -> list[Record | None]:
        """The records of keys beside a manifest. Where one is absent, the answer is no older than that manifest in `known_version`."""

        async def read() -> list[Record | None]:
            beside, *found = await self._metadata.get_many([manifest, *keys])
            if None in found and (beside is None or beside.version < known_version):
                version = None if beside is None else beside.version
                raise Unavailable(f"metadata answered from the past: key={manifest.path!r} version={version} known_version={known_version}")
            return found

        return await self._tried(read)

    def shard_of(self, partition_key: str) -> int:
        return self._metadata.shard_of(partition_key)

    async def page(self, start: Key, end: str, count: int) -> list[Record]:
        """The first `count` records of a range."""

        async def read() -> list[Record]:
            found: list[Record] = []
            async for record in self._metadata.range_scan(start, end):
                found.append(record)
                if len(found) == count:
                    break
            return found

        return await self._tried(read)

    async def stat(self, key: str) -> ObjectStat:
        """Raise `NotFound` if there is no such object."""
        async with self._turns:
            return await self._tried(lambda: self._objects.stat(key))

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """Raise `NotFound`, or `EndsEarly` if the object ends before `end`."""
        async with self._turns:
            return await self._tried(lambda: self._objects.get_range(key, start, end))

    async def objects(self, prefix: str, *, start_after: str, count: int) -> list[ObjectStat]:
        """The first `count` objects of a listing."""

        async def read() -> list[ObjectStat]:
            found: list[ObjectStat] = []
            async for stat in self._objects.list(prefix, start_after=start_after):
                found.append(stat)
                if len(found) == count:
                    break
            return found

        async with self._turns:
            return await self._tried(read)

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    return await call()
            except EndsEarly:
                raise
            except Unavailable:
                if tries == TRIES:
                    raise
            except TimeoutError:
                if tries == TRIES:
                    raise Unavailable(f"a store did not answer: after_s={CALL_TIMEOUT_S} tries={TRIES}") from None
            await asyncio.sleep(self.limits.pause_s * 2**tries)
