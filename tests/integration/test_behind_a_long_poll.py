"""A consumer that is done with a partition leaves a Fetch behind that waits for records. What it asks next on that connection ends it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kit.async_client import ANSWER_WITHIN_S, AsyncClient, parse_listed, parse_produced, parse_read
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served, serving

LONG_MS = round(2_000 * ANSWER_WITHIN_S)
"""Longer than the client waits for any answer."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(ANSWER_WITHIN_S)
        yield broker


async def test_a_request_behind_a_long_poll_ends_it_and_is_answered(served: Served) -> None:
    async with await AsyncClient.connect(served.kafka_port) as client:
        await client.produce("t", {0: bytes(record_batch(b"a"))})
        client.send_fetch("t", {0: 1}, max_wait_ms=LONG_MS)
        client.send_list_offsets("t", [0])
        client.send_fetch("t", {0: 1}, max_wait_ms=LONG_MS)
        client.send_produce("t", {0: bytes(record_batch(b"b"))})
        ended, listed = parse_read(await client.take())[0], parse_listed(await client.take())[0]
        ended_again, produced = parse_read(await client.take())[0], parse_produced(await client.take())[0]

    assert (ended.offsets, ended.error, ended.high_watermark) == ([], 0, 1)
    assert listed.offset == 1
    assert (ended_again.offsets, ended_again.error) == ([], 0)
    assert (produced.error, produced.base_offset) == (0, 1)


async def test_a_long_poll_behind_another_does_not_end_it(served: Served) -> None:
    async with await AsyncClient.connect(served.kafka_port) as client, await AsyncClient.connect(served.kafka_port) as producer:
        await producer.produce("t", {0: bytes(record_batch(b"a"))})
        client.send_fetch("t", {0: 1}, max_wait_ms=LONG_MS)
        client.send_fetch("t", {0: 2}, max_wait_ms=0)
        await producer.produce("t", {0: bytes(record_batch(b"b"))})
        first, second = parse_read(await client.take())[0], parse_read(await client.take())[0]

    assert first.offsets == [1]
    assert (second.offsets, second.error) == ([], 0)
