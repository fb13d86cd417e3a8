"""Produce ten orders and read them back in a consumer group, with confluent-kafka (librdkafka).

    pip install confluent-kafka
    python examples/confluent_group.py localhost:9092

Run it again: the group goes on where it committed, so each run prints its own ten orders.
"""

import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "orders-confluent"
GROUP = "billing-confluent"
ORDERS = 10
TIMEOUT_S = 30.0


def create_topic() -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    # The object store keeps records durable; the replication factor is stored and has no effect.
    created = admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])
    try:
        created[TOPIC].result(TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def on_delivery(error: KafkaError | None, message: Message) -> None:
    """Called once for each record: it is durable in the object store, or `error` says why not."""
    if error is not None:
        raise KafkaException(error)
    print(f"produced {TOPIC}[{message.partition()}]@{message.offset()} {message.key().decode()}")


def produce() -> None:
    # Batches travel as they are: compression and linger make objects, and so the bill, smaller.
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 20})
    for number in range(ORDERS):
        producer.produce(TOPIC, key=f"order-{number}", value=f'{{"amount": {10 * number}}}', on_delivery=on_delivery)
    if undelivered := producer.flush(TIMEOUT_S):
        sys.exit(f"{undelivered} records were not acknowledged within {TIMEOUT_S:.0f} s")


def consume() -> None:
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    give_up_s = time.monotonic() + TIMEOUT_S
    seen = 0
    try:
        while seen < ORDERS:
            if time.monotonic() > give_up_s:
                sys.exit(f"{seen} of {ORDERS} records arrived within {TIMEOUT_S:.0f} s")
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            seen += 1
            print(f"consumed {TOPIC}[{message.partition()}]@{message.offset()} {message.key().decode()} {message.value().decode()}")
            # After the work is done: a consumer that dies before this line reads the record again.
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


create_topic()
produce()
consume()
