"""Against the mock cluster inside librdkafka: another implementation of the protocol than ours."""

import itertools
import zlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from forebay.demo import replay
from forebay.demo.flights import FlightRecord, flights
from forebay.demo.ledger import differences
from forebay.demo.replay import ReplayError, read_back, send
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

    sent = send(bootstrap, TOPIC, flights(5_000), partition_count=PARTITION_COUNT, advance=advanced.append)
    read = read_back(bootstrap, TOPIC, sent.counts(), advance=ignore, clock=SystemClock())

    assert list(differences(sent, read)) == []
    assert read.record_count == 5_000
    assert sum(advanced) == 4_000
    assert sum(count > 0 for count in sent.counts()) > 1


def test_a_topic_that_is_not_empty_is_noticed_by_the_offset_the_broker_reports(bootstrap: str) -> None:
    send(bootstrap, TOPIC, flights(10), partition_count=PARTITION_COUNT, advance=ignore)

    with pytest.raises(ReplayError, match=r"partition \d: offset 0 was due, the broker said \d"):
        send(bootstrap, TOPIC, flights(10), partition_count=PARTITION_COUNT, advance=ignore)


def test_records_nobody_sent_are_noticed_by_the_end_of_the_partition(bootstrap: str) -> None:
    sent = send(bootstrap, TOPIC, flights(100), partition_count=PARTITION_COUNT, advance=ignore)
    counts = sent.counts()
    fullest = counts.index(max(counts))
    counts[fullest] -= 1

    with pytest.raises(ReplayError, match=rf"partition {fullest}: offset|partition {fullest}: .* the broker says it ends at"):
        read_back(bootstrap, TOPIC, counts, advance=ignore, clock=SystemClock())


def test_records_that_never_come_are_given_up(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = send(bootstrap, TOPIC, flights(100), partition_count=PARTITION_COUNT, advance=ignore)
    counts = sent.counts()
    counts[0] += 1
    monkeypatch.setattr(replay, "ANSWER_WITHIN_S", 0.5)

    with pytest.raises(ReplayError, match="100 of 101 records came, then nothing"):
        read_back(bootstrap, TOPIC, counts, advance=ignore, clock=SystemClock())


def test_a_full_queue_waits_for_the_broker(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_QUIET", {"log_level": 2, "queue.buffering.max.messages": 100})

    sent = send(bootstrap, TOPIC, flights(1_000), partition_count=PARTITION_COUNT, advance=ignore)

    assert sent.record_count == 1_000


def test_a_record_the_broker_does_not_take_ends_the_sending(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_QUIET", {"log_level": 2, "message.timeout.ms": 200})
    endless = (FlightRecord(b"UA", b"{}", number) for number in itertools.count())

    with pytest.raises(ReplayError, match="a record was not delivered"):
        send("127.0.0.1:1", TOPIC, endless, partition_count=PARTITION_COUNT, advance=ignore)


def test_a_carrier_has_one_partition_everywhere(bootstrap: str) -> None:
    carriers = [b"UA", b"AA"]
    sent = send(bootstrap, TOPIC, (FlightRecord(key, b"{}", 0) for key in carriers * 3), partition_count=PARTITION_COUNT, advance=ignore)

    assert [sent.counts()[zlib.crc32(key) % PARTITION_COUNT] >= 3 for key in carriers] == [True, True]
