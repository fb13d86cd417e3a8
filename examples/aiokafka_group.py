"""Produce ten orders and read them back in a consumer group, with aiokafka (asyncio, no C library).

    pip install aiokafka
    python examples/aiokafka_group.py localhost:9092

Run it again: the group goes on where it committed, so each run prints its own ten orders.
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "orders-aiokafka"
GROUP = "billing-aiokafka"
ORDERS = 10
TIMEOUT_S = 30.0


async def create_topic() -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])
    finally:
        await admin.close()
    # aiokafka hands errors of topics over without raising them.
    for _topic, code, *_message in answer.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            raise for_code(code)


async def produce() -> None:
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=True, linger_ms=20) as producer:
        # `send` puts a record into a batch; the future it returns is done when the batch is durable in the object store.
        sent = [
            await producer.send(TOPIC, key=f"order-{number}".encode(), value=f'{{"amount": {10 * number}}}'.encode())
            for number in range(ORDERS)
        ]
        for number, record in enumerate(await asyncio.gather(*sent)):
            print(f"produced {TOPIC}[{record.partition}]@{record.offset} order-{number}")


async def consume() -> None:
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False)
    async with consumer:
        for _ in range(ORDERS):
            record = await consumer.getone()
            print(f"consumed {TOPIC}[{record.partition}]@{record.offset} {record.key.decode()} {record.value.decode()}")
            # After the work is done: a consumer that dies before this line reads the record again.
            await consumer.commit()


async def main() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await create_topic()
        await produce()
        await consume()


asyncio.run(main())
