"""A small S3 server that does as it is told: objects in a dictionary, and rules that come before them."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"
MODIFIED = "Sat, 21 Nov 2026 07:00:00 GMT"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.path.removeprefix(f"/{BUCKET}/")


@dataclass
class Reply:
    """`cut`: bytes of the body after which the connection ends. `raw`: sent instead of everything, and then the connection ends."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    raw: bytes | None = None


Rule = Callable[[Request], Awaitable[Reply | None]]


def error(status: int, code: str = "", message: str = "as the test wants it", *, extra: str = "", **headers: str) -> Reply:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{extra}</Error>" if code else ""
    return Reply(status, body.encode(), {name.replace("_", "-"): value for name, value in headers.items()})


LOST = Reply(raw=b"")


class ScriptedS3:
    """`rules` are asked in turn, each until it has answered as often as it was told to; then the dictionary answers."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.answered: list[tuple[Request, Reply]] = []
        """In the order of the answers, which may be lost or cut."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.upload_keys: list[str] = []
        """That of upload "0", of "1", and so on, unfinished or not."""
        self._rules: list[tuple[Rule, int]] = []
        self.conditional = True
        self.endpoint = ""

    def add(self, rule: Rule, *, times: int = 1) -> None:
        self._rules.append((rule, times))

    def answer(self, method: str, reply: Reply, *, times: int = 1, when: Callable[[Request], bool] = lambda _: True) -> None:
        """Requests of `method` that `when` picks get `reply`, so often."""

        async def rule(request: Request) -> Reply | None:
            return reply if request.method == method and when(request) else None

        self.add(rule, times=times)

    def lose_reply(self, method: str, *, times: int = 1, when: Callable[[Request], bool] = lambda _: True) -> None:
        """They take effect, and the connection ends without an answer."""

        async def rule(request: Request) -> Reply | None:
            if request.method != method or not when(request):
                return None
            self.serve(request)
            return LOST

        self.add(rule, times=times)

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.requests)

    @classmethod
    @asynccontextmanager
    async def running(cls, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        self = cls()
        connections: set[asyncio.StreamWriter] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(writer)
            try:
                await self._converse(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                connections.discard(writer)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in tuple(connections):
                writer.transport.abort()
            await asyncio.sleep(0.01)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
            if headers.get("expect") == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            parts = urlsplit(target)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            request = Request(method, unquote(parts.path), query, headers, body)
            self.requests.append(request)
            reply = await self._answer(request)
            self.answered.append((request, reply))
            if reply.raw is not None:
                writer.write(reply.raw)
                return
            sent = {"Content-Length": str(len(reply.body)), "Last-Modified": MODIFIED, "ETag": '"x"', **reply.headers}
            lines_sent = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            body_sent = b"" if method == "HEAD" else reply.body[: reply.cut]
            writer.write(f"HTTP/1.1 {reply.status} X\r\n{lines_sent}\r\n".encode() + body_sent)
            await writer.drain()
            if reply.cut is not None:
                return

    async def _answer(self, request: Request) -> Reply:
        for position, (rule, times) in enumerate(self._rules):
            reply = await rule(request)
            if reply is not None:
                self._rules[position : position + 1] = [(rule, times - 1)] if times > 1 else []
                return reply
        return self.serve(request)

    def serve(self, request: Request) -> Reply:
        upload = request.query.get("uploadId")
        if upload is not None and upload not in self.uploads:
            return error(404, "NoSuchUpload")
        match request.method:
            case "PUT" if "uploadId" in request.query:
                self.uploads[request.query["uploadId"]][int(request.query["partNumber"])] = request.body
                return Reply()
            case "PUT":
                return self._put(request.key, request.body, request.headers)
            case "GET" if "uploads" in request.query:
                return self._list_uploads(request)
            case "GET" if request.path in (f"/{BUCKET}", f"/{BUCKET}/"):
                return self._list(request)
            case "GET" | "HEAD":
                return self._read(request)
            case "POST" if "delete" in request.query:
                for key in re.findall(r"<Key>([^<]*)</Key>", request.body.decode()):
                    self.objects.pop(key, None)
                return Reply(body=b"<DeleteResult></DeleteResult>")
            case "POST" if "uploads" in request.query:
                upload = str(len(self.upload_keys))
                self.uploads[upload] = {}
                self.upload_keys.append(request.key)
                return Reply(body=f"<R><UploadId>{upload}</UploadId></R>".encode())
            case "POST" if "uploadId" in request.query:
                parts = self.uploads.pop(request.query["uploadId"])
                reply = self._put(request.key, b"".join(parts[number] for number in sorted(parts)), request.headers)
                return Reply(body=b"<R><ETag>x</ETag></R>") if reply.status == 200 else reply
            case "DELETE" if "uploadId" in request.query:
                del self.uploads[request.query["uploadId"]]
                return Reply(204)
            case "DELETE":
                self.objects.pop(request.key, None)
                return Reply(204)
        return error(405, "MethodNotAllowed")

    def _put(self, key: str, body: bytes, headers: dict[str, str]) -> Reply:
        if key in self.objects and headers.get("if-none-match") == "*" and self.conditional:
            return error(412, "PreconditionFailed")
        self.objects[key] = body
        return Reply()

    def _read(self, request: Request) -> Reply:
        body = self.objects.get(request.key)
        if body is None:
            return error(404, "NoSuchKey")
        if request.method == "HEAD":
            return Reply(body=body)
        start, end = (int(number) for number in request.headers["range"].removeprefix("bytes=").split("-"))
        if start >= len(body):
            return error(416, "InvalidRange")
        found = body[start : end + 1]
        return Reply(206, found, {"Content-Range": f"bytes {start}-{start + len(found) - 1}/{len(body)}"})

    def _list(self, request: Request) -> Reply:
        keys = sorted(
            key for key in self.objects if key.startswith(request.query.get("prefix", "")) and key > request.query.get("start-after", "")
        )
        page = keys[: int(request.query.get("max-keys", 1_000))]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[key])}</Size><LastModified>2026-11-21T07:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        more = "true" if len(keys) > len(page) else "false"
        return Reply(body=f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{contents}</ListBucketResult>".encode())

    def _list_uploads(self, request: Request) -> Reply:
        prefix, after = request.query.get("prefix", ""), request.query.get("key-marker", "")
        found = sorted((self.upload_keys[int(upload)], upload) for upload in self.uploads)
        found = [(key, upload) for key, upload in found if key.startswith(prefix) and key > after]
        page = found[: int(request.query.get("max-uploads", 1_000))]
        more = "true" if len(found) > len(page) else "false"
        return uploads_page(page, more=more)


def uploads_page(uploads: Sequence[tuple[str, str]], *, more: str) -> Reply:
    """Of keys and upload ids."""
    listed = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId><Initiated>2026-11-21T07:00:00.000Z</Initiated></Upload>"
        for key, upload in uploads
    )
    return Reply(body=f"<ListMultipartUploadsResult><IsTruncated>{more}</IsTruncated>{listed}</ListMultipartUploadsResult>".encode())
