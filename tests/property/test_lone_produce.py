"""What is taken for a request like the last one is read as it would be read otherwise, whatever comes."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol import codec, produce, wire
from broker.protocol.produce import LonePrefix, PartitionResult, ProduceResponse
from broker.protocol.wire import ProtocolViolation

TOPICS = st.sampled_from(["t", "a-longer-name-of-a-topic", "x" * 130])
CLIENTS = st.sampled_from([None, "", "app", "äpp"])


@dataclass(frozen=True)
class Asked:
    version: int
    client_id: str | None
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic: str
    partition: int
    records: bytes | None
    behind: bytes
    """What is behind the records: mostly that there are no tagged fields."""

    def frame(self, correlation_id: int) -> memoryview:
        client = (
            struct.pack(">h", -1) if self.client_id is None else struct.pack(">h", len(self.client_id.encode())) + self.client_id.encode()
        )
        records = wire.uvarint(0) if self.records is None else wire.uvarint(len(self.records) + 1) + self.records
        return memoryview(
            bytearray(
                struct.pack(">hhi", codec.PRODUCE, self.version, correlation_id)
                + client
                + b"\0"
                + wire.string(self.transactional_id, flexible=True)
                + struct.pack(">hi", self.acks, self.timeout_ms)
                + b"\x02"
                + wire.string(self.topic, flexible=True)
                + b"\x02"
                + struct.pack(">i", self.partition)
                + records
                + self.behind
            )
        )


ASKED = st.builds(
    Asked,
    version=st.sampled_from([9, 10, 11]),
    client_id=CLIENTS,
    transactional_id=st.sampled_from([None, None, None, "tx"]),
    acks=st.sampled_from([-1, 1, 0]),
    timeout_ms=st.sampled_from([30_000, 1]),
    topic=TOPICS,
    partition=st.integers(-1, 300),
    records=st.none() | st.binary(max_size=300),
    behind=st.sampled_from([b"\0\0\0", b"\0\0\0", b"\0\0\0", b"\0\0\1\5\0", b"\0\0", b"\0\0\0\0", b"", b"\1\0\0\0\0"]),
)


def prefix_of(frame: memoryview) -> LonePrefix | None:
    """As the dispatcher makes it: of a request that could be read."""
    try:
        header = codec.decode_header(frame)
        request = produce.read_narrow(header.api_version, frame, header.body_position)
    except ProtocolViolation:
        return None
    return None if request is None else LonePrefix.of(header.api_version, frame, header.body_position, request)


def check(prefix: LonePrefix, frame: memoryview) -> bool:
    """Whether it was taken for one that is alike; then it must be."""
    lone = prefix.match(frame)
    if lone is None:
        return False
    header = codec.decode_header(frame)
    request = produce.read_narrow(header.api_version, frame, header.body_position)
    assert request is not None
    ((topic, partition, records),) = request.partitions
    assert (header.api_key, header.api_version, header.correlation_id) == (codec.PRODUCE, prefix.version, lone.correlation_id)
    assert (topic, partition, records) == (prefix.topic, lone.partition, lone.records)
    assert request.acks
    assert request.transactional_id is None
    return True


@given(ASKED, ASKED)
def test_a_request_is_taken_for_one_like_the_last_only_if_it_reads_so(last: Asked, asked: Asked) -> None:
    prefix = prefix_of(last.frame(7))
    if prefix is not None:
        check(prefix, asked.frame(8))


@pytest.mark.parametrize("behind", [b"\1\0\0", b"\0\1\0", b"\0\0\1"], ids=["the partition", "the topic", "the request"])
def test_a_request_whose_records_are_followed_by_a_tag_without_bytes_is_none_like_the_last(behind: bytes) -> None:
    usual = Asked(11, "app", None, -1, 1, "t", 0, b"batch", b"\0\0\0")
    prefix = prefix_of(usual.frame(1))
    assert prefix is not None

    assert prefix.match(Asked(**{**vars(usual), "behind": behind}).frame(2)) is None


@given(ASKED, st.integers(0, 300), st.none() | st.binary(max_size=300))
def test_one_that_differs_in_its_partition_and_its_records_is_recognized(last: Asked, partition: int, records: bytes | None) -> None:
    prefix = prefix_of(last.frame(7))
    is_usual = last.transactional_id is None and bool(last.acks) and last.records is not None and last.behind == b"\0\0\0"
    assert (prefix is not None) == is_usual
    if prefix is None:
        return
    alike = Asked(**{**vars(last), "partition": partition, "records": records})
    assert check(prefix, alike.frame(8)) == (records is not None)
    found = prefix.match(alike.frame(9))
    if found is not None:
        assert (found.correlation_id, found.partition, found.records) == (9, partition, records)


@given(ASKED, st.data())
def test_no_spoilt_frame_is_taken_for_what_it_is_not(last: Asked, data: st.DataObject) -> None:
    frame = last.frame(7)
    prefix = prefix_of(frame)
    if prefix is None:
        return
    spoilt = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        match data.draw(st.sampled_from(["change", "remove", "insert", "cut"])):
            case "change":
                spoilt[at] = data.draw(st.integers(0, 255))
            case "remove":
                del spoilt[at]
            case "insert":
                spoilt.insert(at, data.draw(st.integers(0, 255)))
            case "cut":
                del spoilt[at:]
        if not spoilt:
            break
    check(prefix, memoryview(spoilt))


@given(st.sampled_from([9, 10, 11]), TOPICS, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_the_reply_is_the_one_that_is_written_otherwise(version: int, topic: str, partition: int, offset: int, time_ms: int) -> None:
    last = Asked(version, "app", None, -1, 1, topic, 0, b"batch", b"\0\0\0")
    prefix = prefix_of(last.frame(1))
    assert prefix is not None
    result = PartitionResult(topic, partition, 0, offset, time_ms, 5)

    assert prefix.reply(77, result) == produce.write_response(version, 77, ProduceResponse([result]))
