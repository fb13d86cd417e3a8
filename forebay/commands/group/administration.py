"""Consumer groups by the standard admin APIs: as a cluster tells of them and changes them, and as tables for people.

The lag of a partition is its end less what the group has committed there. Every function that asks brokers raises `ClientFailed`.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConsumerGroupDescription, MemberDescription, OffsetSpec  # type: ignore[attr-defined]

from forebay.commands.group.resetting import AtEach, DeletedOffset, OffsetReset, ResetTarget, Scope, plan_resets
from forebay.commands.topic.administration import bounds, offsets_at
from forebay.commands.topic.starting import AtTime, OffsetBounds
from forebay.kafka_client.connection import NO_ANSWER, UNKNOWN_TOPIC, ClusterConnection, Partition, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_TIMED_OUT, ClientFailed, unknown_partition, unknown_topic
from forebay.kafka_client.text import NOTHING, align, facts

ASKED_AT_A_TIME: Final = 16
"""So many questions about single groups are open at once."""
STATES: Final[Mapping[object, str]] = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
UNKNOWN_STATE: Final = "Unknown"
TYPES: Final[Mapping[object, str]] = {ConsumerGroupType.CONSUMER: "Consumer", ConsumerGroupType.CLASSIC: "Classic"}
_JOINED_MEANWHILE: Final = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.NON_EMPTY_GROUP}
)


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is None where brokers do not tell it."""

    name: str
    state: str
    type: str | None


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """By name. `failures` is what brokers said instead of telling their groups: with one, the list may lack some."""

    groups: list[GroupLine]
    failures: list[str]


class AssignedTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class MemberFacts(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str
    host: str
    member_id: str
    instance_id: str | None
    assignment: list[AssignedTopic]


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`assignor` is None while there are no members; `coordinator` is `host:port`."""

    name: str
    state: str
    type: str | None
    assignor: str | None
    coordinator: str | None
    coordinator_id: int
    members: list[MemberFacts]


def read_groups(connection: ClusterConnection, admin: AdminClient) -> Groups:
    with connection.answers_awaited():
        found = connection.result(admin.list_consumer_groups(request_timeout=connection.timeout_s))
    failures = sorted({message_of(error.args[0]) if isinstance(error, KafkaException) else str(error) for error in found.errors or ()})
    lines = (
        GroupLine(
            name=group.group_id,
            state=STATES.get(getattr(group, "state", None), UNKNOWN_STATE),
            type=TYPES.get(getattr(group, "type", None)),
        )
        for group in found.valid or ()
    )
    return Groups(groups=sorted(lines, key=lambda line: line.name), failures=failures)


def describe_groups(connection: ClusterConnection, admin: AdminClient, names: Sequence[str]) -> dict[str, GroupFacts]:
    """Without those that do not exist."""
    found = {}
    for name, future in admin.describe_consumer_groups(list(names), request_timeout=connection.timeout_s).items():
        try:
            group = connection.result(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                continue
            raise group_failure(f'Group "{name}"', error.args[0]) from error
        if group.state is not ConsumerGroupState.DEAD:
            found[name] = _facts(group)
    return found


def look_up_group(connection: ClusterConnection, admin: AdminClient, name: str) -> GroupFacts:
    found = describe_groups(connection, admin, [name]).get(name)
    if found is None:
        raise unknown_group(connection, admin, name)
    return found


def unknown_group(connection: ClusterConnection, admin: AdminClient, name: str) -> ClientFailed:
    nearest = nearest_of(connection, admin, name)
    return ClientFailed(f'Group "{name}" does not exist.{nearest} List them: forebay group list', exit_code=EXIT_NOT_FOUND)


def nearest_of(connection: ClusterConnection, admin: AdminClient, name: str) -> str:
    """A sentence, with a space before it; nothing, if no name is like it."""
    near = difflib.get_close_matches(name, [group.name for group in read_groups(connection, admin).groups], n=1)
    return f' Nearest: "{near[0]}".' if near else ""


def read_committed(connection: ClusterConnection, admin: AdminClient, names: Sequence[str]) -> dict[str, dict[Partition, int]]:
    """All committed offsets, by group."""
    found = {}
    for first in range(0, len(names), ASKED_AT_A_TIME):
        # The API takes one group a call; what is asked here is asked at the same time.
        futures = {
            name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=connection.timeout_s)[name]
            for name in names[first : first + ASKED_AT_A_TIME]
        }
        for name, future in futures.items():
            try:
                partitions = connection.result(future).topic_partitions
            except KafkaException as error:
                raise group_failure(f'Offsets of group "{name}"', error.args[0]) from error
            found[name] = {(at.topic, at.partition): at.offset for at in partitions if at.offset >= 0}
    return found


def commit(connection: ClusterConnection, admin: AdminClient, name: str, offsets: Mapping[Partition, int]) -> None:
    """In the place of members that the group must not have. Some may be committed when others were refused."""
    partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    asked = [ConsumerGroupTopicPartitions(name, partitions)]
    try:
        answers = connection.result(admin.alter_consumer_group_offsets(asked, request_timeout=connection.timeout_s)[name]).topic_partitions
    except KafkaException as error:
        raise _not_reset(name, error.args[0]) from error
    wrong = [at for at in answers if at.error is not None]
    if wrong and len(wrong) < len(answers):
        first = wrong[0]
        raise ClientFailed(
            f'{len(answers) - len(wrong)} of {len(answers)} offsets of group "{name}" were reset. '
            f"The offset of {first.topic}/{first.partition} was not: {message_of(first.error)}",
            exit_code=exit_code_of(first.error),
        )
    if wrong:
        raise _not_reset(name, wrong[0].error)


def delete(connection: ClusterConnection, admin: AdminClient, name: str) -> None:
    try:
        connection.result(admin.delete_consumer_groups([name], request_timeout=connection.timeout_s)[name])
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            raise unknown_group(connection, admin, name) from error
        if code in _JOINED_MEANWHILE:
            raise ClientFailed(f'Group "{name}" was not deleted: it has members. Stop its consumers first.') from error
        raise group_failure(f'Group "{name}" was not deleted', error.args[0]) from error


def group_failure(what: str, error: KafkaError) -> ClientFailed:
    if error.code() in NO_ANSWER:
        return ClientFailed(f"{what}: no answer in time. Wait longer with --timeout.", exit_code=EXIT_TIMED_OUT)
    return ClientFailed(f"{what}: {message_of(error)}", exit_code=exit_code_of(error))


def member_count(count: int) -> str:
    return "no members" if count == 0 else f"{count:,} member{'' if count == 1 else 's'}"


def _not_reset(name: str, error: KafkaError) -> ClientFailed:
    if error.code() in _JOINED_MEANWHILE:
        return ClientFailed(f'Offsets of group "{name}" were not reset: a consumer joined it. Stop its consumers first.')
    return group_failure(f'Offsets of group "{name}" were not reset', error)


def _facts(group: ConsumerGroupDescription) -> GroupFacts:
    node = group.coordinator
    return GroupFacts(
        name=group.group_id,
        state=STATES.get(group.state, UNKNOWN_STATE),
        type=TYPES.get(group.type),
        assignor=group.partition_assignor or None,
        coordinator=None if node is None else f"{node.host}:{node.port}",
        coordinator_id=-1 if node is None else node.id,
        members=sorted(map(_member, group.members), key=lambda member: (member.client_id, member.host, member.member_id)),
    )


def _member(member: MemberDescription) -> MemberFacts:
    return MemberFacts(
        client_id=member.client_id or "",
        # Java writes an address as `/127.0.0.1`: a name that is empty, and what it resolves to.
        host=(member.host or "").removeprefix("/"),
        member_id=member.member_id,
        instance_id=member.group_instance_id or None,
        assignment=_assignment((at.topic, at.partition) for at in member.assignment.topic_partitions),
    )


def _assignment(partitions: Iterable[Partition]) -> list[AssignedTopic]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [AssignedTopic(topic=topic, partitions=chosen) for topic, chosen in by_topic.items()]


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


def plan_resets_of(
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


def groups_table(groups: Sequence[GroupLine]) -> str:
    return align(("NAME", "STATE", "TYPE"), [(group.name, group.state, group.type or NOTHING) for group in groups])


def group_table(group: GroupFacts) -> str:
    """Members without their ids."""
    summary = facts(
        [
            ("name", group.name),
            ("state", group.state),
            ("type", group.type or NOTHING),
            ("assignor", group.assignor or NOTHING),
            ("coordinator", NOTHING if group.coordinator is None else f"{group.coordinator} (broker {group.coordinator_id})"),
            ("members", len(group.members)),
        ]
    )
    if not group.members:
        return summary
    rows = [(member.client_id or NOTHING, member.host, _assignment_text(member.assignment)) for member in group.members]
    return f"{summary}\n\n{align(('CLIENT ID', 'HOST', 'ASSIGNMENT'), rows)}"


def members_table(members: Sequence[MemberFacts]) -> str:
    return align(
        ("CLIENT ID", "HOST", "INSTANCE", "MEMBER", "ASSIGNMENT"),
        [
            (member.client_id or NOTHING, member.host, member.instance_id or NOTHING, member.member_id, _assignment_text(member.assignment))
            for member in members
        ],
    )


def lag_table(lag: GroupLag) -> str:
    rows = [
        (
            one.topic,
            one.partition,
            _or_nothing(one.committed),
            _or_nothing(one.end),
            _or_nothing(one.lag),
            one.client_id or NOTHING,
            one.host or NOTHING,
        )
        for one in lag.partitions
    ]
    summary = facts([("group", lag.group), ("state", lag.state), ("members", lag.members), ("lag", _total_lag(lag))])
    if not rows:
        return summary
    return f"{summary}\n\n{align(('TOPIC', 'PARTITION', 'COMMITTED', 'END', 'LAG', 'CLIENT ID', 'HOST'), rows)}"


def lags_table(lags: Sequence[GroupLag]) -> str:
    return align(
        ("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "UNKNOWN"),
        [(lag.group, lag.state, lag.members, len(lag.partitions), _or_nothing(lag.lag), lag.lag_unknown) for lag in lags],
    )


def resets_table(resets: Sequence[OffsetReset]) -> str:
    return align(("TOPIC", "PARTITION", "OLD", "NEW"), [(one.topic, one.partition, _or_nothing(one.old), one.new) for one in resets])


def resets_rows(resets: Sequence[OffsetReset]) -> str:
    """For `--from-file`."""
    return "\n".join(f"{one.topic},{one.partition},{one.new}" for one in resets)


def offsets_table(offsets: Sequence[DeletedOffset]) -> str:
    return align(("TOPIC", "PARTITION", "OFFSET"), [(one.topic, one.partition, one.offset) for one in offsets])


def _assignment_text(assignment: Sequence[AssignedTopic]) -> str:
    return " ".join(f"{one.topic}:{','.join(map(str, one.partitions))}" for one in assignment) or NOTHING


def _total_lag(lag: GroupLag) -> int | str:
    if lag.lag is None or not lag.lag_unknown:
        return _or_nothing(lag.lag)
    return f"{lag.lag} (unknown in {lag.lag_unknown} of {len(lag.partitions)} partitions)"


def _or_nothing(number: int | None) -> int | str:
    return NOTHING if number is None else number
