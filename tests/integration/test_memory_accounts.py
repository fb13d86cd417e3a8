"""What is counted is what is held: requests that a cache keeps whole, replies that nobody takes; by a real broker's resident memory."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.limits import KIB, MIB
from tests.kit.memory_watch import SETTLED_S, SOON_S, Watch, create_topic, fetch, produce, wait_settled
from tests.kit.raw_client import RawClient, frame_of
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served, serving

CACHE_BYTES: Final = 32 * MIB
SLACK_BYTES: Final = 40 * MIB
"""What a broker takes beside its caches: objects of Python, pages of an allocator that are half used, an object on its way to the disk."""
STOPPED: Final = 150

clock = SystemClock()


@contextmanager
def served(settings: Mapping[str, str]) -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), settings={"storage.cache_bytes": "32MiB"} | dict(settings), afresh=True) as broker,
    ):
        create_topic(broker, "t")
        yield broker


def wait_for_replies(broker: Served, response_bytes: int) -> float:
    """Until more than that waits in the sockets, and return it. A busy machine may let the broker begin late, as if it had settled."""
    give_up_s = clock.monotonic_s() + SOON_S
    while (waiting_bytes := broker.metrics()["forebay_response_bytes"]) <= response_bytes:
        assert clock.monotonic_s() < give_up_s, "the replies that nobody takes did not add up"
        time.sleep(SETTLED_S)
    return waiting_bytes


def wait_for_evictions(broker: Served, count: int) -> float:
    """Until so many that took nothing were cut off, and return the most bytes of replies that waited meanwhile."""
    give_up_s, waiting_bytes = clock.monotonic_s() + 2 * SOON_S, 0.0
    while (metrics := broker.metrics()).get('forebay_connections_evicted_total{reason="unread"}', 0.0) < count:
        assert clock.monotonic_s() < give_up_s, "those that take nothing are not cut off"
        waiting_bytes = max(waiting_bytes, metrics["forebay_response_bytes"])
        time.sleep(SETTLED_S)
    return waiting_bytes


@pytest.mark.parametrize("kept_bytes", [20 * KIB, pytest.param(900 * KIB, marks=pytest.mark.slow)], ids=["a small part", "a tenth"])
def test_what_is_refused_of_a_request_is_not_kept_with_what_is_appended(kept_bytes: int) -> None:
    """The first is copied out of its request. With the second the whole request is kept, and counted."""
    requests = 100
    appended = bytes(record_batch(bytes(kept_bytes), base_timestamp=clock.now_ms()))
    too_large = bytes(record_batch(bytes(10 * MIB), base_timestamp=clock.now_ms()))
    with served({}) as broker, RawClient(broker.kafka_port) as client:
        client.ask(produce(appended, too_large, partitions=range(2)))
        wait_settled(broker)
        before = broker.rss_bytes()
        for _ in range(requests):
            found = client.ask(produce(appended, too_large, partitions=range(2))).responses[0].partition_responses
            assert [result.error_code for result in found] == [ErrorCode.none, ErrorCode.message_too_large]
        wait_settled(broker)
        grown = broker.rss_bytes() - before
        metrics = broker.metrics()

    assert grown < CACHE_BYTES + SLACK_BYTES
    assert metrics["forebay_tail_cache_bytes"] <= CACHE_BYTES * 3 / 8
    assert metrics["forebay_request_buffer_bytes"] == 0


@pytest.mark.alone  # replies have to add up before the broker's timeout with their readers ends
@pytest.mark.parametrize("cache", ["tail cache", "stored"])
def test_consumers_that_stop_reading_cost_what_their_budget_says_and_others_go_on(cache: str) -> None:
    """Each asks for 8 MiB again and again, until the kernel takes no more of it; before replies were counted, each cost up to 12 MiB."""
    batches, batch_bytes = 60, 900 * KIB
    batch = bytes(record_batch(bytes(batch_bytes), base_timestamp=clock.now_ms()))
    with served({}) as broker, RawClient(broker.kafka_port) as client, ExitStack() as closing:
        for _ in range(batches):
            assert client.ask(produce(batch, partitions=range(1))).responses[0].partition_responses[0].error_code is ErrorCode.none
        client.ask(fetch(0, 0))
        wait_settled(broker)
        before = broker.rss_bytes()
        watch = closing.enter_context(Watch(broker))
        first = batches - 9 if cache == "tail cache" else 0
        stopped = [closing.enter_context(RawClient(broker.kafka_port, receive_buffer_bytes=4096)) for _ in range(STOPPED)]
        for number, consumer in enumerate(stopped):
            offset = first if cache == "tail cache" else number % 50
            consumer.send(*[frame_of(fetch(0, offset), correlation_id=turn) for turn in range(20)])
        waiting_bytes = wait_for_replies(broker, 2 * MIB)
        answer = client.ask(fetch(0, 0)).responses[0].partitions[0]
        # As long as some wait for the memory, those that hold it are cut off one after the other, and the next hold it.
        waiting_bytes = max(waiting_bytes, wait_for_evictions(broker, 3))
        for consumer in stopped:
            consumer.close()
        wait_settled(broker)
        afterwards = broker.metrics()["forebay_response_bytes"]

    assert watch.peak_bytes - before < CACHE_BYTES + SLACK_BYTES
    assert waiting_bytes < CACHE_BYTES / 2
    assert answer.error_code is ErrorCode.none
    assert afterwards == 0
