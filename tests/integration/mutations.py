"""Valid frames of every API and version that is served, and what chance makes of them. All of it from a seed."""

import random
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.protocol import apis, codec, fetch
from broker.protocol.wire import ProtocolViolation, uvarint
from tests.kit.kafka_values import Pool, kio_encoded, random_entity
from tests.kit.raw_client import header
from tests.kit.record_batches import NOW_MS, record_batch

FRAME_BYTES_MAX: Final = 200_000
LIST_OFFSETS: Final = 2
_INTERESTING: Final = (0, 1, -1, 2, 127, 128, 255, 256, 32_767, -(2**15), 65_535, 2**31 - 1, -(2**31), 2**24)
_FETCH_LIMITS: Final = struct.Struct(">ii")

Mutation = Callable[[random.Random, bytes], bytes]


class Frame(NamedTuple):
    """Without its length."""

    head: bytes
    body: bytes


def valid_frames(chance: random.Random, topic: str, *, rounds: int) -> list[Frame]:
    """`rounds` random requests of each version; Produce and Fetch of `topic` in every version, and searches of it by time."""
    frames = []
    for api in apis.APIS:
        for version in range(api.served_minimum, api.maximum + 1):
            structure = codec.request_structure(api.key, version)
            frames += [Frame(header(api.key, version), kio_encoded(random_entity(structure, chance))) for _ in range(rounds)]
            if api.key == codec.PRODUCE:
                frames += [Frame(header(api.key, version), _produce_body(chance, version, topic)) for _ in range(2 * rounds)]
            elif api.key == LIST_OFFSETS and version < 2:
                frames += [Frame(header(api.key, version), _list_offsets_body(chance, topic)) for _ in range(4 * rounds)]
            elif api.key == codec.FETCH and version < fetch.TOPIC_IDS_MINIMUM:
                frames += [Frame(header(api.key, version), _fetch_body(version, topic)) for _ in range(2 * rounds)]
    return [frame for frame in frames if len(frame.body) <= FRAME_BYTES_MAX]


def sensible_frames(chance: random.Random, pool: Pool, *, rounds: int) -> list[Frame]:
    """`rounds` requests of each version that name what there is, so that they reach what lies behind the first check."""
    frames = []
    for api in apis.APIS:
        for version in range(api.served_minimum, api.maximum + 1):
            structure = codec.request_structure(api.key, version)
            frames += [Frame(header(api.key, version), kio_encoded(random_entity(structure, chance, pool))) for _ in range(rounds)]
    return [frame for frame in frames if len(frame.body) <= FRAME_BYTES_MAX]


def mutated_http(chance: random.Random) -> bytes:
    """What may come by the HTTP port: a request, some of them spoilt, one in four cut off."""
    method = chance.choice(("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PRI", "get", "\x00"))
    path = chance.choice(("/healthz", "/readyz", "/metrics", "/metrics.json", "/api/v1/broker", "/", "*", "//", "/%00", "/" + "a" * 9_000))
    head = [
        f"{method} {path}{chance.choice(('', '?a=b', '#x'))} HTTP/{chance.choice(('1.1', '1.1', '1.0', '2', '9.9', ''))}",
        "Host: a",
        chance.choice(("Connection: close", "Connection: keep-alive")),
    ]
    head += chance.choices(
        (
            "Content-Length: 5",
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x",
            "X: " + "y" * 9_000,
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Range: bytes=0-",
            ": no name",
            "no colon",
            "\x7f: \xff",
        ),
        k=chance.randrange(4),
    )
    data = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + chance.choice(
        (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffff\r\n")
    )
    if chance.random() < 0.4:
        data = chance.choice(_MUTATIONS)(chance, data)
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.25 else data


def mutated(chance: random.Random, frames: list[Frame]) -> bytes:
    """One of `frames` after up to three mutations, one in six as it is; half of them leave the header alone, to get further."""
    frame, other = chance.choice(frames), chance.choice(frames)
    if chance.random() < 0.1:
        return _splice(chance, b"".join(frame), b"".join(other))[:FRAME_BYTES_MAX]
    head, rest = frame if chance.random() < 0.5 else (b"", b"".join(frame))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        rest = chance.choice(_MUTATIONS)(chance, rest)
    return (head + rest)[:FRAME_BYTES_MAX]


def may_wait(frame: bytes) -> bool:
    """Whether the broker may take its time: a legal Fetch that asks for a long poll."""
    try:
        read = codec.decode_header(memoryview(frame))
        if read.api_key != codec.FETCH or not apis.is_served(read.api_key, read.api_version):
            return False
        request = fetch.read_request(read.api_version, memoryview(frame), read.body_position)
    except ProtocolViolation:
        return False
    return request.max_wait_ms > 0 and request.min_bytes > 0


def _produce_body(chance: random.Random, version: int, topic: str) -> bytes:
    records = _batch(chance, version)
    name = topic.encode()
    if version < 9:
        head = struct.pack(">hhiih", -1, chance.choice((-1, 0, 1)), 1000, 1, len(name)) + name
        return head + struct.pack(">iii", 1, 0, len(records)) + records
    head = b"\x00" + struct.pack(">hi", chance.choice((-1, 0, 1)), 1000) + b"\x02" + uvarint(len(name) + 1) + name
    return head + b"\x02" + struct.pack(">i", 0) + uvarint(len(records) + 1) + records + b"\x00\x00\x00"


def _batch(chance: random.Random, version: int) -> bytes:
    """Every other one is spoilt behind its CRC, which is right all the same: what is inside gets into the log."""
    values = [chance.randbytes(chance.randrange(50)) for _ in range(chance.randint(1, 5))]
    batch = bytes(record_batch(*values, codec=chance.randrange(5 if version >= 7 else 4)))
    if chance.random() < 0.5:
        return batch
    spoilt = chance.choice(_MUTATIONS)(chance, batch[61:])
    covered = batch[21:61] + spoilt
    return batch[:8] + struct.pack(">i", len(covered) + 9) + batch[12:17] + struct.pack(">I", crc32c(covered)) + covered


def _list_offsets_body(chance: random.Random, topic: str) -> bytes:
    name = topic.encode()
    time_ms = chance.choice((-1, -2, 0, NOW_MS, NOW_MS + 1, chance.randrange(2**62)))
    return struct.pack(">iih", -1, 1, len(name)) + name + struct.pack(">iiq", 1, 0, time_ms)


def _fetch_body(version: int, topic: str) -> bytes:
    name = topic.encode()
    head = struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0) + (struct.pack(">ii", 0, -1) if version >= 7 else b"")
    epoch = struct.pack(">i", -1) if version >= 9 else b""
    last_epoch = struct.pack(">i", -1) if version >= 12 else b""
    log_start = struct.pack(">q", -1) if version >= 5 else b""
    partition = struct.pack(">i", 0) + epoch + struct.pack(">q", 0) + last_epoch + log_start + struct.pack(">i", 1 << 16)
    if version >= 12:
        return head + b"\x02" + uvarint(len(name) + 1) + name + b"\x02" + partition + b"\x00\x00" + b"\x01\x01\x00"
    topics = struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + partition
    return head + topics + (struct.pack(">i", 0) if version >= 7 else b"") + (struct.pack(">h", 0) if version >= 11 else b"")


def _flip_bits(chance: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 8)) if changed else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _truncate(chance: random.Random, frame: bytes) -> bytes:
    return frame[: chance.randrange(len(frame) + 1)]


def _extend(chance: random.Random, frame: bytes) -> bytes:
    return frame + chance.randbytes(chance.choice((1, 4, 100, 5000)))


def _overwrite_number(chance: random.Random, frame: bytes) -> bytes:
    """A length, a count, an id: whatever stands there."""
    size = chance.choice((1, 2, 4, 8))
    position = chance.randrange(len(frame) + 1)
    value = (chance.choice(_INTERESTING) % (1 << (8 * size))).to_bytes(size, "big")
    return frame[:position] + value + frame[position + size :]


def _insert_varint(chance: random.Random, frame: bytes) -> bytes:
    position = chance.randrange(len(frame) + 1)
    varint = chance.choice(
        (b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x80", b"\xff\xff\x7f", b"\x80\x00")
    )
    return frame[:position] + varint + frame[position + chance.choice((0, 1)) :]


def _insert_tags(chance: random.Random, frame: bytes) -> bytes:
    """In the place of a zero, which may well be an empty section of tags."""
    zeros = [position for position, byte in enumerate(frame[:2000]) if not byte]
    if not zeros:
        return frame
    position = chance.choice(zeros)
    value = chance.randbytes(chance.randrange(5))
    tags = b"".join(uvarint(chance.randrange(300)) + uvarint(len(value)) + value for _ in range(chance.randint(1, 3)))
    return frame[:position] + uvarint(chance.choice((1, 2, 3, 2**28))) + tags + frame[position + 1 :]


def _cut_out(chance: random.Random, frame: bytes) -> bytes:
    start = chance.randrange(len(frame) + 1)
    return frame[:start] + frame[start + chance.choice((1, 2, 4, 30)) :]


def _repeat(chance: random.Random, frame: bytes) -> bytes:
    start = chance.randrange(len(frame) + 1)
    return frame[:start] + frame[start : start + chance.choice((1, 4, 20, 200))] * chance.choice((2, 3, 50)) + frame[start:]


def _splice(chance: random.Random, frame: bytes, other: bytes) -> bytes:
    return frame[: chance.randrange(len(frame) + 1)] + other[chance.randrange(len(other) + 1) :]


def _nothing_of_it(chance: random.Random, frame: bytes) -> bytes:
    return chance.randbytes(min(len(frame), 500))


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _flip_bits,
    _flip_bits,
    _flip_bits,
    _truncate,
    _extend,
    _overwrite_number,
    _overwrite_number,
    _insert_varint,
    _insert_tags,
    _cut_out,
    _repeat,
    _nothing_of_it,
)
