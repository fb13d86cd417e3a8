"""Which broker is named for what: by rendezvous hash, and by the strategy for leaders (`kafka.leader`). Pure.

The broker with the greatest hash of a thing's name and its own id is picked. That needs nothing shared but the list of live brokers, and
moves only what belonged to a broker that left, or belongs to one that came.

docs/internals/design/coordination.md#leaders-are-advice lists the strategies. Any broker serves any partition, so a leader is advice: it
decides where clients connect to, never what is right.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import xxhash

from storage.vocabulary import TopicId

COORDINATOR_SLOTS: Final = 64

ZONE_FIELD: Final = "zone="
CONSUME_FIELD: Final = "role=consume"


class Candidate(NamedTuple):
    """A live broker that the asker can reach. `rack` is its zone."""

    broker_id: int
    rack: str | None


def rank_candidates(key: str, candidates: Collection[Candidate], *, zone: str | None) -> list[Candidate]:
    """All candidates by rendezvous hash, those of the zone first. A zone without candidates is no zone."""
    digest = xxhash.xxh3_64_intdigest
    ranks = [
        (zone is not None and candidate.rack != zone, -digest(f"{key}|{candidate.broker_id}"), candidate.broker_id, candidate)
        for candidate in candidates
    ]
    return [rank[3] for rank in sorted(ranks)]


def slot_of(key: str) -> int:
    """The slot of a group or transactional id; it never changes."""
    return xxhash.xxh3_64_intdigest(key) % COORDINATOR_SLOTS


def winner_of(slot: int, live: Collection[Candidate]) -> int | None:
    """The rendezvous winner of a slot of coordinators; None if nobody lives."""
    ranked = rank_candidates(f"coordinators/{slot:02}", live, zone=None)
    return ranked[0].broker_id if ranked else None


class Asker(NamedTuple):
    """A client as it names itself, and the address it comes from."""

    client_id: str | None
    host: str

    @property
    def zone(self) -> str | None:
        """The `zone=` field of the client id: fields are separated by commas, the first that names a zone counts."""
        for field in (self.client_id or "").split(","):
            name = field.strip()
            if name.startswith(ZONE_FIELD) and len(name) > len(ZONE_FIELD):
                return name.removeprefix(ZONE_FIELD)
        return None

    @property
    def wants_to_consume(self) -> bool:
        """Whether the client id has the field `role=consume`: then brokers that serve readers are named leaders."""
        return any(field.strip() == CONSUME_FIELD for field in (self.client_id or "").split(","))

    @property
    def key(self) -> str:
        return f"{self.client_id or ''}@{self.host}"


@dataclass(frozen=True, slots=True)
class Question:
    """`own_id` is the broker that answers; it may be missing from `live`, and then leads only if nobody else is there."""

    asker: Asker
    own_id: int
    live: Sequence[Candidate]


Placement = Callable[[TopicId, int], Sequence[int]]
"""For a partition, every candidate's id once, its leader first, the next as many of its replicas as are wanted. Never empty."""


class Leadership(Protocol):
    """A strategy. It is asked once per Metadata response, or Fetch of a client of another zone."""

    def placement(self, question: Question) -> Placement: ...


class SelfLeadership:
    """The broker that was asked leads everything: a client keeps the connection it has. Zones are not looked at."""

    def placement(self, question: Question) -> Placement:
        ranked = rank_candidates(question.asker.key, question.live, zone=None)
        own = next((candidate for candidate in question.live if candidate.broker_id == question.own_id), None)
        if own is not None:
            ranked = [own, *(candidate for candidate in ranked if candidate is not own)]
        return _always(_ids(ranked, question))


class ClientLeadership:
    """One broker of its zone leads everything for a client, whichever it asks, as long as the same brokers live."""

    def placement(self, question: Question) -> Placement:
        return _always(_ids(rank_candidates(question.asker.key, question.live, zone=question.asker.zone), question))


class PartitionLeadership:
    """A partition is led by one broker of the client's zone: clients spread their requests over all of them, and share their caches."""

    def placement(self, question: Question) -> Placement:
        zone = question.asker.zone

        def place(topic_id: TopicId, partition: int) -> Sequence[int]:
            return _ids(rank_candidates(f"{topic_id}/{partition}", question.live, zone=zone), question)

        return place


def leadership_of(strategy: str) -> Leadership:
    """By the word of the setting `kafka.leader`, which is validated."""
    match strategy:
        case "self":
            return SelfLeadership()
        case "client":
            return ClientLeadership()
        case "partition":
            return PartitionLeadership()
        case _:
            raise AssertionError(f"not validated: kafka.leader={strategy!r}")


def nearest(placed: Sequence[int], live: Collection[Candidate], *, rack: str) -> int | None:
    """The first broker of that rack, so one of the replicas if these reach every rack (KIP-392). None: there is no broker in that rack."""
    near = {candidate.broker_id for candidate in live if candidate.rack == rack}
    return next((broker_id for broker_id in placed if broker_id in near), None)


def _ids(ranked: Sequence[Candidate], question: Question) -> list[int]:
    """The leader, then the first of every other rack, then the rest: as many racks as possible are among the first of any number."""
    if not ranked:
        return [question.own_id]
    first: list[int] = []
    rest: list[int] = []
    racks: set[str | None] = set()
    for candidate in ranked:
        (rest if candidate.rack in racks else first).append(candidate.broker_id)
        racks.add(candidate.rack)
    return first + rest


def _always(placed: Sequence[int]) -> Placement:
    def place(_topic_id: TopicId, _partition: int) -> Sequence[int]:
        return placed

    return place
