"""kafka-python 3 plays the steps of tests/compat/README.md."""

from typing import Any, Final

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

from tests.compat.kafka_python import play


class Version3:
    codecs: Final = ("none", "gzip", "snappy", "lz4", "zstd")
    producer_settings: Final[dict[str, Any]] = {"enable_idempotence": False}
    broker_id_field: Final = "broker_id"
    without: Final[frozenset[str]] = frozenset()

    def offset(self, offset: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(offset, "", -1)

    def create_topic(self, client: KafkaAdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
        client.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": config}})

    def grow(self, client: KafkaAdminClient, name: str, partitions: int) -> None:
        client.create_partitions({name: partitions})

    def configs_of(self, client: KafkaAdminClient, kind: ConfigResourceType, name: str, *wanted: str) -> dict[str, str]:
        resource = ConfigResource(kind, name, dict.fromkeys(wanted) or None)
        found = client.describe_configs([resource], config_filter="all")[kind.name.lower()][name]
        return {key: entry["value"] for key, entry in found.items()}

    def alter_topic(self, client: KafkaAdminClient, name: str, config: dict[str, str]) -> None:
        altered = client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, config)])
        if altered["topic"][name] != "OK":
            raise RuntimeError(altered)

    def group_names(self, client: KafkaAdminClient) -> set[str]:
        return {group["group_id"] for group in client.list_groups()}

    def describe_group(self, client: KafkaAdminClient, group: str) -> tuple[str, str]:
        found = client.describe_groups([group])[group]
        return found["group_state"], found["protocol_type"]

    def group_offset(self, client: KafkaAdminClient, group: str, partition: TopicPartition) -> int:
        found: int = client.list_group_offsets({group: [partition]})[group][partition].offset
        return found

    def delete_group(self, client: KafkaAdminClient, group: str) -> None:
        outcome = client.delete_groups([group])[group]
        if outcome != "OK":
            raise getattr(errors, outcome)(group)


play(Version3())
