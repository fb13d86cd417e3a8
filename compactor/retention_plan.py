"""What retention deletes of a partition, pure: whole segments and entries, oldest first, by their age and by the size of what follows them.

As Kafka deletes whole log segments: by `retention.ms` until the first that is not older than that, by `retention.bytes` while what follows
the first has that size already. The newest one goes, too, when it is old: there is no active segment that has to stay.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from runtime.ulid import ulid_ms
from storage.catalog.topic_configs import integer, value_of
from storage.formats.control import Control, EntrySource

NO_LIMIT: Final = -1
AHEAD_MS: Final = 3_600_000


class RetentionLimits(NamedTuple):
    """NO_LIMIT for none. A timestamp that is more than `ahead_ms` ahead of the object that has it says nothing."""

    retention_ms: int
    retention_bytes: int
    ahead_ms: int = AHEAD_MS

    @property
    def is_endless(self) -> bool:
        return self.retention_ms == self.retention_bytes == NO_LIMIT


def limits_of(configs: Mapping[str, str]) -> RetentionLimits:
    """The limits of a topic: none unless its `cleanup.policy` names delete.

    A timestamp counts as far ahead as the topic lets producers date theirs, but for longer than `retention.ms` it keeps nothing.
    """
    if "delete" not in value_of(configs, "cleanup.policy").split(","):
        return RetentionLimits(NO_LIMIT, NO_LIMIT)
    retention_ms = integer(configs, "retention.ms")
    ahead_ms = min(integer(configs, "message.timestamp.after.max.ms"), retention_ms)
    return RetentionLimits(retention_ms, integer(configs, "retention.bytes"), max(AHEAD_MS, ahead_ms))


def source_ms(source: EntrySource, *, ahead_ms: int) -> int:
    """The time of the newest record of `source`; that of its object where no record has one, or one is too far ahead to be true."""
    written_ms = ulid_ms(source.object_id)
    return source.max_timestamp if 0 <= source.max_timestamp <= written_ms + ahead_ms else written_ms


class _Kept(NamedTuple):
    """One item that stays, or several that go together."""

    last: int
    size_bytes: int
    newest_ms: int


class RetentionPlan:
    """`add` the items of a partition, from log_start on, until no more are wanted: then `log_start` is where it has to begin.

    It counts up to `sizes_kept_max` items one by one.
    """

    def __init__(self, limits: RetentionLimits, control: Control, *, now_ms: int, sizes_kept_max: int) -> None:
        self._sizes_kept_max = sizes_kept_max
        self._limits = limits
        self._bytes_total = control.bytes_total
        self._expired_before_ms = now_ms - limits.retention_ms
        # What is in the log was appended once, so without counting it is known to be no more than that.
        self._counts_bytes = NO_LIMIT != limits.retention_bytes < control.bytes_total
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._end = self.log_start = control.log_start

    def add(self, items: Iterable[EntrySource]) -> bool:
        """Whether the answer may change with what follows."""
        limit = self._limits.retention_bytes
        for item in items:
            # One that begins before the end has taken the place of items that were counted.
            size_bytes = item.size_bytes if item.base >= self._end or not self._kept else 0
            self._end = item.last + 1
            newest_ms = 0 if self._limits.retention_ms == NO_LIMIT else source_ms(item, ahead_ms=self._limits.ahead_ms)
            if not self._kept and self._is_expired(newest_ms):
                self.log_start = self._end
                continue
            self._kept.append(_Kept(item.last, size_bytes, newest_ms))
            if not self._counts_bytes:
                return False
            self._kept_bytes += size_bytes
            while self._kept and self._kept_bytes - self._kept[0].size_bytes >= limit:
                gone = self._kept.popleft()
                self._kept_bytes -= gone.size_bytes
                self.log_start = gone.last + 1
            if len(self._kept) > self._sizes_kept_max:
                self._kept = deque(_together(self._kept, bytes_max=4 * self._kept_bytes // self._sizes_kept_max))
        return True

    def _is_expired(self, newest_ms: int) -> bool:
        return self._limits.retention_ms != NO_LIMIT and newest_ms < self._expired_before_ms

    @property
    def again_ms(self) -> float:
        """Before that nothing else is too old. What is appended to a log of which nothing stays may be old at once."""
        if self._limits.retention_ms == NO_LIMIT:
            return float("inf")
        return self._kept[0].newest_ms + self._limits.retention_ms + 1 if self._kept else 0

    @property
    def again_bytes(self) -> float:
        """Before so much was appended in all, nothing else is too much."""
        limit = self._limits.retention_bytes
        if limit == NO_LIMIT:
            return float("inf")
        if not self._counts_bytes:
            return limit + 1
        return self._bytes_total + limit - (self._kept_bytes - self._kept[0].size_bytes if self._kept else -1)


def _together(kept: Iterable[_Kept], *, bytes_max: int) -> Iterator[_Kept]:
    """At most `sizes_kept_max` / 2 and one: any two neighbours have more than `bytes_max`, a fourth of `sizes_kept_max` of which is all."""
    joined: _Kept | None = None
    for one in kept:
        if joined is None:
            joined = one
        elif joined.size_bytes + one.size_bytes <= bytes_max:
            joined = _Kept(one.last, joined.size_bytes + one.size_bytes, min(joined.newest_ms, one.newest_ms))
        else:
            yield joined
            joined = one
    if joined is not None:
        yield joined
