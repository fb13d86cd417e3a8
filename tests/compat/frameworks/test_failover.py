"""Kafka Streams over two brokers, of which the one that coordinates its group is killed under load and comes back."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.frameworks.brokers import ANSWERS_WITHIN_S, FOREBAY, until
from tests.compat.frameworks.jvm import complaints
from tests.compat.frameworks.test_streams import (
    APPLICATION,
    EXPECTED,
    INPUT,
    OUTPUT,
    PARTITIONS,
    VOCABULARY,
    WITHIN_S,
    Counts,
    produce,
    running,
    true_counts,
)
from tests.kit.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]

LINES: Final = [f"{word} {VOCABULARY[0]}" for word in VOCABULARY * 50]
EXPECTED_OF_A_DEAD_BROKER: Final = {
    **EXPECTED,
    "NetworkClient": rf"{EXPECTED['NetworkClient']}|.*could not be established\. Node may not be available\.|.*NOT_LEADER_OR_FOLLOWER.*",
    # Records were on their way to the broker that was killed.
    "Sender": r".*NETWORK_EXCEPTION\. Error Message: Disconnected from node \d+|.*NetworkException: Disconnected from node \d+\.? Going.*",
    "ConsumerCoordinator": r".*Offset commit failed on partition \S+ at offset \d+: This is not the correct coordinator\.",
}
"""All of it is what the library says when a broker is away, and tries again."""


@pytest.mark.parametrize("leader", ["self", "client", "partition"])
def test_no_word_is_lost_when_the_coordinator_is_killed(leader: str, tmp_path: Path) -> None:
    settings = {**FOREBAY, "kafka.leader": leader}
    with serving(tmp_path / "data", settings=settings) as one, serving(tmp_path / "data", settings=settings) as other:
        bootstrap = f"{one.bootstrap},{other.bootstrap}"
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT)]).values():
            created.result(ANSWERS_WITHIN_S)
        with running(bootstrap, tmp_path) as instances, contextlib.closing(Counts(bootstrap)) as counts:
            until(lambda: instances.say("status"), lambda found: found["tasks"] == [2, 2], WITHIN_S)
            produce(bootstrap, LINES)
            group = admin.describe_consumer_groups([APPLICATION])[APPLICATION].result(ANSWERS_WITHIN_S)
            victim, survivor = (one, other) if group.coordinator.port == one.kafka_port else (other, one)
            victim.kill9()
            produce(survivor.bootstrap, LINES)
            with serving(tmp_path / "data", kafka_port=victim.kafka_port, settings=settings):
                produce(survivor.bootstrap, LINES)
                wanted = true_counts(LINES * 3)
                counted = until(counts.now, lambda found: not wanted - Counter(found), WITHIN_S)
                status = instances.say("status")
                instances.end()

    # At least once: what was under way when the broker was killed may have been counted again.
    assert counted.keys() == wanted.keys()
    assert status["states"] == ["RUNNING", "RUNNING"]
    assert complaints(tmp_path / "streams.log", EXPECTED_OF_A_DEAD_BROKER) == []
