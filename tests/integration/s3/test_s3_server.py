"""The S3 store against a real server that is killed, paused, and asked for what it does not have."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from process.store_clocks import ObjectClock
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from services.versitygw import S3Server, running_s3
from storage.errors import AlreadyExists, Unavailable
from storage.objects.s3.client import DEFAULT_LIMITS, S3Limits
from storage.objects.s3.faults import RequestFault
from storage.objects.s3.location import S3Location, parse_s3_url
from storage.objects.s3.object_store import Backoff, S3ObjectStore
from storage.objects.s3.store import S3ClientName, open_s3


@asynccontextmanager
async def opened(location: S3Location, client: S3ClientName, *, limits: S3Limits = DEFAULT_LIMITS) -> AsyncIterator[S3ObjectStore]:
    clock, chance = SystemClock(), random.Random(1)
    store = await open_s3(location, client=client, clock=clock, chance=chance, telemetry=Telemetry(), limits=limits)
    try:
        yield store
    finally:
        await store.close()


def location(server: S3Server, prefix: str) -> S3Location:
    return parse_s3_url(server.url(prefix=prefix))


async def test_puts_outlive_a_kill_of_the_server_and_every_object_is_whole(tmp_path: Path, client: S3ClientName) -> None:
    bodies = {f"wal/{number:03}": random.Random(number).randbytes(300_000) for number in range(200)}
    done: list[str] = []
    half = asyncio.Event()
    with running_s3(tmp_path) as server:
        async with opened(location(server, "kill"), client) as store:
            waiting = iter(bodies.items())

            async def work() -> None:
                for key, body in waiting:
                    await store.put_if_absent(key, [body[:1_000], body[1_000:]])
                    done.append(key)
                    if len(done) >= len(bodies) // 2:
                        half.set()

            async def kill() -> None:
                await half.wait()
                await asyncio.to_thread(server.kill9)
                await asyncio.to_thread(server.start)

            async with asyncio.TaskGroup() as group:
                group.create_task(kill())
                for _ in range(8):
                    group.create_task(work())

            assert sorted(done) == sorted(bodies)
            assert [stat.key async for stat in store.list("wal/")] == sorted(bodies)
            for key, body in bodies.items():
                assert await store.get_range(key, 0, len(body)) == body


async def test_a_server_that_stands_still_delays_calls_and_changes_nothing(
    tmp_path: Path, client: S3ClientName, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = random.Random(1).randbytes(100_000)
    with running_s3(tmp_path) as server:
        async with opened(location(server, "pause"), client, limits=S3Limits(attempt_s=1.0)) as store:
            await store.put_if_absent("wal/0", [body])
            await asyncio.to_thread(server.pause)

            tried_again = asyncio.Event()
            pause = store._goes_on

            async def pause_seen(op: str, backoff: Backoff, cause: RequestFault | TimeoutError) -> bool:
                tried_again.set()
                return await pause(op, backoff, cause)

            async def resume() -> None:
                await tried_again.wait()
                await asyncio.to_thread(server.resume)

            monkeypatch.setattr(store, "_goes_on", pause_seen)
            async with asyncio.TaskGroup() as group:
                group.create_task(resume())
                get = group.create_task(store.get_range("wal/0", 0, len(body)))
                put = group.create_task(store.put_if_absent("wal/1", [body]))

            assert get.result() == body
            assert put.result() is None
            assert await store.get_range("wal/1", 0, len(body)) == body


async def test_the_server_s_clock_is_read_off_an_object(s3_server: S3Server, client: S3ClientName) -> None:
    async with opened(location(s3_server, "clock"), client) as store:
        ahead_ms = await ObjectClock(store, lambda: 7, SystemClock()).ahead_ms()
        left = [stat.key async for stat in store.list("")]

    assert ahead_ms is not None
    assert abs(ahead_ms) < 60_000
    assert left == []


async def test_of_a_put_that_is_cancelled_under_way_nothing_or_all_is_stored(
    s3_server: S3Server, client: S3ClientName, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = random.Random(2).randbytes(8 << 20)
    tries_left = 0

    async def soon(*_: object) -> bool:
        """A server that refuses while the body is on its way resets the connection: that is tried again, for up to 20 s each time."""
        nonlocal tries_left
        tries_left -= 1
        return tries_left > 0

    async with opened(location(s3_server, f"cancel-{client}"), client) as store:
        monkeypatch.setattr(store, "_goes_on", soon)
        for number in range(30):
            key = f"wal/{number}"
            tries_left = 5
            async with asyncio.TaskGroup() as group:
                put = group.create_task(store.put_if_absent(key, [body]))
                await asyncio.sleep(0.0003 * number)
                put.cancel()
            with contextlib.suppress(AlreadyExists):
                await store.put_if_absent(key, [body[::-1]])

            assert (await store.stat(key)).size_bytes == len(body)
            assert await store.get_range(key, 0, len(body)) in (body, body[::-1])


@pytest.mark.parametrize("client", ["obstore", "aioboto3"])
async def test_a_wrong_region_is_told_though_aioboto3_would_find_the_right_one(s3_server: S3Server, client: S3ClientName) -> None:
    async with opened(replace(location(s3_server, "region"), region="eu-west-1"), client) as store:
        with pytest.raises(Unavailable, match='"forebay" is in us-east-1, but region eu-west-1 is set') as refused:
            await store.probe()

    assert str(refused.value).endswith("Use ?region=us-east-1.")


@pytest.mark.parametrize(
    ("changed", "environment", "message"),
    [
        ({"bucket": "no-such-bucket"}, {}, 'Bucket "no-such-bucket" does not exist at http://'),
        ({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "Check AWS_SECRET_ACCESS_KEY."),
        ({}, {"AWS_ACCESS_KEY_ID": "nobody"}, "Check AWS_ACCESS_KEY_ID."),
    ],
)
async def test_a_probe_tells_what_is_wrong(
    s3_server: S3Server,
    client: S3ClientName,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    environment: dict[str, str],
    message: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    wrong = replace(location(s3_server, "probe"), **changed)  # type: ignore[arg-type]
    async with opened(wrong, client) as store:
        with pytest.raises(Unavailable) as refused:
            await store.probe()

    assert message in str(refused.value)
