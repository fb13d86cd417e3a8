"""Whatever `full` validation takes, consumers read to its end: ours, aiokafka's parser, and a plain one written from the protocol guide.

Valid batches with bytes changed, cut, doubled or added where it hurts, under a right checksum, in every codec.
"""

import random

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchPy as AiokafkaBatch
from hypothesis import event, given
from hypothesis import strategies as st

from storage.errors import Corrupt
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, BatchHeader, parse_header
from storage.records import decompress_records, read_records, walk
from tests.kit.record_batches import NOW_MS, batch_of_records, compressed, varint

Record = tuple[int, int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]

texts = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), texts), max_size=3)
records = st.lists(st.tuples(st.integers(-(2**20), 2**20), texts, texts, headers), min_size=1, max_size=20)
changes = st.lists(
    st.tuples(st.sampled_from(["set", "flip", "cut", "insert", "double", "end"]), st.integers(0, 2**16), st.integers(0, 255))
)


def lengthy(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encoded(index: int, time: int, key: bytes | None, value: bytes | None, named: list[tuple[bytes, bytes | None]]) -> bytes:
    body = b"\x00" + varint(time) + varint(index) + lengthy(key) + lengthy(value)
    body += varint(len(named)) + b"".join(lengthy(name) + lengthy(content) for name, content in named)
    return varint(len(body)) + body


def changed(data: bytearray, kind: str, place: int, byte: int) -> None:
    at = place % len(data) if data else 0
    match kind:
        case "set" if data:
            data[at] = byte
        case "flip" if data:
            data[at] ^= 1 << byte % 8
        case "cut":
            del data[at : at + 1 + byte % 4]
        case "insert":
            data[at:at] = bytes([byte])
        case "double":
            data[at:at] = data[at : at + 1 + byte % 16]
        case "end":
            del data[at:]


def plainly(data: bytes, count: int) -> list[Record]:
    """The records as the protocol guide has them. Raises whatever it raises."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def content() -> bytes | None:
        nonlocal at
        length = number()
        if length == -1:
            return None
        assert 0 <= length <= len(data) - at
        at += length
        return data[at - length : at]

    found: list[Record] = []
    for _ in range(count):
        length = number()
        end = at + length
        attributes = data[at]
        at += 1
        time, offset, key, value = number(), number(), content(), content()
        named: list[tuple[bytes, bytes | None]] = []
        for _ in range(number()):
            name, what = content(), content()
            assert name is not None
            named.append((name, what))
        assert at == end
        found.append((attributes, time, offset, key, value, named))
    assert at == len(data)
    return found


def consumers_agree(batch: bytearray, header: BatchHeader) -> None:
    body = bytes(decompress_records(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK))
    plain = plainly(body, header.record_count)
    assert [offset for _, _, offset, _, _, _ in plain] == list(range(header.record_count))
    ours = list(walk(batch, header))
    assert [(facts.offset_delta, facts.timestamp_ms, facts.has_key) for facts in ours] == [
        (offset, NOW_MS + time, key is not None) for _, time, offset, key, _, _ in plain
    ]
    if any(attributes >= 0x80 for attributes, *_ in plain):
        event("attributes that aiokafka takes for a varint, and nobody else")
    elif any(not is_text(name) for *_, named in plain for name, _ in named):
        event("a header key is no UTF-8, which aiokafka wants and Java does not")
    else:
        theirs = [(one.offset, one.key, one.value) for one in AiokafkaBatch(bytearray(batch))]
        assert theirs == [(offset, key, value) for _, _, offset, key, value, _ in plain]


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("codec", range(5))
@given(content=records, before=changes, after=changes.filter(lambda listed: len(listed) < 3))
def test_what_is_taken_is_read_by_everybody(codec: int, content: list[tuple], before: list, after: list) -> None:  # type: ignore[type-arg]
    """`before` and `after` it is compressed something goes wrong."""
    made = bytearray(b"".join(encoded(index, *one) for index, one in enumerate(content)))
    for change in before[: random.Random(len(made)).choice([0, 1, 1, 2, 5])]:
        changed(made, *change)
    packed = bytearray(compressed(bytes(made), codec))
    for change in after if codec else ():
        changed(packed, *change)
    batch = batch_of_records(bytes(packed), len(content), codec=codec, is_packed=True)
    header = parse_header(batch)
    try:
        read_records(batch, header, earliest_ms=-(2**63), latest_ms=2**63 - 1)
    except Corrupt:
        event("refused")
        assert before or after, "a valid batch is taken"
        return
    event("taken")
    consumers_agree(batch, header)
