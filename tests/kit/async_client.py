"""A Kafka client for tests that share their loop with the brokers: few APIs, one version each, requests and answers by hand, so that
thousands of requests cost little. Every wait has a deadline.
"""

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

from kio.index import load_response_schema
from kio.serial import entity_reader

from storage.recordbatch import CODEC_MASK, HEADER_BYTES, BatchHeader, parse_header
from tests.kit.clustering import HOST
from tests.kit.raw_client import body_of

ANSWER_WITHIN_S = 40.0
PRODUCE, PRODUCE_VERSION = 0, 8
FETCH, FETCH_VERSION = 1, 11
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 5
LATEST, EARLIEST = -1, -2


class Appended(NamedTuple):
    error: int
    base_offset: int


class Listed(NamedTuple):
    error: int
    offset: int


class Read(NamedTuple):
    error: int
    high_watermark: int
    preferred_replica: int
    batches: bytes

    @property
    def offsets(self) -> list[int]:
        """Of every record."""
        return [header.base_offset + delta for header, _ in self._batches() for delta in range(header.record_count)]

    @property
    def records(self) -> list[tuple[int, bytes]]:
        """Offset and value of every record; none may be compressed."""
        found: list[tuple[int, bytes]] = []
        for header, records in self._batches():
            assert not header.attributes & CODEC_MASK
            at = 0
            for _ in range(header.record_count):
                length, at = _varint(records, at)
                end = at + length
                _, at = _varint(records, at + 1)
                delta, at = _varint(records, at)
                key_length, at = _varint(records, at)
                value_length, at = _varint(records, at + max(key_length, 0))
                found.append((header.base_offset + delta, records[at : at + value_length]))
                at = end
        return found

    def _batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        at = 0
        while at < len(self.batches):
            header = parse_header(self.batches, at)
            yield header, self.batches[at + HEADER_BYTES : at + header.size_bytes]
            at += header.size_bytes


@dataclass
class AsyncClient:
    """One connection. Requests may overlap only as far as `send_…` and `take` are used by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    client_id: str = "raw"
    correlation_id: int = 0

    @classmethod
    async def connect(cls, port: int, *, client_id: str = "raw") -> Self:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(HOST, port)
        return cls(reader, writer, client_id)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def produce(self, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        """By partition. acks=all."""
        self.send_produce(topic, batches)
        return parse_produced(await self.take())

    async def list_offsets(self, topic: str, partitions: Sequence[int], *, timestamp: int = LATEST) -> dict[int, Listed]:
        self.send_list_offsets(topic, partitions, timestamp=timestamp)
        return parse_listed(await self.take())

    async def fetch(self, topic: str, offsets: Mapping[int, int], *, max_wait_ms: int = 0, rack: str = "") -> dict[int, Read]:
        self.send_fetch(topic, offsets, max_wait_ms=max_wait_ms, rack=rack)
        return parse_read(await self.take())

    async def ask(self, request: object) -> Any:
        """kio's response to kio's request."""
        cls = cast("Any", type(request))
        schema = load_response_schema(cls.__api_key__, cls.__version__)
        is_flexible = cls.__header_schema__.__flexible__
        self._send(cls.__api_key__, cls.__version__, (b"\x00" if is_flexible else b"") + body_of(request))
        frame = await self.take()
        entity, _ = entity_reader(schema)(frame, 1 if schema.__header_schema__.__flexible__ else 0)
        return entity

    def send_produce(self, topic: str, batches: Mapping[int, bytes]) -> None:
        parts = [struct.pack(">hhii", -1, -1, 30_000, 1), _string(topic), struct.pack(">i", len(batches))]
        for partition, batch in batches.items():
            parts += [struct.pack(">ii", partition, len(batch)), batch]
        self._send(PRODUCE, PRODUCE_VERSION, b"".join(parts))

    def send_list_offsets(self, topic: str, partitions: Sequence[int], *, timestamp: int = LATEST) -> None:
        asked = b"".join(struct.pack(">iiq", partition, -1, timestamp) for partition in partitions)
        self._send(
            LIST_OFFSETS, LIST_OFFSETS_VERSION, struct.pack(">ibi", -1, 0, 1) + _string(topic) + struct.pack(">i", len(partitions)) + asked
        )

    def send_fetch(self, topic: str, offsets: Mapping[int, int], *, max_wait_ms: int = 0, rack: str = "") -> None:
        asked = b"".join(struct.pack(">iiqqi", partition, -1, offset, -1, 1 << 20) for partition, offset in offsets.items())
        head = struct.pack(">iiiibiii", -1, max_wait_ms, 1, 1 << 24, 0, 0, -1, 1)
        self._send(
            FETCH, FETCH_VERSION, head + _string(topic) + struct.pack(">i", len(offsets)) + asked + struct.pack(">i", 0) + _string(rack)
        )

    async def take(self) -> bytes:
        """The body of the next answer, in the order of the requests."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return (await self.reader.readexactly(size))[4:]

    def _send(self, api_key: int, version: int, body: bytes) -> None:
        self.correlation_id += 1
        header = struct.pack(">hhi", api_key, version, self.correlation_id) + _string(self.client_id)
        self.writer.write(struct.pack(">i", len(header) + len(body)) + header + body)


def parse_produced(body: bytes) -> dict[int, Appended]:
    """Of one topic."""
    found: dict[int, Appended] = {}
    at, count = _topic(body, 0)
    for _ in range(count):
        partition, error, base_offset, _, _, errors, message = struct.unpack_from(">ihqqqih", body, at)
        at += struct.calcsize(">ihqqqih") + max(message, 0)
        assert not errors
        found[partition] = Appended(error, base_offset)
    return found


def parse_listed(body: bytes) -> dict[int, Listed]:
    at, count = _topic(body, 4)
    layout = struct.Struct(">ihqqi")
    rows = layout.iter_unpack(body[at : at + count * layout.size])
    return {partition: Listed(error, offset) for partition, error, _, offset, _ in rows}


def parse_read(body: bytes) -> dict[int, Read]:
    error = struct.unpack_from(">h", body, 4)[0]
    assert not error, error
    found: dict[int, Read] = {}
    at, count = _topic(body, 10)
    layout = struct.Struct(">ihqqqi")
    for _ in range(count):
        partition, error, high_watermark, _, _, aborted = layout.unpack_from(body, at)
        at += layout.size
        assert aborted <= 0
        preferred, size = struct.unpack_from(">ii", body, at)
        at += 8
        found[partition] = Read(error, high_watermark, preferred, body[at : at + max(size, 0)])
        at += max(size, 0)
    return found


def _topic(body: bytes, at: int) -> tuple[int, int]:
    """Where the partitions of the only topic begin, and how many there are."""
    topics, length = struct.unpack_from(">ih", body, at)
    assert topics == 1
    at += 6 + length
    return at + 4, struct.unpack_from(">i", body, at)[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
