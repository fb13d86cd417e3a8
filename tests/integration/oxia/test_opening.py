import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from runtime.supervision import Nursery
from services.oxia import OxiaServer
from services.ports import free_port
from storage.errors import Unavailable
from storage.metadata.oxia.calls import DEADLINE_S
from storage.metadata.oxia.following import OPEN_TIMEOUT_S, REFUSED_TIMEOUT_S
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import Applied, Key, Put
from tests.integration.oxia.opening import clock, on_every_shard, opened

HOST = "127.0.0.1"
BUSY_S = 30.0
"""What a busy machine may add to a deadline."""


async def refusal_of(url: str) -> tuple[str, float]:
    """Why it cannot be opened, and how long it took to say so."""
    started_s = clock.monotonic_s()
    async with Nursery() as nursery:
        with pytest.raises(Unavailable) as refusal:
            await OxiaMetadataStore.open(parse_oxia_url(url), clock=clock, chance=random.Random(), nursery=nursery)
    reason = str(refusal.value)
    assert "\n" not in reason
    return reason, clock.monotonic_s() - started_s


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[int]:
    """Something on a port that says `answer` to whatever it hears and hangs up, or nothing at all."""

    serving: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1_000):
                if answer is not None:
                    writer.write(answer)
                    break
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        serving.discard(writer)

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        while serving:  # noqa: ASYNC110 - the other side is gone by now
            await asyncio.sleep(0.01)


async def test_a_namespace_that_does_not_exist_is_named_at_once(oxia_server: OxiaServer) -> None:
    reason, took_s = await refusal_of(f"oxia://{oxia_server.address}/elsewhere")

    assert f"oxia://{oxia_server.address}/elsewhere" in reason
    assert "there is no such namespace: create it there or correct metadata.url" in reason
    assert took_s < REFUSED_TIMEOUT_S


async def test_a_port_that_nobody_listens_on_is_named_with_the_fix() -> None:
    port = free_port()
    reason, took_s = await refusal_of(f"oxia://{HOST}:{port}")

    assert f"oxia at {HOST}:{port}: connection refused: start Oxia there or correct metadata.url" in reason
    assert took_s < REFUSED_TIMEOUT_S + DEADLINE_S + BUSY_S


async def test_a_name_that_does_not_resolve_is_named() -> None:
    reason, took_s = await refusal_of("oxia://nobody.invalid:6648")

    assert "oxia at nobody.invalid:6648: the name does not resolve: correct metadata.url" in reason
    assert took_s < OPEN_TIMEOUT_S + BUSY_S


async def test_a_server_that_speaks_http_is_not_taken_for_oxia() -> None:
    async with listening(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as port:
        reason, took_s = await refusal_of(f"oxia://{HOST}:{port}")

    assert f"oxia at {HOST}:{port}: " in reason
    assert "correct metadata.url" in reason
    assert took_s < OPEN_TIMEOUT_S + BUSY_S


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async with listening(None) as port:
        reason, took_s = await refusal_of(f"oxia://{HOST}:{port}")

    assert f"oxia at {HOST}:{port}: " in reason
    assert "see whether it hangs or wants TLS (tls=true), or correct metadata.url" in reason
    assert took_s < OPEN_TIMEOUT_S + BUSY_S


async def test_a_grpc_server_of_something_else_is_not_taken_for_oxia() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    reason, took_s = await refusal_of(f"oxia://{HOST}:{port}")
    await server.stop(None)

    assert f"oxia at {HOST}:{port}: what listens there does not speak Oxia's protocol: correct metadata.url" in reason
    assert took_s < REFUSED_TIMEOUT_S


async def test_one_node_of_several_is_enough(oxia_server: OxiaServer) -> None:
    async with opened(f"oxia://{HOST}:{free_port()},{oxia_server.address}/default") as store:
        await store.probe()


async def test_keys_are_spread_over_the_shards_and_found_there(oxia_server: OxiaServer) -> None:
    async with opened(oxia_server.url) as store, opened(oxia_server.url) as other:
        keys = on_every_shard(store, shards=4)
        for key in keys:
            assert isinstance(await store.write([Put(key, key.path.encode(), None)]), Applied)

        records = await other.get_many(list(reversed(keys)))
        assert [record and record.value for record in records] == [key.path.encode() for key in reversed(keys)]


async def test_a_write_over_two_shards_is_a_programmer_s_error(oxia_server: OxiaServer) -> None:
    async with opened(oxia_server.url) as store:
        first, second, *_ = on_every_shard(store, shards=4)

        with pytest.raises(AssertionError, match="one write, one shard"):
            await store.write([Put(first, b"", None), Put(second, b"", None)])


async def test_an_idle_store_runs_no_timers_and_asks_nothing(oxia_server: OxiaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(oxia_server.url) as store:
        await store.probe()
        loop = asyncio.get_running_loop()
        asked: list[float] = []
        call_later: Callable[..., asyncio.TimerHandle] = loop.call_later

        def counted(delay: float, *arguments: object) -> asyncio.TimerHandle:
            asked.append(delay)
            return call_later(delay, *arguments)

        monkeypatch.setattr(loop, "call_later", counted)
        await asyncio.sleep(2)
        monkeypatch.undo()

    assert asked == [2]


async def test_a_value_larger_than_grpc_s_default_limit_comes_back_in_one_answer(oxia_server: OxiaServer) -> None:
    async with opened(oxia_server.url) as store:
        keys = [Key(f"large/{number:03}", "large") for number in range(128)]
        for first in range(0, len(keys), 16):
            await store.write([Put(key, b"x" * 65_000, None) for key in keys[first : first + 16]])

        records = await store.get_many(keys)
        scanned = [record async for record in store.range_scan(Key("large/", "large"), "large/~")]
        assert [record and len(record.value) for record in records] == [65_000] * len(keys)
        assert scanned == records


async def test_a_real_server_that_asks_for_no_token_takes_no_offence_at_one(oxia_server: OxiaServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("anybody")
    async with opened(f"{oxia_server.url}?tls=false&token_file={token}") as store:
        (key, *_) = on_every_shard(store, shards=4)
        assert isinstance(await store.write([Put(key, b"", None)]), Applied)
        assert [record async for record in store.range_scan(key, key.path)] == []
        assert (await store.get_many([key]))[0] is not None
        await (await store.open_session(timeout_ms=2_000)).close()
