"""A cluster for people and for programs."""

from collections.abc import Sequence

import msgspec
from confluent_kafka.admin import ClusterMetadata, DescribeClusterResult  # type: ignore[attr-defined]

from forebay.commands.cluster.health import ClusterHealth
from forebay.kafka_client.text import align, facts


class BrokerLine(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    roles: list[str] | None = None
    """The roles that the broker tells in its configs; None if it tells none."""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`controller` is -1 if the cluster names none."""

    cluster_id: str | None
    controller: int
    brokers: list[BrokerLine]
    topics: int
    partitions: int


def cluster_facts(described: DescribeClusterResult, metadata: ClusterMetadata) -> ClusterFacts:
    controller = -1 if described.controller is None else described.controller.id
    return ClusterFacts(
        cluster_id=described.cluster_id,
        controller=controller,
        brokers=[
            BrokerLine(id=node.id, host=node.host, port=node.port, rack=node.rack, is_controller=node.id == controller)
            for node in sorted(described.nodes, key=lambda node: node.id)
        ],
        topics=len(metadata.topics),
        partitions=sum(len(topic.partitions) for topic in metadata.topics.values()),
    )


def cluster_table(cluster: ClusterFacts) -> str:
    return facts(
        [
            ("cluster", cluster.cluster_id or "unnamed"),
            ("brokers", len(cluster.brokers)),
            ("controller", "none" if cluster.controller < 0 else cluster.controller),
            ("topics", cluster.topics),
            ("partitions", cluster.partitions),
        ]
    )


def brokers_table(brokers: Sequence[BrokerLine]) -> str:
    rows = [(one.id, one.host, one.port, one.rack or "-", ",".join(one.roles) if one.roles else "-") for one in brokers]
    return align(("ID", "HOST", "PORT", "RACK", "ROLES"), rows)


def health_table(health: ClusterHealth) -> str:
    answering = sum(broker.cause is None for broker in health.brokers)
    return facts(
        [
            ("healthy", "yes" if health.healthy else "no"),
            *(("reason", reason) for reason in health.reasons),
            ("brokers", f"{answering} of {len(health.brokers)} answer"),
            ("partitions", f"{health.partitions} in {health.topics} topic{'' if health.topics == 1 else 's'}"),
        ]
    )
