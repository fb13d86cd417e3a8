"""The roles of this broker beside those of the others (`broker.roles`, docs/operations.md#roles).

A broker is asked for what its roles leave to others by clients whose metadata are old, or that ignore them. Producers and readers are sent
on as Kafka's brokers do it, in ways that clients answer by asking for metadata, or by going to the broker that was named; or they are
served, if no other broker lives that could. So a request is never refused for good. Administration is refused to nobody, because
librdkafka and aiokafka go on asking the controller they know; nor is anything that comes by HTTP, which has no metadata (ADR 31).
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeVar

from broker.coordination.rendezvous import Candidate
from broker.leadership import Asker, Leadership, Placement, Question
from runtime.telemetry import Metric, Telemetry
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Role
from storage.errors import StorageError
from storage.vocabulary import TopicId

ROLE: Final = Metric(
    "forebay_role", "1 for each role of this broker (broker.roles), 0 for each that it leaves to others", ("role",), aggregation="max"
)
STOOD_IN: Final = Metric(
    "forebay_role_stand_ins_total", "Requests served for a role that this broker does not have, because no other broker lived", ("role",)
)
LOOK_EVERY_S: Final = 1.0


class HasRoles(Protocol):
    """A broker that clients connect to."""

    @property
    def broker_id(self) -> int: ...
    @property
    def rack(self) -> str | None: ...
    def has_role(self, role: Role) -> bool: ...


Able = TypeVar("Able", bound=HasRoles)


class OwnRoles:
    """`run` as a task, unless `is_whole`."""

    def __init__(self, roles: Collection[Role], *, brokers: BrokerDirectory, telemetry: Telemetry) -> None:
        self.own = frozenset(roles)
        self._brokers = brokers
        self._others: frozenset[tuple[Role, str]] = frozenset()
        """The roles of other brokers, each with a listener that clients find them at."""
        self._stood_in = telemetry.counter(STOOD_IN)
        gauge = telemetry.gauge(ROLE)
        for role in Role:
            gauge.labels(role.value).set(role in self.own)

    @property
    def is_whole(self) -> bool:
        return self.own == ALL_ROLES

    def refuses(self, role: Role, listener: str) -> str | None:
        """Why a request for that role, which came by `listener`, is refused; None: it is served. Asks nobody: for each request."""
        if role in self.own:
            return None
        if (role, listener) in self._others:
            return f"this broker has no role {role.value}: ask for metadata, and one that has it"
        self._stood_in.labels(role.value).inc()
        return None

    def leaves(self, role: Role, listener: str) -> bool:
        """Whether another broker with that listener has a role that this one has not."""
        return role not in self.own and (role, listener) in self._others

    async def look(self) -> None:
        """Learn which roles the others have. If the metadata store does not answer, what is known stays."""
        with contextlib.suppress(StorageError):
            live = await self._brokers.live()
            others = [one for one in live if one.broker_id != self._brokers.own_id]
            self._others = frozenset(
                [(role, endpoint.name) for one in others for endpoint in one.kafka_listeners for role in Role if one.has_role(role)]
            )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)


def placement_by_role(leadership: Leadership, asker: Asker, live: Sequence[Able], *, own_id: int) -> Placement:
    """As the strategy places partitions among the brokers that have the role the asker wants: `produce`, unless it names itself
    `role=consume`. The others come behind the leader, so that a replica to read from is among the first.
    """
    wanted = Role.CONSUME if asker.wants_to_consume else Role.PRODUCE
    able = [broker for broker in live if broker.has_role(wanted)]
    others = [broker for broker in live if not broker.has_role(wanted)]
    if not able or not others:
        return leadership.placement(Question(asker, own_id, _candidates(live)))
    place = leadership.placement(Question(asker, own_id, _candidates(able)))
    place_others = leadership.placement(Question(asker, own_id, _candidates(others)))

    def placed(topic_id: TopicId, partition: int) -> Sequence[int]:
        leader, *rest = place(topic_id, partition)
        return [leader, *place_others(topic_id, partition), *rest]

    return placed


def _candidates(brokers: Sequence[HasRoles]) -> list[Candidate]:
    return [Candidate(broker.broker_id, broker.rack) for broker in brokers]
