"""The HTTP API of brokers in this process, and a client of it.

async with running_cluster() as cluster:
    member = await cluster.join()
    async with http_of(member) as http:
        await http.produced("t", 0, ["a", "b"])
"""

import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from broker.http.guard import HttpLimits
from broker.http.routes import routes_of
from process.http.server import HttpServer, ProcessFacts
from process.settings.model import Settings
from process.settings.notation import HttpAddress
from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from tests.kit.clustering import Member

LOCAL = HttpAddress("127.0.0.1", 0)


class Http:
    """Asks one broker."""

    def __init__(self, session: aiohttp.ClientSession, address: HttpAddress, member: Member) -> None:
        self.session = session
        self.address = address
        self.member = member

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(path, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """`body` is JSON, or bytes that are sent as they are; `content_type="…"` is a header."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(path, data=io.BytesIO(data), headers=given) as response:
            return response.status, json.loads(await response.read())

    async def produced(self, topic: str, partition: int, records: Sequence[Any], **more: Any) -> dict[str, Any]:
        """Append records that nothing speaks against."""
        sequence = {"sequence": more.pop("sequence")} if "sequence" in more else {}
        named = [{"topic": topic, "partition": partition, "records": records} | sequence]
        status, answer = await self.post("/produce", {"topic_partitions": named} | more)
        assert status == 200, answer
        (result,) = answer["results"]
        return dict(result)

    async def consumed(self, topic: str, partition: int, fetch_offset: int | str = "start", **more: Any) -> dict[str, Any]:
        """Read what can be read."""
        named = [{"topic": topic, "partition": partition, "fetch_offset": fetch_offset}]
        status, answer = await self.post("/consume", {"topic_partitions": named, "max_wait_ms": 0} | more)
        assert status == 200, answer
        (result,) = answer["results"]
        return dict(result)

    async def values(self, topic: str, partition: int, fetch_offset: int | str = "start", **more: Any) -> list[Any]:
        return [record["value"] for record in (await self.consumed(topic, partition, fetch_offset, **more))["records"]]


@contextlib.asynccontextmanager
async def http_of(
    member: Member, *, limits: HttpLimits | None = None, metrics: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Http]:
    """Serve the API of a broker with these settings of `http` and of `metrics`; `limits` in place of what they say."""
    clock, blocking = SystemClock(), ThreadBlocking(threads=1, name="http")
    given: Mapping[str, Any] = {"listen": LOCAL} | settings
    stores = {"storage": {"url": "memory://"}, "metadata": {"url": "memory://"}}
    routes = routes_of(
        member.broker.http,
        Settings.model_validate({"http": given, "metrics": metrics or {}, **stores}),
        blocking=blocking,
        is_ready=lambda: member.broker.readiness.sum_up().is_ready,
        limits=limits,
    )
    server = HttpServer(
        ProcessFacts("/api/v1/broker", "0.1.0", dict),
        readiness=member.broker.readiness,
        telemetry=Telemetry(),
        blocking=blocking,
        clock=clock,
        routes=routes,
    )
    address = await server.start(LOCAL)
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session:
            yield Http(session, address, member)
    finally:
        await server.stop()
        blocking.close()
