"""Produce requests that are like the last one of their connection but for one partition and its records, v9 to v11.

A producer that sends small batches sends nothing else: the bytes before the partition are the same from request to request, and so are
those before it in the reply. Whatever is not recognized for certain is for `broker/protocol/produce.py` to read.
"""

import struct
from typing import Final, NamedTuple, Self

from broker.protocol import wire
from broker.protocol.errors import ProtocolViolation
from broker.protocol.produce import FLEXIBLE_MINIMUM, PartitionResult, ProduceRequest

_INT32: Final = struct.Struct(">i")
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
    """What the requests of one partition of a connection begin with, up to the number of the partition."""

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
