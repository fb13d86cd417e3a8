"""The topic that a table is replayed to: what it has of the table, and whether it has anything else."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark.errors import JobFailed
from spark.kafka_admin import KafkaAdmin, KafkaCluster, KafkaPartition, KafkaTopic
from spark.replaying import Planned, Present, of_this_plan, origins, presences
from spark.topics import TopicSource, partitions_of

ROUNDS_MAX: Final = 6
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """`has_others`: it may have records that are not of the table, and get some at any time."""

    cluster: KafkaCluster
    topic: KafkaTopic
    has_others: bool

    def settle(self, admin: KafkaAdmin, settle_s: float) -> None:
        """Until nothing has come for this long; where others write, for this long. Raise `JobFailed` if something comes all the time."""
        if self.has_others:
            time.sleep(settle_s)
        elif not is_quiet(lambda: self._ends(admin), settle_s):
            raise JobFailed(
                f"Records keep coming to {self.topic.name}. Stop who writes there; --onto-others is for topics that others write to."
            )

    def present(self, spark: SparkSession, admin: KafkaAdmin, plan: DataFrame) -> dict[int, Present]:
        """By partition, where there is anything. Raise `JobFailed` where it cannot be known."""
        starts, ends = admin.starts(self._partitions), self._ends(admin)
        if self.has_others:
            return self._among_others(spark, plan, starts, ends)
        for one, end in ends.items():
            if 0 < end == starts[one]:
                raise JobFailed(
                    f"{one} had {end} records, which are gone: whether they were of this table, nobody can tell. Name a new topic, or, "
                    "if they were others, say --onto-others."
                )
        tails = {one: end for one, end in ends.items() if end > 0}
        found = self._origins(spark, {one: end - 1 for one, end in tails.items()}, tails)
        last = {row.partition: row for row in found.collect()} if found is not None else {}
        present = {}
        for one, end in tails.items():
            row = last.get(one.partition)
            if row is None or row.source_offset is None or row.source_partition != one.partition:
                raise self._others(one.partition, f"its last record, at offset {end - 1}, is none")
            present[one.partition] = Present(count=end, last=(row.source_topic, row.source_offset))
        return present

    def check(self, present: Mapping[int, Present], plans: Mapping[int, Planned]) -> None:
        """Raise `JobFailed` unless each partition has a prefix of what the plan has for it."""
        for number, one in sorted(present.items()):
            topic, offset = one.last
            plan = plans.get(number)
            if plan is None or not plan.has_last:
                raise self._others(number, f"its last record is {topic}/{number}/{offset}, which is not among those to write")
            if plan.before != one.count:
                raise self._others(
                    number, f"it has {one.count} records, and up to its last one, {topic}/{number}/{offset}, there are {plan.before}"
                )

    def _among_others(
        self, spark: SparkSession, plan: DataFrame, starts: Mapping[KafkaPartition, int], ends: Mapping[KafkaPartition, int]
    ) -> dict[int, Present]:
        found = self._origins(spark, {one: start for one, start in starts.items() if start < ends[one]}, ends)
        if found is None:
            return {}
        present = {}
        for row in presences(of_this_plan(found, plan)).collect():
            if row.at is not None:
                raise self._others(row.partition, f"its record at offset {row.at} is there a second time, or came too late")
            present[row.partition] = Present(count=row["count"], last=(row["last"].source_topic, row["last"].source_offset))
        return present

    def _origins(self, spark: SparkSession, starts: Mapping[KafkaPartition, int], ends: Mapping[KafkaPartition, int]) -> DataFrame | None:
        """Of the records from `starts` on and before `ends`; None where there are none."""
        if not starts:
            return None
        source = TopicSource(cluster=self.cluster, topics=(self.topic.name,))
        return origins(source.between(spark, starts, {one: ends[one] for one in starts}))

    @property
    def _partitions(self) -> list[KafkaPartition]:
        return partitions_of({self.topic.name: self.topic})

    def _ends(self, admin: KafkaAdmin) -> dict[KafkaPartition, int]:
        return admin.ends(self._partitions)

    def _others(self, number: int, what: str) -> JobFailed:
        return JobFailed(
            f"{self.topic.name}-{number} does not have the first records of this table: {what}. Either the filter changed, or the table's "
            "rows; or others write there (--onto-others writes beside them); or records of a killed run came after this one had begun. "
            "The header forebay.origin says which record is which. Name a new topic to have each once."
        )


def is_quiet(
    ends: Callable[[], Mapping[KafkaPartition, int]],
    settle_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until `ends` have been the same for `settle_s`; not longer than `ROUNDS_MAX` times that."""
    seen, began_s = ends(), now_s()
    since_s = began_s
    while (now := now_s()) - since_s < settle_s:
        if now - began_s > ROUNDS_MAX * settle_s:
            return False
        sleep(min(_LOOK_EVERY_S, settle_s))
        if (found := ends()) != seen:
            seen, since_s = found, now_s()
    return True
