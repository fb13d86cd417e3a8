"""Produce (API key 0), v3 to v12: record bytes are sliced out of the frame, never copied and never looked into.

    request   transactional_id · acks · timeout_ms · [topic · [partition · records]]
    response  [topic · [partition · error · base_offset · log_append_time · log_start (v5) · record_errors, message (v8)]] · throttle_ms

v9 is the first flexible version. The hints at other leaders of v10 (KIP-951) are never written: every broker serves every partition.
v13 names topics by their ids and is not read here.

`LonePrefix` recognizes a request that is like the last one of its connection but for one partition and its records, v9 to v11.
"""

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Self

from broker.protocol import wire
from broker.protocol.wire import ProtocolViolation

FLEXIBLE_MINIMUM: Final = 9
READABLE: Final = range(3, 13)
PARTITIONS_PER_STEP: Final = 500
"""To read, check and begin this number takes 20 ms of the loop."""

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">i")
_PARTITION_AND_LENGTH: Final = struct.Struct(">ii")
_RESULT_V3: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_PLAIN_RESULT_V8: Final = struct.Struct(">ihqqqih")
_PLAIN_RESULT_V9: Final = struct.Struct(">ihqqqBBx")
_INT32: Final = struct.Struct(">i")
_topic: Final = attrgetter("topic")


class PartitionRecords(NamedTuple):
    """`records` is a slice of the request's frame; None is null on the wire."""

    topic: str
    partition: int
    records: memoryview | None


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]


class PartitionResult(NamedTuple):
    """`record_errors` are pairs of a record's index in its batch and a message.

    `is_duplicate`, which has no place on the wire: the batch was there before, at `base_offset`.
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """Neighbours of one topic in `results` are written as one topic."""

    results: Sequence[PartitionResult]
    throttle_ms: int = 0


def read_request(version: int, frame: memoryview, position: int) -> ProduceRequest:
    """The request whose body starts at `position`. Raise `ProtocolViolation`."""
    reading = read_in_steps(version, frame, position)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            request: ProduceRequest = end.value
            return request


def read_narrow(version: int, frame: memoryview, position: int) -> ProduceRequest | None:
    """As `read_request`; None if it names more than PARTITIONS_PER_STEP partitions, and what is behind them has not been read."""
    assert version in READABLE, f"not a version to be read: {version}"
    try:
        next(_read_request(frame, position, flexible=version >= FLEXIBLE_MINIMUM))
    except StopIteration as end:
        request: ProduceRequest = end.value
        return request
    except wire.MALFORMED as error:
        raise _malformed(version, frame, error) from error
    return None


def read_in_steps(version: int, frame: memoryview, position: int) -> Generator[None, None, ProduceRequest]:
    """As `read_request`, with a step after each PARTITIONS_PER_STEP partitions behind which there are others."""
    assert version in READABLE, f"not a version to be read: {version}"
    try:
        return (yield from _read_request(frame, position, flexible=version >= FLEXIBLE_MINIMUM))
    except wire.MALFORMED as error:
        raise _malformed(version, frame, error) from error


def _malformed(version: int, frame: memoryview, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"malformed Produce request: version={version} bytes={len(frame)} cause={error!r}")


def _read_request(frame: memoryview, at: int, *, flexible: bool) -> Generator[None, None, ProduceRequest]:
    end = len(frame)
    budget = wire.ELEMENTS_MAX
    transactional_id, at = wire.read_nullable_string(frame, at, flexible=flexible, field="transactional_id")
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    at += _ACKS_AND_TIMEOUT.size
    partitions: list[PartitionRecords] = []
    left = PARTITIONS_PER_STEP
    topics, at = wire.read_count(frame, at, flexible=flexible, field="topics", element_bytes_min=3 if flexible else 6)
    budget -= topics
    for _ in range(topics):
        topic, at = wire.read_string(frame, at, flexible=flexible, field="topic")
        count, at = wire.read_count(frame, at, flexible=flexible, field="partitions", element_bytes_min=6 if flexible else 8)
        budget -= count
        if budget < 0:
            wire.refuse_count()
        for _ in range(count):
            left -= 1
            if left < 0:
                left = PARTITIONS_PER_STEP - 1
                yield
            if flexible:
                (partition,) = _PARTITION.unpack_from(frame, at)
                length, at = wire.read_uvarint(frame, at + 4)
                length -= 1
            else:
                partition, length = _PARTITION_AND_LENGTH.unpack_from(frame, at)
                at += 8
            if length == -1:
                records = None
            else:
                stop = at + length
                if not at <= stop <= end:
                    wire.refuse_length("records", length, end - at)
                records = frame[at:stop]
                at = stop
            partitions.append(PartitionRecords(topic, partition, records))
            if flexible:
                if frame[at]:
                    at, budget = wire.skip_tags(frame, at, budget)
                else:
                    at += 1
        if flexible:
            if frame[at]:
                at, budget = wire.skip_tags(frame, at, budget)
            else:
                at += 1
    if flexible and frame[at]:
        wire.skip_tags(frame, at, budget)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def write_response(version: int, correlation_id: int, response: ProduceResponse) -> bytearray:
    """The response with its header, without the length before it."""
    out = bytearray()
    for _ in write_in_steps(version, correlation_id, response, out):
        pass
    return out


def write_in_steps(version: int, correlation_id: int, response: ProduceResponse, out: bytearray) -> Generator[None, None, None]:
    """As `write_response`, to the end of `out`, with a step after each PARTITIONS_PER_STEP results behind which there are others."""
    assert version in READABLE, f"not a version to be written: {version}"
    flexible = version >= FLEXIBLE_MINIMUM
    out += _INT32.pack(correlation_id)
    if flexible:
        out.append(0)
    topics = []
    for topic, results_of_it in groupby(response.results, _topic):
        topics.append((topic, list(results_of_it)))
        if len(topics) % PARTITIONS_PER_STEP == 0:
            yield
    left = PARTITIONS_PER_STEP
    out += wire.count(len(topics), flexible=flexible)
    for topic, results in topics:
        out += wire.string(topic, flexible=flexible)
        out += wire.count(len(results), flexible=flexible)
        for _, partition, error_code, base_offset, append_ms, log_start, record_errors, message, _ in results:
            left -= 1
            if left < 0:
                left = PARTITIONS_PER_STEP - 1
                yield
            if version < 5:
                out += _RESULT_V3.pack(partition, error_code, base_offset, append_ms)
            elif version < 8:
                out += _RESULT_V5.pack(partition, error_code, base_offset, append_ms, log_start)
            elif record_errors or message is not None:
                out += _RESULT_V5.pack(partition, error_code, base_offset, append_ms, log_start)
                out += _explanation(record_errors, message, flexible=flexible)
            elif flexible:
                out += _PLAIN_RESULT_V9.pack(partition, error_code, base_offset, append_ms, log_start, 1, 0)
            else:
                out += _PLAIN_RESULT_V8.pack(partition, error_code, base_offset, append_ms, log_start, 0, -1)
        if flexible:
            out.append(0)
    out += _INT32.pack(response.throttle_ms)
    if flexible:
        out.append(0)


def _explanation(record_errors: Sequence[tuple[int, str | None]], message: str | None, *, flexible: bool) -> bytearray:
    """What v8 says of a refused batch: `record_errors`, `error_message`."""
    no_tags = b"\x00" if flexible else b""
    out = bytearray(wire.count(len(record_errors), flexible=flexible))
    for batch_index, text in record_errors:
        out += _INT32.pack(batch_index) + wire.string(text, flexible=flexible) + no_tags
    return out + wire.string(message, flexible=flexible) + no_tags


_CORRELATION_ID: Final = slice(4, 8)
_ENDS: Final = b"\0\0\0"
"""No tagged fields: of the partition, of the topic, of the request."""
_ACKS_AND_TIMEOUT_BYTES: Final = 6


class LoneProduce(NamedTuple):
    """`records` is a slice of the request's frame."""

    correlation_id: int
    partition: int
    records: memoryview


class LonePrefix:
    """What the requests of one partition of a connection begin with, up to the number of the partition.

    A producer that sends small batches sends nothing else: the bytes before the partition are the same from request to request, and so are
    those before it in the reply. Whatever is not recognized for certain is for `read_request`.
    """

    __slots__ = ("_before", "_behind", "_end", "_reply", "_topic_in_reply", "topic", "version")

    def __init__(self, version: int, frame: memoryview, end: int, topic: str) -> None:
        self.version = version
        self.topic = topic
        self._end = end
        self._before, self._behind = bytes(frame[: _CORRELATION_ID.start]), bytes(frame[_CORRELATION_ID.stop : end])
        self._topic_in_reply = b"\x02" + wire.string(topic, flexible=True) + b"\x02"
        # correlation id, no tags · one topic of one partition · partition, error, three numbers, no record errors, no message ·
        # no tags, no tags, throttle time 0, no tags
        self._reply = struct.Struct(f">ix{len(self._topic_in_reply)}sihqqqBB7x")

    @classmethod
    def of(cls, version: int, frame: memoryview, body_position: int, request: ProduceRequest) -> Self | None:
        """The prefix of `request`, which is what `frame` says; None if it has another shape, or waits for no answer."""
        if version < FLEXIBLE_MINIMUM or len(request.partitions) != 1 or not request.acks or request.transactional_id is not None:
            return None
        ((topic, partition, records),) = request.partitions
        if records is None:
            return None
        # transactional_id null, acks and timeout, one topic, its name, one partition: with the shortest numbers that there are
        end = body_position + 1 + _ACKS_AND_TIMEOUT_BYTES + 1 + len(wire.string(topic, flexible=True)) + 1
        prefix = cls(version, frame, end, topic)
        found = prefix.match(frame)
        is_whole = found is not None and found.partition == partition and len(found.records) == len(records)
        return prefix if is_whole else None

    def match(self, frame: memoryview) -> LoneProduce | None:
        """None if it may be another kind of request, or is none."""
        at, size = self._end, len(frame)
        if (
            size < at + 8
            or bytes(frame[: _CORRELATION_ID.start]) != self._before
            or bytes(frame[_CORRELATION_ID.stop : at]) != self._behind
        ):
            return None
        try:
            length, start = wire.read_uvarint(frame, at + 4)
        except (*wire.MALFORMED, ProtocolViolation):
            return None
        stop = start + length - 1
        if length < 1 or stop + len(_ENDS) != size or bytes(frame[stop:]) != _ENDS:
            return None
        return LoneProduce(_INT32.unpack_from(frame, _CORRELATION_ID.start)[0], _INT32.unpack_from(frame, at)[0], frame[start:stop])

    def reply(self, correlation_id: int, result: PartitionResult) -> bytes:
        """As `write_response` of a result without a message, and without a throttle time."""
        assert result.error_message is None, "it has no place here"
        return self._reply.pack(
            correlation_id,
            self._topic_in_reply,
            result.partition,
            result.error_code,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
            1,
            0,
        )
