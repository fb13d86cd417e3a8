"""Topics as Spark's stock Kafka source gives them: `failOnDataLoss` is true, headers are there, nothing is decoded."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark.kafka_admin import KafkaAdmin, KafkaCluster, KafkaPartition, KafkaTopic

EARLIEST = "earliest"
READING: Final = {"kafka.max.poll.records": "5000", "kafka.fetch.max.wait.ms": "10"}
"""Settings of consumers that read what is known to be there, where Kafka's defaults are for those that wait for more.

Spark asks for both ends of a partition after each poll. With 500 records in a poll it does so several times for what one Fetch has
brought; more of them take the memory of that, decompressed. At the end of a partition its consumer has sent one Fetch more, and a broker
answers the requests of a connection in order: with 500 ms the question for the ends waits so long behind it, in each batch.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """`topics` by name, or those that match `pattern`. What the settings of the client say is stronger than `READING`, `options` of
    Spark's source are stronger than all of this.
    """

    cluster: KafkaCluster
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: str = EARLIEST
    offsets_per_batch: int | None = None
    min_partitions: int | None = None
    options: Mapping[str, str] | None = None

    def stream(self, spark: SparkSession) -> DataFrame:
        options = self._options() | {"startingOffsets": self.starting}
        if self.offsets_per_batch is not None:
            options["maxOffsetsPerTrigger"] = str(self.offsets_per_batch)
        return spark.readStream.format("kafka").options(**options | dict(self.options or {})).load()

    def between(self, spark: SparkSession, starts: Mapping[KafkaPartition, int], ends: Mapping[KafkaPartition, int]) -> DataFrame:
        """Records from `starts` on and before `ends`, of exactly these partitions."""
        options = self._options() | {
            "assign": json.dumps(_by_topic({one: one.partition for one in starts}, as_list=True)),
            "startingOffsets": json.dumps(_by_topic(starts)),
            "endingOffsets": json.dumps(_by_topic(ends)),
        }
        options.pop("subscribe", None)
        options.pop("subscribePattern", None)
        return spark.read.format("kafka").options(**options | dict(self.options or {})).load()

    def known(self, admin: KafkaAdmin) -> dict[str, KafkaTopic]:
        """Those of them that exist."""
        if not self.pattern:
            return admin.topics(self.topics)
        return admin.topics(name for name in admin.names() if _matches(self.pattern, name))

    def _options(self) -> dict[str, str]:
        which = {"subscribePattern": self.pattern} if self.pattern else {"subscribe": ",".join(self.topics)}
        how = {"failOnDataLoss": "true", "includeHeaders": "true"}
        if self.min_partitions is not None:
            how["minPartitions"] = str(self.min_partitions)
        return READING | self.cluster.for_spark | which | how


def partitions_of(topics: Mapping[str, KafkaTopic]) -> list[KafkaPartition]:
    return [KafkaPartition(topic.name, number) for topic in topics.values() for number in range(topic.partition_count)]


def read_offsets(written: Any) -> dict[KafkaPartition, int] | None:
    """As Spark writes them, in JSON. None if they are not of Kafka: other sources write other things."""
    try:
        by_topic = json.loads(written) if isinstance(written, str) else written
        return {
            KafkaPartition(topic, int(number)): int(offset) for topic, numbers in by_topic.items() for number, offset in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def least(offsets: list[dict[KafkaPartition, int]]) -> dict[KafkaPartition, int]:
    """Of each partition that any of them has, the smallest."""
    return {one: min(found[one] for found in offsets if one in found) for found in offsets for one in found}


def _by_topic(values: Mapping[KafkaPartition, int], *, as_list: bool = False) -> dict[str, object]:
    """As Spark writes offsets by partition in JSON."""
    found: dict[str, dict[str, int]] = {}
    for one, value in values.items():
        found.setdefault(one.topic, {})[str(one.partition)] = value
    return {topic: sorted(offsets.values()) if as_list else offsets for topic, offsets in found.items()}


def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None
