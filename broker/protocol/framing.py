"""Frames of one connection, sans-I/O: the four bytes before every request, and the order of the replies. No sockets, clock or tasks.

Buffers belong to the connection; this module only judges the length.
"""

from collections.abc import Sequence
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


class ReplyOrder:
    """Numbers requests as they arrive and releases replies in that order, whatever order they are finished in."""

    __slots__ = ("_finished", "_next", "_oldest")

    def __init__(self) -> None:
        self._next = 0
        self._oldest = 0
        self._finished: dict[int, Sequence[Buffer] | None] = {}

    def begin(self) -> int:
        """A request has arrived; its number is what `reply` takes."""
        number = self._next
        self._next += 1
        return number

    @property
    def begun_count(self) -> int:
        return self._next

    @property
    def pending_count(self) -> int:
        return self._next - self._oldest

    def reply(self, number: int, payload: Sequence[Buffer] | None) -> list[Buffer]:
        """Finish a request. `payload`: the reply from its header on, or None where the client expects none (acks=0).

        Returns what may be sent now, frame lengths included; empty while an earlier request is unfinished.
        """
        finished = self._finished
        assert self._oldest <= number < self._next, f"not a request that is waited for: {number}"
        assert number not in finished, f"answered twice: request {number}"
        finished[number] = payload
        ready: list[Buffer] = []
        while self._oldest in finished:
            body = finished.pop(self._oldest)
            self._oldest += 1
            if body is not None:
                ready.append(sum(map(len, body)).to_bytes(4, "big"))
                ready.extend(body)
        return ready
