"""Groups as the client library tells of them, and an admin client that answers with them."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException, TopicPartition

from forebay.kafka_client.connection import BootstrapServer, ClusterConnection

CONNECTION = ClusterConnection(bootstrap=(BootstrapServer("broker", 9092),), timeout_s=5)


def member(client_id: str, *partitions: tuple[str, int], host: str = "/10.0.0.7") -> SimpleNamespace:
    return SimpleNamespace(
        client_id=client_id,
        host=host,
        member_id=f"{client_id}-1",
        group_instance_id=None,
        assignment=SimpleNamespace(topic_partitions=[TopicPartition(*at) for at in partitions]),
    )


def described(name: str, *members: SimpleNamespace, state: ConsumerGroupState = ConsumerGroupState.STABLE) -> SimpleNamespace:
    return SimpleNamespace(
        group_id=name,
        state=state,
        type=ConsumerGroupType.CLASSIC,
        partition_assignor="range" if members else "",
        coordinator=SimpleNamespace(host="broker", port=9092, id=1),
        members=list(members),
    )


def answer(value: Any) -> "Future[Any]":
    """An error of Kafka is raised by it, as the library does."""
    future: Future[Any] = Future()
    if isinstance(value, KafkaError):
        future.set_exception(KafkaException(value))
    else:
        future.set_result(value)
    return future


class FakeAdmin:
    """Each answer is what the library would give, or a KafkaError; `refused` has those to deletions that fail, by group.

    `deletions` are the names that were to be deleted, in order.
    """

    def __init__(
        self, *, groups: Mapping[str, Any] | None = None, listing: Any = None, altered: Any = None, refused: Mapping[str, Any] | None = None
    ) -> None:
        self._groups = groups or {}
        self._listing = listing if listing is not None else SimpleNamespace(valid=[], errors=[])
        self._altered = altered
        self._refused = refused or {}
        self.deletions: list[str] = []

    def list_consumer_groups(self, *, request_timeout: float) -> "Future[Any]":
        return answer(self._listing)

    def describe_consumer_groups(self, names: list[str], *, request_timeout: float) -> "dict[str, Future[Any]]":
        dead = ConsumerGroupState.DEAD
        return {name: answer(self._groups.get(name, described(name, state=dead))) for name in names}

    def alter_consumer_group_offsets(self, requests: list[Any], *, request_timeout: float) -> "dict[str, Future[Any]]":
        return {requests[0].group_id: answer(self._altered)}

    def delete_consumer_groups(self, names: list[str], *, request_timeout: float) -> "dict[str, Future[Any]]":
        self.deletions += names
        return {name: answer(self._refused.get(name)) for name in names}


def listing(*names: str, errors: list[Exception] | None = None) -> SimpleNamespace:
    valid = [SimpleNamespace(group_id=name, state=ConsumerGroupState.EMPTY, type=ConsumerGroupType.CLASSIC) for name in names]
    return SimpleNamespace(valid=valid, errors=errors or [])
