"""Uploads of WAL objects: how one is repeated, and how many run at a time."""

import asyncio
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from runtime.clock import Clock
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.objects.port import ObjectStore
from storage.vocabulary import Buffer

UPLOADS_MAX: Final = 4


class Uploader:
    """Uploads WAL objects: unique keys, put if absent, the same bytes on every try.

    A lost reply looks like a lost request. The key is ours alone, so "already exists" after a try that ended unknown means that the try
    succeeded. To be sure of it the size is compared, and the first part: the header, with the id, the epoch and a checksum.
    """

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
                if await self._is_ours(key, parts[0], size_bytes=sum(map(len, parts))):
                    return
                raise Unavailable(f"another object has the name of a WAL object: key={key!r}") from None
            except (Unavailable, OutcomeUnknown, TimeoutError) as error:
                pause_s = self._limits.upload_pause_s * 2 ** min(tries, 5) * (0.5 + self._chance.random() / 2)
                if self._clock.monotonic_s() + pause_s >= deadline_s or not is_awaited():
                    raise Unavailable(f"upload gave up: key={key!r} tries={tries} cause={error!r}") from error
            await asyncio.sleep(pause_s)

    async def _is_ours(self, key: str, header: Buffer, *, size_bytes: int) -> bool:
        try:
            async with asyncio.timeout(self._limits.upload_try_timeout_s):
                if (await self._objects.stat(key)).size_bytes != size_bytes:
                    return False
                return bytes(await self._objects.get_range(key, 0, len(header))) == header
        except (NotFound, Unavailable, TimeoutError):
            return False


class UploadPlaces:
    """Places for uploads: few at a time, so that a slow store makes large objects, not many small ones.

    An upload that takes long gives its place up and goes on without. `on_free` is called, on the loop, whenever a place has become free.
    """

    def __init__(self, *, on_free: Callable[[], None], limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.slow_upload_s = limits.slow_upload_s
        self._slow_uploads_max = limits.slow_uploads_max
        self._on_free = on_free
        self._places = asyncio.Semaphore(UPLOADS_MAX)
        self._asked = 0
        self._slow = 0

    @property
    def are_taken(self) -> bool:
        """Whether a new upload has to wait."""
        return self._asked >= UPLOADS_MAX

    @property
    def has_spare(self) -> bool:
        """Whether another upload leaves a place to those that time makes due."""
        return self._asked < UPLOADS_MAX - 1

    def ask(self) -> "UploadPlace":
        """It counts from now on. Enter it to wait for it; it must be entered."""
        self._asked += 1
        return UploadPlace(self)

    async def take(self) -> None:
        try:
            await self._places.acquire()
        except BaseException:
            self._asked -= 1
            raise

    def give_back(self) -> None:
        self._asked -= 1
        self._places.release()
        self._on_free()

    def begin_slow(self) -> bool:
        """False: too many are slow already."""
        if self._slow >= self._slow_uploads_max:
            return False
        self._slow += 1
        return True

    def end_slow(self) -> None:
        self._slow -= 1


class UploadPlace:
    """Held while the upload runs, or until it turns out to be slow."""

    __slots__ = ("_is_slow", "_places", "_timer")

    def __init__(self, places: UploadPlaces) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None
        self._is_slow = False

    async def __aenter__(self) -> None:
        await self._places.take()
        self._timer = asyncio.get_running_loop().call_later(self._places.slow_upload_s, self._turn_slow)

    def _turn_slow(self) -> None:
        if self._places.begin_slow():
            self._is_slow = True
            self._places.give_back()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if self._is_slow:
            self._places.end_slow()
        else:
            self._places.give_back()
