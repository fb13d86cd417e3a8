"""What a reset would do, from what the cluster tells. Every function raises `ClientFailed`."""

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from forebay.commands.group.administration import describe_groups, member_count, nearest_of, read_committed, unknown_group
from forebay.commands.group.lag import existing
from forebay.commands.group.resetting import AtEach, OffsetReset, ResetTarget, Scope, plan_resets
from forebay.commands.topic.administration import bounds, offsets_at
from forebay.commands.topic.starting import AtTime, OffsetBounds
from forebay.kafka_client.connection import ClusterConnection, Partition
from forebay.kafka_client.failures import EXIT_FAILED, ClientFailed, unknown_partition, unknown_topic


def plan(
    connection: ClusterConnection, admin: AdminClient, name: str, target: ResetTarget, scopes: Sequence[Scope] | None
) -> tuple[list[OffsetReset], list[str]]:
    """Resets of the partitions in `scopes`, or else of those that the target names, or of all that have a commit; and warnings."""
    warnings: list[str] = []
    group = describe_groups(connection, admin, [name]).get(name)
    if group is None:
        if scopes is None and not isinstance(target, AtEach):
            raise unknown_group(connection, admin, name)
        warnings.append(f'Group "{name}" does not exist yet.{nearest_of(connection, admin, name)}')
    elif group.members:
        raise ClientFailed(
            f'Offsets of group "{name}" can only be reset while it is inactive, but it has {member_count(len(group.members))} '
            f"(state {group.state}). Stop its consumers first."
        )
    current = read_committed(connection, admin, [name])[name]
    partitions = _partitions(connection, admin, target, scopes, current, warnings)
    if not partitions:
        raise ClientFailed(f'Group "{name}" has committed nothing that could be reset. Name topics: --topic TOPIC', exit_code=EXIT_FAILED)
    at_time: dict[Partition, int] = {}
    within: dict[Partition, OffsetBounds] = {}
    for topic, numbers in _by_topic(partitions).items():
        within |= {(topic, at): found for at, found in bounds(connection, admin, topic, numbers).items()}
        if isinstance(target, AtTime):
            spec = OffsetSpec.for_timestamp(target.timestamp_ms)
            at_time |= {(topic, at): offset for at, offset in offsets_at(connection, admin, topic, dict.fromkeys(numbers, spec)).items()}
    resets, more = plan_resets(target, current, within, at_time=at_time)
    return resets, warnings + more


def _partitions(
    connection: ClusterConnection,
    admin: AdminClient,
    target: ResetTarget,
    scopes: Sequence[Scope] | None,
    current: Mapping[Partition, int],
    warnings: list[str],
) -> list[Partition]:
    """The partitions that exist. A missing one is an error if it was named, but not if it was only committed once."""
    metadata = connection.metadata(admin)
    if scopes is None and not isinstance(target, AtEach):
        there = existing(metadata, current)
        warnings += [f"{topic}/{at} does not exist any more: it is left alone." for topic, at in sorted({*current} - {*there})]
        return there
    if isinstance(target, AtEach):
        scopes = [Scope(topic, tuple(numbers)) for topic, numbers in _by_topic(target.offsets).items()]
    found: dict[Partition, None] = {}
    for topic, numbers in scopes or ():
        if topic not in metadata.topics:
            raise unknown_topic(topic, metadata.topics)
        count = len(metadata.topics[topic].partitions)
        for at in range(count) if numbers is None else numbers:
            if at >= count:
                raise unknown_partition(topic, at, count)
            found[topic, at] = None
    return list(found)


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, at in partitions:
        by_topic.setdefault(topic, []).append(at)
    return by_topic
