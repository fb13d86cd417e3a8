"""What a handler is given beside its request: the asker, the parts of the broker it may use, the brokers that the asker can reach."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from broker.cluster.leadership import Leadership
from broker.cluster.roles import OwnRoles
from broker.groups.coordinator import Coordinator
from broker.handling.administration import Administration, Requester
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from runtime.clock import Clock
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, BrokerRecord, Role
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topics
from storage.log.fresh_reads import Bounds
from storage.log.page_store import ActiveProducers
from storage.log.time_search import Timestamps
from storage.log.trim import Trims


class LargeAnswer:
    """The place of one request among the few whose answers take more than a turn of the event loop. Others wait, and hold nothing.

    Whoever finds its answer to be large takes it, when all that the answer is made of has been read: with the place, nothing is waited for
    but turns of the loop.
    """

    __slots__ = ("_is_taken", "_places")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_taken = False

    async def take(self) -> None:
        """Wait for the place, in the order of asking; at once if it is taken already. Cancelled: it is not taken."""
        if not self._is_taken:
            await self._places.acquire()
            self._is_taken = True

    def give_back(self) -> None:
        """When the answer has been written, or will not be."""
        if self._is_taken:
            self._is_taken = False
            self._places.release()


def only_one() -> LargeAnswer:
    """The large answer of a request that shares with no other."""
    return LargeAnswer(asyncio.Semaphore())


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Settings `kafka.auto_create_topics`, `kafka.default_partitions`."""

    auto_create: bool = True
    partition_count: int = 1


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The broker's parts, the same for every connection."""

    cluster_id: str
    clock: Clock
    topics: Topics
    confirmed_topics: ConfirmedTopics
    brokers: BrokerDirectory
    leadership: Leadership
    producer_ids: ProducerIds
    bounds: Bounds
    timestamps: Timestamps
    trimmer: Trims
    active_producers: ActiveProducers
    topic_defaults: TopicDefaults
    groups: Coordinator
    administration: Administration
    roles: OwnRoles
    limits: BrokerLimits = DEFAULT_BROKER_LIMITS

    @property
    def broker_id(self) -> int:
        """The id of the current or last registration: a broker with an assigned id gets another if it lost that to somebody."""
        return self.brokers.own_id


class Context(msgspec.Struct, frozen=True):
    """`listener` is the name of the listener the connection came in by: advertised addresses are looked up by it."""

    parts: BrokerParts
    listener: str
    client_host: str
    large_answer: LargeAnswer = msgspec.field(default_factory=only_one)

    def by(self, client_id: str | None) -> Requester:
        """The asker, for the log."""
        return Requester(self.client_host, client_id, self.listener)


class Node(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    roles: Collection[Role] = ALL_ROLES

    def has_role(self, role: Role) -> bool:
        return role in self.roles


async def live_nodes(context: Context) -> list[Node]:
    """By id; brokers without a listener of that name are left out, as in Kafka. Raises `StorageError`."""
    return _reachable(await context.parts.brokers.live(), context.listener)


async def live_and_listed(context: Context) -> tuple[list[Node], list[Node]]:
    """As `live_nodes`, and these with those that are about to return after an outage of the metadata store: clients must keep them."""
    live = await context.parts.brokers.live()
    return _reachable(live, context.listener), _reachable(context.parts.brokers.listed(live), context.listener)


def _reachable(records: list[BrokerRecord], listener: str) -> list[Node]:
    nodes = []
    for record in records:
        endpoint = record.endpoint(listener)
        if endpoint is not None:
            roles = ALL_ROLES if record.roles is msgspec.UNSET else record.roles
            nodes.append(Node(record.broker_id, endpoint.host, endpoint.port, record.rack, roles))
    return nodes


def controller_of(nodes: list[Node], *, own_id: int) -> int:
    """The broker that clients send administration to: one of the role `admin`, if there is one. The one that answers is certainly alive.
    -1 if there is none.
    """
    able = [node for node in nodes if node.has_role(Role.ADMIN)] or nodes
    if any(node.broker_id == own_id for node in able):
        return own_id
    return able[0].broker_id if able else -1
