"""What has to go from the beginning of a partition, pure: whole entries and segments, by their age and by the size of the rest.

As Kafka deletes whole log segments: by `retention.ms` while the first is older than that, by `retention.bytes` while what remains without
the first has that size still.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from compactor.plan import entry_bytes
from runtime.ulid import ulid_ms
from storage.catalog.topic_configs import integer, value_of
from storage.formats.control import Entry, EntrySource

NO_LIMIT: Final = -1
AHEAD_MS_MAX: Final = 3_600_000
"""How far a timestamp may be ahead of the object that has it. One further ahead says nothing: the record would never go."""


class RetentionLimits(NamedTuple):
    """NO_LIMIT for none."""

    retention_ms: int
    retention_bytes: int

    @property
    def is_endless(self) -> bool:
        return self.retention_ms == self.retention_bytes == NO_LIMIT


def limits_of(configs: Mapping[str, str]) -> RetentionLimits:
    """The limits of a topic: none unless its `cleanup.policy` has delete."""
    if "delete" not in value_of(configs, "cleanup.policy").split(","):
        return RetentionLimits(NO_LIMIT, NO_LIMIT)
    return RetentionLimits(integer(configs, "retention.ms"), integer(configs, "retention.bytes"))


def source_bytes(source: EntrySource) -> int:
    return entry_bytes(source) if isinstance(source, Entry) else source.size_bytes


def source_ms(source: EntrySource) -> int:
    """By which time the records of `source` expire: the greatest timestamp; the time of the object where no record has one, or where it is
    too far ahead.
    """
    written_ms = ulid_ms(source.object_id)
    return source.max_timestamp if 0 <= source.max_timestamp <= written_ms + AHEAD_MS_MAX else written_ms


def expired(source: EntrySource, limits: RetentionLimits, *, now_ms: int) -> bool:
    return limits.retention_ms != NO_LIMIT and source_ms(source) < now_ms - limits.retention_ms


def excess(source: EntrySource, limits: RetentionLimits, *, live_bytes: int) -> bool:
    """Whether `live_bytes`, which end with the newest record and begin with `source`, are enough without it."""
    return limits.retention_bytes != NO_LIMIT and live_bytes - source_bytes(source) >= limits.retention_bytes


def count_gone(sources: Iterable[EntrySource], limits: RetentionLimits, *, live_bytes: int, now_ms: int) -> tuple[int, int]:
    """How many of `sources`, the first of a partition, have to go, and the bytes that are live then."""
    gone = 0
    for source in sources:
        if not expired(source, limits, now_ms=now_ms) and not excess(source, limits, live_bytes=live_bytes):
            break
        gone += 1
        live_bytes -= source_bytes(source)
    return gone, live_bytes
