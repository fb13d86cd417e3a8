"""Memory stays bounded: what a client costs that stops reading, or floods, or claims; and what ordinary traffic takes."""

import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.limits import KIB, MIB
from tests.kit.memory_watch import PARTITIONS, SETTLED_S, SOON_S, Watch, create_topic, fetch, produce, wait_settled
from tests.kit.raw_client import RawClient, frame_of, is_serving, prefixed
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served, serving

STOPPED_CLIENT_BYTES_MAX = 16 * MIB
FLOWING_RSS_BYTES_MAX = 400 * MIB
clock = SystemClock()


@pytest.fixture
def served() -> Iterator[Served]:
    """Small caches, so that what grows is not them. On disk, so that it is not the data either."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), settings={"storage.cache_bytes": "8MiB"}, afresh=True) as broker:
        create_topic(broker, "t")
        yield broker


@pytest.mark.parametrize(("batch_bytes", "requests"), [(900 * KIB, 24), (24 * KIB, 400)], ids=["large batches", "parts of large requests"])
def test_a_client_that_asks_and_stops_reading_costs_little(served: Served, batch_bytes: int, requests: int) -> None:
    stopped_count = 4
    now_ms = clock.now_ms()
    with RawClient(served.kafka_port) as client:
        batch = bytes(record_batch(bytes(batch_bytes), base_timestamp=now_ms))
        for _ in range(requests):
            for result in client.ask(produce(batch)).responses[0].partition_responses:
                assert result.error_code is ErrorCode.none
        for partition in range(PARTITIONS):
            client.ask(fetch(partition, 0))
            client.ask(fetch(partition, requests // 2))
    wait_settled(served)
    before = served.rss_bytes()
    with ExitStack() as closing:
        for number in range(stopped_count):
            stopped = closing.enter_context(RawClient(served.kafka_port, receive_buffer_bytes=4096))
            asked = [
                frame_of(fetch((number + turn) % PARTITIONS, requests // 2 if turn % 2 else 0), correlation_id=turn) for turn in range(200)
            ]
            stopped.send(*asked)
        wait_settled(served)
        grown = served.rss_bytes() - before

        assert is_serving(served.kafka_port)
    assert grown / stopped_count < STOPPED_CLIENT_BYTES_MAX


def test_a_client_that_floods_and_never_reads_costs_little(served: Served) -> None:
    """Each request of 60 KB has a reply of several hundred."""
    frame = prefixed(frame_of(produce(b"no batch", partitions=range(5000))))
    with RawClient(served.kafka_port) as client:
        client.send_bytes(frame)
        client.receive()
    wait_settled(served)
    before = served.rss_bytes()
    sent_bytes = 0
    with RawClient(served.kafka_port, receive_buffer_bytes=4096) as flooding, RawClient(served.kafka_port) as other:
        give_up_s = clock.monotonic_s() + SOON_S
        taken_s = clock.monotonic_s()
        pending = b""
        while clock.monotonic_s() - taken_s < 1.0 and clock.monotonic_s() < give_up_s:
            pending = pending or frame * 10
            taken = flooding.send_what_fits(pending)
            if taken:
                pending = pending[taken:]
                taken_s = clock.monotonic_s()
                sent_bytes += taken
            else:
                time.sleep(0.005)
        stopped_by_itself = clock.monotonic_s() < give_up_s
        answer = other.ask(produce(bytes(record_batch(base_timestamp=clock.now_ms()))))
        wait_settled(served)
        held = served.metrics()["forebay_request_buffer_bytes"]
        grown = served.rss_bytes() - before

        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert stopped_by_itself, "the broker stops reading from a client that does not read"
        assert sent_bytes > len(frame)
        assert held <= 9 * MIB
        assert grown < STOPPED_CLIENT_BYTES_MAX


def test_a_flood_of_batches_stays_within_the_budget_and_the_others_go_on() -> None:
    settings = {
        "storage.cache_bytes": "8MiB",
        "storage.max_buffer_bytes": "16MiB",
        "kafka.max_request_bytes": "4MiB",
        "storage.flush_bytes": "4MiB",
    }
    flooding_count = 6
    batch = bytes(record_batch(bytes(500 * KIB), base_timestamp=clock.now_ms()))
    frames = prefixed(*[frame_of(produce(batch), correlation_id=number) for number in range(8)])
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), settings=settings, afresh=True) as served, ExitStack() as closing:
        create_topic(served, "t")
        before = served.rss_bytes()
        watch = closing.enter_context(Watch(served))
        floods = [closing.enter_context(RawClient(served.kafka_port)) for _ in range(flooding_count)]
        threads = [threading.Thread(target=flood.send_bytes, args=(frames,)) for flood in floods]
        for thread in threads:
            thread.start()
        with RawClient(served.kafka_port) as other:
            answer = other.ask(produce(bytes(record_batch(base_timestamp=clock.now_ms()))))
        for thread in threads:
            thread.join(SOON_S)
        replies = [flood.receive() for flood in floods for _ in range(8)]

        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert [reply is not None for reply in replies] == [True] * 8 * flooding_count
        # The budget, the caches, and what an object on its way to the disk takes beside them.
        assert watch.peak_bytes - before < 120 * MIB


@pytest.mark.parametrize("sent_bytes", [0, 10, 10_000])
def test_claims_of_large_frames_cost_nothing(served: Served, sent_bytes: int) -> None:
    claims = 300
    before = served.rss_bytes()
    with ExitStack() as closing:
        for _ in range(claims):
            claiming = closing.enter_context(RawClient(served.kafka_port))
            claiming.send_bytes(struct.pack(">i", 100 * MIB) + bytes(sent_bytes))
        with RawClient(served.kafka_port) as other:
            answer = other.ask(produce(bytes(record_batch(base_timestamp=clock.now_ms()))))
        time.sleep(SETTLED_S)
        metrics = served.metrics()
        grown = served.rss_bytes() - before

        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert metrics['forebay_connections{listener="PLAINTEXT"}'] >= claims
        assert metrics["forebay_request_buffer_bytes"] == 0
        # A connection has 64 KiB to receive small frames in, whatever it sends.
        assert grown < claims * 100 * KIB


def test_memory_stays_bounded_while_data_flow() -> None:
    assert flow(512 * MIB) < FLOWING_RSS_BYTES_MAX


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_stays_bounded_while_much_data_flows() -> None:
    assert flow(2048 * MIB) < FLOWING_RSS_BYTES_MAX


def flow(total_bytes: int) -> int:
    """Write and read so much at once, with the settings every broker starts with; the most memory that took."""
    value = bytes(range(256)) * 16
    count = total_bytes // len(value)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), afresh=True) as served, Watch(served) as watch:
        create_topic(served, "t")
        produced = threading.Thread(target=_produce, args=(served.bootstrap, value, count))
        produced.start()
        read = _consume(served.bootstrap, value, count)
        produced.join(SOON_S)

        assert read == count
        assert not produced.is_alive()
        return watch.peak_bytes


def _produce(bootstrap: str, value: bytes, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 900_000,
            "queue.buffering.max.kbytes": 65_536,
            "log_level": 0,
        }
    )
    for number in range(count):
        while True:
            try:
                producer.produce("t", value, partition=number // 100 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(600)


def _consume(bootstrap: str, value: bytes, count: int) -> int:
    """How many records came, all of them as they were written."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 * MIB,
            "queued.max.messages.kbytes": 65_536,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
    read = 0
    silent_since_s = clock.monotonic_s()
    while read < count and clock.monotonic_s() - silent_since_s < SOON_S:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            assert message.value() == value
            read += 1
            silent_since_s = clock.monotonic_s()
    consumer.close()
    return read
