"""What a Prometheus finds on the pages of a broker that runs."""

import http.client
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

from runtime.clock import SystemClock
from tests.kit.serving import Served, get, serving

IDLE_SERIES_MAX = 400
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
    assert found["forebay_inline_limit_bytes"] == 1024
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
