"""Both stores as a verification reads them: with a deadline and a second chance for every call, and few calls at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from storage.errors import EndsEarly, Unavailable
from storage.metadata.port import Key, MetadataStore, Record
from storage.objects.port import ObjectStat, ObjectStore
from storage.verify.limits import DEFAULT_LIMITS, VerifyLimits
from storage.vocabulary import Buffer

CALL_TIMEOUT_S: Final = 30.0
TRIES: Final = 4

T = TypeVar("T")


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
