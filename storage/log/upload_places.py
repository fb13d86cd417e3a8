"""Places for uploads: few at a time, so that a slow store makes large objects, not many small ones.

An upload that takes long gives its place up and goes on without: a slow prefix of the bucket holds up what was sent to it, and no more.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from storage.log.limits import DEFAULT_LIMITS, LogLimits

UPLOADS_MAX: Final = 4


class UploadPlaces:
    """`on_free` is called, on the loop, whenever a place has become free."""

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
