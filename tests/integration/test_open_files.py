"""A broker that may open few files: connections end where its reserve begins, and it lives through having no descriptor at all."""

import asyncio
import contextlib
import http.client
import os
import resource
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest
from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest

from process import accepting
from process.descriptors import RESERVED
from runtime.clock import SystemClock
from runtime.logs import SAID_EVERY_S
from tests.kit.async_client import AsyncClient
from tests.kit.record_batches import record_batch
from tests.kit.serving import HOST, Served, get, serving

WITHIN_S = 30.0
TOPIC = "t"
LIMIT = 256
IDLE_CLIENTS = 600
LESS_THAN_IT_HAS = 8
"""The broker's first descriptors, which it has for as long as it lives."""

clock = SystemClock()


async def create_topic(client: AsyncClient) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
    answer = await client.ask(CreateTopicsRequest(topics=(topic,)))
    assert [found.error_code for found in answer.topics] == [0]


async def append(client: AsyncClient) -> int:
    """The offset of one more record."""
    appended = (await client.produce(TOPIC, {0: bytes(record_batch(b"x"))}))[0]
    assert appended.error == 0
    return appended.base_offset


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.01)


def said(served: Served, event: str) -> list[dict[str, object]]:
    return [line for line in served.events() if line["event"] == event]


def open_files(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.pid}/fd"))


async def connections(count: int, served: Served, closing: contextlib.AsyncExitStack) -> list[asyncio.StreamReader]:
    """Of clients that say nothing."""
    readers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(HOST, served.kafka_port)
        closing.callback(writer.close)
        readers.append(reader)
    return readers


def connected(served: Served) -> float:
    return served.metrics()['forebay_connections{listener="PLAINTEXT"}']


def refused(served: Served) -> float:
    return served.metrics()["forebay_connections_refused_total"]


def gave_way(served: Served) -> float:
    """How many silent connections were closed for new ones."""
    return served.metrics().get('forebay_connections_evicted_total{reason="idle"}', 0.0)


async def test_six_hundred_idle_connections_leave_health_stores_and_who_was_there_before_alone(tmp_path: Path) -> None:
    left = LIMIT - RESERVED
    allowed = left - left // 4  # the rest is for HTTP
    with serving(tmp_path, open_files_max=LIMIT) as served:
        (warning,) = said(served, "open_files_limited")
        assert (warning["level"], warning["limit"], warning["max_connections"], warning["connections"]) == (
            "warning",
            LIMIT,
            2_000,
            allowed,
        )
        async with await AsyncClient.connect(served.kafka_port) as before, contextlib.AsyncExitStack() as closing:
            await create_topic(before)
            first = await append(before)
            began_s = clock.monotonic_s()
            readers = await connections(IDLE_CLIENTS, served, closing)
            expected = IDLE_CLIENTS + 1 - allowed
            await until(lambda: gave_way(served) == expected)

            assert get(served.http_port, "/healthz")[0] == HTTPStatus.OK
            assert get(served.http_port, "/readyz")[0] == HTTPStatus.OK
            assert [await append(before) for _ in range(50)] == list(range(first + 1, first + 51))
            assert open_files(served) <= LIMIT - (RESERVED - 64), "and most of the reserve is left"
            assert served.metrics()["forebay_connections_max"] == allowed
            await until(lambda: connected(served) == allowed)
            await until(lambda: sum(reader.at_eof() for reader in readers) == expected)
            assert 1 <= len(said(served, "connection_evicted")) <= 2 + (clock.monotonic_s() - began_s) / SAID_EVERY_S
        await until(lambda: connected(served) == 0)
        async with await AsyncClient.connect(served.kafka_port) as after:
            assert await append(after) == first + 51
    assert sum(int(str(line["count"])) for line in said(served, "connection_evicted")) == expected, "each is told of in the end"


async def test_a_flood_of_http_connections_leaves_kafka_clients_alone(tmp_path: Path) -> None:
    with serving(tmp_path, open_files_max=LIMIT) as served:
        async with await AsyncClient.connect(served.kafka_port) as client, contextlib.AsyncExitStack() as closing:
            await create_topic(client)
            for _ in range(LIMIT):
                _, writer = await asyncio.open_connection(HOST, served.http_port)
                closing.callback(writer.close)

            await append(client)
            assert open_files(served) < LIMIT
            allowed = accepting.HTTP_CONNECTIONS_MAX + (LIMIT - RESERVED) // 4
            # While they are open: one that is closed before it is accepted is refused by nobody.
            await until(lambda: _refused(served) >= LIMIT - allowed)
        await until(lambda: _answers(served))


def _answers(served: Served) -> bool:
    with contextlib.suppress(OSError):
        return get(served.http_port, "/healthz")[0] == HTTPStatus.OK
    return False


def _refused(served: Served) -> float:
    """Zero while the broker has no place for the question."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return refused(served)
    return 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is lowered")
async def test_without_a_single_descriptor_clients_are_served_on_and_new_ones_wait_until_there_is_one() -> None:
    with serving(None) as served:
        async with await AsyncClient.connect(served.kafka_port) as before, contextlib.AsyncExitStack() as closing:
            await create_topic(before)
            soft, hard = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (LESS_THAN_IT_HAS, hard))
            began_s = clock.monotonic_s()
            waiting = await AsyncClient.connect(served.kafka_port)
            closing.push_async_callback(waiting.close)
            await until(lambda: bool(said(served, "accept_failed")))
            offsets = [await append(before) for _ in range(50)]
            resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (soft, hard))
            after = await append(waiting)
            took_s = clock.monotonic_s() - began_s

        assert [*offsets, after] == list(range(51))
        failures = served.metrics()['forebay_accept_failures_total{error="EMFILE"}']
        assert 1 <= failures <= took_s / accepting.RETRY_S + 2, "it pauses between attempts"
        (line,) = said(served, "accept_failed")[:1]
        assert (line["level"], line["cause"]) == ("error", "Too many open files")
