"""The four bytes before every request. Buffers belong to the connection; this module only judges the length."""

from typing import Final

from broker.protocol.errors import ProtocolViolation
from storage.limits import FRAME_BYTES_MAX
from storage.vocabulary import Buffer

PREFIX_BYTES: Final = 4


def frame_length(prefix: Buffer) -> int:
    """Bytes that follow the four of `prefix`. Raise `ProtocolViolation` before anything of that size is allocated."""
    assert len(prefix) == PREFIX_BYTES
    length = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= length <= FRAME_BYTES_MAX:
        raise ProtocolViolation(f"frame length out of bounds: length={length} maximum={FRAME_BYTES_MAX}")
    return length
