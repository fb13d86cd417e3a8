"""Sending readers to a broker of their own zone, or to one that has the role `consume` (KIP-392): which broker a client should fetch from.

A broker of the client's rack never sends it on, so there is no going in circles. A client may come back all the same: the broker is gone,
or not in the replicas of a topic with few of them, where Java clients do not go. So a connection is sent away once in ASK_AGAIN_S at most,
and served meanwhile.
"""

import weakref
from collections.abc import Callable
from typing import Final, Protocol

from broker.coordination.rendezvous import Candidate
from broker.leadership import Asker, Leadership, Question, nearest
from broker.roles import OwnRoles
from runtime.clock import Clock
from storage.catalog.brokers import BrokerDirectory, Role, able
from storage.errors import StorageError
from storage.vocabulary import PartitionId

ASK_AGAIN_S: Final = 90.0
"""librdkafka takes a second answer within a minute for a mistake and slows down."""

Near = Callable[[PartitionId], int | None]


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
    """`rack` is this broker's own, and so are `roles`; without them it has all."""

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
