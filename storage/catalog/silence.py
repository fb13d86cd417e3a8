"""Whether the shard of the catalog answers: while it does not, what is known of topics is the best that clients can have."""

import asyncio
from typing import Final

import structlog

from runtime.clock import Clock
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.errors import StorageError
from storage.metadata import keys
from storage.metadata.port import MetadataStore

SILENT_FOR_S: Final = 10.0
"""A read that failed says so much about the next ones. `Silence.watch` looks more often than that."""

_log: Final = structlog.get_logger()


class Silence:
    def __init__(self, metadata: MetadataStore, *, clock: Clock, limits: CatalogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._metadata = metadata
        self._clock = clock
        self._until_s = float("-inf")
        self._has_fallen = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self._clock.monotonic_s() < self._until_s

    def note_failure(self, cause: str) -> None:
        """A read had no answer."""
        self._until_s = self._clock.monotonic_s() + SILENT_FOR_S
        if not self._has_fallen.is_set():
            self._has_fallen.set()
            _log.warning("catalog_silent", cause=cause)

    def note_answer(self) -> None:
        """A read had an answer."""
        self._until_s = float("-inf")
        if self._has_fallen.is_set():
            self._has_fallen.clear()
            _log.info("catalog_answers")

    async def watch(self) -> None:
        """Notice when it speaks again, until cancelled, so that no request has to wait to find that out."""
        while True:
            await self._has_fallen.wait()
            await asyncio.sleep(self._limits.probe_pause_s)
            try:
                async with asyncio.timeout(self._limits.probe_timeout_s):
                    await self._metadata.get_many([keys.CLUSTER])
            except (StorageError, TimeoutError) as error:
                self.note_failure(repr(error))
            else:
                self.note_answer()
