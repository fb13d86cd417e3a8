"""An HTTP/1.1 proxy in front of an S3 server, whose calls fail as its plan says.

    async with s3_proxy(server.endpoint) as proxy:
        proxy.plan.add(Rule(Fault.DROP_REPLY, methods={"PUT"}, every=3))
        ... a client of proxy.endpoint ...

Requests and answers pass unchanged, and so does the Host header, which the client's signature covers. Each connection of a client has
one of its own to the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from runtime.supervision import Nursery
from services.faults.http1 import HEAD_BYTES_MAX, PIECE_BYTES_MAX, Head, answer_body, has_end, read_head, request_body
from services.faults.plan import HANG_S_MAX, Counts, Fault, Plan, Rule
from services.ports import HOST, held_port

LATE_BODY_BYTES_MAX: Final = 64 << 20
LINGER_S: Final = 5.0
REASONS: Final = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 500: "Internal Server Error", 503: "Slow Down"}

Refused = Callable[[Head, Rule], None]
"""Gets each request that the proxy answers itself, before it answers."""

_BROKEN: Final = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class _ReadsOn(asyncio.StreamReader):
    """Ends, when the connection breaks, after what has arrived: a server may refuse a body, say so, and close while it is being sent."""

    def set_exception(self, exc: Exception) -> None:  # noqa: ARG002 - as the class above has it
        self.feed_eof()


@dataclass(eq=False)
class _Line:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def abort(self) -> None:
        """Close without sending what is still buffered."""
        # A transport that was closed while it still had something to send fails here once it has sent that (asyncio of 3.11).
        with contextlib.suppress(AttributeError):
            self.writer.transport.abort()

    async def finish(self) -> None:
        """Send what is still buffered and close; what the peer does not take in `LINGER_S` is lost."""
        self.writer.close()
        with contextlib.suppress(TimeoutError, *_BROKEN):
            async with asyncio.timeout(LINGER_S):
                await self.writer.wait_closed()
        self.abort()

    async def until_gone(self) -> None:
        """Return when the peer has closed, or after `HANG_S_MAX`. What it still sends is lost."""
        with contextlib.suppress(TimeoutError, *_BROKEN):
            async with asyncio.timeout(HANG_S_MAX):
                while await self.reader.read(PIECE_BYTES_MAX):
                    pass


class S3Proxy:
    """A server at `endpoint` ("http://127.0.0.1:PORT", the same for life). `plan` says what fails; `counts` what has happened."""

    def __init__(self, server_endpoint: str, port: int, nursery: Nursery, *, refused: Refused | None = None) -> None:
        server = urlsplit(server_endpoint)
        assert server.scheme == "http", "there is no TLS to a server of the tests"
        assert server.hostname, server_endpoint
        self.server_endpoint = server_endpoint
        self.endpoint = f"http://{HOST}:{port}"
        self.plan = Plan()
        self._server_host, self._server_port = server.hostname, server.port or 80
        self.port = port
        self.refused = refused
        self._nursery = nursery
        self._clients: set[_Line] = set()
        self._listener: asyncio.Server | None = None

    @property
    def counts(self) -> Counts:
        """A copy, as of now."""
        return self.plan.counts

    async def up(self) -> None:
        """Listen, if it does not."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, HOST, self.port, limit=HEAD_BYTES_MAX)

    async def down(self) -> None:
        """Break all connections and stop listening: new ones are refused until `up`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            await self.cut()
            await listener.wait_closed()

    async def cut(self) -> None:
        """Break all connections. New ones are served."""
        for client in self._clients:
            client.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Line(reader, writer)
        if self._listener is None:
            client.abort()
            return
        self._clients.add(client)
        self._nursery.spawn(self._serve(client), name="s3 client")

    async def _serve(self, client: _Line) -> None:
        """Requests one after another, until one end closes or a fault says so."""
        connection = _Connection(self, client)
        try:
            with contextlib.suppress(*_BROKEN):
                while (head := await read_head(client.reader)) is not None:
                    method = "LIST" if head.method == "GET" and "list-type=" in head.target else head.method
                    if not await connection.strike(self.plan.arrived(method, head.target), method, head):
                        break
                await client.finish()
        finally:
            self._clients.discard(client)
            client.abort()
            connection.hang_up()

    async def connect(self) -> _Line:
        """A new connection to the server. Raise OSError."""
        loop = asyncio.get_running_loop()
        reader = _ReadsOn(limit=HEAD_BYTES_MAX, loop=loop)
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), self._server_host, self._server_port
        )
        return _Line(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def send_later(self, method: str, request: bytes, delay_s: float) -> None:
        """Ask the server in `delay_s`, whatever has become of the client."""
        self._nursery.spawn(self._send_later(method, request, delay_s), name="late call")

    async def _send_later(self, method: str, request: bytes, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        with contextlib.suppress(*_BROKEN):
            server = await self.connect()
            try:
                self.plan.forwarded(method)
                await server.send(request)
                head = await read_head(server.reader)
                while head is not None and head.status // 100 == 1:
                    head = await read_head(server.reader)
                if head is not None:
                    self.plan.answered(method)
            finally:
                server.abort()


class _Connection:
    """A client's connection and the one to the server that goes with it."""

    def __init__(self, proxy: S3Proxy, client: _Line) -> None:
        self._proxy = proxy
        self._client = client
        self._server: _Line | None = None

    def hang_up(self) -> None:
        """Close the connection to the server."""
        if self._server is not None:
            self._server.abort()
            self._server = None

    async def strike(self, rule: Rule | None, method: str, head: Head) -> bool:
        """One request, as far as its rule lets it come. False: the connection is over. Raise what `_BROKEN` lists."""
        match rule.fault if rule else None:
            case None:
                return await self._forward(method, head)
            case Fault.REFUSE:
                return self._break_off()
            case Fault.BLACKHOLE:
                await self._client.until_gone()
                return False
            case Fault.ANSWER:
                assert rule
                return await self._refuse(rule, head)
            case Fault.DELAY:
                assert rule
                await asyncio.sleep(rule.delay_s)
                return await self._forward(method, head)
            case Fault.LATE:
                assert rule
                self._proxy.send_later(method, await self._whole(head), rule.delay_s)
                return self._break_off()
            case Fault.CUT_REQUEST:
                assert rule
                return await self._forward(method, head, request_bytes_max=rule.body_bytes)
            case _:
                return await self._forward(method, head, reply=rule)

    def _break_off(self) -> bool:
        self._client.abort()
        return False

    async def _forward(self, method: str, head: Head, *, request_bytes_max: int | None = None, reply: Rule | None = None) -> bool:
        """Ask the server, and do with its reply what the rule says. False: the connection is over."""
        server = await self._connected()
        self._proxy.plan.forwarded(method)
        await server.send(head.raw)
        upload = _Upload()
        async with Nursery() as uploading:
            task = uploading.spawn(upload.run(head, self._client, server, request_bytes_max), name="upload")
            try:
                answer = await self._answered(method, server)
                if answer is None or upload.is_cut:
                    return self._break_off()
                keep = await self._reply(reply, head, answer, server)
                if keep and not upload.is_whole:
                    # The answer came before the whole request. To close on what the client still sends could take the answer from it.
                    self._client.writer.write_eof()
                    await asyncio.wait([task], timeout=LINGER_S)
                    keep = False
            except _BROKEN:
                return self._break_off()
        return keep and not answer.is_last and not head.is_last

    async def _answered(self, method: str, server: _Line) -> Head | None:
        """The head of the final answer; None if the server closes without one. What comes before it is passed on."""
        while (answer := await read_head(server.reader)) is not None:
            if answer.status // 100 != 1:
                self._proxy.plan.answered(method)
                return answer
            await self._client.send(answer.raw)
        return None

    async def _reply(self, rule: Rule | None, head: Head, answer: Head, server: _Line) -> bool:
        """Pass the server's answer on, or what the rule makes of it. False: the connection is over."""
        body = answer_body(answer, head.method, server.reader)
        match rule.fault if rule else None:
            case None:
                await self._pass_on(answer, body)
                return has_end(answer, head.method)
            case Fault.DELAY_REPLY:
                assert rule
                await asyncio.sleep(rule.delay_s)
                await self._pass_on(answer, body)
                return has_end(answer, head.method)
            case Fault.CUT_REPLY:
                assert rule
                await self._pass_on(answer, _first(rule.body_bytes, body))
                await self._client.finish()
                return False
        async for _ in body:
            pass
        match rule.fault if rule else None:
            case Fault.DROP_REPLY:
                return self._break_off()
            case Fault.HANG_REPLY:
                await self._client.until_gone()
                return False
            case Fault.REPLACE_REPLY:
                assert rule
                await self._client.send(_error(rule, head, is_last=False))
                return True
            case unfit:
                raise AssertionError(f"not a fault of replies: {unfit}")

    async def _pass_on(self, answer: Head, body: AsyncIterator[bytes]) -> None:
        await self._client.send(answer.raw)
        async for piece in body:
            await self._client.send(piece)

    async def _refuse(self, rule: Rule, head: Head) -> bool:
        """Answer without the server. A client that keeps its body back gets the answer before it sends it, and closes."""
        if self._proxy.refused is not None:
            self._proxy.refused(head, rule)
        if not head.awaits_go_ahead:
            async for _ in request_body(head, self._client.reader):
                pass
        await self._client.send(_error(rule, head, is_last=head.awaits_go_ahead))
        return not head.awaits_go_ahead and not head.is_last

    async def _whole(self, head: Head) -> bytes:
        """The request as it came, body included. The body is asked for if the client keeps it back."""
        if head.awaits_go_ahead:
            await self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        whole = bytearray(head.raw)
        async for piece in request_body(head, self._client.reader):
            whole += piece
            assert len(whole) <= LATE_BODY_BYTES_MAX, "too large to be held back"
        return bytes(whole)

    async def _connected(self) -> _Line:
        if self._server is not None and self._server.reader.at_eof():
            self.hang_up()
        if self._server is None:
            self._server = await self._proxy.connect()
        return self._server


class _Upload:
    """The body of one request on its way to the server."""

    def __init__(self) -> None:
        self.is_whole = False
        self.is_cut = False

    async def run(self, head: Head, client: _Line, server: _Line, bytes_max: int | None) -> None:
        """Pass it on, at most `bytes_max` of it. What the server no longer takes is lost untold: there may be an answer.

        A body that breaks off or is cut ends the connection to the server as well.
        """
        is_taken = True
        try:
            body = request_body(head, client.reader)
            async for piece in body if bytes_max is None else _first(bytes_max, body):
                if is_taken:
                    is_taken = await _is_sent(server, piece)
            self.is_cut = bytes_max is not None
            self.is_whole = is_taken and not self.is_cut
        except _BROKEN:
            await server.finish()
        if self.is_cut:
            await server.finish()


async def _is_sent(line: _Line, piece: bytes) -> bool:
    try:
        await line.send(piece)
    except OSError:
        return False
    return True


async def _first(bytes_max: int, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    left = bytes_max
    while left > 0 and (piece := await anext(pieces, None)) is not None:
        yield piece[:left]
        left -= len(piece)


def _error(rule: Rule, head: Head, *, is_last: bool) -> bytes:
    """The answer of an S3 server that refuses."""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{rule.code}</Code><Message>the fault proxy says so</Message>"
        f"<Resource>{head.target.partition('?')[0]}</Resource><RequestId>0</RequestId></Error>"
    ).encode()
    lines = [
        f"HTTP/1.1 {rule.status} {REASONS.get(rule.status, 'Refused')}",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
        "x-amz-request-id: 0",
        *(["Connection: close"] if is_last else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head.method == "HEAD" else body)


@contextlib.asynccontextmanager
async def s3_proxy(server_endpoint: str, *, is_up: bool = True) -> AsyncIterator[S3Proxy]:
    """A proxy to the server at "http://HOST:PORT", which need not run yet. Not `is_up`: it listens after `up`."""
    with held_port() as port:
        async with Nursery() as nursery:
            proxy = S3Proxy(server_endpoint, port, nursery)
            if is_up:
                await proxy.up()
            try:
                yield proxy
            finally:
                await proxy.down()
