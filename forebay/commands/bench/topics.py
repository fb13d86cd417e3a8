"""The topic of a load: one of its own, which is gone afterwards whatever happens, or one that has a name and stays."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka.admin import AdminClient

from forebay.commands.topic import administration
from forebay.commands.topic.administration import counted
from forebay.kafka_client.connection import ClusterConnection
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_USAGE, ClientFailed
from forebay.kafka_client.interrupts import uninterrupted
from forebay.kafka_client.options import Terminal
from runtime.clock import Clock
from runtime.ids import IdSource

PREFIX: Final = "forebay-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTopic:
    """What was asked for. Without a name the topic is made for the load alone. A topic that is there has its own configs and replicas."""

    name: str | None
    partitions: int | None
    configs: Mapping[str, str]
    replication_factor: int | None


class TopicInUse(NamedTuple):
    name: str
    partitions: int


@contextlib.contextmanager
def topic_for(
    connection: ClusterConnection, admin: AdminClient, wanted: BenchTopic, *, default_partitions: int, terminal: Terminal, clock: Clock
) -> Iterator[TopicInUse]:
    """Raise `ClientFailed`, also if a topic that was made for the load alone could not be deleted."""
    partitions = default_partitions if wanted.partitions is None else wanted.partitions
    if wanted.name is None:
        name = f"{PREFIX}-{IdSource(clock=clock).next_ulid().lower()}"
        with _deleted_afterwards(connection, admin, name, terminal):
            yield _created(connection, admin, name, wanted, partitions, clock)
        return
    try:
        found = existing(connection, admin, wanted)
    except ClientFailed as failed:
        if failed.exit_code != EXIT_NOT_FOUND:
            raise
        found = _created(connection, admin, wanted.name, wanted, partitions, clock)
        terminal.say(f'Created topic "{wanted.name}" with {counted(partitions, "partition")}. It stays.')
    yield found


def existing(connection: ClusterConnection, admin: AdminClient, wanted: BenchTopic) -> TopicInUse:
    """The topic of that name, which must be there and be as it was asked for."""
    assert wanted.name is not None, "only a topic with a name can be there"
    count = len(administration.look_up_topic(connection, admin, wanted.name).partitions)
    if wanted.partitions not in {None, count}:
        raise ClientFailed(
            f'Topic "{wanted.name}" has {counted(count, "partition")}, not {wanted.partitions:,}: '
            "leave --partitions out, or name another topic.",
            exit_code=EXIT_USAGE,
        )
    if wanted.configs or wanted.replication_factor is not None:
        raise ClientFailed(
            f'Topic "{wanted.name}" exists, and -c and -r are for a topic that is created. Change it: forebay topic alter {wanted.name}',
            exit_code=EXIT_USAGE,
        )
    return TopicInUse(wanted.name, count)


def _created(connection: ClusterConnection, admin: AdminClient, name: str, wanted: BenchTopic, partitions: int, clock: Clock) -> TopicInUse:
    administration.create(
        connection,
        admin,
        name,
        partitions=partitions,
        replication_factor=wanted.replication_factor,
        configs=wanted.configs,
        clock=clock,
    )
    return TopicInUse(name, partitions)


@contextlib.contextmanager
def _deleted_afterwards(connection: ClusterConnection, admin: AdminClient, name: str, terminal: Terminal) -> Iterator[None]:
    """Also when its creation was interrupted: it may or may not be there then."""
    try:
        yield
    except BaseException:
        try:
            _delete(connection, admin, name)
        except ClientFailed as failed:
            terminal.warn(str(failed))
        raise
    _delete(connection, admin, name)


def _delete(connection: ClusterConnection, admin: AdminClient, name: str) -> None:
    """Raise `ClientFailed`, which says how to do it later. A topic that is gone already is no failure."""
    try:
        with uninterrupted():
            administration.delete(connection, admin, name)
    except ClientFailed as failed:
        if failed.exit_code == EXIT_NOT_FOUND:
            return
        raise ClientFailed(
            f'Topic "{name}" is left: {failed} Delete it later: forebay topic delete {name}', exit_code=failed.exit_code
        ) from failed
