"""Damage: bytes that the object store returned otherwise than they were written. Counted, logged once, and not read again at once.

A read that meets damage is repeated once (storage/log/read.py). Damage found the second time, too, is remembered for a while, so
that clients which keep asking cost neither GETs nor log lines.
"""

from typing import Final, Literal

import structlog

from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.telemetry import Metric, Telemetry
from storage.errors import Corrupt, StorageError
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.vocabulary import PartitionId

LOOK_AGAIN_S: Final = 10.0
"""How long a reader is refused from memory what was found damaged twice."""
TELL_AGAIN_S: Final = 300.0
"""How long nothing more is logged of the same partition in the same object."""
LINES_MAX: Final = 10
"""Lines in LINES_PER_S: a store that lost everything is logged, but not once per partition."""
LINES_PER_S: Final = 60.0

CORRUPT_READS: Final = Metric(
    "forebay_corrupt_reads_total",
    "Reads of the object store that did not give what was written: corrupt, missing or short. Each is repeated once, past the cache.",
    ("cause",),
)
HEALED_READS: Final = Metric(
    "forebay_healed_reads_total", "Reads that did not give what was written, and did when they were repeated. What is left is an alarm."
)

Cause = Literal["corrupt", "missing", "short"]
CAUSES: Final[tuple[Cause, ...]] = ("corrupt", "missing", "short")

_log: Final = structlog.get_logger()


class Damage:
    """The damage that one broker's reads have met."""

    def __init__(self, *, clock: Clock, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._confirmed: LruCache[tuple[PartitionId, int], tuple[float, str]] = LruCache(limits.damage_kept_max)
        self._told_s: LruCache[tuple[str, PartitionId], float] = LruCache(limits.damage_kept_max)
        self._lines_since_s = -LINES_PER_S
        self._lines = self._untold = 0
        reads = telemetry.counter(CORRUPT_READS)
        self._reads = {cause: reads.labels(cause) for cause in CAUSES}
        self._healed = telemetry.counter(HEALED_READS)

    def check(self, partition: PartitionId, offset: int) -> None:
        """Raise what the last reads of `offset` ended with, if it was damage, and not long ago."""
        if not len(self._confirmed):
            return
        known = self._confirmed.peek((partition, offset))
        if known is not None and self._clock.monotonic_s() < known[0]:
            raise Corrupt(known[1])

    def note(self, cause: Cause) -> None:
        """A read gave what was not written."""
        self._reads[cause].inc()

    def heal(self, partition: PartitionId, offset: int, *, key: str, first: StorageError) -> None:
        """The second read gave what was written."""
        self._healed.inc()
        self._confirmed.pop((partition, offset))
        if self._is_news(key, partition):
            untold = self._take_untold()
            _log.warning("data_healed", object=key, partition=str(partition), offset=offset, cause=str(first), **untold)

    def confirm(self, partition: PartitionId, offset: int, *, key: str, cause: Cause, what: str) -> None:
        """So did the second read: an operator has to look."""
        self._confirmed.put((partition, offset), (self._clock.monotonic_s() + LOOK_AGAIN_S, what))
        if self._is_news(key, partition):
            _log.error(
                "data_missing" if cause == "missing" else "data_damaged",
                object=key,
                partition=str(partition),
                offset=offset,
                cause=what,
                meaning="committed records cannot be read: Fetch of them is answered with KAFKA_STORAGE_ERROR",
                fix="bring the object back, or correct storage.url; if it is lost, delete the records up to there",
                **self._take_untold(),
            )

    def _take_untold(self) -> dict[str, int]:
        """How often there was no line for what would have been news, since the line before."""
        untold, self._untold = self._untold, 0
        return {"untold": untold} if untold else {}

    def _is_news(self, key: str, partition: PartitionId) -> bool:
        now_s = self._clock.monotonic_s()
        told_s = self._told_s.peek((key, partition))
        if told_s is not None and now_s < told_s + TELL_AGAIN_S:
            return False
        if now_s >= self._lines_since_s + LINES_PER_S:
            self._lines_since_s, self._lines = now_s, 0
        if self._lines == LINES_MAX:
            self._untold += 1
            return False
        self._lines += 1
        self._told_s.put((key, partition), now_s)
        return True
