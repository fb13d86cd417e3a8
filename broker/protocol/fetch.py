"""Fetch (API key 1), v4 to v17: the response is a list of buffers, in which record bytes stay where they are.

    request    [replica_id (to v14)] · max_wait · min_bytes · max_bytes · isolation · [session (v7)]
               · [topic · [partition …]] · [forgotten (v7)] · [rack (v11)]
    partition  partition · [leader_epoch (v9)] · fetch_offset · [last_epoch (v12)] · [log_start (v5)] · max_bytes
    response   throttle_ms · [error, session (v7)] · [topic · [partition · error · high_watermark · last_stable
               · [log_start (v5)] · aborted · [replica (v11)] · records]]

v12 is the first flexible version, v13 the first that names topics by their ids. Replicas are not served, so what only they send
(replica id and state, cluster id) is stepped over; the hints at other leaders (KIP-951) are never written.
"""

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from broker.protocol import wire
from broker.protocol.wire import ProtocolViolation
from storage.vocabulary import Buffer

FLEXIBLE_MINIMUM: Final = 12
TOPIC_IDS_MINIMUM: Final = 13
READABLE: Final = range(4, 18)
PARTITIONS_PER_STEP: Final = 500

_LIMITS: Final = struct.Struct(">iiib")
_INT32: Final = struct.Struct(">i")
_SESSION: Final = struct.Struct(">ii")
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_TOP_V4: Final = struct.Struct(">ii")
_TOP_V7: Final = struct.Struct(">iihi")
_TOP_V12: Final = struct.Struct(">ixihi")
_ANSWER_V4: Final = struct.Struct(">ihqq")
_ANSWER_V5: Final = struct.Struct(">ihqqq")
_PLAIN_ANSWER_V12: Final = struct.Struct(">ihqqqxi")
_ABORTED: Final = struct.Struct(">qq")
_NO_ELEMENTS: Final = 1
"""The length of an empty array in flexible versions."""
_topic: Final = attrgetter("topic")


class FetchPartition(NamedTuple):
    """`topic` is its name up to v12, from v13 on its id in the canonical text form."""

    topic: str
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    partition_max_bytes: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """`forgotten` are the partitions, by topic as above, that leave the session."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    rack_id: str
    partitions: list[FetchPartition]
    forgotten: list[tuple[str, int]]


class FetchedPartition(NamedTuple):
    """`topic` as in the request. `records` are buffers of bytes, written one after another; none is an empty answer, never null.

    `aborted_transactions` are pairs of producer id and first offset; None for a reader of uncommitted records.
    """

    topic: str
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Neighbours of one topic in `partitions` are written as one topic. v4 to v6 have no error code of the whole, nor a session."""

    partitions: Sequence[FetchedPartition]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0


def read_request(version: int, frame: memoryview, position: int) -> FetchRequest:
    """The request whose body starts at `position`. Raise `ProtocolViolation`."""
    reading = read_in_steps(version, frame, position)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            request: FetchRequest = end.value
            return request


def read_narrow(version: int, frame: memoryview, position: int) -> FetchRequest | None:
    """As `read_request`; None if it names more than PARTITIONS_PER_STEP partitions, and what is behind them has not been read."""
    assert version in READABLE, f"not a version to be read: {version}"
    try:
        next(_read_request(version, frame, position))
    except StopIteration as end:
        request: FetchRequest = end.value
        return request
    except wire.MALFORMED as error:
        raise _malformed(version, frame, error) from error
    return None


def read_in_steps(version: int, frame: memoryview, position: int) -> Generator[None, None, FetchRequest]:
    """As `read_request`, with a step after each PARTITIONS_PER_STEP partitions behind which there are others."""
    assert version in READABLE, f"not a version to be read: {version}"
    try:
        return (yield from _read_request(version, frame, position))
    except wire.MALFORMED as error:
        raise _malformed(version, frame, error) from error


def _malformed(version: int, frame: memoryview, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"malformed Fetch request: version={version} bytes={len(frame)} cause={error!r}")


def _read_request(version: int, frame: memoryview, at: int) -> Generator[None, None, FetchRequest]:
    flexible = version >= FLEXIBLE_MINIMUM
    if version < 15:
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, at)
    at += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, at)
        at += _SESSION.size
    partitions, at, budget = yield from _read_partitions(version, frame, at, budget=wire.ELEMENTS_MAX)
    forgotten: list[tuple[str, int]] = []
    if flexible and frame[at] == _NO_ELEMENTS:
        at += 1
    elif version >= 7:
        forgotten, at, budget = _read_forgotten(version, frame, at, budget=budget)
    rack_id = ""
    if version >= 11:
        rack_id, at = wire.read_string(frame, at, flexible=flexible, field="rack_id")
    if flexible and frame[at]:
        wire.skip_tags(frame, at, budget)
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, rack_id, partitions, forgotten)


def _read_partitions(
    version: int, frame: memoryview, at: int, *, budget: int
) -> Generator[None, None, tuple[list[FetchPartition], int, int]]:
    flexible = version >= FLEXIBLE_MINIMUM
    layout = _PARTITION_V12 if flexible else _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    unpack, size = layout.unpack_from, layout.size
    topic_bytes_min = 18 if version >= TOPIC_IDS_MINIMUM else 3 if flexible else 6
    partitions: list[FetchPartition] = []
    left = PARTITIONS_PER_STEP
    topics, at = wire.read_count(frame, at, flexible=flexible, field="topics", element_bytes_min=topic_bytes_min)
    budget -= topics
    for _ in range(topics):
        topic, at = _read_topic(version, frame, at)
        count, at = wire.read_count(frame, at, flexible=flexible, field="partitions", element_bytes_min=size + flexible)
        budget -= count
        if budget < 0:
            wire.refuse_count()
        for _ in range(count):
            left -= 1
            if left < 0:
                left = PARTITIONS_PER_STEP - 1
                yield
            leader_epoch = last_epoch = log_start = -1
            if flexible:
                partition, leader_epoch, offset, last_epoch, log_start, bytes_max = unpack(frame, at)
            elif version >= 9:
                partition, leader_epoch, offset, log_start, bytes_max = unpack(frame, at)
            elif version >= 5:
                partition, offset, log_start, bytes_max = unpack(frame, at)
            else:
                partition, offset, bytes_max = unpack(frame, at)
            at += size
            partitions.append(FetchPartition(topic, partition, leader_epoch, offset, bytes_max, last_epoch, log_start))
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
    return partitions, at, budget


def _read_forgotten(version: int, frame: memoryview, at: int, *, budget: int) -> tuple[list[tuple[str, int]], int, int]:
    flexible = version >= FLEXIBLE_MINIMUM
    topic_bytes_min = 18 if version >= TOPIC_IDS_MINIMUM else 3 if flexible else 6
    forgotten: list[tuple[str, int]] = []
    topics, at = wire.read_count(frame, at, flexible=flexible, field="forgotten_topics", element_bytes_min=topic_bytes_min)
    budget -= topics
    for _ in range(topics):
        topic, at = _read_topic(version, frame, at)
        count, at = wire.read_count(frame, at, flexible=flexible, field="forgotten_partitions", element_bytes_min=4)
        budget -= count
        if budget < 0:
            wire.refuse_count()
        forgotten += [(topic, partition) for partition in struct.unpack_from(f">{count}i", frame, at)]
        at += 4 * count
        if flexible:
            at, budget = wire.skip_tags(frame, at, budget)
    return forgotten, at, budget


def _read_topic(version: int, frame: memoryview, at: int) -> tuple[str, int]:
    if version >= TOPIC_IDS_MINIMUM:
        digits = frame[at : at + 16].hex()
        # A slice past the end is short, not an error; the count before it has promised sixteen bytes.
        if len(digits) != 32:
            wire.refuse_length("topic_id", 16, len(frame) - at)
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}", at + 16
    return wire.read_string(frame, at, flexible=version >= FLEXIBLE_MINIMUM, field="topic")


def write_response(version: int, correlation_id: int, response: FetchResponse) -> list[Buffer]:
    """The response with its header, without the length before it. Buffers of records are handed on as they are."""
    pieces: list[Buffer] = []
    for _ in write_in_steps(version, correlation_id, response, pieces):
        pass
    return pieces


def write_in_steps(version: int, correlation_id: int, response: FetchResponse, pieces: list[Buffer]) -> Generator[None, None, None]:
    """As `write_response`, into `pieces`, with a step after each PARTITIONS_PER_STEP partitions behind which there are others."""
    assert version in READABLE, f"not a version to be written: {version}"
    flexible = version >= FLEXIBLE_MINIMUM
    if flexible:
        piece = bytearray(_TOP_V12.pack(correlation_id, response.throttle_ms, response.error_code, response.session_id))
    elif version >= 7:
        piece = bytearray(_TOP_V7.pack(correlation_id, response.throttle_ms, response.error_code, response.session_id))
    else:
        piece = bytearray(_TOP_V4.pack(correlation_id, response.throttle_ms))
    left = PARTITIONS_PER_STEP
    topics = []
    for topic, partitions_of_it in groupby(response.partitions, _topic):
        topics.append((topic, list(partitions_of_it)))
        if len(topics) % PARTITIONS_PER_STEP == 0:
            yield
    piece += wire.count(len(topics), flexible=flexible)
    for topic, partitions in topics:
        piece += bytes.fromhex(topic.replace("-", "")) if version >= TOPIC_IDS_MINIMUM else wire.string(topic, flexible=flexible)
        piece += wire.count(len(partitions), flexible=flexible)
        for partition in partitions:
            left -= 1
            if left < 0:
                left = PARTITIONS_PER_STEP - 1
                yield
            records = partition.records
            length = sum(map(len, records))
            piece += _answer(version, partition)
            piece += wire.count(length, flexible=flexible)
            if length:
                pieces.append(piece)
                pieces += records
                piece = bytearray()
            if flexible:
                piece.append(0)
        if flexible:
            piece.append(0)
    if flexible:
        piece.append(0)
    if piece:
        pieces.append(piece)


def _answer(version: int, answer: FetchedPartition) -> bytes:
    """A partition's answer up to the length of its records."""
    _, partition, error_code, high_watermark, last_stable, log_start, aborted, replica, _ = answer
    flexible = version >= FLEXIBLE_MINIMUM
    if flexible and aborted is None:
        return _PLAIN_ANSWER_V12.pack(partition, error_code, high_watermark, last_stable, log_start, replica)
    if version >= 5:
        fixed = _ANSWER_V5.pack(partition, error_code, high_watermark, last_stable, log_start)
    else:
        fixed = _ANSWER_V4.pack(partition, error_code, high_watermark, last_stable)
    no_tags = b"\x00" if flexible else b""
    parts = [fixed, _INT32.pack(-1) if aborted is None else wire.count(len(aborted), flexible=flexible)]
    parts += [_ABORTED.pack(producer_id, first_offset) + no_tags for producer_id, first_offset in aborted or ()]
    if version >= 11:
        parts.append(_INT32.pack(replica))
    return b"".join(parts)
