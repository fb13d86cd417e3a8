"""Uploads of WAL objects: unique keys, put if absent, the same bytes on every try.

A lost reply looks like a lost request. The key is ours alone, so "already exists" after a try that ended unknown means that the try
succeeded; the size is compared to be sure of it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

from runtime.clock import Clock
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.objects.port import ObjectStore
from storage.vocabulary import Buffer


class Uploader:
    def __init__(self, *, objects: ObjectStore, clock: Clock, chance: random.Random, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._objects = objects
        self._clock = clock
        self._chance = chance

    async def upload(self, key: str, parts: Sequence[Buffer], *, is_awaited: Callable[[], bool]) -> None:
        """Return when the object is durable. Raise `Unavailable` when it could not be made so in time; it may then be garbage.

        A try that failed is not repeated unless it `is_awaited`: `parts` keep in memory what was answered meanwhile.
        """
        deadline_s = self._clock.monotonic_s() + self._limits.upload_timeout_s
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(self._limits.upload_try_timeout_s):
                    await self._objects.put_if_absent(key, parts)
                return
            except AlreadyExists:
                if await self._is_ours(key, sum(map(len, parts))):
                    return
                raise Unavailable(f"another object has the name of a WAL object: key={key!r}") from None
            except (Unavailable, OutcomeUnknown, TimeoutError) as error:
                pause_s = self._limits.upload_pause_s * 2 ** min(tries, 5) * (0.5 + self._chance.random() / 2)
                if self._clock.monotonic_s() + pause_s >= deadline_s or not is_awaited():
                    raise Unavailable(f"upload gave up: key={key!r} tries={tries} cause={error!r}") from error
            await asyncio.sleep(pause_s)

    async def _is_ours(self, key: str, size_bytes: int) -> bool:
        try:
            async with asyncio.timeout(self._limits.upload_try_timeout_s):
                return (await self._objects.stat(key)).size_bytes == size_bytes
        except (NotFound, Unavailable, TimeoutError):
            return False
