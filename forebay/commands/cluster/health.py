"""Whether a cluster is well, as any Kafka client can see it: every broker answers, every partition has a leader and all its replicas."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]

from forebay.kafka_client.connection import BootstrapServer, cannot_reach

ASKED_AT_A_TIME: Final = 16
NAMED_MAX: Final = 3
"""So many partitions are named by the reasons; the rest is counted."""


class BrokerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` says why it does not accept connections from here; None if it does."""

    id: int
    address: str
    cause: str | None


class ClusterHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Healthy is what has no reason against it. Partitions are named `topic/partition`."""

    healthy: bool
    reasons: list[str]
    brokers: list[BrokerHealth]
    topics: int
    partitions: int
    leaderless: list[str]
    under_replicated: list[str]


def judge_health(metadata: ClusterMetadata, causes: dict[int, str | None]) -> ClusterHealth:
    """`causes` has an answer for each broker that the metadata names."""
    brokers = [
        BrokerHealth(id=broker.id, address=f"{broker.host}:{broker.port}", cause=causes[broker.id])
        for broker in sorted(metadata.brokers.values(), key=lambda broker: broker.id)
    ]
    leaderless, under_replicated, count = [], [], 0
    for name, topic in sorted(metadata.topics.items()):
        for number, partition in sorted(topic.partitions.items()):
            count += 1
            if partition.leader not in metadata.brokers:
                leaderless.append(f"{name}/{number}")
            elif len(partition.isrs) < len(partition.replicas):
                under_replicated.append(f"{name}/{number}")
    reasons = [f"broker {broker.id} at {broker.address} does not answer ({broker.cause})" for broker in brokers if broker.cause]
    if not brokers:
        reasons.append("no brokers are registered")
    if leaderless:
        reasons.append(f"no leader: {_named(leaderless)}")
    if under_replicated:
        reasons.append(f"too few replicas in sync: {_named(under_replicated)}")
    return ClusterHealth(
        healthy=not reasons,
        reasons=reasons,
        brokers=brokers,
        topics=len(metadata.topics),
        partitions=count,
        leaderless=leaderless,
        under_replicated=under_replicated,
    )


def answers(addresses: Mapping[int, BootstrapServer], *, within_s: float) -> dict[int, str | None]:
    """By broker id: why it accepts no connection, or None. A few are asked at a time."""
    with ThreadPoolExecutor(max_workers=ASKED_AT_A_TIME) as pool:
        causes = pool.map(lambda address: cannot_reach(address, within_s=within_s), addresses.values())
        return dict(zip(addresses, causes, strict=True))


def _named(partitions: list[str]) -> str:
    more = len(partitions) - NAMED_MAX
    return ", ".join(partitions[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
