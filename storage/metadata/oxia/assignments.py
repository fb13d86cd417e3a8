"""Which shard a partition key belongs to, and who leads it, out of what several nodes say. Pure, but for the waiting.

Nodes may disagree: one that came back tells for seconds what was true before it went. So the claim that came last counts, until the
leader it names refuses; then the newest claim that names another one does, until somebody claims the refused one again.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

SOURCES_MAX: Final = 8
_HASH_MASK: Final = 0xFFFF_FFFF


class ShardClaim(NamedTuple):
    """`hash_min` and `hash_max` are both inclusive; `leader` is `host:port`, or empty while there is none."""

    shard: int
    leader: str
    hash_min: int
    hash_max: int


class _Claims(NamedTuple):
    at: int
    leaders: dict[int, str]


def key_hash(partition_key: str) -> int:
    """XXH3-64 of the UTF-8 bytes, low 32 bits: what Oxia's servers split up by the shards."""
    return xxh3_64_intdigest(partition_key) & _HASH_MASK


class Assignments:
    """Empty until the first `take`."""

    def __init__(self) -> None:
        self.taken = 0
        """How often a server has sent the assignments: one that starts again does."""
        self._hash_mins: list[int] = []
        self._shards_by_hash: list[int] = []
        self._sources: dict[str, _Claims] = {}
        self._refused: dict[tuple[int, str], int] = {}
        self._leaders: dict[int, str] = {}
        self._turn = 0
        self._changed = asyncio.Event()

    @property
    def shards(self) -> list[int]:
        """In their order; empty before the first claim."""
        return sorted(self._shards_by_hash)

    def take(self, source: str, claims: Iterable[ShardClaim]) -> None:
        """What `source` says of all shards. Raise ValueError, and keep what was, unless the claims cover every hash once."""
        by_hash = sorted(claims, key=lambda claim: claim.hash_min)
        next_hash = 0
        for claim in by_hash:
            if claim.hash_min != next_hash or claim.hash_max < claim.hash_min:
                raise ValueError(f"shards do not cover the hashes: source={source} claims={by_hash}")
            next_hash = claim.hash_max + 1
        if next_hash != _HASH_MASK + 1:
            raise ValueError(f"shards do not cover the hashes: source={source} claims={by_hash}")
        self._turn += 1
        self.taken += 1
        self._hash_mins = [claim.hash_min for claim in by_hash]
        self._shards_by_hash = [claim.shard for claim in by_hash]
        self._sources.pop(source, None)
        self._sources[source] = _Claims(self._turn, {claim.shard: claim.leader for claim in by_hash})
        while len(self._sources) > SOURCES_MAX:
            del self._sources[next(iter(self._sources))]
        self._decide()
        self._wake()

    def refuse(self, shard: int, leader: str) -> None:
        """`leader` said that it does not lead `shard`."""
        self._turn += 1
        self._refused[shard, leader] = self._turn
        before = self._leaders
        self._decide()
        # A refusal that changes nothing wakes nobody: those who are refused one after the other would make each other ask without pause.
        if self._leaders != before:
            self._wake()

    def shard_of(self, partition_key: str) -> int:
        return self._shards_by_hash[bisect_right(self._hash_mins, key_hash(partition_key)) - 1]

    def leader_of(self, shard: int) -> str | None:
        """`host:port`; None while nobody names one."""
        return self._leaders.get(shard)

    @property
    def leaders(self) -> list[str]:
        """The nodes that lead something, each once, in the order of the shards."""
        return list(dict.fromkeys(self._leaders[shard] for shard in self.shards if shard in self._leaders))

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when somebody claimed something, or another leader counts, or when the time is over."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return

    def _decide(self) -> None:
        newest_first = list(reversed(self._sources.values()))
        leaders: dict[int, str] = {}
        for shard in self._shards_by_hash:
            named = [(claims.at, leader) for claims in newest_first if (leader := claims.leaders.get(shard))]
            if not named:
                continue
            standing = [leader for at, leader in named if self._refused.get((shard, leader), 0) < at]
            leaders[shard] = standing[0] if standing else named[0][1]
        known = {(shard, leader) for claims in self._sources.values() for shard, leader in claims.leaders.items()}
        self._refused = {refused: at for refused, at in self._refused.items() if refused in known}
        self._leaders = leaders

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
