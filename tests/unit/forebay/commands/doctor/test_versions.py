"""What is said of a bucket that keeps versions: only if it does, and may be asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from forebay.commands.doctor.finding import Checks, FindingStatus
from forebay.commands.doctor.objects import VERSIONS, look_at_versions
from runtime.clock import SystemClock

ENABLED = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
SUSPENDED = "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"
NEVER = "<VersioningConfiguration/>"
REFUSED = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


@asynccontextmanager
async def answering(status: str, body: str, asked: list[str]) -> AsyncIterator[str]:
    """The endpoint of a server that answers so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def said(monkeypatch: pytest.MonkeyPatch, status: str, body: str) -> tuple[list[tuple[str, FindingStatus]], list[str]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    checks, asked = Checks(lambda _: None), list[str]()
    async with answering(status, body, asked) as endpoint:
        await look_at_versions(f"s3://bucket/prefix?endpoint={endpoint}&region=us-east-1", checks, clock=SystemClock())
    return [(one.check, one.verdict) for one in checks.findings], asked


async def test_a_bucket_that_keeps_versions_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    findings, asked = await said(monkeypatch, "200 OK", ENABLED)

    assert findings == [(VERSIONS, FindingStatus.WARNING)]
    assert asked == ["GET /bucket?versioning HTTP/1.1"]


@pytest.mark.parametrize(("status", "body"), [("200 OK", SUSPENDED), ("200 OK", NEVER), ("403 Forbidden", REFUSED)])
async def test_of_one_that_keeps_none_or_may_not_be_asked_nothing_is_said(monkeypatch: pytest.MonkeyPatch, status: str, body: str) -> None:
    findings, asked = await said(monkeypatch, status, body)

    assert findings == []
    assert asked, "it was asked"


async def test_a_folder_keeps_no_versions() -> None:
    checks = Checks(lambda _: None)
    await look_at_versions("file:///nowhere", checks, clock=SystemClock())

    assert not checks.findings
