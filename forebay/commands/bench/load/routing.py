"""Which brokers take the records of a partition when a load routes by owners. Pure.

Each partition has `k` owners: the first of all live brokers by rendezvous hash of seed, topic, partition and broker. So a broker that goes
away is replaced in the sets that had it, each time by the next broker of that partition's own order, and no other set changes. A broker
that comes back, or is new, takes the place that the hash gives it.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.cluster.leadership import Candidate, rank_candidates
from forebay.commands.bench.load.reconcile import LoadPartition

CLIENT: Final = "client"
OWNERS: Final = "owners"
ROUND_ROBIN: Final = "round_robin"
LEAST_IN_FLIGHT: Final = "least_in_flight"

OwnerSets = Mapping[LoadPartition, tuple[int, ...]]
"""The owners of each partition by their numbers, the first of its order first."""


class OwnerRemap(NamedTuple):
    """The owners of a partition changed."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def owner_sets(places: Iterable[LoadPartition], live: Collection[int], *, k: int, seed: int) -> OwnerSets:
    """`k` owners of each partition, or all brokers that live if they are fewer."""
    candidates = [Candidate(number, None) for number in sorted(live)]
    return {
        (topic, partition): tuple(one.broker_id for one in rank_candidates(f"{seed}/{topic}/{partition}", candidates, zone=None)[:k])
        for topic, partition in places
    }


def remaps_between(before: OwnerSets, after: OwnerSets) -> list[OwnerRemap]:
    """The sets that changed, in the order of partitions. Both are of the same partitions."""
    return [OwnerRemap(*place, owners, after[place]) for place, owners in sorted(before.items()) if after[place] != owners]


class OwnerPicker:
    """Chooses among the owners of a partition, and counts the requests that are under way to each broker. Not for several threads."""

    def __init__(self, pick: str) -> None:
        """`pick`: `round_robin` or `least_in_flight`."""
        self._is_by_load = pick == LEAST_IN_FLIGHT
        self._turns: defaultdict[LoadPartition, itertools.count[int]] = defaultdict(itertools.count)
        self._under_way: Counter[int] = Counter()

    def take(self, place: LoadPartition, owners: Sequence[int], *, refused: Collection[int] = ()) -> int:
        """One of `owners`, which must not be empty, and none of `refused` unless all are. It counts as under way until `give_back`."""
        allowed = [one for one in owners if one not in refused] or list(owners)
        first = next(self._turns[place]) % len(allowed)
        in_turn = [*allowed[first:], *allowed[:first]]
        taken = min(in_turn, key=lambda one: self._under_way[one]) if self._is_by_load else in_turn[0]
        self._under_way[taken] += 1
        return taken

    def give_back(self, broker: int) -> None:
        """A request that was under way to it has ended."""
        self._under_way[broker] -= 1
