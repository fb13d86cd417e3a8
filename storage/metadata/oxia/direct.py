"""Small requests to one node, over a connection of our own where there is one (docs/adr/0026); gRPC carries the rest.

gRPC is who says whether a node can be reached and is who it should be: a connection is made only to one that has answered through gRPC,
and while there is none, or no room on it, a request goes through gRPC. So what fails to connect is explained in one place.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import structlog

from storage.metadata.oxia.credentials import Token
from storage.metadata.oxia.http2 import ConnectionBroken, Http2Connection, literals

CONNECT_TIMEOUT_S: Final = 2.0
CONNECT_PAUSE_S: Final = 1.0
"""From one attempt to the next; twice as long after each that came to nothing."""
CONNECT_PAUSE_S_MAX: Final = 60.0
HEADERS_BYTES_MAX: Final = 8 * 1024
"""With a token that is longer, a request goes through gRPC."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 5_000))
"""A peer that is gone without a word is found out, whether something is sent to it or not."""
_DROP_UNSENT: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER. Otherwise the kernel goes on sending what it holds of a closed connection: a write that was given up, whose outcome is
unknown, could arrive minutes later, over those that came after it."""
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

log = structlog.get_logger(__name__)


class _OutOfTime(Exception):
    pass


class DirectCalls:
    """`spawn` runs a task until it ends or `close` is called."""

    def __init__(
        self,
        address: str,
        *,
        service: str,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        token: Token | None,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._address = address
        self._tls = tls
        self._server_name = server_name
        self._service = service
        self._token = token
        self._spawn = spawn
        self._connections: list[Http2Connection] = []
        """The last is in use, those before it are waited for."""
        self._is_connecting = False
        self._is_failing = False
        self._useless: Http2Connection | None = None
        """The last that broke before it had answered: it failed once, however many requests were under way on it."""
        self._is_closed = False
        self._not_before_s = 0.0
        self._pause_s = CONNECT_PAUSE_S
        self._headers: dict[str, bytes] = {}

    def has_room_for(self, method: str, message: bytes) -> bool:
        """Whether `call` sends this request at once."""
        return (
            bool(self._connections)
            and self._connections[-1].has_room_for(len(message))
            and (self._token is None or len(self._headers_of(method)) <= HEADERS_BYTES_MAX)
        )

    async def call(self, method: str, message: bytes, *, timeout_s: float) -> tuple[bytes, ...]:
        """The answer to a request for which there is room, message after message. Raise `AioRpcError`, as gRPC would."""
        connection = self._connections[-1]
        heard = connection.heard
        deadline = literals({"grpc-timeout": f"{int(timeout_s * 1e3) + 1}m"})
        number, reply = connection.send(self._headers_of(method) + deadline, message)

        def end() -> None:
            if not reply.done():
                reply.set_exception(_OutOfTime())

        timer = asyncio.get_running_loop().call_later(timeout_s, end)
        try:
            status, reason, messages = await reply
        except ConnectionBroken as error:
            if not (connection.has_answered or connection is self._useless or self._is_closed):
                self._useless = connection
                self._note_failure(str(error))
            raise _error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        except _OutOfTime:
            connection.give_up(number)
            if connection.heard == heard:
                connection.retire()  # it may be the connection that is dead: the next request takes another
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except asyncio.CancelledError:
            connection.give_up(number)
            raise
        finally:
            timer.cancel()
        self._is_failing, self._pause_s = False, CONNECT_PAUSE_S
        if status:
            raise _error(_CODES.get(status, grpc.StatusCode.UNKNOWN), reason)
        return messages

    def note_answer(self) -> None:
        """The node has answered through gRPC: connect to it, unless there is a connection, or an attempt was just made."""
        if self._is_closed or self._is_connecting or (self._connections and not self._connections[-1].is_retired):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._not_before_s:
            self._not_before_s = now_s + self._pause_s
            connecting = self._connect()
            try:
                self._spawn(connecting, f"oxia connection to {self._address}")
            except RuntimeError:  # the one who runs our tasks is being ended: the answer counts all the same
                connecting.close()
            else:
                self._is_connecting = True

    def close(self) -> None:
        """End what is under way."""
        self._is_closed = True
        for connection in self._connections:
            connection.abort("the metadata store is closed")

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        server_name = None if self._tls is None else self._server_name or host
        connection: Http2Connection | None = None
        try:
            if server_name is not None:
                server_name.encode("idna")  # as ssl does, which asyncio learns of when it has a socket, and leaves that open
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    Http2Connection,
                    host,
                    int(port),
                    ssl=self._tls,
                    server_hostname=server_name,
                )
                set_options(transport.get_extra_info("socket"))
                await connection.ready
        # ValueError and TypeError: an address, or a name for TLS, that only gRPC takes.
        except (OSError, TimeoutError, ConnectionBroken, ValueError, TypeError) as error:
            self._note_failure(str(error) or "no answer in time")
        else:
            if not self._is_closed:
                self._connections = [*(each for each in self._connections if not each.is_over), connection]
                connection = None
        finally:
            self._is_connecting = False
            if connection is not None:
                connection.abort("not connected in time")

    def _note_failure(self, cause: str) -> None:
        """A connection was not made, or ended before it was of use: the next attempt comes later, and the log says so once."""
        if not self._is_failing:
            log.warning("oxia_direct_connection_failed", address=self._address, cause=cause)
        self._is_failing = True
        self._not_before_s = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(2 * self._pause_s, CONNECT_PAUSE_S_MAX)

    def _headers_of(self, method: str) -> bytes:
        headers = self._headers.get(method)
        if headers is None:
            headers = self._headers[method] = literals(
                {
                    ":method": "POST",
                    ":scheme": "http" if self._tls is None else "https",
                    ":path": f"{self._service}{method}",
                    ":authority": self._server_name or self._address,
                    "te": "trailers",
                    "content-type": "application/grpc",
                }
            )
        return headers if self._token is None else headers + literals(dict(self._token.metadata()), is_secret=True)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def set_options(connected: Any) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
