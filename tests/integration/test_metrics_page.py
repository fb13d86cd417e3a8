"""What a Prometheus finds on the pages of a broker that runs."""

import http.client
import time
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from runtime.clock import SystemClock
from tests.kit.serving import Served, get, serving

IDLE_SERIES_MAX = 410
SERIES_MAX = 10_000
TOPICS = 1_000
GROUPS = 500
CLIENT_S = 60.0
SEEN_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2


def test_an_idle_broker_has_few_series_and_says_how_many(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        found = served.metrics()

    assert len(found) <= IDLE_SERIES_MAX
    assert found["forebay_metrics_series"] == len(found)
    assert found["forebay_flush_interval_seconds"] == 0.005
    assert found["forebay_flush_limit_bytes"] == 8 * 2**20
    assert found["forebay_early_limit_bytes"] == 32 * 1024**2
    assert found["forebay_request_buffer_limit_bytes"] == 192 * 2**20


def produce(served: Served, count: int) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for _ in range(count):
        producer.produce("orders", b"v")
    assert producer.flush(CLIENT_S) == 0


def until_at_least(served: Served, series: str, value: float) -> dict[str, float]:
    """The page on which a series has reached the value."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + SEEN_WITHIN_S
    while (found := served.metrics()).get(series, -1) < value:
        assert clock.monotonic_s() < end_s, found
        time.sleep(LOOK_EVERY_S)
    return found


def test_a_broker_with_a_thousand_topics_and_500_groups_keeps_within_the_budget_of_series(tmp_path: Path) -> None:
    names = [f"topic-{number:04}" for number in range(TOPICS)]
    with serving(tmp_path, settings={"metrics.lag_interval": "1s", "metadata.url": "memory://", "storage.url": "memory://"}) as served:
        admin = AdminClient({"bootstrap.servers": served.bootstrap})
        made = admin.create_topics([NewTopic(name, 10, 1) for name in names], request_timeout=CLIENT_S)
        for future in made.values():
            future.result(CLIENT_S)
        producer = Producer({"bootstrap.servers": served.bootstrap})
        for name in names:
            producer.produce(name, b"v", partition=3)
        assert producer.flush(CLIENT_S) == 0
        consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "reads-all", "enable.auto.commit": False})
        consumer.assign([TopicPartition(name, 3, 0) for name in names])
        read = 0
        while read < TOPICS:
            read += len(consumer.consume(TOPICS, 1.0))
        consumer.close()
        pairs = [TopicPartition(name, number, 0) for name in names[:2] for number in range(10)]
        groups = [ConsumerGroupTopicPartitions(f"group-{number:03}", pairs) for number in range(GROUPS)]
        for future in [future for group in groups for future in admin.alter_consumer_group_offsets([group]).values()]:
            future.result(CLIENT_S)
        until_at_least(served, "forebay_metrics_folded_total", 2 * GROUPS - 550)
        status, page = get(served.http_port, "/metrics")
    series = [line for line in page.decode().splitlines() if not line.startswith("#")]

    assert status == http.client.OK
    assert len(series) <= SERIES_MAX
    assert sum(line.startswith("forebay_topic_bytes_total{") for line in series) == 2 * TOPICS
    assert sum(line.startswith("forebay_group_joined_members{") for line in series) == GROUPS
    assert sum(line.startswith("forebay_group_lag_records{") for line in series) == 551


def test_a_group_that_stopped_lags_more_and_more_on_its_broker_s_page_and_is_on_that_of_the_cluster(tmp_path: Path) -> None:
    seconds = 'forebay_group_lag_seconds{group="g",topic="orders"}'
    with serving(tmp_path, settings={"metrics.lag_interval": "1s"}) as served:
        produce(served, 5)
        consumer = Consumer(
            {"bootstrap.servers": served.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe(["orders"])
        assert len(consumer.consume(5, CLIENT_S)) == 5
        consumer.commit(asynchronous=False)
        consumer.close()
        produce(served, 3)
        status, page = get(served.http_port, "/metrics/cluster")
        found = until_at_least(served, 'forebay_group_lag_records{group="g",topic="orders"}', 3)
        until_at_least(served, seconds, found[seconds] + 1)

    assert status == http.client.OK
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="orders"} 3.0\n' in page.decode()
