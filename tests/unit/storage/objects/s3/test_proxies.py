"""Which way a request goes: the same for both clients, whatever each would make of the environment by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.errors import Unavailable
from storage.objects.s3.endpoint import Route, proxies_of
from storage.objects.s3.store import S3ClientName
from tests.kit.opened_s3 import hurry, opened
from tests.kit.scripted_s3 import ScriptedS3

P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("environment", "url", "route"),
    [
        ({}, "http://h", Route(None, "")),
        ({"HTTP_PROXY": P}, "http://h", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P}, "https://h", Route(None, "")),
        ({"https_proxy": P}, "https://h", Route(P, "https_proxy")),
        ({"https_proxy": P, "HTTPS_PROXY": "http://other"}, "https://h", Route(P, "https_proxy")),
        ({"https_proxy": "", "HTTPS_PROXY": "http://other"}, "https://h", Route(None, "")),
        ({"ALL_PROXY": P}, "https://h", Route(P, "ALL_PROXY")),
        ({"HTTP_PROXY": "proxy:3128"}, "http://h", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "a, h ,b"}, "http://h", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "no_proxy": "*"}, "http://h", Route(None, "no_proxy")),
        ({"HTTP_PROXY": P, "NO_PROXY": "example.org"}, "http://s3.Example.org", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": ".example.org"}, "http://s3.example.org", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "*.example.org"}, "http://s3.example.org", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "example.org"}, "http://anexample.org", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "h:9000"}, "http://h:9000", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "h:9000"}, "http://h:9001", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3:9000", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "127.0.0.1"}, "http://127.0.0.1", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "fd00::/8"}, "http://[fd00::1]:9000", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "[::1]"}, "http://[::1]", Route(None, "NO_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": "0.0.1"}, "http://127.0.0.1", Route(P, "HTTP_PROXY")),
        ({"HTTP_PROXY": P, "NO_PROXY": ""}, "http://h", Route(P, "HTTP_PROXY")),
    ],
)
def test_a_route_is_what_the_environment_says(environment: dict[str, str], url: str, route: Route) -> None:
    assert proxies_of(environment).route(url) == route


@pytest.mark.parametrize("proxy", ["socks5://user:sEcReT@proxy:1080", "http://", "http://proxy:x"])
def test_a_proxy_that_cannot_be_used_is_refused_by_the_name_of_its_variable(proxy: str) -> None:
    with pytest.raises(Unavailable, match=r"HTTPS_PROXY names a proxy .* add h to NO_PROXY") as refused:
        proxies_of({"HTTPS_PROXY": proxy}).route("https://h")
    assert "sEcReT" not in str(refused.value)


def test_a_route_is_shown_without_credentials() -> None:
    assert Route("http://user:sEcReT@proxy:3128", "HTTP_PROXY").shown == "through the proxy http://proxy:3128 (HTTP_PROXY)"
    assert Route(None, "NO_PROXY").shown == "directly (NO_PROXY names it)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy, and the first lines of the requests that it forwards."""
    seen: list[str] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, url, _ = head.split(" ", 2)
        seen.append(f"{method} {url}")
        authority, slash, path = url.removeprefix("http://").partition("/")
        # Whatever the host: only a proxy finds this one.
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(authority.rpartition(":")[2]))
        far_writer.write(head.replace(url, f"{slash}{path}", 1).encode())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, far_writer))
                group.create_task(pump(far_reader, writer))
        except* ConnectionError:
            pass

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        sink.close()

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
        server.close()


async def test_both_clients_go_through_the_proxy(client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    async with forwarding() as (proxy, seen):
        monkeypatch.setenv("ALL_PROXY", proxy)
        endpoint = server.endpoint.replace("127.0.0.1", "s3.invalid")
        async with opened(endpoint, client) as store:
            await store.put_if_absent("wal/1", [b"x"])
            await store.delete_many(["wal/1"])

    assert all(f" {endpoint}/" in line for line in seen)
    assert [request.method for request in server.requests] == ["PUT", "POST"]


@pytest.mark.parametrize("excluded", ["127.0.0.1", "127.0.0.0/8"])
async def test_both_clients_go_past_a_proxy_that_is_gone(
    client: S3ClientName, server: ScriptedS3, excluded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", excluded)
    async with opened(server.endpoint, client) as store:
        await store.probe()


async def test_a_proxy_that_is_gone_is_named(client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with opened(server.endpoint, client) as store:
        with pytest.raises(Unavailable, match=r"through the proxy http://127.0.0.1:1 \(HTTP_PROXY\).*Check the proxy; to go without it"):
            await store.probe()
    assert server.requests == []


async def test_a_proxy_of_another_kind_ends_the_start(client: S3ClientName, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(Unavailable, match="ALL_PROXY names a proxy"):
        async with opened(server.endpoint, client):
            pass
