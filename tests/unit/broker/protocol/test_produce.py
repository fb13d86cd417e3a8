import datetime
import importlib
import random
import struct
from types import ModuleType

import pytest
from kio.schema.errors import ErrorCode

from broker.protocol import produce
from broker.protocol.compiler import compile_encoder, describe
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest, ProduceResponse
from broker.protocol.wire import ProtocolViolation
from tests.kit.kafka_values import as_namespace, in_milliseconds, kio_encoded, with_unknown_tag

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
every_version = pytest.mark.parametrize("version", produce.READABLE)


def kio(version: int, kind: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.produce.v{version}.{kind}")


def kio_request(version: int, request: ProduceRequest) -> object:
    module = kio(version, "request")
    topics: dict[str, list[object]] = {}
    for topic, partition, records in request.partitions:
        content = None if records is None else bytes(records)
        topics.setdefault(topic, []).append(module.PartitionProduceData(index=partition, records=content))
    return module.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=datetime.timedelta(milliseconds=request.timeout_ms),
        topic_data=tuple(module.TopicProduceData(name=topic, partition_data=tuple(data)) for topic, data in topics.items()),
    )


def a_request(chance: random.Random, *, transactional_id: str | None = None) -> ProduceRequest:
    partitions = [
        PartitionRecords(f"topic-{topic}" * (1 + 20 * (topic % 2)), partition, _records(chance))
        for topic in range(chance.randrange(4))
        for partition in range(chance.choice((1, 2, 130)))
    ]
    return ProduceRequest(transactional_id, chance.choice((0, 1, -1)), chance.randrange(-5, 60_000), partitions)


def _records(chance: random.Random) -> memoryview | None:
    return None if chance.random() < 0.1 else memoryview(chance.randbytes(chance.choice((0, 61, 126, 127, 20_000))))


@every_version
def test_what_kio_writes_is_read_without_a_copy(version: int) -> None:
    chance = random.Random(version)
    for transactional_id in (None, "", "t", "t" * 200):
        request = a_request(chance, transactional_id=transactional_id)
        frame = memoryview(b"header" + kio_encoded(kio_request(version, request)))

        read = produce.read_request(version, frame, 6)

        assert read == request
        assert all(records is None or records.obj is frame.obj for _, _, records in read.partitions)


@pytest.mark.parametrize("version", [9, 11, 12])
def test_unknown_tags_are_skipped_in_every_structure(version: int) -> None:
    request = a_request(random.Random(version), transactional_id="t")
    values = in_milliseconds(kio_request(version, request))
    later = with_unknown_tag(describe(type(values)), tag=9)  # type: ignore[arg-type]
    body = bytearray()
    compile_encoder(later, later)(as_namespace(values, unknown="u" * 200), body)

    assert produce.read_request(version, memoryview(body), 0) == request


@pytest.mark.parametrize(
    ("version", "length"), [(3, struct.pack(">i", 5)), (3, struct.pack(">i", -2)), (11, b"\x06"), (11, b"\xff\xff\xff\xff\x0f")]
)
def test_records_longer_than_what_remains_are_a_violation(version: int, length: bytes) -> None:
    if version < produce.FLEXIBLE_MINIMUM:
        head = struct.pack(">hhii", -1, 1, 0, 1) + b"\x00\x01t" + struct.pack(">ii", 1, 0)
    else:
        head = b"\x00" + struct.pack(">hi", 1, 0) + b"\x02\x02t\x02" + struct.pack(">i", 0)

    with pytest.raises(ProtocolViolation, match="length out of bounds: field=records"):
        produce.read_request(version, memoryview(head + length + b"abcd"), 0)


def test_a_null_topic_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="field=topic length=-1"):
        produce.read_request(3, memoryview(struct.pack(">hhiih", -1, 1, 0, 1, -1) + bytes(4)), 0)


def test_a_body_cut_short_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="malformed Produce request: version=11 bytes=3"):
        produce.read_request(11, memoryview(b"\x00\x00\x01"), 0)


@pytest.mark.parametrize("version", [2, 13])
def test_versions_of_another_layout_are_not_read(version: int) -> None:
    with pytest.raises(AssertionError, match="not a version to be read"):
        produce.read_request(version, memoryview(b""), 0)


RESULTS = [
    PartitionResult("a", 0, 0, 100, -1, 5),
    PartitionResult("a", 7, 87, record_errors=((3, "null key"), (4, None)), error_message="refused"),
    PartitionResult("b" * 200, 1, 0, 2**62, 1_700_000_000_123, 0),
    PartitionResult("b" * 200, 2, 10, error_message=""),
    PartitionResult("c", 0, 87, record_errors=((0, ""),) * 130),
]


def kio_response(version: int, response: ProduceResponse) -> object:
    module = kio(version, "response")
    topics: dict[str, list[object]] = {}
    for result in response.results:
        newer: dict[str, object] = {}
        if version >= 5:
            newer["log_start_offset"] = result.log_start_offset
        if version >= 8:
            newer["error_message"] = result.error_message
            newer["record_errors"] = tuple(
                module.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text) for index, text in result.record_errors
            )
        appended = result.log_append_time_ms
        topics.setdefault(result.topic, []).append(
            module.PartitionProduceResponse(
                index=result.partition,
                error_code=ErrorCode(result.error_code),
                base_offset=result.base_offset,
                log_append_time=None if appended == -1 else EPOCH + datetime.timedelta(milliseconds=appended),
                **newer,
            )
        )
    return module.ProduceResponse(
        responses=tuple(module.TopicProduceResponse(name=topic, partition_responses=tuple(parts)) for topic, parts in topics.items()),
        throttle_time=datetime.timedelta(milliseconds=response.throttle_ms),
    )


@every_version
@pytest.mark.parametrize("results", [[], RESULTS[:1], RESULTS], ids=len)
def test_a_response_is_written_as_kio_writes_it(version: int, results: list[PartitionResult]) -> None:
    response = ProduceResponse(results, throttle_ms=9)
    expected = kio_response(version, response)
    header = b"\x00\x00\x00\x07" + (b"\x00" if type(expected).__header_schema__.__flexible__ else b"")  # type: ignore[attr-defined]

    assert produce.write_response(version, 7, response) == header + kio_encoded(expected)
