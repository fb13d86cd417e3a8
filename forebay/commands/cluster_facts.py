"""A cluster as any Kafka client can see it, and its health: every broker answers, every partition has a leader and all its replicas.

Format levels are raised here, too, in the metadata store: no Kafka client can ask for that. The stores are imported for it alone.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka.admin import ClusterMetadata, DescribeClusterResult  # type: ignore[attr-defined]

from forebay.kafka_client.connection import BootstrapServer, cannot_reach
from forebay.kafka_client.text import align, facts

if TYPE_CHECKING:
    from process.settings.model import Settings
    from storage.catalog.format_level import Raising

ASKED_AT_A_TIME: Final = 16
NAMED_MAX: Final = 3
"""So many partitions are named by the reasons; the rest is counted."""
RAISING_TIMEOUT_S: Final = 30.0


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


def reach_brokers(addresses: Mapping[int, BootstrapServer], *, within_s: float) -> dict[int, str | None]:
    """By broker id: why it accepts no connection, or None. A few are asked at a time."""
    with ThreadPoolExecutor(max_workers=ASKED_AT_A_TIME) as pool:
        causes = pool.map(lambda address: cannot_reach(address, within_s=within_s), addresses.values())
        return dict(zip(addresses, causes, strict=True))


def _named(partitions: list[str]) -> str:
    more = len(partitions) - NAMED_MAX
    return ", ".join(partitions[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


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


class BrokerLevel(msgspec.Struct, frozen=True, kw_only=True):
    """`level_max`: the highest level that the broker's release knows."""

    id: int
    address: str
    release: str
    level_max: int


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` says why the level is not what was asked for; None if it is."""

    before: int
    level: int
    brokers: list[BrokerLevel]
    problem: str | None


async def upgrade_cluster(settings: "Settings", target: int | None) -> Upgrade:
    """Raises `StartError`, `TimeoutError`, and as `raise_level` does."""
    from forebay.opening import open_for_reading
    from storage.catalog.format_level import raise_level

    async with open_for_reading(settings) as stores, asyncio.timeout(RAISING_TIMEOUT_S):
        return upgrade_of(await raise_level(stores.metadata, target))


def upgrade_of(raising: "Raising") -> Upgrade:
    return Upgrade(
        before=raising.before,
        level=raising.level,
        brokers=[
            BrokerLevel(id=one.broker_id, address=one.address, release=one.release, level_max=one.level_max) for one in raising.brokers
        ],
        problem=raising.problem,
    )


def upgrade_table(upgrade: Upgrade) -> str:
    return facts(
        [
            ("format level", upgrade.level if upgrade.level == upgrade.before else f"{upgrade.level}, before {upgrade.before}"),
            ("brokers", len(upgrade.brokers)),
            *(("broker", f"{one.id}  {one.address}  release {one.release}  knows up to {one.level_max}") for one in upgrade.brokers),
        ]
    )
