"""Sends clients to other brokers: by roles (`broker.roles`, docs/guides/deploy.md#roles), and by zones.

A broker is asked for what its roles leave to others by clients whose metadata are old, or that ignore them. Producers and readers are sent
on as Kafka's brokers do it, in ways that clients answer by asking for metadata, or by going to the broker that was named; or they are
served, if no other broker lives that could. So a request is never refused for good. Administration is refused to nobody, because
librdkafka and aiokafka go on asking the controller they know; nor is anything that comes by HTTP, which has no metadata (ADR 31).

`PreferredReplicas` sends readers to a broker of their own zone, or to one that has the role `consume` (KIP-392).
"""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from broker.cluster.leadership import Asker, Candidate, Leadership, Placement, Question, nearest
from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Role, able
from storage.errors import StorageError
from storage.vocabulary import PartitionId, TopicId

ROLE: Final = Metric(
    "forebay_role",
    "1 for each role of this broker (broker.roles), 0 for each that it leaves to others",
    ("role",),
    aggregation="max",
)
STOOD_IN: Final = Metric(
    "forebay_role_stand_ins_total", "Requests served for a role that this broker does not have, because no other broker lived", ("role",)
)
LOOK_EVERY_S: Final = 1.0

ASK_AGAIN_S: Final = 90.0
"""librdkafka takes a second answer within a minute for a mistake and slows down."""

Near = Callable[[PartitionId], int | None]


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


class Fetcher(Protocol):
    """The connection that fetches."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def client_host(self) -> str: ...
    @property
    def listener(self) -> str: ...

    def when_followed(self, call: Callable[[], None] | None) -> None:
        """Call `call` once when a request other than a Fetch waits behind this one, at once if one does. None: no longer."""
        ...


class PreferredReplicas:
    """Which broker a client should fetch from. `rack` is this broker's own, and so are `roles`; without them it has all.

    A broker of the client's rack never sends it on, so there is no going in circles. A client may come back all the same: the broker is
    gone, or not in the replicas of a topic with few of them, where Java clients do not go. So a connection is sent away once in ASK_AGAIN_S
    at most, and served meanwhile.
    """

    def __init__(
        self, *, brokers: BrokerDirectory, leadership: Leadership, rack: str | None, clock: Clock, roles: OwnRoles | None = None
    ) -> None:
        self._roles = roles
        self._brokers = brokers
        self._leadership = leadership
        self._rack = rack
        self._clock = clock
        self._asked_at_s: weakref.WeakKeyDictionary[Fetcher, float] = weakref.WeakKeyDictionary()

    @property
    def leaves_reading(self) -> bool:
        """Whether this broker has no role for readers. It does not change."""
        return self._roles is not None and Role.CONSUME not in self._roles.own

    def sends_away(self, reader: Fetcher) -> bool:
        """Whether this reader is left to others, whatever its rack: while another broker that it can reach has the role for it."""
        return self._roles is not None and self._roles.leaves(Role.CONSUME, reader.listener)

    async def near(self, rack: str, reader: Fetcher) -> Near | None:
        """Choose the broker to read each partition from, for a reader of that rack, or of none if it `sends_away` this one. None: this
        broker is as good as any.
        """
        leaves = self.sends_away(reader)
        if not leaves and (not rack or rack == self._rack):
            return None
        now_s = self._clock.monotonic_s()
        if now_s < self._asked_at_s.get(reader, float("-inf")) + ASK_AGAIN_S:
            return None
        self._asked_at_s[reader] = now_s
        try:
            records = await self._brokers.live()
        except StorageError:
            return None  # who is near is not known now; to be served from afar is better than not at all
        reached = [record for record in records if record.endpoint(reader.listener) is not None]
        live = [Candidate(record.broker_id, record.rack) for record in able(reached, Role.CONSUME)]
        is_near = any(candidate.rack == rack for candidate in live)
        if not is_near and not (leaves and live):
            return None
        place = self._leadership.placement(Question(Asker(reader.client_id, reader.client_host), self._brokers.own_id, live))
        if not is_near:
            return lambda partition: place(partition.topic_id, partition.partition)[0]
        return lambda partition: nearest(place(partition.topic_id, partition.partition), live, rack=rack)
