"""Metadata requests as bytes."""

from collections.abc import Sequence
from typing import Final

from bench import wire

METADATA: Final = 3
METADATA_VERSION: Final = 12


def metadata_request(names: Sequence[str] | None) -> bytes:
    """A Metadata request for these topics, or for all."""
    if names is None:
        return wire.request(METADATA, METADATA_VERSION, 0, b"\x00" + b"\x00\x00\x00")
    body = bytearray(wire.uvarint(len(names) + 1))
    for name in names:
        body += bytes(16) + wire.compact_string(name) + b"\x00"
    return wire.request(METADATA, METADATA_VERSION, 0, bytes(body + b"\x00\x00\x00"))
