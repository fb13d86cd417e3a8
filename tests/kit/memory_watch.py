"""A broker's memory, watched, and the requests that fill it."""

import datetime
import importlib
import threading
import time
from typing import Any, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from tests.kit.serving import Served

PARTITIONS = 4
SETTLED_S = 1.2
"""Metrics are up to a second old."""
SOON_S = 30.0
clock = SystemClock()


def create_topic(broker: Served, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SOON_S)


def produce(*batches: bytes, partitions: range = range(PARTITIONS)) -> Any:
    """One request with a batch for each partition; the last one stands for all that follow."""
    module: Any = importlib.import_module("kio.schema.produce.v9.request")
    data = tuple(
        module.PartitionProduceData(index=index, records=batches[min(number, len(batches) - 1)]) for number, index in enumerate(partitions)
    )
    topic = module.TopicProduceData(name="t", partition_data=data)
    return module.ProduceRequest(transactional_id=None, acks=1, timeout=datetime.timedelta(seconds=30), topic_data=(topic,))


def fetch(partition: int, offset: int) -> Any:
    """As much as it gives."""
    module: Any = importlib.import_module("kio.schema.fetch.v11.request")
    wanted = module.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 30)
    return module.FetchRequest(
        max_wait=datetime.timedelta(seconds=1),
        min_bytes=1,
        max_bytes=1 << 30,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(module.FetchTopic(topic="t", partitions=(wanted,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def wait_settled(broker: Served) -> float:
    """Until the broker has stopped doing anything about requests. Return the most bytes of replies that waited meanwhile."""
    before: dict[str, float] = {}
    waiting_bytes = 0.0
    give_up_s = clock.monotonic_s() + SOON_S
    while clock.monotonic_s() < give_up_s:
        metrics = broker.metrics()
        waiting_bytes = max(waiting_bytes, metrics["forebay_response_bytes"])
        now = {name: value for name, value in metrics.items() if name.startswith("forebay_kafka_requests_total")}
        if now == before:
            return waiting_bytes
        before = now
        time.sleep(SETTLED_S)
    raise AssertionError(f"the broker was not idle within {SOON_S:.0f} s")


class Watch:
    """Looks at the broker's resident memory all the time."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopping.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self._broker.rss_bytes())
