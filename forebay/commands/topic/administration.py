"""Topics by the standard admin APIs: as a cluster tells of them and changes them, and as tables for people.

Every function that asks brokers raises `ClientFailed`. An `Extent` is what `forebay topic consume` reads of each partition.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from forebay.commands.topic.starting import AtTime, OffsetBounds, StartingPoint, Stop, offsets, stops
from forebay.kafka_client.connection import UNKNOWN_TOPIC, ClusterConnection, Partition, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, ClientFailed, unknown_partition, unknown_topic
from forebay.kafka_client.text import NOTHING, align, facts
from runtime.clock import Clock

_ASK_EVERY_S: Final = 0.1
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
INTERNAL: str = "__"
"""Topics whose names begin so are a cluster's own."""
_SET_FOR_TOPIC = "DYNAMIC_TOPIC_CONFIG"


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    replication_factor: int


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`leader` is -1 if there is none; `end` is the offset the next record gets. `size_bytes` is None where no broker said it."""

    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    start: int
    end: int
    size_bytes: int | msgspec.UnsetType | None = msgspec.UNSET


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    value: str | None
    source: str


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    is_internal: bool
    partitions: list[PartitionFacts]
    configs: dict[str, ConfigFacts]


def read_topics(connection: ClusterConnection, admin: AdminClient) -> list[TopicLine]:
    """By name."""
    topics = connection.metadata(admin).topics
    return [
        TopicLine(
            name=name,
            partitions=len(topic.partitions),
            replication_factor=max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        )
        for name, topic in sorted(topics.items())
    ]


def look_up_topic(connection: ClusterConnection, admin: AdminClient, name: str) -> TopicDescription:
    """Asking this way never creates a topic."""
    try:
        found: TopicDescription = connection.result(
            admin.describe_topics(TopicCollection([name]), request_timeout=connection.timeout_s)[name]
        )
        return found
    except KafkaException as error:
        if error.args[0].code() in UNKNOWN_TOPIC:
            raise unknown_topic(name, connection.metadata(admin).topics) from error
        raise topic_failure(f'Topic "{name}"', error.args[0]) from error


def id_of(topic: TopicDescription) -> str:
    """As Kafka's own tools write it; the library writes `+` and `/`, which no URL takes as they are."""
    return str(topic.topic_id).replace("+", "-").replace("/", "_")


def describe_topic(connection: ClusterConnection, admin: AdminClient, name: str) -> TopicFacts:
    found = look_up_topic(connection, admin, name)
    ends = bounds(connection, admin, name, (partition.id for partition in found.partitions if partition.leader is not None))
    return TopicFacts(
        name=found.name,
        id=id_of(found),
        is_internal=found.is_internal,
        partitions=[
            PartitionFacts(
                partition=partition.id,
                leader=-1 if partition.leader is None else partition.leader.id,
                replicas=[node.id for node in partition.replicas],
                isr=[node.id for node in partition.isr],
                start=ends[partition.id].start if partition.id in ends else -1,
                end=ends[partition.id].end if partition.id in ends else -1,
            )
            for partition in sorted(found.partitions, key=lambda partition: partition.id)
        ],
        configs=_configs(connection, admin, name),
    )


def bounds(connection: ClusterConnection, admin: AdminClient, name: str, partitions: Iterable[int]) -> dict[int, OffsetBounds]:
    chosen = list(partitions)
    starts = offsets_at(connection, admin, name, dict.fromkeys(chosen, _EARLIEST))
    ends = offsets_at(connection, admin, name, dict.fromkeys(chosen, _LATEST))
    return {partition: OffsetBounds(starts[partition], ends[partition]) for partition in chosen}


def create(
    connection: ClusterConnection,
    admin: AdminClient,
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    clock: Clock,
) -> TopicFacts:
    """Returns when the cluster tells of the new topic. None leaves a number to the cluster."""
    new = NewTopic(
        name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        config=dict(configs),
    )
    try:
        connection.result(admin.create_topics([new], request_timeout=connection.timeout_s)[name])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise ClientFailed(f'Topic "{name}" exists already. Look at it: forebay topic describe {name}') from error
        raise topic_failure(f'Topic "{name}" was not created', error.args[0]) from error
    give_up_s = clock.monotonic_s() + connection.timeout_s
    while True:
        try:
            return describe_topic(connection, admin, name)
        except ClientFailed as error:
            # Brokers of Apache Kafka learn of a topic after the controller has answered.
            if error.exit_code not in {EXIT_NOT_FOUND, EXIT_FAILED} or clock.monotonic_s() >= give_up_s:
                raise ClientFailed(
                    f'Topic "{name}" was created, but {connection.named} does not tell of it: {error}', exit_code=error.exit_code
                ) from error
        time.sleep(_ASK_EVERY_S)


def add_partitions(
    connection: ClusterConnection, admin: AdminClient, name: str, *, more: int | None, total: int | None, partitions_max: int
) -> tuple[int, int]:
    """Add `more` partitions, or enough for `total`; return how many there were, and are."""
    before = len(look_up_topic(connection, admin, name).partitions)
    after = before + more if total is None and more is not None else total or 0
    if after <= before:
        raise ClientFailed(
            f'Topic "{name}" has {before:,} partitions already, and none can be taken away.'
            if after < before
            else f'Topic "{name}" has {before:,} partition{"" if before == 1 else "s"} already.',
            exit_code=EXIT_USAGE if after < before else EXIT_FAILED,
        )
    if after > partitions_max:
        raise ClientFailed(
            f'Topic "{name}" would have {after:,} partitions: brokers take {partitions_max:,} at most, and it has {before:,}.',
            exit_code=EXIT_USAGE,
        )
    try:
        connection.result(admin.create_partitions([NewPartitions(name, after)], request_timeout=connection.timeout_s)[name])
    except KafkaException as error:
        raise topic_failure(f'Topic "{name}" got no partitions', error.args[0]) from error
    return before, after


def alter(connection: ClusterConnection, admin: AdminClient, name: str, *, set_to: Mapping[str, str], unset: Iterable[str]) -> None:
    look_up_topic(connection, admin, name)
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in set_to.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    try:
        connection.result(admin.incremental_alter_configs([resource], request_timeout=connection.timeout_s)[resource])
    except KafkaException as error:
        raise topic_failure(f'Topic "{name}" was not altered', error.args[0]) from error


def delete(connection: ClusterConnection, admin: AdminClient, name: str) -> None:
    try:
        connection.result(admin.delete_topics([name], request_timeout=connection.timeout_s)[name])
    except KafkaException as error:
        if error.args[0].code() in UNKNOWN_TOPIC:
            raise unknown_topic(name, connection.metadata(admin).topics) from error
        raise topic_failure(f'Topic "{name}" was not deleted', error.args[0]) from error


def delete_records(
    connection: ClusterConnection, admin: AdminClient, name: str, before: Mapping[int, int]
) -> dict[int, ClientFailed | None]:
    """Delete the records before an offset, by partition; None for each partition whose records are gone, else why they are not."""
    asked = [TopicPartition(name, partition, offset) for partition, offset in before.items()]
    answers = admin.delete_records(asked, request_timeout=connection.timeout_s, operation_timeout=connection.timeout_s)
    outcome: dict[int, ClientFailed | None] = {}
    for at, future in answers.items():
        try:
            connection.result(future)
            outcome[at.partition] = None
        except ClientFailed as failure:
            outcome[at.partition] = failure
        except KafkaException as error:
            outcome[at.partition] = _not_deleted(f"{name}/{at.partition}", error.args[0])
    return outcome


def _not_deleted(where: str, error: KafkaError) -> ClientFailed:
    if error.code() == KafkaError.POLICY_VIOLATION:
        why = "the topic's cleanup.policy does not name delete."
        return ClientFailed(f"Records of {where} were not deleted: {why}", exit_code=exit_code_of(error))
    outcome = "may or may not be deleted" if error.code() == KafkaError.REQUEST_TIMED_OUT else "were not deleted"
    return topic_failure(f"Records of {where} {outcome}", error)


def topic_failure(what: str, error: KafkaError) -> ClientFailed:
    return ClientFailed(f"{what}: {message_of(error)}", exit_code=exit_code_of(error))


def offsets_at(connection: ClusterConnection, admin: AdminClient, name: str, specs: Mapping[int, OffsetSpec]) -> dict[int, int]:
    """By partition; -1 where no record has the timestamp that was asked for."""
    if not specs:
        return {}
    asked = {TopicPartition(name, partition): spec for partition, spec in specs.items()}
    try:
        answers = admin.list_offsets(asked, request_timeout=connection.timeout_s)
        return {at.partition: connection.result(future).offset for at, future in answers.items()}
    except KafkaException as error:
        raise topic_failure(f'Offsets of topic "{name}"', error.args[0]) from error


def _configs(connection: ClusterConnection, admin: AdminClient, name: str) -> dict[str, ConfigFacts]:
    """By name; only what was not left at its default has the source DYNAMIC_TOPIC_CONFIG."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        found = connection.result(admin.describe_configs([resource], request_timeout=connection.timeout_s)[resource])
    except KafkaException as error:
        raise topic_failure(f'Configs of topic "{name}"', error.args[0]) from error
    return {key: ConfigFacts(value=entry.value, source=ConfigSource(entry.source).name) for key, entry in sorted(found.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """From `offsets` on, before `stops` where there are any. `records` counts the offsets that are there now."""

    offsets: Mapping[Partition, int]
    stops: Mapping[Partition, int]
    records: int


def topics_like(connection: ClusterConnection, admin: AdminClient, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """The topics there are now, by name."""
    there = connection.metadata(admin).topics
    found = sorted(name for name in there if not name.startswith(INTERNAL) and any(pattern.search(name) for pattern in patterns))
    if not found:
        raise ClientFailed(f"None of {len(there):,} topics is like that. List them: forebay topic list", exit_code=EXIT_NOT_FOUND)
    return found


def extent(
    connection: ClusterConnection,
    admin: AdminClient,
    topics: Iterable[str],
    start: StartingPoint,
    stop: Stop | None,
    *,
    partition: int | None,
) -> Extent:
    """The extent of one partition of each topic, or of all partitions."""
    first: dict[Partition, int] = {}
    last: dict[Partition, int] = {}
    records = 0
    for topic in topics:
        there = _bounds_of(connection, admin, topic, partition)
        begin = offsets(start, topic, there, at_time=_at_time(connection, admin, topic, there, start))
        end = {} if stop is None else stops(stop, there, at_time=_at_time(connection, admin, topic, there, stop))
        first |= {(topic, at): offset for at, offset in begin.items()}
        last |= {(topic, at): offset for at, offset in end.items()}
        records += sum(max(0, min(end.get(at, there[at].end), there[at].end) - begin[at]) for at in there)
    return Extent(offsets=first, stops=last, records=records)


def stops_of(
    connection: ClusterConnection, admin: AdminClient, topic: str, stop: Stop, *, partition: int | None
) -> tuple[dict[int, OffsetBounds], dict[int, int]]:
    """The offsets there are now in one partition or all, and where `stop` is in each."""
    there = _bounds_of(connection, admin, topic, partition)
    return there, stops(stop, there, at_time=_at_time(connection, admin, topic, there, stop))


def _bounds_of(connection: ClusterConnection, admin: AdminClient, topic: str, partition: int | None) -> dict[int, OffsetBounds]:
    count = len(look_up_topic(connection, admin, topic).partitions)
    if partition is not None and partition >= count:
        raise unknown_partition(topic, partition, count)
    return bounds(connection, admin, topic, range(count) if partition is None else (partition,))


def _at_time(
    connection: ClusterConnection, admin: AdminClient, topic: str, partitions: Iterable[int], place: StartingPoint
) -> dict[int, int]:
    if not isinstance(place, AtTime):
        return {}
    return offsets_at(connection, admin, topic, dict.fromkeys(partitions, OffsetSpec.for_timestamp(place.timestamp_ms)))


def topics_table(topics: Sequence[TopicLine]) -> str:
    return align(("NAME", "PARTITIONS", "REPLICAS"), [(topic.name, topic.partitions, topic.replication_factor) for topic in topics])


def topic_table(topic: TopicFacts) -> str:
    """A topic, with those of its configs that were set for it."""
    given = [f"{name}={config.value}" for name, config in topic.configs.items() if config.source == _SET_FOR_TOPIC]
    rows = [
        (one.partition, one.leader, _ids(one.replicas), _ids(one.isr), one.start, one.end, one.end - one.start, _size(one.size_bytes))
        for one in topic.partitions
    ]
    return "\n\n".join(
        (
            facts([("name", topic.name), ("id", topic.id), ("size", _total(topic)), ("configs", ", ".join(given) or "defaults")]),
            align(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "RECORDS", "BYTES"), rows),
        )
    )


class TrimmedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`records` from `start` on, before `to`, which is the new start."""

    partition: int
    start: int
    to: int
    records: int


def trim_table(partitions: Sequence[TrimmedPartition]) -> str:
    return align(("PARTITION", "START", "NEW START", "RECORDS"), [(one.partition, one.start, one.to, one.records) for one in partitions])


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _total(topic: TopicFacts) -> str:
    known = [one.size_bytes for one in topic.partitions if isinstance(one.size_bytes, int)]
    unknown = len(topic.partitions) - len(known)
    return counted(sum(known), "byte") + (f", without {counted(unknown, 'partition')} of unknown size" if unknown else "")


def _size(size_bytes: int | msgspec.UnsetType | None) -> int | str:
    return size_bytes if isinstance(size_bytes, int) else NOTHING


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"
