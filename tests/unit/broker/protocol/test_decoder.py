import datetime
import struct
import uuid

import pytest
from kio.schema.consumer_group_heartbeat.v0.response import Assignment, ConsumerGroupHeartbeatResponse
from kio.schema.create_topics.v2 import request as v2
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.fetch.v17.request import FetchRequest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.offset_commit.v3.request import OffsetCommitRequest
from kio.static.primitive import i32, i32Timedelta

from broker.protocol import wire
from broker.protocol.compiler import (
    DECODED_PER_STEP,
    Structure,
    bytes_min,
    compile_decoder,
    compile_stepwise_decoder,
    describe,
    structure_bytes_min,
    to_uuid,
)
from broker.protocol.wire import ProtocolViolation
from tests.kit.kafka_values import kio_encoded

MALFORMED = (ProtocolViolation, *wire.MALFORMED)
METADATA = describe(MetadataRequest)
TOPIC_ID = bytes(range(16))


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def fetch_request() -> FetchRequest:
    no_wait = i32Timedelta.parse(datetime.timedelta(0))
    return FetchRequest(max_wait=no_wait, min_bytes=i32(1), topics=(), forgotten_topics_data=())


def test_an_older_version_is_decoded_into_the_newest_class_with_its_defaults() -> None:
    topic = struct.pack(">ih", 3, 1) + struct.pack(">i", 0) + struct.pack(">i", 0)
    body = struct.pack(">i", 1) + string("t") + topic + struct.pack(">i?", 250, True)

    request = compile_decoder(describe(v2.CreateTopicsRequest), describe(CreateTopicsRequest))(body)

    assert isinstance(request, CreateTopicsRequest)
    assert request.topics == (CreatableTopic(name="t", num_partitions=3, replication_factor=1, assignments=(), configs=()),)  # type: ignore[arg-type]
    assert request.timeout == 250
    assert request.validate_only is True


def test_a_time_no_timedelta_can_hold_is_an_integer() -> None:
    body = string("g") + struct.pack(">i", 1) + string("m") + struct.pack(">qi", 2**63 - 1, 0)

    request = compile_decoder(describe(OffsetCommitRequest), describe(OffsetCommitRequest))(body)

    assert isinstance(request, OffsetCommitRequest)
    assert request.retention_time == 2**63 - 1


def test_a_null_array_is_none_where_null_is_allowed() -> None:
    request = compile_decoder(METADATA, METADATA)(b"\x00\x01\x01\x00")

    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=True, include_topic_authorized_operations=True)


def test_a_null_array_is_a_violation_where_null_is_not_allowed() -> None:
    structure = describe(v2.CreateTopicsRequest)

    with pytest.raises(ProtocolViolation, match="length out of bounds: field=topics length=-1"):
        compile_decoder(structure, structure)(struct.pack(">ii?", -1, 0, False))


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x7f", b"\x03"])
def test_an_array_that_cannot_be_in_what_remains_is_a_violation_before_it_is_built(count: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="length out of bounds: field=topics"):
        compile_decoder(METADATA, METADATA)(count + bytes(30))


def test_a_string_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(UnicodeDecodeError):
        compile_decoder(METADATA, METADATA)(b"\x02" + TOPIC_ID + b"\x02\xff\x00" + b"\x00\x00\x00")


def test_a_string_longer_than_what_remains_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="length out of bounds: field=name length=99 remaining=4"):
        compile_decoder(METADATA, METADATA)(b"\x02" + TOPIC_ID + b"\x64\x00\x00\x00\x00")


def test_more_elements_than_the_bound_are_a_violation() -> None:
    body = wire.uvarint(wire.ELEMENTS_MAX + 2) + bytes(19 * (wire.ELEMENTS_MAX + 1))

    with pytest.raises(ProtocolViolation, match=f"too many elements in one request: maximum={wire.ELEMENTS_MAX}"):
        compile_decoder(METADATA, METADATA)(body)


def test_elements_of_nested_arrays_share_one_bound() -> None:
    half = wire.ELEMENTS_MAX // 2
    topic = string("t") + struct.pack(">ihi", 1, 1, 0) + struct.pack(">i", half) + (string("k") + struct.pack(">h", -1)) * half
    structure = describe(v2.CreateTopicsRequest)

    with pytest.raises(ProtocolViolation, match="too many elements"):
        compile_decoder(structure, structure)(struct.pack(">i", 3) + topic * 3 + struct.pack(">i?", 0, False))


def test_a_string_longer_than_kafka_has_is_a_violation_also_where_its_length_could_say_so() -> None:
    length = wire.STRING_BYTES_MAX + 1
    body = b"\x02" + TOPIC_ID + wire.uvarint(length + 1) + bytes(length) + bytes(3)

    with pytest.raises(ProtocolViolation, match="string too long: field=name bytes=32768 maximum=32767"):
        compile_decoder(METADATA, METADATA)(body)
    assert compile_decoder(METADATA, METADATA)(b"\x02" + TOPIC_ID + wire.uvarint(length) + bytes(length - 1) + bytes(4))


@pytest.mark.parametrize("known", [METADATA, describe(FetchRequest)], ids=["without tags", "with tags"])
def test_more_tags_than_anybody_has_are_a_violation(known: Structure) -> None:
    plain = kio_encoded(fetch_request())[:-1] if known is not METADATA else b"\x01\x00\x00"
    tags = b"".join(wire.uvarint(1_000 + number) + b"\x00" for number in range(wire.TAGS_MAX + 1))

    with pytest.raises(ProtocolViolation, match="too many elements"):
        compile_decoder(known, known)(plain + wire.uvarint(wire.TAGS_MAX + 1) + tags)


def test_a_long_request_is_read_in_steps() -> None:
    names = 4 * DECODED_PER_STEP
    body = wire.uvarint(names + 1) + (TOPIC_ID + b"\x02x\x00") * names + b"\x00\x00\x00"

    steps = list(compile_stepwise_decoder(METADATA, METADATA)(body))

    assert len(steps) == 4


def test_known_tags_are_read_among_unknown_ones() -> None:
    fetch = describe(FetchRequest)
    plain = kio_encoded(fetch_request())[:-1]
    cluster_id, unknown, replica_state = b"\x00\x03\x03ab", b"\x07\x02zz", b"\x01\x0d" + struct.pack(">iqx", 5, 6)

    request = compile_decoder(fetch, fetch)(plain + b"\x03" + cluster_id + unknown + replica_state)

    assert isinstance(request, FetchRequest)
    assert request.cluster_id == "ab"
    assert request.replica_state.replica_id == 5


def test_a_known_tag_of_another_size_than_declared_is_a_violation() -> None:
    fetch = describe(FetchRequest)
    plain = kio_encoded(fetch_request())[:-1]

    with pytest.raises(ProtocolViolation, match="tagged field of another size than declared: tag=0 declared=4 actual=3"):
        compile_decoder(fetch, fetch)(plain + b"\x01\x00\x04\x03ab\x00")


def test_a_nullable_structure_is_led_by_a_byte() -> None:
    structure = describe(ConsumerGroupHeartbeatResponse)
    head = struct.pack(">ih", 0, 0) + b"\x00\x00" + struct.pack(">ii", 1, 2)

    without = compile_decoder(structure, structure)(head + b"\xff\x00")
    with_one = compile_decoder(structure, structure)(head + b"\x01\x01\x00\x00")

    assert isinstance(without, ConsumerGroupHeartbeatResponse)
    assert without.assignment is None
    assert isinstance(with_one, ConsumerGroupHeartbeatResponse)
    assert with_one.assignment == Assignment(topic_partitions=())


def test_what_follows_the_message_is_ignored() -> None:
    decode = compile_decoder(METADATA, METADATA)

    assert decode(b"\x00\x01\x01\x00" + b"trailing") == decode(b"\x00\x01\x01\x00")


def test_zeros_are_no_uuid() -> None:
    assert to_uuid(bytes(16)) is None
    assert to_uuid(TOPIC_ID) == uuid.UUID(bytes=TOPIC_ID)


def test_the_least_size_counts_every_field_once() -> None:
    topics = METADATA.find("topics")

    assert topics is not None
    assert bytes_min(topics, flexible=True) == 16 + 1 + 1
    assert structure_bytes_min(METADATA) == 1 + 1 + 1 + 1
    assert structure_bytes_min(describe(v2.CreatableTopic)) == 2 + 4 + 2 + 4 + 4
    assert structure_bytes_min(describe(Assignment)) == 1 + 1
