"""Against the mock cluster inside librdkafka: another implementation of the protocol than ours."""

import itertools
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.commands.demo.flights import FlightRecord, flights
from forebay.commands.demo.replay import QUIET, ReplayError, Routes, differences, hear_statistics, read_back, send
from runtime.clock import SystemClock

TOPIC = "flights"
PARTITION_COUNT = 4  # what the mock cluster gives a topic


@pytest.fixture
def bootstrap() -> Iterator[str]:
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 2})
    broker = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    cluster.flush(0)


def ignore(done: int) -> None:
    pass


def test_what_was_sent_is_what_is_read(bootstrap: str) -> None:
    advanced: list[int] = []

    sent = send(bootstrap, TOPIC, flights(5_000), partition_count=PARTITION_COUNT, advance=advanced.append, clock=SystemClock())
    read = read_back(bootstrap, TOPIC, sent.counts(), advance=ignore, clock=SystemClock())

    assert list(differences(sent, read)) == []
    assert read.record_count == 5_000
    assert sum(advanced) == 4_000
    assert sum(count > 0 for count in sent.counts()) > 1


def test_a_topic_that_is_not_empty_is_noticed_by_the_offset_the_broker_reports(bootstrap: str) -> None:
    send(bootstrap, TOPIC, flights(10), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock())

    with pytest.raises(ReplayError, match=r"partition \d: offset 0 was due, the broker said \d"):
        send(bootstrap, TOPIC, flights(10), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock())


def test_records_nobody_sent_are_noticed_by_the_end_of_the_partition(bootstrap: str) -> None:
    sent = send(bootstrap, TOPIC, flights(100), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock())
    counts = sent.counts()
    fullest = counts.index(max(counts))
    counts[fullest] -= 1

    with pytest.raises(ReplayError, match=rf"partition {fullest}: offset|partition {fullest}: .* the broker says it ends at"):
        read_back(bootstrap, TOPIC, counts, advance=ignore, clock=SystemClock())


def test_records_that_never_come_are_given_up(bootstrap: str) -> None:
    sent = send(bootstrap, TOPIC, flights(100), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock())
    counts = sent.counts()
    counts[0] += 1

    with pytest.raises(ReplayError, match="100 of 101 records came, then nothing"):
        read_back(bootstrap, TOPIC, counts, advance=ignore, clock=SystemClock(), answer_within_s=0.5)


def test_a_full_queue_waits_for_the_broker(bootstrap: str) -> None:
    short = {**QUIET, "queue.buffering.max.messages": 100}

    sent = send(bootstrap, TOPIC, flights(1_000), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock(), client=short)

    assert sent.record_count == 1_000


def test_a_record_the_broker_does_not_take_ends_the_sending() -> None:
    hasty = {**QUIET, "message.timeout.ms": 200}
    endless = (FlightRecord(b"UA", b"{}", number) for number in itertools.count())

    with pytest.raises(ReplayError, match="a record was not delivered"):
        send("127.0.0.1:1", TOPIC, endless, partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock(), client=hasty)


def test_a_carrier_has_one_partition_everywhere(bootstrap: str) -> None:
    carriers = [b"UA", b"AA"]
    sent = send(
        bootstrap,
        TOPIC,
        (FlightRecord(key, b"{}", 0) for key in carriers * 3),
        partition_count=PARTITION_COUNT,
        advance=ignore,
        clock=SystemClock(),
    )

    assert [sent.counts()[zlib.crc32(key) % PARTITION_COUNT] >= 3 for key in carriers] == [True, True]


class Recorded:
    """A mishap that only notes when it would have happened."""

    def __init__(self, *, acked_min: int, sent_max: int) -> None:
        self.acked_min = acked_min
        self.sent_max = sent_max
        self.calls: list[tuple[str, Any]] = []

    def prepare(self, address: str) -> None:
        self.calls.append(("prepare", address))

    def strike(self, address: str) -> None:
        self.calls.append(("strike", address))

    def struck(self, *, acked: int, open_count: int) -> None:
        self.calls.append(("struck", (acked, open_count)))


@pytest.mark.parametrize("count", [1, 3, 5_000])
def test_a_mishap_befalls_the_leader_once_when_enough_is_acknowledged(bootstrap: str, count: int) -> None:
    mishap = Recorded(acked_min=count // 2, sent_max=max(1, count * 3 // 4))

    routes = Routes(TOPIC)
    sent = send(
        bootstrap, TOPIC, flights(count), partition_count=PARTITION_COUNT, advance=ignore, clock=SystemClock(), routes=routes, mishap=mishap
    )
    acked, open_count = dict(mishap.calls)["struck"]

    assert [name for name, _ in mishap.calls] == ["prepare", "strike", "struck"]
    assert mishap.calls[0][1] == mishap.calls[1][1] == routes.address == bootstrap
    assert acked >= count // 2
    assert acked + open_count <= count
    assert sent.record_count == count


def test_records_nobody_acknowledges_are_given_up() -> None:
    with pytest.raises(ReplayError, match=r"10 of 10 records were not acknowledged, and for 0\.5 s none was"):
        send(
            "127.0.0.1:1",
            TOPIC,
            flights(10),
            partition_count=PARTITION_COUNT,
            advance=ignore,
            clock=SystemClock(),
            answer_within_s=0.5,
        )


def test_routes_are_the_leaders_in_the_order_in_which_they_came() -> None:
    routes = Routes(TOPIC)
    brokers = {"a:1/0": {"nodeid": 0, "nodename": "a:1"}, "b:2/1": {"nodeid": 1, "nodename": "b:2"}}

    def tell(*leaders: int) -> None:
        partitions = {str(number): {"leader": leader} for number, leader in enumerate(leaders)}
        routes(json.dumps({"brokers": brokers, "topics": {TOPIC: {"partitions": partitions}}}))

    tell(-1)
    before = routes.address
    tell(0, 0, 1, -1)
    tell(1, 1, 0)
    tell(-1, -1)

    assert (before, routes.address, routes.addresses) == ("", "b:2", ["a:1", "b:2"])


def test_who_led_in_the_end_is_heard_though_the_first_thing_that_comes_is_old() -> None:
    routes = Routes(TOPIC)
    brokers = {"a:1/0": {"nodeid": 0, "nodename": "a:1"}, "b:2/1": {"nodeid": 1, "nodename": "b:2"}}
    coming = [None, 0, None, 1]

    class Polled:
        def poll(self, _timeout_s: float) -> int:
            leader = coming.pop(0)
            if leader is not None:
                routes(json.dumps({"brokers": brokers, "topics": {TOPIC: {"partitions": {"0": {"leader": leader}}}}}))
            return 1

    hear_statistics(Polled(), routes, SystemClock())  # type: ignore[arg-type]

    assert routes.addresses == ["a:1", "b:2"]
