"""The order of keys (see port.py) as byte strings that compare the same way: two bytes of depth, then the path with `/` as 0xff.

UTF-8 never contains 0xff, so the encoding can be undone, and keys that share a path prefix and a depth lie side by side.
"""

from typing import Final

DEPTH_BYTES: Final = 2


def encode(path: str) -> bytes:
    return path.count("/").to_bytes(DEPTH_BYTES, "big") + path.encode().replace(b"/", b"\xff")


def decode(encoded: bytes) -> str:
    return encoded[DEPTH_BYTES:].replace(b"\xff", b"/").decode()


def range_bounds(start: str, end: str) -> tuple[bytes, bytes]:
    """The encoded bounds of [start, end), which must not leave the depth of `start`."""
    assert start.count("/") == end.count("/"), f"a range has one depth: start={start!r} end={end!r}"
    return encode(start), encode(end)


def ceiling_bounds(path: str, within: str) -> tuple[bytes, bytes]:
    """Where to start looking, and the prefix that the first key found there must have: if it has not, no key has."""
    seek = encode(path)
    prefix = seek[:DEPTH_BYTES] + within.encode().replace(b"/", b"\xff")
    return max(seek, prefix), prefix
