"""`GET /metrics/cluster`: partitions and groups of the whole cluster under the names that kafka_exporter gives them.

Any broker knows them, so a Prometheus scrapes one. They are read from the metadata store for a scrape, groups without loading them, and
kept for 30 s. What cannot be read is not on the page; while nothing can be read there is no page (503).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from broker.cluster.leadership import COORDINATOR_SLOTS, Asker
from broker.cluster.ownership import slots_by_shard
from broker.cluster.roles import placement_by_role
from broker.groups.store import read_heads, read_offsets
from broker.http.guard import SAID_CHARS_MAX, json_response
from broker.http.parts import HttpParts
from process.http.scrape import TEXT
from runtime.blocking import Blocking
from runtime.turns import Turns
from storage.catalog.brokers import BrokerRecord
from storage.catalog.groups import GroupHead, count_members
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId

CLUSTER_METRICS_PATH: Final = "/metrics/cluster"
KEPT_S: Final = 30.0
FAILURE_KEPT_S: Final = 5.0
"""Scrapes that gave up while the store was silent do not each begin another read."""
READ_WITHIN_S: Final = 60.0
ENDS_AT_ONCE: Final = 250
PARTITIONS_SHOWN_MAX: Final = 20_000
"""A larger cluster is shown by topic alone."""
GROUP_OFFSETS_SHOWN_MAX: Final = 50_000
NOT_COMMITTED: Final = -1

_log = structlog.get_logger("http")


@dataclass(frozen=True, slots=True)
class GroupRead:
    head: GroupHead
    committed: Mapping[PartitionId, int]


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """`placed`: the brokers named for it, its leader first."""

    bounds: LogBounds
    placed: Sequence[int]


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """A cluster as it was read."""

    brokers: Sequence[BrokerRecord]
    topics: Sequence[Topic]
    partitions: Mapping[PartitionId, PartitionRead]
    groups: Sequence[GroupRead]


class ClusterMetrics:
    """One page, shared by all who ask within 30 s."""

    def __init__(self, parts: HttpParts, *, by_partition: bool, blocking: Blocking) -> None:
        self._parts = parts
        self._by_partition = by_partition
        self._blocking = blocking
        self._one_at_a_time = asyncio.Lock()
        self._page = b""
        self._read_s = self._failed_s = float("-inf")
        self._failure: dict[str, str] = {}

    async def page(self, _: web.Request) -> web.StreamResponse:
        async with self._one_at_a_time:
            now_s = self._parts.clock.monotonic_s()
            if now_s - self._failed_s < FAILURE_KEPT_S:
                return json_response(503, self._failure)
            if now_s - self._read_s >= KEPT_S:
                try:
                    async with asyncio.timeout(READ_WITHIN_S):
                        found = await self._read()
                except (StorageError, TimeoutError) as error:
                    _log.warning("cluster_metrics_not_read", cause=repr(error))
                    told = {"error_type": "StorageUnavailable", "error": f"the cluster could not be read: {error!r}"[:SAID_CHARS_MAX]}
                    self._failure, self._failed_s = told, self._parts.clock.monotonic_s()
                    return json_response(503, told)
                self._page = await self._blocking.run(lambda: generate_latest(_Page(families_of(found, by_partition=self._by_partition))))
                self._read_s = self._parts.clock.monotonic_s()
            return web.Response(body=self._page, headers={"Content-Type": TEXT})

    async def _read(self) -> ClusterRead:
        parts, turns = self._parts.parts, Turns()
        brokers = await parts.brokers.live()
        topics = sorted(await parts.topics.all(), key=lambda topic: topic.name)
        place = placement_by_role(parts.leadership, Asker(None, ""), brokers, own_id=parts.broker_id)
        partitions: dict[PartitionId, PartitionRead] = {}
        for topic in topics:
            for start in range(0, topic.partition_count, ENDS_AT_ONCE):
                numbers = range(start, min(topic.partition_count, start + ENDS_AT_ONCE))
                together = [topic.partition(number) for number in numbers]
                for partition, bounds in zip(together, await parts.bounds.read(together), strict=True):
                    if isinstance(bounds, LogBounds):
                        placed = place(topic.topic_id, partition.partition)[: topic.replication_factor]
                        partitions[partition] = PartitionRead(bounds, placed)
                    await turns.spent()
        groups = []
        silent_after_s = parts.groups.limits.silent_after_s
        for shard_slots in slots_by_shard(self._parts.metadata, range(COORDINATOR_SLOTS)):
            for head, _ in await read_heads(self._parts.metadata, shard_slots, silent_after_s=silent_after_s):
                committed = await read_offsets(
                    self._parts.metadata, head, offsets_max=GROUP_OFFSETS_SHOWN_MAX, silent_after_s=silent_after_s
                )
                if committed is not None:
                    groups.append(GroupRead(head, committed))
                await turns.spent()
        return ClusterRead(brokers, topics, partitions, sorted(groups, key=lambda group: group.head.group))


class _Page(Collector):
    def __init__(self, families: Iterator[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families


def families_of(read: ClusterRead, *, by_partition: bool) -> Iterator[GaugeMetricFamily]:
    """The page's metrics; of a cluster that is too large for it by topic alone."""
    by_partition = by_partition and len(read.partitions) <= PARTITIONS_SHOWN_MAX
    yield from _brokers(read.brokers)
    yield from _partitions(read, by_partition=by_partition)
    yield from _groups(read, by_partition=by_partition)


def _brokers(brokers: Sequence[BrokerRecord]) -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("kafka_brokers", "Brokers that live", value=len(brokers))
    info = GaugeMetricFamily("kafka_broker_info", "Always 1; the labels say who lives where", labels=("id", "address"))
    for broker in brokers:
        first = broker.listeners[0] if broker.listeners else None
        info.add_metric((str(broker.broker_id), f"{first.host}:{first.port}" if first is not None else ""), 1)
    yield info


def _partitions(read: ClusterRead, *, by_partition: bool) -> Iterator[GaugeMetricFamily]:
    count = GaugeMetricFamily("kafka_topic_partitions", "Partitions of a topic", labels=("topic",))
    for topic in read.topics:
        count.add_metric((topic.name,), topic.partition_count)
    yield count
    if not by_partition:
        return
    families = {
        name: GaugeMetricFamily(f"kafka_topic_partition_{name}", text, labels=("topic", "partition"))
        for name, text in (
            ("current_offset", "The next offset of a partition"),
            ("oldest_offset", "The first offset that can be read"),
            ("leader", "The broker that clients are sent to"),
            ("replicas", "Brokers that are named for a partition"),
            ("in_sync_replica", "Brokers that serve a partition, of those that are named for it"),
            ("leader_is_preferred", "Always 1: every broker can lead"),
            ("under_replicated_partition", "Always 0: the object store keeps the copies"),
        )
    }
    for topic in read.topics:
        for number in range(topic.partition_count):
            if (told := read.partitions.get(topic.partition(number))) is None:
                continue
            copies = len(told.placed)
            values = (told.bounds.high_watermark, told.bounds.log_start, told.placed[0], copies, copies, 1, 0)
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric((topic.name, str(number)), value)
    yield from families.values()


def _groups(read: ClusterRead, *, by_partition: bool) -> Iterator[GaugeMetricFamily]:
    members = GaugeMetricFamily("kafka_consumergroup_members", "Members of a group", labels=("consumergroup",))
    one = ("consumergroup", "topic", "partition")
    offset = GaugeMetricFamily("kafka_consumergroup_current_offset", "What a group has committed; -1: nothing", labels=one)
    lag = GaugeMetricFamily("kafka_consumergroup_lag", "Records behind that; -1: nothing is committed", labels=one)
    offset_sum = GaugeMetricFamily(
        "kafka_consumergroup_current_offset_sum", "The same of all partitions that have a commit", labels=one[:2]
    )
    lag_sum = GaugeMetricFamily("kafka_consumergroup_lag_sum", "The same of all partitions that have a commit", labels=one[:2])
    topics = {topic.topic_id: topic for topic in read.topics}
    left = GROUP_OFFSETS_SHOWN_MAX
    for group in read.groups:
        name = group.head.group
        members.add_metric((name,), count_members(group.head))
        for topic_id in dict.fromkeys(partition.topic_id for partition in group.committed):
            topic = topics.get(topic_id)
            if topic is None:
                continue
            offsets_total = lag_total = 0
            left -= topic.partition_count
            for number in range(topic.partition_count):
                partition = topic.partition(number)
                committed, told = group.committed.get(partition, NOT_COMMITTED), read.partitions.get(partition)
                if told is None:
                    continue
                behind = NOT_COMMITTED if committed == NOT_COMMITTED else max(0, told.bounds.high_watermark - committed)
                if committed != NOT_COMMITTED:
                    offsets_total += committed
                    lag_total += behind
                if by_partition and left >= 0:
                    offset.add_metric((name, topic.name, str(number)), committed)
                    lag.add_metric((name, topic.name, str(number)), behind)
            offset_sum.add_metric((name, topic.name), offsets_total)
            lag_sum.add_metric((name, topic.name), lag_total)
    yield from (family for family in (members, offset, lag, offset_sum, lag_sum) if family.samples)
