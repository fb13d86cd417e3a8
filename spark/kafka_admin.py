"""Kafka's own admin client, in the driver's JVM: it takes the very settings that the source and the sink take.

pyspark has no other way to it than the gateway, whose names are private.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark.errors import JobFailed

ANSWER_WITHIN_MS: Final = 30_000
_CLOSE_WITHIN_S: Final = 5
_ADMIN: Final = "org.apache.kafka.clients.admin"
COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True, order=True)
class KafkaPartition:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Where it is, and the settings of any client of it by Kafka's names, without Spark's prefix `kafka.`."""

    bootstrap_servers: str
    client: Mapping[str, str]

    @property
    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source and sink."""
        return {f"kafka.{name}": value for name, value in self.client.items()} | {"kafka.bootstrap.servers": self.bootstrap_servers}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic:
    name: str
    id: str
    partition_count: int


class KafkaAdmin:
    """Every method raises `JobFailed` if the cluster does not answer, or refuses."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster) -> None:
        self._jvm = cast("Any", spark._jvm)  # noqa: SLF001
        self._cluster = cluster
        settings = self._jvm.java.util.HashMap()
        for name, value in {
            "default.api.timeout.ms": str(ANSWER_WITHIN_MS),
            "request.timeout.ms": str(ANSWER_WITHIN_MS),
            **cluster.client,
            "bootstrap.servers": cluster.bootstrap_servers,
        }.items():
            settings.put(name, value)
        with self._said("be reached"):
            self._admin = self._package(_ADMIN).Admin.create(settings)

    def close(self) -> None:
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(_CLOSE_WITHIN_S))

    def cluster_id(self) -> str:
        with self._said("say which cluster it is"):
            return str(self._admin.describeCluster().clusterId().get())

    def topics(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        """Of a name that no topic has, nothing."""
        asked = sorted(names)
        found: dict[str, KafkaTopic] = {}
        if not asked:
            return found
        with self._said("describe topics"):
            described = self._admin.describeTopics(self._java_list(asked)).topicNameValues()
        for name in asked:
            try:
                one = described.get(name).get()
            except Py4JJavaError as error:
                if "UnknownTopicOrPartitionException" in _reason(error):
                    continue
                raise self._failed(f"describe the topic {name}", error) from error
            found[name] = KafkaTopic(name=name, id=str(one.topicId()), partition_count=int(one.partitions().size()))
        return found

    def names(self) -> list[str]:
        """Of all topics that are no internal ones."""
        with self._said("list topics"):
            return sorted(str(name) for name in self._admin.listTopics().names().get())

    def create(self, topic: str, *, partition_count: int, config: Mapping[str, str] | None = None) -> None:
        new = self._package(_ADMIN).NewTopic(topic, partition_count, -1)
        if config:
            settings = self._jvm.java.util.HashMap()
            for name, value in config.items():
                settings.put(name, value)
            new = new.configs(settings)
        with self._said(f"create the topic {topic}"):
            self._admin.createTopics(self._java_list([new])).all().get()

    def config(self, topic: str) -> dict[str, str]:
        """By Kafka's names, as `retention.ms`; what has no value is not among them."""
        resources = self._package("org.apache.kafka.common.config")
        resource = resources.ConfigResource(resources.ConfigResource.Type.TOPIC, topic)
        with self._said(f"describe the configuration of {topic}"):
            described = self._admin.describeConfigs(self._java_list([resource])).all().get()
            entries = self._jvm.java.util.ArrayList(described.get(resource).entries())
            return {str(one.name()): str(one.value()) for one in entries if one.value() is not None}

    def is_compacted(self, topic: str) -> bool:
        return COMPACT in self.config(topic)["cleanup.policy"]

    def starts(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        return self._offsets(partitions, "earliest")

    def ends(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        """The offset that the next record will have."""
        return self._offsets(partitions, "latest")

    def commit(self, group: str, offsets: Mapping[KafkaPartition, int]) -> None:
        """For a consumer group that has no members."""
        consumer = self._package("org.apache.kafka.clients.consumer")
        asked = self._jvm.java.util.HashMap()
        for partition, offset in offsets.items():
            asked.put(self._java_partition(partition), consumer.OffsetAndMetadata(offset))
        with self._said(f"commit offsets of the group {group}"):
            self._admin.alterConsumerGroupOffsets(group, asked).all().get()

    def committed(self, group: str) -> dict[KafkaPartition, int]:
        with self._said(f"list offsets of the group {group}"):
            found = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            return {
                KafkaPartition(str(one.getKey().topic()), int(one.getKey().partition())): int(one.getValue().offset())
                for one in found.entrySet()
            }

    def _offsets(self, partitions: Iterable[KafkaPartition], which: str) -> dict[KafkaPartition, int]:
        asked = self._jvm.java.util.HashMap()
        spec = getattr(self._package(_ADMIN).OffsetSpec, which)
        keys = {partition: self._java_partition(partition) for partition in partitions}
        for key in keys.values():
            asked.put(key, spec())
        with self._said("list offsets"):
            found = self._admin.listOffsets(asked).all().get()
            return {partition: int(found.get(key).offset()) for partition, key in keys.items()}

    def _java_partition(self, partition: KafkaPartition) -> Any:
        return self._package("org.apache.kafka.common").TopicPartition(partition.topic, partition.partition)

    def _package(self, name: str) -> Any:
        found = self._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def _java_list(self, items: Iterable[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Py4JJavaError) -> JobFailed:
        return JobFailed(f"Kafka at {self._cluster.bootstrap_servers} does not {what}: {_reason(error)}")


@contextlib.contextmanager
def kafka_admin(spark: SparkSession, cluster: KafkaCluster) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(spark, cluster)
    try:
        yield admin
    finally:
        admin.close()


def _reason(error: Py4JJavaError) -> str:
    """The innermost cause, as Java says it, in a line."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return " ".join(str(cause.toString()).removeprefix("org.apache.kafka.common.errors.").split())
