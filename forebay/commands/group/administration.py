"""Consumer groups as a cluster tells of them and changes them, by the standard admin APIs. Every function raises `ClientFailed`."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberDescription  # type: ignore[attr-defined]

from forebay.kafka_client.connection import NO_ANSWER, ClusterConnection, Partition, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_TIMED_OUT, ClientFailed

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
