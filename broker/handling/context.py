"""What a handler is given beside its request: the asker, and the narrow parts of the broker it may use."""

from dataclasses import dataclass

import msgspec

from broker.groups.coordinator import Coordinator
from broker.handling.administration import Administration, By
from broker.handling.large_answers import LargeAnswer, only_one
from broker.leadership import Leadership
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.roles import OwnRoles
from runtime.clock import Clock
from storage.catalog.brokers import BrokerDirectory
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topics
from storage.log.fresh_reads import Bounds
from storage.log.page_store import ActiveProducers
from storage.log.time_search import Timestamps
from storage.log.trim import Trims


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

    def by(self, client_id: str | None) -> By:
        """The asker, for the log."""
        return By(self.client_host, client_id, self.listener)
