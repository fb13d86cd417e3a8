"""The topic that is the demo's own: named, noted, made and deleted, as by any Kafka client.

The stores may hold topics of others, of any name: what a run did not make, no run touches. Every run makes a topic of a new name. In a data
folder it notes the name before it makes the topic, and the id after it: the next run deletes that one and no other. A topic that was
made again under the same name has another id. A function that asks brokers raises `ReplayError` if it cannot be done.
"""

import enum
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.commands.demo.replay import QUIET, ReplayError
from runtime.ids import IdSource

PREFIX: Final = "forebay-demo-flights"
NOTE: Final = "demo-topic.json"
_NAME: Final = re.compile(rf"{PREFIX}-[0-9a-z]{{26}}")
ANSWER_WITHIN_S: Final = 5.0
_ATTEMPTS_MAX: Final = 6
_LOOKS_MAX: Final = 50
_LOOK_AGAIN_S: Final = 0.1
T = TypeVar("T")


class OwnTopic(NamedTuple):
    """`id` is empty until the cluster has answered with it: the topic may or may not have been made."""

    name: str
    id: str


def new_name(ids: IdSource) -> str:
    """One that no topic has: 80 bits of it are chance."""
    return f"{PREFIX}-{ids.next_ulid().lower()}"


def is_demos_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def read_note(data: Path) -> OwnTopic | None:
    """What the last run in this folder noted; None for a note that no run has written."""
    try:
        match json.loads((data / NOTE).read_bytes()):
            case {"name": str(name), "id": str(topic_id)} if is_demos_name(name):
                return OwnTopic(name, topic_id)
    except (FileNotFoundError, ValueError):
        pass
    return None


def note(data: Path, topic: OwnTopic) -> None:
    """In the place of the note before it, at once or not at all."""
    fresh = data / f"{NOTE}.new"
    fresh.write_text(json.dumps(topic._asdict()))
    os.replace(fresh, data / NOTE)


class Deletion(enum.Enum):
    DONE = enum.auto()
    NOT_THERE = enum.auto()
    NOT_OWN = enum.auto()
    """Another topic has the name now: it is left alone."""


class _NoAnswerError(ReplayError):
    """Nobody answered in time."""


def create_topic(
    bootstrap: str, name: str, *, partition_count: int, sleep: Callable[[float], None], answer_within_s: float = ANSWER_WITHIN_S
) -> str:
    """The id of the new topic. The name must be one that nobody else uses: a topic that has it already is taken for this one, because the
    answer to an earlier attempt may have been lost.
    """
    _administer(bootstrap, lambda admin: _create_once(admin, name, partition_count, within_s=answer_within_s))
    for _ in range(_LOOKS_MAX):
        if found := _administer(bootstrap, lambda admin: _id_of(admin, name, within_s=answer_within_s)):
            return found
        # Made by one broker, asked of another.
        sleep(_LOOK_AGAIN_S)
    raise ReplayError(f"topic {name} was created, but no broker tells of it")


def delete_topic(bootstrap: str, name: str, *, own_id: str = "", answer_within_s: float = ANSWER_WITHIN_S) -> Deletion:
    """With an id, only the topic that has it."""
    return _administer(bootstrap, lambda admin: _delete_once(admin, name, own_id, within_s=answer_within_s))


def _administer(bootstrap: str, ask: Callable[[AdminClient], T]) -> T:
    """`ask` must be safe to repeat."""
    for left in reversed(range(_ATTEMPTS_MAX)):
        try:
            return ask(AdminClient({"bootstrap.servers": bootstrap, **QUIET}))
        except _NoAnswerError:
            # A client that took a broker for the controller which was killed just before asks nobody else; a new one learns better
            # as soon as the cluster does.
            if not left:
                raise
    raise AssertionError("unreachable")


def _create_once(admin: AdminClient, name: str, partition_count: int, *, within_s: float) -> None:
    # The flights are of 2013: by their timestamps all are too old for the week that is kept without this.
    new = NewTopic(name, num_partitions=partition_count, replication_factor=1, config={"retention.ms": "-1"})
    _answer(admin.create_topics([new])[name], unless=KafkaError.TOPIC_ALREADY_EXISTS, within_s=within_s)


def _delete_once(admin: AdminClient, name: str, own_id: str, *, within_s: float) -> Deletion:
    if own_id:
        found = _id_of(admin, name, within_s=within_s)
        if found != own_id:
            return Deletion.NOT_OWN if found else Deletion.NOT_THERE
    done, _ = _answer(
        admin.delete_topics([name], operation_timeout=within_s)[name], unless=KafkaError.UNKNOWN_TOPIC_OR_PART, within_s=within_s
    )
    return Deletion.DONE if done else Deletion.NOT_THERE


def _id_of(admin: AdminClient, name: str, *, within_s: float) -> str:
    """Empty if there is no such topic. Asking this way never creates one."""
    there, topic = _answer(admin.describe_topics(TopicCollection([name]))[name], unless=KafkaError.UNKNOWN_TOPIC_OR_PART, within_s=within_s)
    return str(topic.topic_id) if there else ""


def _answer(future: Any, *, unless: int, within_s: float) -> tuple[bool, Any]:
    """Whether it succeeded, and what was answered then; not for the error code `unless`."""
    try:
        return True, future.result(timeout=within_s)
    except KafkaException as error:
        if error.args[0].code() == unless:
            return False, None
        raise ReplayError(f"the broker refused: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise _NoAnswerError(f"no broker answered within {_ATTEMPTS_MAX * within_s:g} s") from error
