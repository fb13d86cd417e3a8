"""All partitions of a cluster, or of some topics, one page of topics after the other and some partitions side by side."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from storage.catalog.topic import TopicState, decode_topic
from storage.errors import Corrupt, IncompatibleFormat
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.verify.findings import FindingKind, Severity, StoreFinding, finding
from storage.verify.objects import WalHeads
from storage.verify.partition_check import Checked, Depth, PartitionCheck
from storage.verify.partitions import ActivePartition, active_partitions, side_by_side
from storage.verify.reading import StoreReading

OffsetsPassed = Callable[[int], None]


@dataclass(slots=True)
class Findings:
    """Each finding once, `kept_max` of them, and the number of all."""

    kept_max: int
    kept: list[StoreFinding] = field(default_factory=list)
    counts: Counter[FindingKind] = field(default_factory=Counter)
    severities: Counter[Severity] = field(default_factory=Counter)
    _seen: set[StoreFinding] = field(default_factory=set)

    def add(self, one: StoreFinding) -> None:
        if one in self._seen:
            return
        self.counts[one.kind] += 1
        self.severities[one.severity] += 1
        if len(self.kept) < self.kept_max:
            self.kept.append(one)
            self._seen.add(one)

    @property
    def is_sound(self) -> bool:
        return not self.severities[Severity.ERROR] and not self.severities[Severity.WARNING]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification."""

    findings: Findings
    checked: Checked


class Verification:
    """Reads, and changes nothing. Raises `Unavailable` when a store does not answer, whatever is tried."""

    def __init__(self, reading: StoreReading, *, depth: Depth) -> None:
        self._reading = reading
        self._depth = depth
        self._heads = WalHeads(reading)
        self.findings = Findings(reading.limits.findings_kept_max)
        self.checked = Checked()

    async def run(self, topics: Collection[str] = (), *, partition: int | None = None, moved: OffsetsPassed = lambda _: None) -> Verified:
        """Check some topics, or all if none is named; of these one partition or all."""
        found = active_partitions(self._reading, topics, self.findings.add, partition=partition)
        await side_by_side(found, lambda one: self._check(one, moved))
        return Verified(self.findings, self.checked)

    async def _check(self, one: ActivePartition, moved: OffsetsPassed) -> None:
        found = 0

        def report(problem: StoreFinding) -> None:
            nonlocal found
            found += 1
            self.findings.add(msgspec.structs.replace(problem, topic=one.topic.name, partition=one.partition.partition))

        check = PartitionCheck(self._reading, self._heads, one.partition, depth=self._depth, report=report, moved=moved)
        if not await check.run() and not found and await self._is_active(one):
            report(finding(FindingKind.CONTROL_MISSING, "there is none, or a tombstone", key=PartitionKeys(one.partition).control.path))
        self.checked.add(check.checked)

    async def _is_active(self, one: ActivePartition) -> bool:
        """Whether the topic was not deleted meanwhile."""
        (record,) = await self._reading.records([keys.topic(one.topic.name)])
        if record is None:
            return False
        try:
            topic = decode_topic(record)
        except (Corrupt, IncompatibleFormat):
            return False  # as the next verification says
        return topic.topic_id == one.topic.topic_id and topic.state is TopicState.ACTIVE
