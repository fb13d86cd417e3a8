"""What every message is made of: varints, tagged fields, and the bounds that hold before anything is allocated (I11).

Readers take `(data, at)` and return the position after what they read. They may raise any of `MALFORMED`; each public reader
of this layer turns those into `ProtocolViolation` once, at its edge. `Request` is one request as the handlers see it.
"""

import struct
from typing import Final, Generic, NoReturn, TypeVar

import msgspec

ELEMENTS_MAX: Final = 100_000
"""Array elements and tagged fields in one request. A frame of 100 MiB could name a hundred million of them."""

TAGS_MAX: Final = 1_000
"""Tagged fields of one structure: no release of Kafka has ten."""
STRING_BYTES_MAX: Final = 32_767
"""As Kafka has it, whatever the encoding of the length."""

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)
"""What reading past the end, or bytes that are not UTF-8, raise underneath."""

UVARINT_BYTES_MAX: Final = 5
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))

B = TypeVar("B", covariant=True)


class ProtocolViolation(Exception):
    """The peer's bytes are not what the Kafka protocol allows: no answer is possible, close the connection.

    Messages are lower case with the facts at the end: `array longer than what remains: field=topics length=… remaining=…`.
    """


class OtherProtocol(ProtocolViolation):
    """What came first is the beginning of `protocol`, not of a Kafka request."""

    def __init__(self, protocol: str, began: bytes) -> None:
        super().__init__(f"the client speaks {protocol}: began={began!r}")
        self.protocol = protocol


def read_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The value and the position after it. More than five bytes are a violation."""
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at + 1
    raise ProtocolViolation(f"varint longer than {UVARINT_BYTES_MAX} bytes: position={at}")


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 128:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tags(data: bytes | memoryview, at: int, budget: int) -> tuple[int, int]:
    """Step over a section of tagged fields (KIP-482); return the position after it and what is left of `budget`."""
    tags, at = read_uvarint(data, at)
    budget -= tags
    if budget < 0 or tags > TAGS_MAX:
        refuse_count()
    for _ in range(tags):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > len(data) - at:
            refuse_length("tagged field", size, len(data) - at)
        at += size
    return at, budget


def refuse_length(field: str, length: int, remaining: int) -> NoReturn:
    """`length` is -1 where null is not allowed, another negative number, or more than the bytes that remain can hold."""
    raise ProtocolViolation(f"length out of bounds: field={field} length={length} remaining={remaining}")


def refuse_string(field: str, length: int) -> NoReturn:
    raise ProtocolViolation(f"string too long: field={field} bytes={length} maximum={STRING_BYTES_MAX}")


def refuse_count() -> NoReturn:
    raise ProtocolViolation(f"too many elements in one request: maximum={ELEMENTS_MAX}")


def refuse_tag(tag: int, declared: int, actual: int) -> NoReturn:
    raise ProtocolViolation(f"tagged field of another size than declared: tag={tag} declared={declared} actual={actual}")


def read_count(data: bytes | memoryview, at: int, *, flexible: bool, field: str, element_bytes_min: int) -> tuple[int, int]:
    """The length of an array that may not be null, and the position of its first element."""
    if flexible:
        count, at = read_uvarint(data, at)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(data, at)
        at += 4
    if not 0 <= count <= (len(data) - at) // element_bytes_min:
        refuse_length(field, count, len(data) - at)
    return count, at


def read_string(data: bytes | memoryview, at: int, *, flexible: bool, field: str) -> tuple[str, int]:
    """A string that may not be null."""
    value, at = read_nullable_string(data, at, flexible=flexible, field=field)
    if value is None:
        refuse_length(field, -1, len(data) - at)
    return value, at


def read_nullable_string(data: bytes | memoryview, at: int, *, flexible: bool, field: str) -> tuple[str | None, int]:
    """A string or, where its length is -1, null."""
    if flexible:
        length, at = read_uvarint(data, at)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(data, at)
        at += 2
    if length == -1:
        return None, at
    if length > STRING_BYTES_MAX:
        refuse_string(field, length)
    stop = at + length
    if not at <= stop <= len(data):
        refuse_length(field, length, len(data) - at)
    return str(data[at:stop], "utf-8"), stop


def string(value: str | None, *, flexible: bool) -> bytes:
    """A string, or null, as the wire has it."""
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def count(elements: int, *, flexible: bool) -> bytes:
    """The length of an array as the wire has it."""
    return uvarint(elements + 1) if flexible else _INT32.pack(elements)


class Request(msgspec.Struct, Generic[B], frozen=True):
    """`body` is the values class that `codec` chooses for this API and version (docstring there)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: B
