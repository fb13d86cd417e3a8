"""A real broker that reads every record: what it refuses, what goes on beside it, and what bombs cost everybody else."""

import datetime
import importlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.limits import MIB
from storage.records import DECOMPRESSED_BYTES_MAX
from tests.kit.memory_watch import SETTLED_S, Watch
from tests.kit.raw_client import RawClient, frame_of
from tests.kit.record_batches import batch_of_records, record, record_batch
from tests.kit.serving import Served, serving

PARTITIONS = 4
SOON_S = 30.0
BOMBING = 6
BOMBS_EACH = 5
BOMBS_BYTES_MAX = 2 * (DECOMPRESSED_BYTES_MAX + 8 * MIB) + 32 * MIB
"""Two threads with a batch each, the buffer that was too small for it, and what else may come."""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
clock = SystemClock()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"kafka.validate_records": "full", "storage.cache_bytes": "8MiB"}
    folder: Path = tmp_path_factory.mktemp("broker")
    with serving(folder, settings=settings, afresh=True) as broker:
        yield broker


def create_topic(broker: Served, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SOON_S)
    return name


def produce(topic: str, *batches: bytes | bytearray, version: int = 9) -> Any:
    """One request, a batch for each partition from 0 on."""
    module: Any = importlib.import_module(f"kio.schema.produce.v{version}.request")
    data = tuple(module.PartitionProduceData(index=index, records=bytes(batch)) for index, batch in enumerate(batches))
    named = module.TopicProduceData(name=topic, partition_data=data)
    return module.ProduceRequest(transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=30), topic_data=(named,))


def results_of(answer: Any) -> list[Any]:
    return list(answer.responses[0].partition_responses)


def good(value: bytes = b"x", codec: int = 0) -> bytearray:
    return record_batch(value, codec=codec, base_timestamp=clock.now_ms())


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_does_not_decompress_is_refused_and_the_partitions_beside_it_are_not(served: Served, codec: int) -> None:
    topic = create_topic(served, f"neighbours-{codec}")
    broken = batch_of_records(b"\x00\x01\x02 not compressed", 1, codec=codec, is_packed=True, base_timestamp=clock.now_ms())
    with RawClient(served.kafka_port) as client:
        answer = client.ask(produce(topic, good(), broken, good(codec=codec)))
        again = client.ask(produce(topic, good(), good(codec=codec), good()))

    assert [result.error_code for result in results_of(answer)] == [ErrorCode.none, ErrorCode.invalid_record, ErrorCode.none]
    assert "do not decompress" in results_of(answer)[1].error_message
    assert [result.error_code for result in results_of(again)] == [ErrorCode.none] * 3
    assert [result.base_offset for result in results_of(again)] == [1, 0, 1]


@pytest.mark.parametrize("version", [3, 7, 8, 9])
def test_the_record_is_named_from_version_8_on_and_the_code_is_the_same_in_all(served: Served, version: int) -> None:
    topic = create_topic(served, f"named-{version}")
    records = b"".join(record(b"a", offset_delta=delta) for delta in (0, 1, 5))
    misnumbered = batch_of_records(records, 3, codec=3, base_timestamp=clock.now_ms())
    with RawClient(served.kafka_port) as client:
        (result,) = results_of(client.ask(produce(topic, misnumbered, version=version)))

    assert result.error_code is ErrorCode.invalid_record
    if version >= 8:
        assert [error.batch_index for error in result.record_errors] == [2]
        assert "expected=2 found=5" in result.error_message


@pytest.mark.parametrize("codec", CODECS)
def test_what_an_idempotent_producer_sends_is_read_taken_and_in_order(served: Served, codec: str) -> None:
    topic, count = create_topic(served, f"ordered-{codec}"), 5_000
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": served.bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 1,
            "batch.num.messages": 100,  # some above what is read on the loop, and some below
            "max.in.flight": 5,
        }
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, headers=[("h", b"v")], on_delivery=lambda error, _: errors.append(error))
        if number % 50 == 0:
            producer.poll(0)
    assert producer.flush(SOON_S) == 0
    assert errors == [None] * count

    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    give_up_s = clock.monotonic_s() + SOON_S
    while len(read) < count and clock.monotonic_s() < give_up_s:
        read += [value for message in consumer.consume(count, 0.5) if (value := message.value()) is not None]
    consumer.close()
    assert read == [b"%d" % number for number in range(count)]


def test_bombs_cost_bounded_memory_and_nobody_else_waits(served: Served) -> None:
    """100 MiB of zeros in 3 KB, from several connections at once; another one goes on beside them."""
    topic = create_topic(served, "bombed")
    bomb = batch_of_records(record(bytes(100 * MIB), offset_delta=0), 1, codec=4, base_timestamp=clock.now_ms())
    assert len(bomb) < 20_000
    with RawClient(served.kafka_port) as other:  # what a first batch of each kind takes is not the bombs'
        results_of(other.ask(produce(topic, good(), good(codec=4))))
    time.sleep(SETTLED_S)
    refused_before = served.metrics().get('forebay_batches_read_total{verdict="refused"}', 0.0)
    before = served.rss_bytes()
    codes: list[ErrorCode] = []

    def send_bombs(client: RawClient) -> None:
        for number in range(BOMBS_EACH):
            assert client.send(frame_of(produce(topic, bomb), correlation_id=number))
        for number in range(BOMBS_EACH):
            codes.extend(result.error_code for result in results_of(client.answer(0, 9, correlation_id=number)))

    taken: list[float] = []
    with ExitStack() as closing:
        watch = closing.enter_context(Watch(served))
        clients = [closing.enter_context(RawClient(served.kafka_port)) for _ in range(BOMBING)]
        threads = [threading.Thread(target=send_bombs, args=(client,)) for client in clients]
        with RawClient(served.kafka_port) as other:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                begun_s = clock.monotonic_s()
                assert [result.error_code for result in results_of(other.ask(produce(topic, good())))] == [ErrorCode.none]
                taken.append(clock.monotonic_s() - begun_s)
                if clock.monotonic_s() - begun_s > SOON_S:
                    break
            compressed = results_of(other.ask(produce(topic, good(codec=4))))
        for thread in threads:
            thread.join(SOON_S)

    assert codes == [ErrorCode.invalid_record] * BOMBING * BOMBS_EACH
    assert [result.error_code for result in compressed] == [ErrorCode.none]
    assert watch.peak_bytes - before < BOMBS_BYTES_MAX
    assert max(taken) < 5.0, "a short batch is read at once, whatever is decompressed beside it"
    assert len(taken) > 3
    time.sleep(SETTLED_S)
    assert served.metrics()['forebay_batches_read_total{verdict="refused"}'] == refused_before + BOMBING * BOMBS_EACH


def test_a_client_that_leaves_while_its_batch_is_read_takes_nothing_with_it(served: Served) -> None:
    topic = create_topic(served, "left")
    large = record_batch(*[b"x"] * 50_000, codec=1, base_timestamp=clock.now_ms())
    for _ in range(3):
        with RawClient(served.kafka_port) as leaving:
            assert leaving.send(frame_of(produce(topic, large)))
    with RawClient(served.kafka_port) as staying:
        (result,) = results_of(staying.ask(produce(topic, good(codec=1))))

    assert result.error_code is ErrorCode.none
