"""ListOffsets requests for the ends of partitions, as those send again and again who follow them: v6 to v10.

The lag of a consumer, the next batch of a stream: the same bytes but for the correlation id, and a reply of the same bytes but for that and
the offsets. Whatever has another shape is for `broker/protocol/codec.py`.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10 import ListOffsetsRequest

from broker.protocol import wire

FLEXIBLE_MINIMUM: Final = 6
LATEST: Final = -1
EARLIEST: Final = -2
NO_LEADER_EPOCH: Final = -1
_CORRELATION_ID: Final = struct.Struct(">i")
_AT_CORRELATION_ID: Final = slice(4, 8)
_ANSWER: Final = struct.Struct(">hqqi")
_NONE: Final = -1


class AskedEnd(NamedTuple):
    topic: str
    partition: int
    is_latest: bool


def repeated_key(frame: memoryview) -> bytes:
    """What two requests have in common that ask for the same: all of it but the correlation id."""
    return bytes(frame[: _AT_CORRELATION_ID.start]) + bytes(frame[_AT_CORRELATION_ID.stop :])


def correlation_id_of(frame: memoryview) -> int:
    """The id that a request with a known `repeated_key` has."""
    return int(_CORRELATION_ID.unpack(frame[_AT_CORRELATION_ID])[0])


class RepeatedRequest:
    """What such a request asks for, in its order, and the reply to it but for what changes."""

    __slots__ = ("_at", "_template", "asked", "client_id")

    def __init__(self, body: ListOffsetsRequest, client_id: str | None) -> None:
        self.client_id = client_id
        self.asked = tuple([AskedEnd(t.name, p.partition_index, p.timestamp == LATEST) for t in body.topics for p in t.partitions])
        # correlation id, no tags, throttle time 0; topics with their partitions: number, what `_ANSWER` has, no tags
        reply = bytearray(_CORRELATION_ID.size + 1 + 4) + wire.uvarint(len(body.topics) + 1)
        places = []
        for topic in body.topics:
            reply += wire.string(topic.name, flexible=True) + wire.uvarint(len(topic.partitions) + 1)
            for partition in topic.partitions:
                reply += _CORRELATION_ID.pack(partition.partition_index)
                places.append(len(reply))
                reply += bytes(_ANSWER.size + 1)
            reply += b"\0"
        self._template = bytes(reply + b"\0")
        self._at = tuple(places)

    @classmethod
    def of(cls, version: int, body: ListOffsetsRequest, client_id: str | None) -> Self | None:
        """None for a request of another shape: of times, of a leader epoch that has to be checked, or of a partition twice."""
        if version < FLEXIBLE_MINIMUM:
            return None
        names = set()
        for topic in body.topics:
            for partition in topic.partitions:
                if partition.timestamp not in (LATEST, EARLIEST) or partition.current_leader_epoch != NO_LEADER_EPOCH:
                    return None
                names.add((topic.name, partition.partition_index))
        if not names or len(names) != sum([len(topic.partitions) for topic in body.topics]):
            return None
        return cls(body, client_id)

    def reply(self, correlation_id: int, answers: Sequence[int | ErrorCode], leader_epoch: int) -> bytearray:
        """With the header, without the length before it. `answers`: an offset for each that was asked for, or why there is none."""
        out = bytearray(self._template)
        _CORRELATION_ID.pack_into(out, 0, correlation_id)
        for at, answer in zip(self._at, answers, strict=True):
            if isinstance(answer, ErrorCode):
                _ANSWER.pack_into(out, at, answer, _NONE, _NONE, _NONE)
            else:
                _ANSWER.pack_into(out, at, 0, _NONE, answer, leader_epoch)
        return out
