"""The four bytes before every request. Buffers belong to the connection; this module only judges the length."""

from typing import Final

from broker.protocol.errors import OtherProtocol, ProtocolViolation
from storage.limits import FRAME_BYTES_MAX
from storage.vocabulary import Buffer

PREFIX_BYTES: Final = 4
TLS: Final = "TLS"
HTTP: Final = "HTTP"
_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHODS: Final = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN", b"TRAC", b"PRI "})

assert FRAME_BYTES_MAX < int.from_bytes(_TLS_HANDSHAKE + b"\0\0", "big") < min(int.from_bytes(one, "big") for one in _HTTP_METHODS), (
    "no request has such a length"
)


def frame_length(prefix: Buffer) -> int:
    """Bytes that follow the four of `prefix`. Raise `ProtocolViolation` before anything of that size is allocated, `OtherProtocol` if they
    are the beginning of one that is known."""
    assert len(prefix) == PREFIX_BYTES
    length = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= length <= FRAME_BYTES_MAX:
        began = bytes(prefix)
        if began.startswith(_TLS_HANDSHAKE):
            raise OtherProtocol(TLS, began)
        if began in _HTTP_METHODS:
            raise OtherProtocol(HTTP, began)
        raise ProtocolViolation(f"frame length out of bounds: length={length} maximum={FRAME_BYTES_MAX}")
    return length
