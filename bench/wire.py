"""Requests as bytes, built before the clock starts, and a client that keeps a number of them in flight on each of its connections.

Only flexible versions are written, and only the fields of answers that prove that the work was done are read.
"""

import selectors
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from runtime.clock import SystemClock

PRODUCE: Final = 0
PRODUCE_VERSION: Final = 11
FETCH: Final = 1
FETCH_VERSION: Final = 12
LIST_OFFSETS: Final = 2
LIST_OFFSETS_VERSION: Final = 7
CLIENT_ID: Final = b"forebay-bench"
ANSWERED_WITHIN_S: Final = 60.0
RECEIVE_BYTES: Final = 256 * 1024

_HEADER: Final = struct.Struct(">hhih")
_PRODUCE_TAIL: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">i")
_BATCH_PREFIX: Final = struct.Struct(">qiib")
_BATCH_FIELDS: Final = struct.Struct(">hiqqqhii")
_RESULT: Final = struct.Struct(">ihqqq")
_LATEST_OF: Final = struct.Struct(">iiqx")
_FETCH_HEAD: Final = struct.Struct(">iiiibii")
_FETCHED: Final = struct.Struct(">iiqiqi")
_LISTED: Final = struct.Struct(">ihqqix")
_RESULT_REST_BYTES: Final = 3
"""Empty record errors, null message, no tags."""

_clock = SystemClock()


class Refused(Exception):
    """An answer carries an error, or an offset that no record has."""


class Sender(NamedTuple):
    """An idempotent producer."""

    producer_id: int
    producer_epoch: int


NO_SENDER: Final = Sender(-1, -1)


def uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A whole frame with request header v2."""
    payload = _HEADER.pack(api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + b"\x00" + body
    return struct.pack(">i", len(payload)) + payload


def records(values: Sequence[bytes]) -> bytes:
    """Records without keys and headers, all of the batch's first time."""
    encoded = bytearray()
    for delta, value in enumerate(values):
        body = b"\x00" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        encoded += varint(len(body)) + body
    return bytes(encoded)


def record_batch(encoded_records: bytes, count: int, *, now_ms: int, sender: Sender = NO_SENDER, first_sequence: int = -1) -> bytes:
    """A record batch v2, uncompressed; its CRC-32C covers all from the attributes on."""
    covered = _BATCH_FIELDS.pack(0, count - 1, now_ms, now_ms, *sender, first_sequence, count) + encoded_records
    return _BATCH_PREFIX.pack(0, len(covered) + 9, -1, 2) + struct.pack(">I", crc32c(covered)) + covered


def produce_request(correlation_id: int, topic: str, batches: Sequence[tuple[int, bytes]], *, timeout_ms: int = 30_000) -> bytes:
    """acks=all; one batch for each (partition, batch)."""
    body = bytearray(b"\x00" + _PRODUCE_TAIL.pack(-1, timeout_ms) + uvarint(2) + compact_string(topic) + uvarint(len(batches) + 1))
    for partition, batch in batches:
        body += _PARTITION.pack(partition) + uvarint(len(batch) + 1) + batch + b"\x00"
    return request(PRODUCE, PRODUCE_VERSION, correlation_id, bytes(body + b"\x00\x00"))


def produced_offsets(payload: bytes, topic: str) -> list[int]:
    """The base offset of each partition of an answer to `produce_request`. Raise `Refused` if one of them has an error."""
    count, at = read_uvarint(payload, 4 + 1 + 1 + len(compact_string(topic)))
    offsets = []
    for _ in range(count - 1):
        partition, error, base_offset, _, _ = _RESULT.unpack_from(payload, at)
        if error or base_offset < 0:
            raise Refused(f"produce: topic={topic} partition={partition} error={error} base_offset={base_offset}")
        offsets.append(base_offset)
        at += _RESULT.size + _RESULT_REST_BYTES
    return offsets


def fetch_request(correlation_id: int, topic: str, partition: int, offset: int, *, bytes_max: int = 1) -> bytes:
    """What is there from `offset` on, at once; at least one batch if there is any."""
    body = _FETCH_HEAD.pack(-1, 0, 1, bytes_max, 0, 0, -1) + uvarint(2) + compact_string(topic) + uvarint(2)
    body += _FETCHED.pack(partition, -1, offset, -1, -1, bytes_max) + b"\x00\x00" + uvarint(1) + compact_string("") + b"\x00"
    return request(FETCH, FETCH_VERSION, correlation_id, body)


def list_offsets_request(correlation_id: int, topic: str, partitions: int, *, first: int = 0) -> bytes:
    """The latest offset of each partition, from `first` on."""
    body = bytearray(struct.pack(">ib", -1, 0) + uvarint(2) + compact_string(topic) + uvarint(partitions + 1))
    for partition in range(first, first + partitions):
        body += _LATEST_OF.pack(partition, -1, -1)
    return request(LIST_OFFSETS, LIST_OFFSETS_VERSION, correlation_id, bytes(body + b"\x00\x00"))


def listed_offsets(payload: bytes, topic: str) -> list[int]:
    """The offset of each partition of an answer to `list_offsets_request`. Raise `Refused` if one of them has an error."""
    count, at = read_uvarint(payload, 4 + 1 + 4 + 1 + len(compact_string(topic)))
    offsets = []
    for _ in range(count - 1):
        partition, error, _, offset, _ = _LISTED.unpack_from(payload, at)
        if error or offset < 0:
            raise Refused(f"list offsets: topic={topic} partition={partition} error={error} offset={offset}")
        offsets.append(offset)
        at += _LISTED.size
    return offsets


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """The value, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    frames: Sequence[bytes]
    sent: int = 0
    received: bytearray = field(default_factory=bytearray)
    answers: list[bytes] = field(default_factory=list)


class Driver:
    """Connections to one broker, each with requests of its own, `depth` of them in flight."""

    def __init__(self, host: str, port: int, *, connections: int) -> None:
        self._sockets = [socket.create_connection((host, port), timeout=ANSWERED_WITHIN_S) for _ in range(connections)]
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """One for each connection, blocking."""
        return self._sockets

    def ask(self, frame: bytes) -> bytes:
        """One request on the first connection, and its answer without the length."""
        return self.run([[frame]], depth=1)[0][0]

    def run(self, work: Sequence[Sequence[bytes]], *, depth: int) -> list[list[bytes]]:
        """Send the frames of each connection, in order; their answers, in order. Raise TimeoutError when the broker falls silent."""
        lanes = [_Connection(sock, frames) for sock, frames in zip(self._sockets, work, strict=False)]
        with selectors.DefaultSelector() as selector:
            for lane in lanes:
                selector.register(lane.sock, selectors.EVENT_READ, lane)
                _send(lane, depth)
            open_lanes = sum(1 for lane in lanes if lane.frames)
            while open_lanes:
                ready = selector.select(ANSWERED_WITHIN_S)
                if not ready:
                    raise TimeoutError(f"no answer within {ANSWERED_WITHIN_S} s")
                for key, _ in ready:
                    lane = key.data
                    _receive(lane)
                    _send(lane, depth)
                    open_lanes -= len(lane.answers) == len(lane.frames)
        return [lane.answers for lane in lanes]

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _send(lane: _Connection, depth: int) -> None:
    until = min(len(lane.frames), len(lane.answers) + depth)
    if until > lane.sent:
        lane.sock.sendall(b"".join(lane.frames[lane.sent : until]))
        lane.sent = until


def _receive(lane: _Connection) -> None:
    piece = lane.sock.recv(RECEIVE_BYTES)
    if not piece:
        raise ConnectionError("the broker closed the connection")
    received = lane.received
    received += piece
    at = 0
    while len(received) - at >= 4:
        end = at + 4 + int.from_bytes(received[at : at + 4], "big")
        if end > len(received):
            break
        lane.answers.append(bytes(received[at + 4 : end]))
        at = end
    del received[:at]


def now_ms() -> int:
    return _clock.now_ms()
