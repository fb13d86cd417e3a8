"""A TCP proxy before a broker that notes which APIs and versions clients ask for, and changes no byte.

    with recording() as recorder:
        recorder.target = (host, port)      # of the broker, which advertises recorder.bootstrap
        ...
        recorder.exercised()                # {(api key, version): requests}

Only the first eight bytes of a request are looked at. A connection that does not speak Kafka is copied all the same.
"""

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.kit.listening import HOST, listening

REQUEST_BYTES_MAX: Final = 256 * 1024 * 1024
"""No client sends more at once; a longer length means that these are not requests."""
_CHUNK_BYTES: Final = 64 * 1024
_HEADER: Final = struct.Struct(">ihh")
_LENGTH_BYTES: Final = 4


class RequestHeaders:
    """Api key and version of each request in a stream of bytes, however it is cut. Keeps eight bytes at most."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._rest_bytes = 0
        self.is_readable = True
        """False for good after a length that no request has: what follows is not looked at."""

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """The (api key, version) of the requests whose headers `data` completes."""
        found = []
        at = 0
        while at < len(data) and self.is_readable:
            if self._rest_bytes:
                skipped = min(self._rest_bytes, len(data) - at)
                self._rest_bytes -= skipped
                at += skipped
                continue
            wanted = _HEADER.size - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) == _HEADER.size:
                size, key, version = _HEADER.unpack(self._head)
                self._head.clear()
                self._rest_bytes = size - (_HEADER.size - _LENGTH_BYTES)
                self.is_readable = 0 <= self._rest_bytes <= REQUEST_BYTES_MAX and key >= 0 and version >= 0
                if self.is_readable:
                    found.append((key, version))
        return found


class Recorder:
    """What `recording` gives. `target` is the broker; a connection made before it is known is closed."""

    def __init__(self) -> None:
        self.port = 0
        self.target: tuple[str, int] | None = None
        self.unreadable = 0
        """Connections that sent what is no request of Kafka's."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        # The loop holds tasks weakly, and a connection that one side has closed is held by nothing else.
        self._connections: set[asyncio.Task[None] | None] = set()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def exercised(self) -> dict[tuple[int, int], int]:
        """How many requests of each (api key, version) have passed so far."""
        with self._lock:
            return dict(self._counts)

    def forget(self) -> None:
        """Count anew from here."""
        with self._lock:
            self._counts.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, until both of its directions have ended."""
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            with contextlib.closing(writer):
                await self._connect(reader, writer)
        finally:
            self._connections.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self.target)
        except OSError:  # the broker is away: the client sees its connection closed, as it would without a proxy
            return
        with contextlib.closing(broker_writer):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, broker_writer, RequestHeaders()))
                tasks.create_task(self._copy(broker_reader, writer, None))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: RequestHeaders | None) -> None:
        """Until this direction ends, which the other side is then told. With `headers`, note what passes before it is sent on."""
        with contextlib.suppress(ConnectionError):  # either side may hang up at any time; the other direction ends by itself
            while data := await reader.read(_CHUNK_BYTES):
                if headers is not None and headers.is_readable:
                    self._note(headers, data)
                writer.write(data)
                await writer.drain()
        if headers is None:
            writer.close()
        elif writer.can_write_eof() and not writer.is_closing():
            with contextlib.suppress(OSError):  # it was reset in the meantime
                writer.write_eof()

    def _note(self, headers: RequestHeaders, data: bytes) -> None:
        found = headers.feed(data)
        with self._lock:
            self._counts.update(found)
            self.unreadable += not headers.is_readable


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder that listens on a port of its own, in a thread of its own. Leaving closes its connections."""
    recorder = Recorder()
    with listening(recorder.serve, name="recorder") as recorder.port:
        yield recorder
