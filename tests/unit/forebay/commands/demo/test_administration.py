from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from forebay.commands.demo import own_topic
from forebay.commands.demo.own_topic import Deletion, create_topic, delete_topic
from forebay.commands.demo.replay import ReplayError

TOPIC = "forebay-demo-flights-01kasdfghjkqwertyzxcvbnm12"


def answer(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(value, int):
        future.set_exception(KafkaException(KafkaError(value)))
    elif value is not NEVER:
        future.set_result(value)
    return future


NEVER = object()


class FakeCluster:
    """Topics by name with their ids. `lost` answers to creations never come, though the topic is made; `late` questions do not find it."""

    def __init__(self, topics: dict[str, str], *, lost: int = 0, late: int = 0) -> None:
        self.topics = topics
        self._lost = lost
        self._late = late

    def create_topics(self, new: list[Any]) -> "dict[str, Future[Any]]":
        name = new[0].topic
        if name in self.topics:
            return {name: answer(KafkaError.TOPIC_ALREADY_EXISTS)}
        self.topics[name] = "fresh"
        if self._lost:
            self._lost -= 1
            return {name: answer(NEVER)}
        return {name: answer(None)}

    def describe_topics(self, asked: TopicCollection) -> "dict[str, Future[Any]]":
        if self._late:
            self._late -= 1
            return {TOPIC: answer(KafkaError.UNKNOWN_TOPIC_OR_PART)}
        found = self.topics.get(TOPIC)
        return {TOPIC: answer(KafkaError.UNKNOWN_TOPIC_OR_PART if found is None else SimpleNamespace(topic_id=found))}

    def delete_topics(self, names: list[str], *, operation_timeout: float) -> "dict[str, Future[Any]]":
        return {name: answer(KafkaError.UNKNOWN_TOPIC_OR_PART if self.topics.pop(name, None) is None else None) for name in names}


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCluster], None]:
    return lambda cluster: monkeypatch.setattr(own_topic, "AdminClient", lambda _: cluster)


def no_sleep(_: float) -> None:
    pass


def test_a_topic_that_is_made_is_known_by_its_id(asking: Callable[[FakeCluster], None]) -> None:
    asking(FakeCluster({}, late=3))

    assert create_topic("b:1", TOPIC, partition_count=6, sleep=no_sleep, answer_within_s=0.05) == "fresh"


def test_a_creation_whose_answer_was_lost_is_ones_own(asking: Callable[[FakeCluster], None]) -> None:
    asking(FakeCluster({}, lost=1))

    assert create_topic("b:1", TOPIC, partition_count=6, sleep=no_sleep, answer_within_s=0.05) == "fresh"


def test_a_topic_nobody_tells_of_is_given_up(asking: Callable[[FakeCluster], None]) -> None:
    asking(FakeCluster({}, late=1_000))

    with pytest.raises(ReplayError, match=f"topic {TOPIC} was created, but no broker tells of it"):
        create_topic("b:1", TOPIC, partition_count=6, sleep=no_sleep, answer_within_s=0.05)


@pytest.mark.parametrize(
    ("there", "own_id", "deletion", "left"),
    [
        ({TOPIC: "ours", "orders": "x"}, "ours", Deletion.DONE, {"orders"}),
        ({TOPIC: "ours"}, "", Deletion.DONE, set()),
        ({TOPIC: "of somebody else"}, "ours", Deletion.NOT_OWN, {TOPIC}),
        ({"orders": "x"}, "ours", Deletion.NOT_THERE, {"orders"}),
        ({"orders": "x"}, "", Deletion.NOT_THERE, {"orders"}),
    ],
    ids=["its own", "its own, whose id it never learned", "made again by somebody else", "gone", "never made"],
)
def test_only_a_topic_of_ones_own_is_deleted(
    asking: Callable[[FakeCluster], None], there: dict[str, str], own_id: str, deletion: Deletion, left: set[str]
) -> None:
    asking(cluster := FakeCluster(dict(there)))

    assert delete_topic("b:1", TOPIC, own_id=own_id) is deletion
    assert set(cluster.topics) == left


def test_an_answer_that_never_comes_is_asked_for_by_new_clients_and_then_given_up() -> None:
    with pytest.raises(ReplayError, match="no broker answered within 3 s"):
        delete_topic("127.0.0.1:1", TOPIC, answer_within_s=0.5)
