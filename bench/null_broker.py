"""A peer that answers as a broker does and does nothing: what a socket, a frame and a reply cost at the least.

    python -m bench.null_broker --partitions 12 [--records-per-partition N --record-bytes B]

The layer is the broker's: `asyncio.BufferedProtocol` on uvloop, an exact buffer for a large frame, the allocator tuned alike. Produce is
parsed as far as its partitions and answered at once; Fetch is answered with one prepared batch, its offset written in front, until
`--records-per-partition` is reached. Nothing is checked, stored or counted. Every topic exists and has `--partitions` partitions.
"""

import argparse
import asyncio
import json
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import uvloop

from bench import wire
from bench.results import KIB, MIB
from broker.protocol import codec, fetch
from process import malloc
from storage.vocabulary import Buffer

HOST: Final = "127.0.0.1"
NODE_ID: Final = 1
FETCHED_BATCH_BYTES: Final = 1 * MIB
ARENA_BYTES: Final = 64 * KIB
OWN_BUFFER_FROM_BYTES: Final = 16 * KIB

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _API_VERSIONS = 0, 1, 2, 3, 18
_ADVERTISED: Final = {_PRODUCE: 11, _FETCH: 12, _LIST_OFFSETS: 7, _METADATA: 12, _API_VERSIONS: 3}
"""Greatest versions. Lower ones are advertised, as clients draw conclusions from them, but not spoken."""

_HEADER: Final = struct.Struct(">hhih")
_OFFSET: Final = struct.Struct(">q")
_CORRELATION: Final = struct.Struct(">ix")
_RESULT: Final = struct.Struct(">ihqqqBBx")
_NO_TAGS: Final = b"\x00"


class NullBroker:
    """What the answers are made of. `port` is set once it is known."""

    def __init__(self, *, partitions: int, records_per_partition: int, record_bytes: int) -> None:
        self.port = 0
        self._partitions = partitions
        value = bytes(record_bytes)
        self._batch_count = max(1, FETCHED_BATCH_BYTES // (record_bytes + 16))
        self._end = records_per_partition - records_per_partition % self._batch_count
        encoded = wire.records([value] * self._batch_count)
        self._batch_rest = memoryview(wire.record_batch(encoded, self._batch_count, now_ms=wire.now_ms()))[_OFFSET.size :]

    def answer(self, frame: memoryview) -> Sequence[Buffer]:
        api_key, version, correlation_id, client_id_length = _HEADER.unpack_from(frame)
        body_at = _HEADER.size + max(client_id_length, 0) + 1
        if api_key == _PRODUCE:
            return [_answer_produce(frame, body_at, correlation_id)]
        if api_key == _FETCH:
            return self._answer_fetch(version, frame, body_at, correlation_id)
        head = _CORRELATION.pack(correlation_id)
        if api_key == _METADATA:
            return [head + self._metadata(codec.decode_request(api_key, version, frame, body_at))]
        if api_key == _LIST_OFFSETS:
            return [head + self._offsets(codec.decode_request(api_key, version, frame, body_at))]
        assert api_key == _API_VERSIONS, f"not served by the null broker: api_key={api_key}"
        return [head[:4] + _api_versions()]

    def _answer_fetch(self, version: int, frame: memoryview, body_at: int, correlation_id: int) -> Sequence[Buffer]:
        request = fetch.read_request(version, frame, body_at)
        fetched = []
        for asked in request.partitions:
            base = asked.fetch_offset - asked.fetch_offset % self._batch_count
            batch = (_OFFSET.pack(base), self._batch_rest) if base < self._end else ()
            fetched.append(fetch.FetchedPartition(asked.topic, asked.partition, 0, self._end, self._end, 0, records=batch))
        return fetch.write_response(version, correlation_id, fetch.FetchResponse(fetched))

    def _metadata(self, request: Any) -> bytes:
        """Metadata v12."""
        host = wire.compact_string(HOST)
        out = bytearray(struct.pack(">iBi", 0, 2, NODE_ID) + host + struct.pack(">iBB", self.port, 0, 0))
        out += wire.compact_string("null-broker") + struct.pack(">i", NODE_ID)
        topics = request.topics or ()
        out += wire.uvarint(len(topics) + 1)
        for topic in topics:
            out += struct.pack(">h", 0) + wire.compact_string(topic.name) + bytes(16) + b"\x00" + wire.uvarint(self._partitions + 1)
            for partition in range(self._partitions):
                out += struct.pack(">hiiiBiBiBx", 0, partition, NODE_ID, 0, 2, NODE_ID, 2, NODE_ID, 1)
            out += struct.pack(">i", -(2**31)) + _NO_TAGS
        return bytes(out + _NO_TAGS)

    def _offsets(self, request: Any) -> bytes:
        """ListOffsets v7."""
        out = bytearray(struct.pack(">i", 0) + wire.uvarint(len(request.topics) + 1))
        for topic in request.topics:
            out += wire.compact_string(topic.name) + wire.uvarint(len(topic.partitions) + 1)
            for partition in topic.partitions:
                out += struct.pack(">ihqqix", partition.partition_index, 0, -1, self._end, 0)
            out += _NO_TAGS
        return bytes(out + _NO_TAGS)


def _answer_produce(frame: memoryview, at: int, correlation_id: int) -> bytes:
    """Any number of partitions of one topic, v9 to v11."""
    at += 1 + 6 + 1  # no transactional id; acks and timeout; one topic
    name_end = at + frame[at]
    name = bytes(frame[at:name_end])
    count, at = _uvarint(frame, name_end)
    out = bytearray(_CORRELATION.pack(correlation_id) + b"\x02" + name + wire.uvarint(count))
    for _ in range(count - 1):
        partition = int.from_bytes(frame[at : at + 4], "big")
        size, at = _uvarint(frame, at + 4)
        at += size  # one more than the records have, and so past their tags
        out += _RESULT.pack(partition, 0, 0, -1, 0, 1, 0)
    out += b"\x00\x00\x00\x00\x00\x00"
    return bytes(out)


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7


def _api_versions() -> bytes:
    """ApiVersions v3; the header of its answer has no tags."""
    out = bytearray(struct.pack(">h", 0) + wire.uvarint(len(_ADVERTISED) + 1))
    for api_key, maximum in _ADVERTISED.items():
        out += struct.pack(">hhhx", api_key, 0, maximum)
    return bytes(out + struct.pack(">ix", 0))


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: NullBroker) -> None:
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._arena = bytearray(ARENA_BYTES)
        self._arena_view = memoryview(self._arena)
        self._arena_filled = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return self._arena_view[self._arena_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._reply(memoryview(frame))
            return
        self._arena_filled += nbytes
        view, filled, at = self._arena_view, self._arena_filled, 0
        while filled - at >= 4:
            length = int.from_bytes(view[at : at + 4], "big")
            begin = at + 4
            if begin + length > filled:
                if length >= OWN_BUFFER_FROM_BYTES:
                    self._frame = bytearray(length)
                    self._frame_filled = filled - begin
                    self._frame[: filled - begin] = view[begin:filled]
                    at = filled
                break
            self._reply(memoryview(bytearray(view[begin : begin + length])))
            at = begin + length
        self._arena[: filled - at] = self._arena[at:filled]
        self._arena_filled = filled - at

    def _reply(self, frame: memoryview) -> None:
        answer = self._broker.answer(frame)
        assert self._transport is not None
        self._transport.writelines([sum(map(len, answer)).to_bytes(4, "big"), *answer])


async def _serve(broker: NullBroker) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(lambda: Connection(broker), HOST, 0)
    broker.port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"event": "null broker listening", "address": f"{HOST}:{broker.port}"}) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    server.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--partitions", type=int, default=12)
    arguments.add_argument("--records-per-partition", type=int, default=0)
    arguments.add_argument("--record-bytes", type=int, default=KIB)
    given = arguments.parse_args()
    malloc.tune()
    broker = NullBroker(partitions=given.partitions, records_per_partition=given.records_per_partition, record_bytes=given.record_bytes)
    uvloop.run(_serve(broker))


if __name__ == "__main__":
    main()
