"""Picks the live broker for something: the one with the greatest hash of the thing's name and the broker's id. Pure.

Rendezvous hashing needs nothing shared but the list of live brokers, and moves only what belonged to a broker that left, or belongs to one
that came.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import xxhash

COORDINATOR_SLOTS: Final = 64


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
