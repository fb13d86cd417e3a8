"""How long to go on trying: full jitter, so that brokers asked to slow down do not come back together."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from runtime.clock import Clock
from storage.objects.requests import attempted
from storage.objects.s3.credentials import Credentials

PAUSE_FIRST_S: Final = 0.05


class Backoff:
    """The pauses between the tries of one call, within its patience. The caller's own patience is its cancellation."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: random.Random,
        patience_s: float,
        tries_max: int,
        pause_s_max: float,
        signed_with: Credentials | None,
    ) -> None:
        self._pause_s_max = pause_s_max
        self._clock = clock
        self._chance = chance
        self._deadline_s = clock.monotonic_s() + patience_s
        self._tries_max = tries_max
        self.tries = 1
        self.cause: Exception | None = None
        """What the last try failed with, without frames."""
        self.signed_with = signed_with
        """The credentials that were held when the last try began."""

    @asynccontextmanager
    async def attempt(self, within_s: float | None = None) -> AsyncIterator[None]:
        """One try: its deadline, and whether its requests are counted as repeated. Raise TimeoutError when the time has passed."""
        with attempted("first" if self.tries == 1 else "retry"):
            async with asyncio.timeout(within_s):
                yield

    async def pause(self) -> bool:
        """Whether to try again; the time to do so has come when this returns."""
        if self.tries >= self._tries_max:
            return False
        pause_s = self._chance.uniform(0, min(self._pause_s_max, PAUSE_FIRST_S * 2**self.tries))
        if self._clock.monotonic_s() + pause_s >= self._deadline_s:
            return False
        self.tries += 1
        await asyncio.sleep(pause_s)
        return True
