"""Committed offsets are forgotten, partition by partition. Every function raises `ClientFailed`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from forebay.commands.group.administration import look_up_group, read_committed
from forebay.commands.group.resetting import Scope
from forebay.kafka_client.connection import ClusterConnection, Partition, exit_code_of, message_of, parse_bootstrap
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed
from forebay.kafka_client.one_request import send_request
from runtime.clock import Clock

_HAS_MEMBERS: Final = frozenset({ErrorCode.group_subscribed_to_topic, ErrorCode.non_empty_group})


def find_committed(
    connection: ClusterConnection, admin: AdminClient, name: str, scopes: Sequence[Scope]
) -> tuple[dict[Partition, int], dict[str, ClientFailed]]:
    """What the group has committed there; and where it has committed nothing, by what was asked for."""
    look_up_group(connection, admin, name)
    current = read_committed(connection, admin, [name])[name]
    there: dict[Partition, int] = {}
    failed: dict[str, ClientFailed] = {}
    for scope in scopes:
        of_topic = {at: offset for at, offset in current.items() if at[0] == scope.topic}
        wanted = list(of_topic) if scope.partitions is None else [(scope.topic, partition) for partition in scope.partitions]
        if not wanted:
            failed[scope.topic] = _nothing(name, f'topic "{scope.topic}"')
        for at in wanted:
            if at in of_topic:
                there[at] = of_topic[at]
            else:
                failed[shown(at)] = _nothing(name, shown(at))
    return dict(sorted(there.items())), failed


def delete_committed(
    connection: ClusterConnection, admin: AdminClient, name: str, partitions: Iterable[Partition], *, clock: Clock
) -> Mapping[Partition, ClientFailed | None]:
    """None for each partition whose offset was deleted, else why it was not."""
    coordinator = look_up_group(connection, admin, name).coordinator
    if coordinator is None:
        raise ClientFailed(f'Group "{name}" has no coordinator now. Try again.')
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    request = OffsetDeleteRequest(
        group_id=GroupId(name),
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=TopicName(topic), partitions=tuple(OffsetDeleteRequestPartition(partition_index=i32(number)) for number in numbers)
            )
            for topic, numbers in by_topic.items()
        ),
    )
    (address,) = parse_bootstrap(coordinator)
    answer = send_request(address, request, OffsetDeleteResponse, within_s=connection.timeout_s, clock=clock)
    if answer.error_code != ErrorCode.none:
        raise _refused(name, f'Offsets of group "{name}" were', answer.error_code)
    return {
        (str(topic.name), int(one.partition_index)): None
        if one.error_code == ErrorCode.none
        else _refused(name, f'The offset of group "{name}" in {shown((str(topic.name), int(one.partition_index)))} was', one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }


def shown(at: Partition) -> str:
    return f"{at[0]}/{at[1]}"


def _nothing(name: str, where: str) -> ClientFailed:
    return ClientFailed(f'Group "{name}" has committed nothing in {where}. Look at it: forebay group lag {name}', exit_code=EXIT_NOT_FOUND)


def _refused(name: str, what: str, code: ErrorCode) -> ClientFailed:
    if code in _HAS_MEMBERS:
        return ClientFailed(f"{what} not deleted: a consumer reads there. Stop it first; it is shown by: forebay group describe {name}")
    error = KafkaError(int(code))
    return ClientFailed(f"{what} not deleted: {message_of(error)}", exit_code=exit_code_of(error))
