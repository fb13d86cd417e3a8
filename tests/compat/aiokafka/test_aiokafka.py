"""aiokafka: old versions of the protocol (Fetch 4 to 11, Metadata 1 to 5), by assignment."""

from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.kit.serving import Served, serving

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(None) as broker:
        yield broker


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
async def test_what_is_produced_is_consumed(codec: str | None, idempotent: bool, served: Served) -> None:
    topic = f"aio-{codec}-{idempotent}"
    producer = AIOKafkaProducer(bootstrap_servers=served.bootstrap, compression_type=codec, enable_idempotence=idempotent)
    await producer.start()
    try:
        sent = [await producer.send(topic, f"{n}".encode() * 20, key=b"k", partition=0) for n in range(300)]
        assert [(await future).offset for future in sent] == list(range(300))
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=served.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        found = []
        while len(found) < 300:
            batches = await consumer.getmany(timeout_ms=int(TIMEOUT_S * 1_000))
            assert batches, "nothing came"
            found += [record for records in batches.values() for record in records]
        assert [(record.offset, record.value) for record in found] == [(n, f"{n}".encode() * 20) for n in range(300)]
    finally:
        await consumer.stop()
