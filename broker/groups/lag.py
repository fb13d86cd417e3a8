"""The lag of groups in records and in seconds, by topic, sampled by their coordinator while somebody scrapes.

A sample reads the ends of what the groups have committed and shows itself until the next one; making the page reads nothing. The lag in
seconds is the age of the first record that a group has not read, by this broker's clock: 0 at the end, else now - t. Where t lies between
two samples of the end it is interpolated. For a commit from before them, t is the greatest time of the index entry that holds the record,
looked up once a commit; until then, and where that time says less, the first sample is old enough.
"""

import asyncio
import re
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import structlog

from broker.groups.coordinator import Listing
from broker.groups.group import LoadedGroup
from broker.groups.offset_expiration import CONSUMER, wanted_by
from broker.groups.store import read_offsets
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from runtime.telemetry import SERIES_MAX, Metric, SeriesRow, Telemetry
from runtime.turns import Turns
from storage.catalog.groups import GroupHead
from storage.catalog.topic_configs import retention_ms
from storage.catalog.topics import Topics
from storage.errors import Corrupt, NotFound, StorageError
from storage.log.fresh_reads import Bounds, LogBounds
from storage.log.traffic import FOLDED, OTHER, SERIES_OF_A_TOPIC, TOPICS_SHOWN_MAX
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId

LAG_RECORDS: Final = Metric(
    "forebay_group_lag_records", "Records behind what a group has committed, by topic", ("group", "topic"), aggregation="sum"
)
LAG_SECONDS: Final = Metric(
    "forebay_group_lag_seconds",
    "Age of the first record that a group has not read, of the partition where it is oldest, by topic; 0 at the end",
    ("group", "topic"),
    aggregation="max",
)
LAG_RETENTION: Final = Metric(
    "forebay_group_lag_retention_ratio",
    "forebay_group_lag_seconds by the topic's retention.ms: at 1 records go that a group has not read; nothing where all are kept",
    ("group", "topic"),
    aggregation="max",
)
UNCOMMITTED: Final = Metric(
    "forebay_group_uncommitted_partitions",
    "Partitions of topics that a group wants or has read of which it has committed nothing; they are not in its lag",
    ("group", "topic"),
    aggregation="sum",
)
MEMBER_COUNT: Final = Metric(
    "forebay_group_joined_members", "Members of a group that its coordinator has loaded", ("group",), aggregation="sum"
)
SAMPLE_AGE: Final = Metric("forebay_lag_sample_age_seconds", "Age of the lag of groups on this page", aggregation="max")

SCRAPED_WITHIN_S: Final = 60.0
SAMPLE_WITHIN_S: Final = 60.0
GROUPS_SAMPLED_MAX: Final = 500
PARTITIONS_SAMPLED_MAX: Final = 10_000
GROUP_TOPICS_SHOWN_MAX: Final = 550
_SERIES_OF_A_GROUP_TOPIC: Final = 4
_SERIES_OF_OTHERS_MAX: Final = 3_000
"""For metrics without names of clients: APIs, routes, requests to the stores, stages."""
assert (
    TOPICS_SHOWN_MAX * SERIES_OF_A_TOPIC + GROUP_TOPICS_SHOWN_MAX * _SERIES_OF_A_GROUP_TOPIC + GROUPS_SAMPLED_MAX + _SERIES_OF_OTHERS_MAX
    < SERIES_MAX
)
ENDS_AT_ONCE: Final = 250
ENDS_KEPT_MAX: Final = 240
"""For each partition: an hour of them, if its end moves all the time."""
LOOK_UPS_MAX: Final = 100
REREAD_S: Final = 300.0
"""The commits of a group that is not loaded do not change: whoever commits has it loaded. They are read again all the same."""

_MS_PER_S: Final = 1_000

log = structlog.get_logger("groups")

GroupTopic = tuple[str, str]


class AppendTimes(Protocol):
    async def greatest_around(self, partition: PartitionId, offset: int) -> int | None:
        """The greatest time, in ms, of the records appended with this one; negative or None where it is not known."""
        ...


class EndHistory:
    """The end of a partition as it was seen, oldest first: when a record was appended is between two of them."""

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._ends = array("q")
        self._times_ms = array("q")

    def note(self, end: int, now_ms: int) -> None:
        """An end lower than the last one is another log's: what was seen before is forgotten."""
        ends, times_ms = self._ends, self._times_ms
        if ends and end < ends[-1]:
            del ends[:], times_ms[:]
        if len(ends) >= 2 and ends[-2] == ends[-1] == end:
            times_ms[-1] = now_ms
            return
        if len(ends) == ENDS_KEPT_MAX:
            del ends[0], times_ms[0]
        ends.append(end)
        times_ms.append(now_ms)

    @property
    def first_ms(self) -> int:
        return self._times_ms[0]

    def appended_ms(self, offset: int) -> float | None:
        """When the record at `offset`, which lies below the last end, was appended; None: before the first sample."""
        after = bisect_right(self._ends, offset)
        if after == 0:
            return None
        end, next_end = self._ends[after - 1 : after + 1]
        at_ms, next_ms = self._times_ms[after - 1 : after + 1]
        return at_ms + (next_ms - at_ms) * (offset - end) / (next_end - end)


@dataclass(slots=True)
class TopicLag:
    """The lag of a group in a topic, over the partitions in which it has committed an offset; `seconds` is the greatest of them.

    `retention_ratio`: `seconds` by those for which the topic keeps records; None where it keeps all.
    """

    records: int = 0
    seconds: float = 0.0
    committed: int = 0
    uncommitted: int = 0
    retention_ratio: float | None = None
    is_known: bool = True
    """False: the end of a partition could not be read."""

    @property
    def has_lag(self) -> bool:
        return self.is_known and self.committed > 0

    def add(self, other: "TopicLag") -> None:
        if other.has_lag:
            self.records += other.records
            self.seconds = max(self.seconds, other.seconds)
            if other.retention_ratio is not None:
                self.retention_ratio = max(self.retention_ratio or 0.0, other.retention_ratio)
            self.committed += other.committed
        self.uncommitted += other.uncommitted


@dataclass(frozen=True, slots=True)
class _Reading:
    """A group as it is. `members` None: nobody has loaded it."""

    group: str
    committed: Mapping[PartitionId, int]
    wanted: frozenset[str] = frozenset()
    members: int | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    lags: Mapping[GroupTopic, TopicLag]
    members: Mapping[str, int]
    at_s: float


class LagSampler:
    """`run` samples. A sample that fails leaves the one before it on the page, whose age says so."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        listed: Callable[[], Awaitable[Listing]],
        topics: Topics,
        bounds: Bounds,
        times: AppendTimes,
        clock: Clock,
        telemetry: Telemetry,
        interval_s: float,
        shown: str | None = None,
        limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    ) -> None:
        """`shown`: a regular expression that the whole name of a topic with series matches; None: all do."""
        self._metadata = metadata
        self._listed = listed
        self._topics = topics
        self._bounds = bounds
        self._times = times
        self._clock = clock
        self._interval_s = interval_s
        self._silent_after_s = limits.silent_after_s
        self._shown = None if shown is None else re.compile(shown)
        self._folded = telemetry.counter(FOLDED)
        self._folded_before = 0
        self._scraped_s = float("-inf")
        self._histories: dict[PartitionId, EndHistory] = {}
        self._looked_up: dict[tuple[PartitionId, int], float] = {}
        """By the first unread record: when it was appended, as far as its entry says."""
        self._unloaded: dict[str, tuple[float, _Reading]] = {}
        """By group: when it was read."""
        self._sample: _Sample | None = None
        self._is_failing = False
        telemetry.table(LAG_RECORDS, lambda: self._rows(lambda lag: lag.records if lag.has_lag else None))
        telemetry.table(LAG_SECONDS, lambda: self._rows(lambda lag: round(lag.seconds, 3) if lag.has_lag else None))
        telemetry.table(LAG_RETENTION, lambda: self._rows(lambda lag: lag.retention_ratio if lag.has_lag else None))
        telemetry.table(UNCOMMITTED, lambda: self._rows(lambda lag: lag.uncommitted))
        telemetry.table(MEMBER_COUNT, self._member_rows)
        telemetry.table(SAMPLE_AGE, self._age_rows)

    async def run(self) -> NoReturn:
        """Sample once an interval while somebody scrapes, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._clock.monotonic_s() - self._scraped_s > max(SCRAPED_WITHIN_S, 2 * self._interval_s):
                self._sample, self._histories, self._looked_up, self._unloaded = None, {}, {}, {}
                continue
            try:
                async with asyncio.timeout(SAMPLE_WITHIN_S):
                    self._sample = await self._take()
                self._is_failing = False
            except (StorageError, TimeoutError) as error:
                if not self._is_failing:
                    log.warning("group_lag_not_read", cause=repr(error))
                self._is_failing = True
            except Exception:  # a broker is not to end for want of a metric
                if not self._is_failing:
                    log.exception("group_lag_failed")
                self._is_failing = True

    async def _take(self) -> _Sample:
        turns = Turns()
        listing = await self._listed()
        # Those whose members are here come first: a bound is not to hide a group that is at work.
        groups = sorted(listing.groups, key=lambda one: not (isinstance(one, LoadedGroup) and one.group.members))
        readings: list[_Reading] = []
        room = PARTITIONS_SAMPLED_MAX
        for one in groups[:GROUPS_SAMPLED_MAX]:
            reading = await (self._loaded(one, room, turns) if isinstance(one, LoadedGroup) else self._stored(one, room))
            readings.append(reading)
            room -= len(reading.committed)
        self._unloaded = {reading.group: self._unloaded[reading.group] for reading in readings if reading.members is None}
        partitions = list(dict.fromkeys(partition for reading in readings for partition in reading.committed))
        by_id = await self._topics.lookup_ids({partition.topic_id for partition in partitions})
        by_name = await self._topics.lookup({name for reading in readings for name in reading.wanted})
        ages = await self._ages(readings, await self._ends(partitions), turns)
        lags: dict[GroupTopic, TopicLag] = {}
        folded = len(groups) - len(readings)
        for reading in readings:
            by_topic: dict[str, TopicLag] = {}
            for partition in reading.committed:
                topic = by_id.get(partition.topic_id)
                if topic is not None:  # else it was deleted, and its offsets go soon
                    lag = by_topic.setdefault(topic.name, TopicLag(uncommitted=topic.partition_count))
                    _add(lag, ages.get((reading.group, partition)), retention_ms(topic.configs))
                await turns.spent()
            for name in reading.wanted & by_name.keys():
                by_topic.setdefault(name, TopicLag(uncommitted=by_name[name].partition_count))
                await turns.spent()
            for name, lag in by_topic.items():
                place = reading.group, name if self._shown is None or self._shown.fullmatch(name) else OTHER
                if place not in lags and len(lags) >= GROUP_TOPICS_SHOWN_MAX:
                    place, folded = (OTHER, OTHER), folded + 1
                lags.setdefault(place, TopicLag()).add(lag)
                await turns.spent()
        self._folded.inc(max(0, folded - self._folded_before))
        self._folded_before = folded
        members = {reading.group: reading.members for reading in readings if reading.members is not None}
        if loaded := [one for one in groups[GROUPS_SAMPLED_MAX:] if isinstance(one, LoadedGroup)]:
            members[OTHER] = sum(len(one.group.members) for one in loaded)
        return _Sample(lags, members, self._clock.monotonic_s())

    async def _loaded(self, loaded: LoadedGroup, room: int, turns: Turns) -> _Reading:
        group, stored = loaded.group, loaded.stored
        committed: dict[PartitionId, int] = {}
        if stored.offset_count <= room:
            for partition in list(stored.partitions):
                if (found := stored.offset(partition)) is not None:
                    committed[partition] = found.offset
                await turns.spent()
        wanted: frozenset[str] = frozenset()
        if group.protocol_type == CONSUMER and group.protocol is not None:
            for member in group.members.values():
                wanted |= wanted_by(member, group) or frozenset()
                await turns.spent()
        return _Reading(group.group_id, committed, wanted, len(group.members))

    async def _stored(self, head: GroupHead, room: int) -> _Reading:
        now_s = self._clock.monotonic_s()
        known = self._unloaded.get(head.group)
        if known is None or now_s - known[0] >= REREAD_S:
            offsets = await read_offsets(self._metadata, head, offsets_max=PARTITIONS_SAMPLED_MAX, silent_after_s=self._silent_after_s)
            known = now_s, _Reading(head.group, offsets or {})
            self._unloaded[head.group] = known
        return known[1] if len(known[1].committed) <= room else _Reading(head.group, {})

    async def _ends(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, LogBounds]:
        """The bounds of those that can be read, noted."""
        ends: dict[PartitionId, LogBounds] = {}
        for start in range(0, len(partitions), ENDS_AT_ONCE):
            together = partitions[start : start + ENDS_AT_ONCE]
            for partition, found in zip(together, await self._bounds.read(together), strict=True):
                if isinstance(found, LogBounds):
                    ends[partition] = found
                    self._histories.setdefault(partition, EndHistory()).note(found.high_watermark, self._clock.now_ms())
        for gone in self._histories.keys() - ends.keys():
            del self._histories[gone]
        return ends

    async def _ages(
        self, readings: Sequence[_Reading], ends: Mapping[PartitionId, LogBounds], turns: Turns
    ) -> dict[tuple[str, PartitionId], tuple[int, float]]:
        """Records and seconds behind what is committed."""
        ages: dict[tuple[str, PartitionId], tuple[int, float]] = {}
        looked_up: dict[tuple[PartitionId, int], float] = {}
        look_ups = LOOK_UPS_MAX
        now_ms = self._clock.now_ms()
        for reading in readings:
            for partition, offset in reading.committed.items():
                await turns.spent()
                bounds = ends.get(partition)
                if bounds is None:
                    continue
                records = max(0, bounds.high_watermark - offset)
                first = max(offset, bounds.log_start)
                if first >= bounds.high_watermark:
                    ages[reading.group, partition] = records, 0.0
                    continue
                history = self._histories[partition]
                at_ms = history.appended_ms(first)
                if at_ms is None:
                    at_ms = looked_up.get((partition, first), self._looked_up.get((partition, first)))
                    if at_ms is None and look_ups > 0:
                        look_ups -= 1
                        at_ms = await self._append_time_ms(partition, first)
                    if at_ms is not None:
                        looked_up[partition, first] = at_ms
                    at_ms = min(history.first_ms, history.first_ms if at_ms is None else at_ms)
                ages[reading.group, partition] = records, max(0.0, (now_ms - at_ms) / _MS_PER_S)
        self._looked_up = looked_up
        return ages

    async def _append_time_ms(self, partition: PartitionId, offset: int) -> float:
        """Infinity where nobody knows: then the first sample is what there is to go by."""
        try:
            found = await self._times.greatest_around(partition, offset)
        except (Corrupt, NotFound):
            return float("inf")  # trimmed or deleted since, or damaged, which is told where it is read
        return float("inf") if found is None or found < 0 else found

    def _rows(self, value_of: Callable[[TopicLag], float | None]) -> Iterator[SeriesRow]:
        self._scraped_s = self._clock.monotonic_s()
        sample = self._sample
        for labels, lag in sample.lags.items() if sample is not None else ():
            if (value := value_of(lag)) is not None:
                yield labels, value

    def _member_rows(self) -> Iterator[SeriesRow]:
        sample = self._sample
        for group, members in sample.members.items() if sample is not None else ():
            yield (group,), members

    def _age_rows(self) -> Iterator[SeriesRow]:
        if (sample := self._sample) is not None:
            yield (), round(self._clock.monotonic_s() - sample.at_s, 3)


def _add(lag: TopicLag, age: tuple[int, float] | None, kept_ms: int | None) -> None:
    lag.committed += 1
    lag.uncommitted -= 1
    if age is None:
        lag.is_known = False
        return
    lag.records += age[0]
    lag.seconds = max(lag.seconds, age[1])
    if kept_ms is not None:
        lag.retention_ratio = round(lag.seconds * _MS_PER_S / max(1, kept_ms), 6)
