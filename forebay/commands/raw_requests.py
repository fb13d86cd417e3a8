"""Requests that librdkafka cannot send, each on a connection of its own: DescribeLogDirs and OffsetDelete.

The first says how large partitions are, the second deletes committed offsets. A frame is the length, a header without tags,
and kio's body. Every function raises `ClientFailed`.
"""

import io
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from forebay.commands.group.administration import look_up_group, read_committed
from forebay.commands.group.resetting import Scope
from forebay.commands.topic.administration import TopicFacts, look_up_topic
from forebay.kafka_client.connection import (
    CLIENT_ID,
    BootstrapServer,
    ClusterConnection,
    Partition,
    exit_code_of,
    message_of,
    parse_bootstrap,
)
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_TIMED_OUT, EXIT_UNREACHABLE, ClientFailed
from runtime.clock import Clock

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_CORRELATION_ID: Final = 1
T = TypeVar("T")
SIZES_WITHIN_S: Final = 5.0
"""Sizes are worth no longer wait: what is asked for besides them is there already."""
_HAS_MEMBERS: Final = frozenset({ErrorCode.group_subscribed_to_topic, ErrorCode.non_empty_group})


def send_request(address: BootstrapServer, request: Any, answer: type[T], *, within_s: float, clock: Clock) -> T:
    """For versions that are not flexible. Raise `ClientFailed` if no answer comes."""
    name = CLIENT_ID.encode()
    header = struct.pack(">hhih", request.__api_key__, request.__version__, _CORRELATION_ID, len(name)) + name
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    frame = header + body.getvalue()
    give_up_s = clock.monotonic_s() + within_s
    try:
        with socket.create_connection((address.host, address.port), timeout=within_s) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", _received(connection, 4, give_up_s, clock))
            if not 4 <= size <= ANSWER_BYTES_MAX:
                raise ClientFailed(f"{address} does not answer as a Kafka broker.")
            held = _received(connection, size, give_up_s, clock)
    except TimeoutError as error:
        raise ClientFailed(
            f"{address} did not answer within {within_s:g} s. Wait longer with --timeout.", exit_code=EXIT_TIMED_OUT
        ) from error
    except OSError as error:
        raise ClientFailed(f"Cannot reach {address} ({(error.strerror or str(error)).lower()}).", exit_code=EXIT_UNREACHABLE) from error
    found, _ = entity_reader(answer)(held, 4)  # type: ignore[type-var]
    return found


def _received(connection: socket.socket, size: int, give_up_s: float, clock: Clock) -> bytes:
    held = b""
    while len(held) < size:
        left_s = give_up_s - clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(size - len(held))
        if not part:
            raise ConnectionResetError(None, "it closed the connection: it may be too old for this request")
        held += part
    return held


def with_sizes(
    connection: ClusterConnection, admin: AdminClient, facts: TopicFacts, *, clock: Clock
) -> tuple[TopicFacts, list[ClientFailed]]:
    """The same with the sizes of its partitions, and why some are missing."""
    led: dict[BootstrapServer, list[int]] = {}
    for one in look_up_topic(connection, admin, facts.name).partitions:
        if one.leader is not None:
            led.setdefault(BootstrapServer(one.leader.host, one.leader.port), []).append(one.id)
    sizes, failed = read_sizes(facts.name, led, within_s=connection.timeout_s, clock=clock)
    partitions = [msgspec.structs.replace(known, size_bytes=sizes.get(known.partition)) for known in facts.partitions]
    return msgspec.structs.replace(facts, partitions=partitions), failed


def read_sizes(
    name: str, led: Mapping[BootstrapServer, Sequence[int]], *, within_s: float, clock: Clock
) -> tuple[dict[int, int], list[ClientFailed]]:
    """Bytes by partition of the topic, and why those of a leader are missing. `led`: the partitions of each leader."""
    sizes: dict[int, int] = {}
    failed: list[ClientFailed] = []
    for leader, partitions in led.items():
        topic = DescribableLogDirTopic(topic=TopicName(name), partitions=tuple(map(i32, partitions)))
        try:
            answer = send_request(
                leader,
                DescribeLogDirsRequest(topics=(topic,)),
                DescribeLogDirsResponse,
                within_s=min(SIZES_WITHIN_S, within_s),
                clock=clock,
            )
        except ClientFailed as error:
            failed.append(error)
            continue
        sizes |= _sizes(answer, name)
        failed += [
            ClientFailed(f"{leader} does not say how large partitions are: {one.error_code.name.upper()} ({one.log_dir})")
            for one in answer.results
            if one.error_code is not ErrorCode.none
        ]
    return sizes, failed


def _sizes(answer: DescribeLogDirsResponse, name: str) -> dict[int, int]:
    """A log that is being moved to another folder is there twice."""
    return {
        int(one.partition_index): int(one.partition_size)
        for result in answer.results
        for topic in result.topics
        if topic.name == name
        for one in topic.partitions
        if not one.is_future_key
    }


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
                failed[partition_shown(at)] = _nothing(name, partition_shown(at))
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
        else _refused(
            name, f'The offset of group "{name}" in {partition_shown((str(topic.name), int(one.partition_index)))} was', one.error_code
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def partition_shown(at: Partition) -> str:
    return f"{at[0]}/{at[1]}"


def _nothing(name: str, where: str) -> ClientFailed:
    return ClientFailed(f'Group "{name}" has committed nothing in {where}. Look at it: forebay group lag {name}', exit_code=EXIT_NOT_FOUND)


def _refused(name: str, what: str, code: ErrorCode) -> ClientFailed:
    if code in _HAS_MEMBERS:
        return ClientFailed(f"{what} not deleted: a consumer reads there. Stop it first; it is shown by: forebay group describe {name}")
    error = KafkaError(int(code))
    return ClientFailed(f"{what} not deleted: {message_of(error)}", exit_code=exit_code_of(error))
