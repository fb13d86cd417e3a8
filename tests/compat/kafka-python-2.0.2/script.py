"""kafka-python 2.0.2 plays the steps of tests/compat/README.md.

It is of 2020, and the `six` that it carries cannot be imported as a package by Python 3.12 and newer: the real `six` stands in for it.
"""

import sys
from typing import Any, Final

import six

sys.modules["kafka.vendor.six"] = six
sys.modules["kafka.vendor.six.moves"] = six.moves

from kafka import KafkaAdminClient, TopicPartition, errors  # noqa: E402
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic  # noqa: E402
from kafka.structs import OffsetAndMetadata  # noqa: E402

from tests.compat.kafka_python import play  # noqa: E402
from tests.compat.playing import RefusedError  # noqa: E402


class Version2:
    codecs: Final = ("none", "gzip", "snappy", "lz4")
    producer_settings: Final[dict[str, Any]] = {}
    broker_id_field: Final = "node_id"
    without: Final = frozenset({"delete_records", "idempotent"})

    def offset(self, offset: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(offset, "")

    def create_topic(self, client: KafkaAdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
        client.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])

    def grow(self, client: KafkaAdminClient, name: str, partitions: int) -> None:
        client.create_partitions({name: NewPartitions(partitions)})

    def configs_of(self, client: KafkaAdminClient, kind: ConfigResourceType, name: str, *wanted: str) -> dict[str, str]:
        (response,) = client.describe_configs([ConfigResource(kind, name, dict.fromkeys(wanted) or None)])
        ((code, message, _, _, entries),) = response.resources
        if code:
            raise RefusedError(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def alter_topic(self, client: KafkaAdminClient, name: str, config: dict[str, str]) -> None:
        altered = client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, config)])
        ((code, message, *_),) = altered.resources
        if code:
            raise RefusedError(code, message)

    def group_names(self, client: KafkaAdminClient) -> set[str]:
        return {name for name, _ in client.list_consumer_groups()}

    def describe_group(self, client: KafkaAdminClient, group: str) -> tuple[str, str]:
        found = client.describe_consumer_groups([group])[0]
        return found.state, found.protocol_type

    def group_offset(self, client: KafkaAdminClient, group: str, partition: TopicPartition) -> int:
        found: int = client.list_consumer_group_offsets(group, partitions=[partition])[partition].offset
        return found

    def delete_group(self, client: KafkaAdminClient, group: str) -> None:
        ((_, outcome),) = client.delete_consumer_groups([group])
        if outcome is not errors.NoError:
            raise outcome(group)


play(Version2())
