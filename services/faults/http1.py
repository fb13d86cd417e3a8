"""As much of HTTP/1.1 as it takes to pass messages on unchanged: heads, and bodies as they are framed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

PIECE_BYTES_MAX: Final = 1 << 16
HEAD_BYTES_MAX: Final = 1 << 16
_BODILESS_STATUSES: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a message, and its bytes as they came. Header names are in lower case."""

    raw: bytes
    line: tuple[str, str, str]
    headers: dict[str, str]

    @property
    def method(self) -> str:
        """The verb of a request."""
        return self.line[0]

    @property
    def target(self) -> str:
        """Path and query of a request."""
        return self.line[1]

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.line[1])

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length_bytes(self) -> int | None:
        """The length that the message states, or None."""
        return int(self.headers["content-length"]) if "content-length" in self.headers else None

    @property
    def is_last(self) -> bool:
        """True if its sender closes the connection after it."""
        return self.headers.get("connection", "").lower() == "close" or "HTTP/1.0" in self.line

    @property
    def awaits_go_ahead(self) -> bool:
        """True if the client sends the body only after a 100 Continue."""
        return self.headers.get("expect", "").lower() == "100-continue"


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None if the peer has closed, or closes before it is complete. Raise OSError on a connection that breaks."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    one, two, *rest = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Head(raw, (one, two, rest[0] if rest else ""), headers)


async def request_body(head: Head, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of a request, framing included, in pieces up to 64 KiB. Raise IncompleteReadError if it breaks off."""
    if head.is_chunked:
        async for piece in _chunks(reader):
            yield piece
    else:
        async for piece in _exactly(head.length_bytes or 0, reader):
            yield piece


async def answer_body(head: Head, method: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an answer to `method`, as `request_body`; one of unknown length ends where the server closes."""
    if method == "HEAD" or head.status in _BODILESS_STATUSES:
        return
    if head.is_chunked:
        async for piece in _chunks(reader):
            yield piece
    elif head.length_bytes is not None:
        async for piece in _exactly(head.length_bytes, reader):
            yield piece
    else:
        while piece := await reader.read(PIECE_BYTES_MAX):
            yield piece


def has_end(head: Head, method: str) -> bool:
    """Whether an answer to `method` ends before its connection does."""
    return method == "HEAD" or head.status in _BODILESS_STATUSES or head.is_chunked or head.length_bytes is not None


async def _exactly(length_bytes: int, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    left = length_bytes
    while left:
        piece = await reader.read(min(left, PIECE_BYTES_MAX))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size_bytes = int(line.split(b";")[0], 16)
        if size_bytes == 0:
            break
        async for piece in _exactly(size_bytes + len(b"\r\n"), reader):
            yield piece
    while True:
        trailer = await reader.readuntil(b"\r\n")
        yield trailer
        if trailer == b"\r\n":
            return
