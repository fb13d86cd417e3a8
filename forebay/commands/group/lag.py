"""How far behind its topics a group is: the end of each partition less what the group has committed there."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec  # type: ignore[attr-defined]

from forebay.commands.group.administration import GroupFacts, MemberFacts, describe_groups, group_failure, read_committed
from forebay.kafka_client.connection import UNKNOWN_TOPIC, ClusterConnection, Partition


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """`committed` is the offset the group reads next; None, if it has committed none. `end` is None if the partition is gone.

    The member is the one that reads the partition now.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    client_id: str | None
    host: str | None
    member_id: str | None


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """`lag` is the sum over the partitions whose lag is known; None, if it is known of none. Of `lag_unknown` partitions it is not:
    the group has committed nothing there, or they are gone.
    """

    group: str
    state: str
    members: int
    lag: int | None
    lag_unknown: int
    partitions: list[PartitionLag]


def lags(connection: ClusterConnection, admin: AdminClient, names: Sequence[str]) -> list[GroupLag]:
    """In the order of the names, without groups that do not exist. Raise `ClientFailed`."""
    groups = describe_groups(connection, admin, names) if names else {}
    # Ends are asked for after commits, which they are never behind then.
    offsets = read_committed(connection, admin, list(groups))
    concerned = {partition for group in groups.values() for partition in {*offsets[group.name], *_readers(group)}}
    ends = _ends(connection, admin, concerned) if concerned else {}
    return [lag_of(groups[name], offsets[name], ends) for name in names if name in groups]


def lag_of(group: GroupFacts, offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> GroupLag:
    """The lag of every partition that the group has committed an offset for, or reads now."""
    readers = _readers(group)
    partitions = []
    for at in sorted({*offsets, *readers}):
        offset, end, member = offsets.get(at), ends.get(at), readers.get(at)
        partitions.append(
            PartitionLag(
                topic=at[0],
                partition=at[1],
                committed=offset,
                end=end,
                # A topic that was made again may end before what was committed of the one before it.
                lag=None if offset is None or end is None else max(0, end - offset),
                client_id=None if member is None else member.client_id,
                host=None if member is None else member.host,
                member_id=None if member is None else member.member_id,
            )
        )
    known = [one.lag for one in partitions if one.lag is not None]
    return GroupLag(
        group=group.name,
        state=group.state,
        members=len(group.members),
        # Whoever has committed nothing may have everything before it: 0 would say that it has read all there is.
        lag=sum(known) if known else None,
        lag_unknown=len(partitions) - len(known),
        partitions=partitions,
    )


def existing(metadata: ClusterMetadata, partitions: Iterable[Partition]) -> list[Partition]:
    return [(topic, at) for topic, at in partitions if topic in metadata.topics and at in metadata.topics[topic].partitions]


def _readers(group: GroupFacts) -> dict[Partition, MemberFacts]:
    return {
        (assigned.topic, partition): member
        for member in group.members
        for assigned in member.assignment
        for partition in assigned.partitions
    }


def _ends(connection: ClusterConnection, admin: AdminClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The end offsets of the partitions that exist."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(*at): latest for at in existing(connection.metadata(admin), partitions)}
    ends = {}
    for at, future in (admin.list_offsets(asked, request_timeout=connection.timeout_s) if asked else {}).items():
        try:
            ends[at.topic, at.partition] = connection.result(future).offset
        except KafkaException as error:
            # Deleted since the metadata were read; `_NOENT` is the library's own word for it.
            if error.args[0].code() not in {*UNKNOWN_TOPIC, KafkaError._NOENT}:  # noqa: SLF001
                raise group_failure(f"The end of {at.topic}/{at.partition}", error.args[0]) from error
    return ends
