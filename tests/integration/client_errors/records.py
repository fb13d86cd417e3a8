"""Records that are refused to producers, and offsets to consumers."""

import asyncio
import datetime
import importlib
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import BrokerResponseError, InvalidProducerEpoch, OffsetOutOfRangeError, ProducerFenced
from confluent_kafka import KafkaError, Producer

from runtime.clock import SystemClock
from tests.kit.record_batches import record_batch
from tests.kit.seen_errors import TIMEOUT_S, TOPIC, Scene, Seen, of_aiokafka, of_confluent, of_frame

DAY_MS = 86_400_000


async def timestamp_of_the_day_after_tomorrow(scene: Scene) -> Seen:
    return await asyncio.to_thread(_producing, scene, b"early", timestamp=SystemClock().now_ms() + 2 * DAY_MS)


async def record_of_two_mebibytes(scene: Scene) -> Seen:
    return await asyncio.to_thread(_producing, scene, bytes(2 << 20))


async def sequence_with_a_gap(scene: Scene) -> Seen:
    """Acknowledgements of the records between were lost, it would seem."""
    producer = AIOKafkaProducer(bootstrap_servers=scene.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"first", partition=0)
        producer._txn_manager._sequence_numbers[TopicPartition(TOPIC, 0)] = 50
        return await _refused(producer)
    finally:
        await producer.stop()


async def epoch_of_a_producer_that_was_replaced(scene: Scene) -> Seen:
    producer = AIOKafkaProducer(bootstrap_servers=scene.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"first", partition=0)
        own_id = producer._txn_manager.producer_id
        successor = record_batch(producer_id=own_id, producer_epoch=5, base_sequence=0, base_timestamp=SystemClock().now_ms())
        _produce(scene, bytes(successor))
        return await _refused(producer)
    finally:
        await producer.stop()


async def offset_past_the_end(scene: Scene) -> Seen:
    consumer = AIOKafkaConsumer(bootstrap_servers=scene.bootstrap, auto_offset_reset="none", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek(TopicPartition(TOPIC, 0), 1_000_000)
        async with asyncio.timeout(TIMEOUT_S):
            await consumer.getone()
    except OffsetOutOfRangeError as error:
        return of_aiokafka(error.errno)
    finally:
        await consumer.stop()
    raise AssertionError("a record came")


async def batch_with_a_wrong_checksum(scene: Scene) -> Seen:
    return _produced(scene, bytes(record_batch(crc=1)))


async def batch_that_counts_wrong(scene: Scene) -> Seen:
    return _produced(scene, bytes(record_batch(record_count=2)))


async def codec_that_nobody_knows(scene: Scene) -> Seen:
    return _produced(scene, bytes(record_batch(codec=5)))


async def batch_of_a_transaction_that_nobody_began(scene: Scene) -> Seen:
    return _produced(scene, bytes(record_batch(attributes=0x10)))


async def acks_that_mean_nothing(scene: Scene) -> Seen:
    return _produced(scene, bytes(record_batch()), acks=2)


def _producing(scene: Scene, value: bytes, **options: Any) -> Seen:
    heard: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": scene.bootstrap, "message.max.bytes": 8 << 20, "log_level": 0})
    producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: heard.append(error), **options)
    assert producer.flush(TIMEOUT_S) == 0
    (error,) = heard
    assert error is not None, "it was taken"
    return of_confluent(error)


async def _refused(producer: Any) -> Seen:
    try:
        await producer.send_and_wait(TOPIC, b"refused", partition=0)
    except ProducerFenced:
        # What its sender makes of exactly this code.
        return of_aiokafka(InvalidProducerEpoch.errno)
    except BrokerResponseError as error:
        return of_aiokafka(error.errno)
    raise AssertionError("it was taken")


def _produced(scene: Scene, batch: bytes, acks: int = -1) -> Seen:
    answer = _produce(scene, batch, acks)
    return of_frame(answer.error_code, answer.error_message)


def _produce(scene: Scene, batch: bytes, acks: int = -1) -> Any:
    made: Any = importlib.import_module("kio.schema.produce.v9.request")
    data = made.TopicProduceData(name=TOPIC, partition_data=(made.PartitionProduceData(index=0, records=batch),))
    request = made.ProduceRequest(transactional_id=None, acks=acks, timeout=datetime.timedelta(seconds=20), topic_data=(data,))
    return scene.raw(request).responses[0].partition_responses[0]
