"""The proxy in front of S3: what passes, what each fault does to both sides, and that the counts say so."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import pytest
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from aiohttp import web
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, EndpointConnectionError  # type: ignore[import-untyped]
from obstore.exceptions import GenericError
from obstore.store import S3Store

from services.faults.plan import Fault, Rule
from services.faults.s3_proxy import S3Proxy, s3_proxy
from services.versitygw import S3Server
from tests.kit.faults.in_thread import in_thread

BRIEF_S: Final = 0.3
LATE_S: Final = 2.0
SOON_S: Final = 30.0
BODY: Final = bytes(range(256)) * (8 << 12)
SESSION: Final = get_session()
LOST: Final = (ConnectionClosedError, EndpointConnectionError)
"""How botocore names a connection that broke: before the request was sent, or after."""

PUTS: Final = frozenset({"PUT"})
GETS: Final = frozenset({"GET"})


@dataclass
class Scene:
    """One server, seen through the proxy and past it; no client here tries anything twice."""

    server: S3Server
    proxy: S3Proxy
    through: Any
    past: Any
    prefix: str = field(default_factory=lambda: secrets.token_hex(8))

    def key(self, name: object) -> str:
        """The server outlives the test. A port would not tell its keys apart: a later proxy may be given the same one."""
        return f"{self.prefix}/{name}"

    async def put(self, name: object, body: bytes = BODY, **more: object) -> None:
        await self.through.put_object(Bucket=self.server.bucket, Key=self.key(name), Body=body, **more)

    async def get(self, name: object) -> bytes:
        return await self._got(self.through, name)

    async def stored(self, name: object) -> bytes | None:
        """What the server has, whatever the proxy does."""
        try:
            return await self._got(self.past, name)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise

    async def _got(self, client: Any, name: object) -> bytes:
        answer = await client.get_object(Bucket=self.server.bucket, Key=self.key(name))
        async with answer["Body"] as body:
            return bytes(await body.read())

    def obstore(self) -> S3Store:
        return S3Store(
            self.server.bucket,
            endpoint=self.proxy.endpoint,
            access_key_id=self.server.access_key,
            secret_access_key=self.server.secret_key,
            region=self.server.region,
            virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )


class OnceOnly(AIOHTTPSession):  # type: ignore[misc]
    """aiohttp sends a PUT again, unseen, when its connection breaks."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


def boto(server: S3Server, endpoint: str) -> Any:
    return SESSION.create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        config=AioConfig(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
            read_timeout=SOON_S,
            http_session_cls=OnceOnly,
        ),
    )


@pytest.fixture
async def scene(s3_server: S3Server) -> AsyncIterator[Scene]:
    async with (
        s3_proxy(s3_server.endpoint) as proxy,
        boto(s3_server, proxy.endpoint) as through,
        boto(s3_server, s3_server.endpoint) as past,
    ):
        yield Scene(s3_server, proxy, through, past)


async def failure(call: Awaitable[object]) -> BaseException:
    with pytest.raises((BotoCoreError, ClientError)) as caught:
        await call
    return caught.value  # type: ignore[no-any-return]


async def refusal(call: Awaitable[object]) -> tuple[int, str]:
    error = await failure(call)
    assert isinstance(error, ClientError)
    return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


async def given_up(call: Coroutine[None, None, None], *, when: Callable[[], Awaitable[bool]]) -> None:
    """Begin `call` and cancel it when that holds; it must not have ended by itself a moment later."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(call)
        await eventually(when)
        await asyncio.sleep(BRIEF_S)
        assert not running.done()
        running.cancel()


async def test_what_no_rule_strikes_passes_signed(scene: Scene) -> None:
    await scene.put("a")
    await scene.put("b", b"")
    listed = await scene.through.list_objects_v2(Bucket=scene.server.bucket, Prefix=scene.key(""))
    await scene.through.head_object(Bucket=scene.server.bucket, Key=scene.key("a"))
    await scene.through.delete_object(Bucket=scene.server.bucket, Key=scene.key("b"))

    assert [found["Size"] for found in listed["Contents"]] == [len(BODY), 0]
    assert await scene.get("a") == BODY == await scene.stored("a")
    assert await scene.stored("b") is None
    assert scene.proxy.counts.calls == {"PUT": 2, "LIST": 1, "HEAD": 1, "DELETE": 1, "GET": 1}
    assert scene.proxy.counts.calls == scene.proxy.counts.forwarded == scene.proxy.counts.answered


async def test_what_the_server_refuses_is_refused(scene: Scene) -> None:
    await scene.put("a", b"first", IfNoneMatch="*")

    assert await refusal(scene.put("a", b"other", IfNoneMatch="*")) == (412, "PreconditionFailed")
    assert await refusal(scene.get("none")) == (404, "NoSuchKey")


async def test_obstore_passes_too(scene: Scene) -> None:
    store = scene.obstore()

    await store.put_async(scene.key("a"), BODY, use_multipart=False)
    part = await store.get_range_async(scene.key("a"), start=1_000, end=3_000)

    assert bytes(part) == BODY[1_000:3_000]
    assert await scene.stored("a") == BODY


@pytest.mark.parametrize("size_bytes", [0, 1, 300_000])
async def test_chunked_bodies_pass_both_ways_over_one_connection(size_bytes: int) -> None:
    """S3 clients send lengths: an echo stands in for the server."""

    async def echo(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        body = await request.read()
        await response.prepare(request)
        for start in range(0, len(body), 50_000):
            await response.write(body[start : start + 50_000])
        await response.write_eof()
        return response

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size_bytes, 70_000):
            yield BODY[start : min(start + 70_000, size_bytes)]

    application = web.Application()
    application.router.add_put("/", echo)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with s3_proxy(f"http://{host}:{port}") as proxy, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for expects in (False, True, False):
            async with session.put(proxy.endpoint, data=pieces(), expect100=expects) as answer:
                assert await answer.read() == BODY[:size_bytes]
        assert proxy.counts.answered == {"PUT": 3}
    await runner.cleanup()


async def test_every_third_put_is_applied_and_its_reply_is_lost(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=PUTS, every=3))
    lost = []
    for n in range(9):
        try:
            await scene.put(n, b"%d" % n)
        except ConnectionClosedError:
            lost.append(n)

    assert lost == [2, 5, 8]
    assert [await scene.stored(n) for n in range(9)] == [b"%d" % n for n in range(9)]
    assert scene.proxy.counts.faults == {(Fault.DROP_REPLY, "PUT"): 3}
    assert scene.proxy.counts.answered["PUT"] == 9


async def test_a_put_whose_reply_is_lost_fails_for_obstore_too(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=PUTS, times=1))

    with pytest.raises(GenericError):
        await scene.obstore().put_async(scene.key("a"), BODY, use_multipart=False)
    assert await scene.stored("a") == BODY


async def test_a_put_whose_reply_hangs_is_applied(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.HANG_REPLY, methods=PUTS, times=1))

    async def is_answered() -> bool:
        return scene.proxy.counts.answered["PUT"] == 1

    await given_up(scene.put("a"), when=is_answered)
    assert await scene.stored("a") == BODY
    await scene.put("b")


@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), (404, "NoSuchBucket"), (409, "Conflict")]
)
async def test_an_answer_of_the_proxy_is_one_of_s3_and_nothing_arrives(scene: Scene, status: int, code: str) -> None:
    rule = Rule(Fault.ANSWER, status=status, code=code)
    scene.proxy.plan.add(rule)

    assert await refusal(scene.put("a")) == (status, code)
    assert await refusal(scene.get("a")) == (status, code)
    assert (await refusal(scene.through.head_bucket(Bucket=scene.server.bucket)))[0] == status
    with pytest.raises(Exception, match=code):
        await scene.obstore().put_async(scene.key("a"), BODY, use_multipart=False)
    scene.proxy.plan.remove(rule)
    assert await scene.stored("a") is None
    await scene.put("a")
    assert scene.proxy.counts.struck(Fault.ANSWER) == 4
    assert scene.proxy.counts.forwarded == {"PUT": 1}


async def test_an_answer_may_replace_that_of_a_put_that_was_applied(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.REPLACE_REPLY, methods=PUTS, status=500, code="InternalError"))

    assert await refusal(scene.put("a")) == (500, "InternalError")
    assert await scene.stored("a") == BODY


@pytest.mark.parametrize("fault", [Fault.DELAY, Fault.DELAY_REPLY])
async def test_a_slow_call_takes_that_long_and_succeeds(scene: Scene, fault: Fault) -> None:
    scene.proxy.plan.add(Rule(fault, delay_s=BRIEF_S))
    loop = asyncio.get_running_loop()

    began_s = loop.time()
    await scene.put("a")
    assert await scene.get("a") == BODY
    assert loop.time() - began_s >= 2 * BRIEF_S


async def test_a_late_put_is_applied_after_its_client_saw_it_fail(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.LATE, methods=PUTS, times=1, delay_s=LATE_S))

    async def is_there() -> bool:
        return await scene.stored("a") == BODY

    assert isinstance(await failure(scene.put("a")), ConnectionClosedError)
    assert not await is_there()
    await eventually(is_there)


async def test_a_get_may_break_off_in_its_body(scene: Scene) -> None:
    await scene.put("a")
    scene.proxy.plan.add(Rule(Fault.CUT_REPLY, methods=GETS, body_bytes=100_000, times=2))

    with pytest.raises(GenericError):
        await scene.obstore().get_range_async(scene.key("a"), start=0, end=len(BODY))
    with pytest.raises((BotoCoreError, aiohttp.ClientPayloadError)):
        await scene.get("a")
    assert await scene.get("a") == BODY


@pytest.mark.parametrize("body_bytes", [0, 100_000, len(BODY) - 1])
async def test_a_put_that_breaks_off_in_its_body_is_never_stored_whole(scene: Scene, body_bytes: int) -> None:
    scene.proxy.plan.add(Rule(Fault.CUT_REQUEST, methods=PUTS, body_bytes=body_bytes, times=2))

    assert isinstance(await failure(scene.put("a")), LOST)
    with pytest.raises(GenericError):
        await scene.obstore().put_async(scene.key("b"), BODY, use_multipart=False)
    # versitygw keeps what has come of an unsigned body when its connection closes.
    assert {await scene.stored("a"), await scene.stored("b")} <= {None, BODY[:body_bytes]}
    await scene.put("a")


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.BLACKHOLE])
async def test_a_put_that_is_lost_never_arrives(scene: Scene, fault: Fault) -> None:
    scene.proxy.plan.add(Rule(fault, methods=PUTS, times=1))

    async def has_struck() -> bool:
        return scene.proxy.counts.struck(fault) == 1

    if fault is Fault.REFUSE:
        assert isinstance(await failure(scene.put("a")), ConnectionClosedError)
    else:
        # Not before: the next put would meet the rule, and nothing ends one whose body nobody takes.
        await given_up(scene.put("a"), when=has_struck)

    assert await scene.stored("a") is None
    assert scene.proxy.counts.forwarded["PUT"] == 0
    await scene.put("a")


async def test_a_rule_may_name_a_part_of_the_path(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.REFUSE, containing="/wal/"))

    await failure(scene.put("wal/1"))
    await scene.put("segments/1")

    assert (await scene.stored("wal/1"), await scene.stored("segments/1")) == (None, BODY)


async def test_a_proxy_that_is_down_refuses_and_is_back_at_the_same_port(scene: Scene) -> None:
    for n in range(3):
        await scene.proxy.down()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", scene.proxy.port)
        assert isinstance(await failure(scene.put(n)), LOST)
        await scene.proxy.up()
        await scene.put(n)

    assert [await scene.stored(n) for n in range(3)] == [BODY] * 3


async def test_going_down_breaks_what_is_under_way(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.BLACKHOLE, methods=PUTS))

    async def go_down() -> None:
        async def has_struck() -> bool:
            return scene.proxy.counts.struck(Fault.BLACKHOLE) == 1

        await eventually(has_struck)
        await scene.proxy.down()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go_down())
        assert isinstance(await failure(scene.put("a")), LOST)


async def test_a_server_that_is_gone_ends_the_clients_connection() -> None:
    async with s3_proxy("http://127.0.0.1:1") as proxy, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.get(proxy.endpoint)


async def test_a_proxy_in_a_thread_serves_while_the_test_is_busy(s3_server: S3Server) -> None:
    with in_thread(s3_proxy(s3_server.endpoint)) as (proxy, run):
        async with boto(s3_server, proxy.endpoint) as through, boto(s3_server, s3_server.endpoint) as past:
            scene = Scene(s3_server, proxy, through, past)
            await scene.put("a")
            proxy.plan.add(Rule(Fault.ANSWER, times=1))
            assert await refusal(scene.put("b")) == (503, "SlowDown")
            run(proxy.down())
            assert isinstance(await failure(scene.put("b")), LOST)
            run(proxy.up())
            await scene.put("b")
            assert await scene.stored("b") == BODY


async def test_of_many_puts_at_once_exactly_every_fifth_loses_its_reply(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=PUTS, every=5))

    outcomes = await asyncio.gather(*(scene.put(n, b"%d" % n) for n in range(60)), return_exceptions=True)

    assert outcomes.count(None) == 48
    assert sum(isinstance(outcome, ConnectionClosedError) for outcome in outcomes) == 12
    assert [await scene.stored(n) for n in range(60)] == [b"%d" % n for n in range(60)]


async def test_a_client_that_goes_away_in_its_body_leaves_nothing_behind(scene: Scene) -> None:
    host, port = scene.proxy.endpoint.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"PUT /{scene.server.bucket}/{scene.key('a')} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nhalf".encode())
    await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()

    await scene.put("b")
    assert await scene.stored("a") is None
