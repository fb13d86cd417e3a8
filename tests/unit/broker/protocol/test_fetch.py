import datetime
import importlib
import random
import struct
import uuid
from types import ModuleType

import pytest
from kio.schema.errors import ErrorCode

from broker.protocol import fetch
from broker.protocol.compiler import compile_encoder, describe
from broker.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.protocol.wire import ProtocolViolation
from tests.kit.kafka_values import as_namespace, in_milliseconds, kio_encoded, with_unknown_tag

every_version = pytest.mark.parametrize("version", fetch.READABLE)


def kio(version: int, kind: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.fetch.v{version}.{kind}")


def topic_name(version: int, number: int) -> str:
    return str(uuid.UUID(int=number * 2**90)) if version >= fetch.TOPIC_IDS_MINIMUM else f"topic-{number}" * (1 + 20 * (number % 2))


def kio_topic(version: int, topic: str) -> dict[str, object]:
    if version < fetch.TOPIC_IDS_MINIMUM:
        return {"topic": topic}
    return {"topic_id": uuid.UUID(topic) if uuid.UUID(topic).int else None}


def a_request(version: int, chance: random.Random, *, topics: int = 3) -> FetchRequest:
    def since(minimum: int, value: int, absent: int = -1) -> int:
        return value if version >= minimum else absent

    return FetchRequest(
        max_wait_ms=chance.randrange(60_000),
        min_bytes=chance.randrange(2**31),
        max_bytes=chance.randrange(2**31),
        isolation_level=chance.randrange(2),
        session_id=since(7, chance.randrange(2**31), 0),
        session_epoch=since(7, chance.randrange(2**31)),
        rack_id=chance.choice(("", "zone-a")) if version >= 11 else "",
        partitions=[
            FetchPartition(
                topic=topic_name(version, topic),
                partition=partition,
                current_leader_epoch=since(9, chance.randrange(5)),
                fetch_offset=chance.randrange(2**62),
                partition_max_bytes=chance.randrange(2**31),
                last_fetched_epoch=since(12, chance.randrange(5)),
                log_start_offset=since(5, chance.randrange(-1, 2**62)),
            )
            for topic in range(topics)
            for partition in range(chance.choice((1, 2, 130)))
        ],
        forgotten=[(topic_name(version, topic), partition) for topic in range(topics) for partition in range(2)] if version >= 7 else [],
    )


def kio_request(version: int, request: FetchRequest, **newer: object) -> object:
    module = kio(version, "request")
    topics: dict[str, list[object]] = {}
    for entry in request.partitions:
        fields: dict[str, object] = {}
        if version >= 5:
            fields["log_start_offset"] = entry.log_start_offset
        if version >= 9:
            fields["current_leader_epoch"] = entry.current_leader_epoch
        if version >= 12:
            fields["last_fetched_epoch"] = entry.last_fetched_epoch
        if version >= 17:
            fields["replica_directory_id"] = uuid.UUID(int=entry.partition)
        topics.setdefault(entry.topic, []).append(
            module.FetchPartition(
                partition=entry.partition, fetch_offset=entry.fetch_offset, partition_max_bytes=entry.partition_max_bytes, **fields
            )
        )
    if version >= 7:
        forgotten: dict[str, list[int]] = {}
        for topic, partition in request.forgotten:
            forgotten.setdefault(topic, []).append(partition)
        newer |= {
            "session_id": request.session_id,
            "session_epoch": request.session_epoch,
            "forgotten_topics_data": tuple(
                module.ForgottenTopic(partitions=tuple(partitions), **kio_topic(version, topic)) for topic, partitions in forgotten.items()
            ),
        }
    if version >= 11:
        newer["rack_id"] = request.rack_id
    return module.FetchRequest(
        max_wait=datetime.timedelta(milliseconds=request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        topics=tuple(module.FetchTopic(partitions=tuple(entries), **kio_topic(version, topic)) for topic, entries in topics.items()),
        **newer,
    )


@every_version
@pytest.mark.parametrize("topics", [0, 1, 3])
def test_what_kio_writes_is_read(version: int, topics: int) -> None:
    request = a_request(version, random.Random(version), topics=topics)
    frame = memoryview(b"header" + kio_encoded(kio_request(version, request)))

    assert fetch.read_request(version, frame, 6) == request


@pytest.mark.parametrize("version", [12, 15, 17])
def test_what_only_replicas_send_is_stepped_over(version: int) -> None:
    request = a_request(version, random.Random(version))
    newer: dict[str, object] = {"cluster_id": "c"}
    if version >= 15:
        newer["replica_state"] = kio(version, "request").ReplicaState(replica_id=5, replica_epoch=6)

    assert fetch.read_request(version, memoryview(kio_encoded(kio_request(version, request, **newer))), 0) == request


@pytest.mark.parametrize("version", [12, 13, 17])
def test_unknown_tags_are_skipped_in_every_structure(version: int) -> None:
    request = a_request(version, random.Random(version))
    values = in_milliseconds(kio_request(version, request))
    later = with_unknown_tag(describe(type(values)), tag=9)  # type: ignore[arg-type]
    body = bytearray()
    compile_encoder(later, later)(as_namespace(values, unknown="u" * 200), body)

    assert fetch.read_request(version, memoryview(body), 0) == request


def test_a_null_rack_is_a_violation() -> None:
    body = struct.pack(">iiiib", -1, 0, 0, 0, 0) + struct.pack(">ii", 0, -1) + struct.pack(">ii", 0, 0) + struct.pack(">h", -1)

    with pytest.raises(ProtocolViolation, match="field=rack_id length=-1"):
        fetch.read_request(11, memoryview(body), 0)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_count_of_partitions_that_cannot_be_there_is_a_violation(count: int) -> None:
    body = struct.pack(">iiiib", -1, 0, 0, 0, 0) + struct.pack(">i", 1) + b"\x00\x01t" + struct.pack(">i", count) + bytes(31)

    with pytest.raises(ProtocolViolation, match=f"field=partitions length={count}"):
        fetch.read_request(4, memoryview(body), 0)


def test_a_topic_id_cut_short_is_a_violation() -> None:
    body = struct.pack(">iiib", 0, 0, 0, 0) + struct.pack(">ii", 0, -1) + b"\x01" + b"\x02" + bytes(10)

    with pytest.raises(ProtocolViolation, match="length out of bounds"):
        fetch.read_request(16, memoryview(body), 0)


def test_a_body_cut_short_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="malformed Fetch request: version=17 bytes=3"):
        fetch.read_request(17, memoryview(b"\x00\x00\x01"), 0)


@pytest.mark.parametrize("version", [3, 18])
def test_versions_of_another_layout_are_not_read(version: int) -> None:
    with pytest.raises(AssertionError, match="not a version to be read"):
        fetch.read_request(version, memoryview(b""), 0)


def answers(version: int) -> list[FetchedPartition]:
    a, b = topic_name(version, 0), topic_name(version, 1)
    batch = memoryview(b"0123456789" * 20)
    return [
        FetchedPartition(a, 0, 0, 100, 90, 5, None, -1, (batch, b"second")),
        FetchedPartition(a, 1, 1, 100, 100, 50),
        FetchedPartition(a, 2, 0, 7, 7, 0, ((1, 2), (3, 4)), 9, (bytearray(batch[:60]),)),
        FetchedPartition(b, 0, 0, 7, 7, 0, ()),
        FetchedPartition(b, 1, 0, 7, 7, 0, None, -1, (batch,)),
    ]


def kio_response(version: int, response: FetchResponse) -> object:
    module = kio(version, "response")
    topics: dict[str, list[object]] = {}
    for answer in response.partitions:
        newer: dict[str, object] = {}
        if version >= 5:
            newer["log_start_offset"] = answer.log_start_offset
        if version >= 11:
            newer["preferred_read_replica"] = answer.preferred_read_replica
        aborted = answer.aborted_transactions
        topics.setdefault(answer.topic, []).append(
            module.PartitionData(
                partition_index=answer.partition,
                error_code=ErrorCode(answer.error_code),
                high_watermark=answer.high_watermark,
                last_stable_offset=answer.last_stable_offset,
                aborted_transactions=None
                if aborted is None
                else tuple(module.AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted),
                records=b"".join(answer.records),
                **newer,
            )
        )
    whole: dict[str, object] = {}
    if version >= 7:
        whole = {"error_code": ErrorCode(response.error_code), "session_id": response.session_id}
    return module.FetchResponse(
        throttle_time=datetime.timedelta(milliseconds=response.throttle_ms),
        responses=tuple(
            module.FetchableTopicResponse(partitions=tuple(entries), **kio_topic(version, topic)) for topic, entries in topics.items()
        ),
        **whole,
    )


@every_version
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_response_is_written_as_kio_writes_it(version: int, count: int) -> None:
    response = FetchResponse(answers(version)[:count], throttle_ms=3, error_code=70, session_id=8)
    expected = kio_response(version, response)
    header = b"\x00\x00\x00\x07" + (b"\x00" if type(expected).__header_schema__.__flexible__ else b"")  # type: ignore[attr-defined]

    assert b"".join(fetch.write_response(version, 7, response)) == header + kio_encoded(expected)


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_records_are_handed_on_and_what_lies_between_them_is_one_buffer(version: int) -> None:
    response = FetchResponse(answers(version))
    first, second, third, last = (buffer for answer in response.partitions for buffer in answer.records)

    pieces = fetch.write_response(version, 7, response)

    assert [pieces[index] for index in (1, 2, 4, 6)] == [first, second, third, last]
    assert all(pieces[index] is buffer for index, buffer in ((1, first), (2, second), (4, third), (6, last)))
    assert len(pieces) == (8 if version >= fetch.FLEXIBLE_MINIMUM else 7)


@every_version
def test_an_answer_without_records_is_one_buffer(version: int) -> None:
    empty = FetchResponse([FetchedPartition(topic_name(version, number), 0) for number in range(20)])

    assert len(fetch.write_response(version, 7, empty)) == 1
