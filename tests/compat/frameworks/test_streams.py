"""Kafka Streams: a word count by two instances, by way of a repartition topic, with changelogs; one instance is closed on the way.

What happens against Apache Kafka is what has to happen against Forebay: the same tests run against both.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.frameworks.brokers import AGAINST, WARNED_OF, Against, Group, Recorded, recorded, until
from tests.compat.frameworks.jvm import Program, complaints, program

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]

WITHIN_S: Final = 60.0
PARTITIONS: Final = 2
APPLICATION: Final = "words"
INPUT, OUTPUT = f"{APPLICATION}-lines", f"{APPLICATION}-counts"
REPARTITION: Final = f"{APPLICATION}-words-repartition"
CHANGELOG, HOURLY = f"{APPLICATION}-counts-changelog", f"{APPLICATION}-hourly-changelog"
VOCABULARY: Final = [f"word-{number}" for number in range(40)]
LINES: Final = 2_000
# Each soon enough to be seen in a test: theirs are 30 s, 30 s and 3 s. No cache: each count is written.
SETTINGS: Final = {
    "commit.interval.ms": "200",
    "repartition.purge.interval.ms": "500",
    "heartbeat.interval.ms": "500",
    "statestore.cache.max.bytes": "0",
}
EXPECTED: Final = {
    "StreamsConfig": r"Processing exception handler is not enabled for the GlobalThread\. .*",
    # The instances subscribe to the topic before the one that leads the group makes it.
    "NetworkClient": rf".*reported a recoverable issue with correlation id \d+ : {{{REPARTITION}=UNKNOWN_TOPIC_OR_PARTITION}}",
}
"""What the library warns of against any broker."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of one run. `counts` and `half` are the last counts written; `status` before the instance was closed and after."""

    lines: Sequence[str]
    half: Mapping[str, int]
    counts: Mapping[str, int]
    status: Sequence[Mapping[str, object]]
    group: Group
    topics: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str]]
    ends: Mapping[str, Sequence[tuple[int, int]]]
    asked: set[str]
    complaints: Sequence[str]
    broker_complaints: Sequence[Mapping[str, object]]
    not_enforced: set[str]
    against: Against


class Counts:
    """The last count of each word in the output topic."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 0})
        self._consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])
        self._counts: dict[str, int] = {}

    def now(self) -> dict[str, int]:
        """A new one each time, after all that could be read."""
        while messages := self._consumer.consume(500, 0.2):
            for message in messages:
                assert message.error() is None, message.error()
                self._counts[message.key().decode()] = int.from_bytes(message.value(), "big")
        return dict(self._counts)

    def ends(self, topic: str) -> list[tuple[int, int]]:
        """The first and the next offset of each partition."""
        return [self._consumer.get_watermark_offsets(TopicPartition(topic, partition), WITHIN_S) for partition in range(PARTITIONS)]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module", params=AGAINST)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    against: Against = request.param
    folder = tmp_path_factory.mktemp(f"streams-{against}")
    with recorded(against, folder) as broker:
        broker.create(INPUT, OUTPUT, partitions=PARTITIONS)
        with running(broker.bootstrap, folder) as instances, contextlib.closing(Counts(broker.bootstrap)) as counts:
            played = play(broker, instances, counts)
        disliked = complaints(folder / "streams.log", EXPECTED, WARNED_OF[against])
        yield Seen(
            **played, complaints=disliked, broker_complaints=broker.complaints(), not_enforced=broker.not_enforced(), against=against
        )


def running(bootstrap: str, folder: Path) -> AbstractContextManager[Program]:
    """Two instances in one process (WordCount.java)."""
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    return program("WordCount", bootstrap, APPLICATION, str(folder / "state"), *settings, log=folder / "streams.log")


def play(broker: Recorded, instances: Program, counts: Counts) -> dict[str, object]:
    chosen = random.Random(2_000)
    lines = [" ".join(chosen.choices(VOCABULARY, k=chosen.randint(1, 6))) for _ in range(LINES)]
    first, later = lines[: LINES // 2], lines[LINES // 2 :]
    before = until(lambda: instances.say("status"), lambda found: found["tasks"] == [2, 2], WITHIN_S)
    produce(broker.bootstrap, first)
    half = until(counts.now, lambda found: found == true_counts(first), WITHIN_S)
    group = broker.group(APPLICATION)
    assert instances.say("close 0") == {"closed": True}
    produce(broker.bootstrap, later)
    last = until(counts.now, lambda found: found == true_counts(lines), WITHIN_S)
    after = until(lambda: instances.say("status"), lambda found: found["tasks"] == [0, 4], WITHIN_S)
    until(lambda: counts.ends(REPARTITION), lambda ends: all(low == high for low, high in ends), WITHIN_S)
    instances.end()
    return {
        "asked": broker.asked(),
        "lines": lines,
        "half": half,
        "counts": {**last, **counts.now()},
        "status": [before, after],
        "group": group,
        "topics": broker.topics(),
        "configs": {topic: broker.configs(topic) for topic in (REPARTITION, CHANGELOG, HOURLY)},
        "ends": {topic: counts.ends(topic) for topic in (INPUT, OUTPUT, REPARTITION, CHANGELOG, HOURLY)},
    }


def produce(bootstrap: str, lines: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, line in enumerate(lines):
        producer.produce(INPUT, line, key=str(number))
    assert producer.flush(WITHIN_S) == 0


def true_counts(lines: Sequence[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def records(ends: Sequence[tuple[int, int]]) -> int:
    """How many were ever written."""
    return sum(high for _, high in ends)


def test_every_word_is_counted_once_though_an_instance_was_closed(seen: Seen) -> None:
    assert seen.half == true_counts(seen.lines[: LINES // 2])
    assert seen.counts == true_counts(seen.lines)


def test_no_record_was_processed_twice(seen: Seen) -> None:
    words = sum(true_counts(seen.lines).values())

    assert {topic: records(ends) for topic, ends in seen.ends.items()} == {
        INPUT: LINES,
        REPARTITION: words,
        CHANGELOG: words,
        HOURLY: words,
        OUTPUT: words,
    }


def test_the_instances_share_the_tasks_until_one_is_left(seen: Seen) -> None:
    assert [found["tasks"] for found in seen.status] == [[2, 2], [0, 4]]
    assert [found["states"] for found in seen.status] == [["RUNNING", "RUNNING"], ["NOT_RUNNING", "RUNNING"]]


def test_the_group_has_a_protocol_of_its_own_with_data_of_its_own(seen: Seen) -> None:
    assert (seen.group.state, seen.group.protocol_type, seen.group.protocol) == ("Stable", "consumer", "stream")
    assert len(seen.group.members) == 2
    for metadata, assignment in seen.group.members:
        assert REPARTITION.encode() in metadata + assignment
        assert len(assignment) > len(REPARTITION) + PARTITIONS * 8


def test_streams_makes_its_own_topics_and_they_are_as_it_wants_them(seen: Seen) -> None:
    assert seen.topics == dict.fromkeys((INPUT, OUTPUT, REPARTITION, CHANGELOG, HOURLY), PARTITIONS)
    assert seen.configs == {
        REPARTITION: {
            "cleanup.policy": "delete",
            "message.timestamp.type": "CreateTime",
            "retention.ms": "-1",
            "segment.bytes": "52428800",
        },
        CHANGELOG: {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"},
        HOURLY: {"cleanup.policy": "compact,delete", "message.timestamp.type": "CreateTime", "retention.ms": "90000000"},
    }


def test_what_was_processed_is_deleted_from_the_repartition_topic(seen: Seen) -> None:
    assert "DeleteRecords" in seen.asked
    assert [low for low, _ in seen.ends[REPARTITION]] == [high for _, high in seen.ends[REPARTITION]]
    assert [low for low, _ in seen.ends[CHANGELOG]] == [0] * PARTITIONS


def test_the_instances_have_nothing_to_complain_of(seen: Seen) -> None:
    assert seen.complaints == []


def test_the_broker_has_nothing_to_complain_of_but_configs_that_it_does_not_enforce_yet(seen: Seen) -> None:
    assert seen.broker_complaints == []
    assert seen.not_enforced == ({"cleanup.policy", "retention.ms"} if seen.against == "forebay" else set())
