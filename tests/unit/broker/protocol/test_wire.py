import struct

import pytest

from broker.protocol import wire
from broker.protocol.wire import ProtocolViolation

BOUNDARIES = [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**31 - 1, 2**32 - 1]


@pytest.mark.parametrize("value", BOUNDARIES)
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    encoded = wire.uvarint(value)

    assert wire.read_uvarint(b"\xaa" + encoded + b"\xaa", 1) == (value, 1 + len(encoded))


def test_a_varint_of_six_bytes_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="varint longer than 5 bytes"):
        wire.read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)


def test_a_varint_cut_short_is_malformed() -> None:
    with pytest.raises(wire.MALFORMED):
        wire.read_uvarint(b"\x80\x80", 0)


def test_tags_are_stepped_over_and_counted() -> None:
    section = b"\x02" + b"\x00\x03abc" + b"\xc8\x01\x00"

    assert wire.skip_tags(section + b"rest", 0, 10) == (len(section), 8)


def test_a_tag_longer_than_what_remains_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="field=tagged field length=4 remaining=3"):
        wire.skip_tags(b"\x01\x00\x04abc", 0, 10)


def test_more_tags_than_the_budget_are_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="too many elements"):
        wire.skip_tags(b"\x03" + b"\x00\x00" * 3, 0, 2)


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("text", ["", "topic-α", "x" * 200, None])
def test_a_string_is_read_as_it_was_written(text: str | None, *, flexible: bool) -> None:
    encoded = wire.string(text, flexible=flexible)

    assert wire.read_nullable_string(encoded, 0, flexible=flexible, field="f") == (text, len(encoded))


@pytest.mark.parametrize("flexible", [False, True])
def test_null_is_a_violation_where_it_is_not_allowed(*, flexible: bool) -> None:
    with pytest.raises(ProtocolViolation, match="field=f length=-1"):
        wire.read_string(wire.string(None, flexible=flexible), 0, flexible=flexible, field="f")


@pytest.mark.parametrize(("flexible", "data"), [(True, b"\x05abc"), (False, b"\x00\x04abc"), (False, b"\xff\xfeabc")])
def test_a_string_longer_than_what_remains_or_of_negative_length_is_a_violation(data: bytes, *, flexible: bool) -> None:
    with pytest.raises(ProtocolViolation, match="length out of bounds: field=f"):
        wire.read_nullable_string(data, 0, flexible=flexible, field="f")


@pytest.mark.parametrize(
    ("flexible", "prefix"), [(True, b"\x04"), (True, b"\x00"), (False, struct.pack(">i", 3)), (False, struct.pack(">i", -1))]
)
def test_a_count_is_held_against_the_least_size_of_its_elements(prefix: bytes, *, flexible: bool) -> None:
    with pytest.raises(ProtocolViolation, match="field=topics"):
        wire.read_count(prefix + bytes(29), 0, flexible=flexible, field="topics", element_bytes_min=10)


@pytest.mark.parametrize("flexible", [False, True])
def test_a_count_is_read_as_it_was_written(*, flexible: bool) -> None:
    encoded = wire.count(3, flexible=flexible)

    assert wire.read_count(encoded + bytes(30), 0, flexible=flexible, field="topics", element_bytes_min=10) == (3, len(encoded))
