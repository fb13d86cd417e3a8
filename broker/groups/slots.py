"""Which broker coordinates a slot: claims that go with a broker's registration (DESIGN.md §8).

A slot is claimed by its rendezvous winner when it is first asked for, so a cluster without groups has no claims; and given up when another
broker has become the winner. A claim says where to ask. That nobody writes over its successor is the business of versions (offsets.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.leadership import COORDINATOR_SLOTS, Candidate, slot_of, winner_of
from storage.catalog.brokers import BrokerDirectory
from storage.catalog.groups import ClaimRecord, decode_claim
from storage.catalog.records import encode
from storage.catalog.writes import write_one
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, MetadataStore, OpResult, Put, Session


@dataclass(frozen=True, slots=True)
class Claim:
    """`version` is greater with every claim of a slot that follows."""

    slot: int
    version: int
    session: Session


class Slots:
    def __init__(self, metadata: MetadataStore, brokers: BrokerDirectory) -> None:
        self._metadata = metadata
        self._brokers = brokers
        self._claims: dict[int, Claim] = {}

    @property
    def claims(self) -> list[Claim]:
        """Those that were taken and not given up; `stands` says whether they are worth anything."""
        return list(self._claims.values())

    def find(self, slot: int) -> Claim | None:
        """The claim of this broker on that slot, if it stands."""
        claim = self._claims.get(slot)
        return claim if claim is not None and self.stands(claim) else None

    def stands(self, claim: Claim) -> bool:
        """Whether the session of the claim is that of the registration, and not lost. False for ever once it was false."""
        return self._brokers.session is claim.session and self._claims.get(claim.slot) is claim

    async def claim(self, slot: int) -> Claim | None:
        """The claim of this broker on that slot: taken now if it may be; None if it is another broker's. Raises `StorageError`."""
        if (standing := self.find(slot)) is not None:
            return standing
        session = self._brokers.session
        if session is None:
            return None
        version = await self._own_version(slot, session, take=True)
        if version is None:
            return None
        if (standing := self.find(slot)) is None:  # not meanwhile taken by who asked beside us
            standing = self._claims[slot] = Claim(slot, version, session)
        return standing

    async def is_held(self, claim: Claim) -> bool:
        """Whether the claim is still there, as of a read made for this question. Raises `StorageError`."""
        (record,) = await self._metadata.get_many([keys.coordinator(claim.slot)])
        return record is not None and record.version == claim.version

    async def _own_version(self, slot: int, session: Session, *, take: bool) -> int | None:
        key = keys.coordinator(slot)
        (record,) = await self._metadata.get_many([key])
        if record is not None:
            return record.version if decode_claim(record).session_id == session.session_id else None
        if not take or await self.winner(slot) != self._brokers.own_id:
            return None
        value = encode(ClaimRecord(broker_id=self._brokers.own_id, session_id=session.session_id))
        outcome = await write_one(self._metadata, Put(key, value, ABSENT, session=session.session_id))
        if isinstance(outcome, OpResult) and outcome.version is not None:
            return outcome.version
        # Somebody was first, this broker itself perhaps; or nobody knows: what is there decides.
        return await self._own_version(slot, session, take=False)

    async def holders(self, groups: Iterable[str]) -> dict[str, int | None]:
        """Who coordinates each group: the holder of its slot's claim, else the winner. None: nobody lives. Raises `StorageError`."""
        by_group = {group: slot_of(group) for group in groups}
        holders = await self.holders_of(sorted(set(by_group.values())))
        return {group: holders[slot] for group, slot in by_group.items()}

    async def holders_of(self, slots: Sequence[int]) -> dict[int, int | None]:
        """As `holders`, by slot."""
        records = await self._metadata.get_many([keys.coordinator(slot) for slot in slots])
        holders: dict[int, int | None] = {}
        for slot, record in zip(slots, records, strict=True):
            holders[slot] = await self.winner(slot) if record is None else decode_claim(record).broker_id
        return holders

    async def own(self) -> list[int]:
        """Those that this broker holds, or is the winner of while nobody does. Raises `StorageError`."""
        holders = await self.holders_of(range(COORDINATOR_SLOTS))
        return [slot for slot, holder in holders.items() if holder == self.own_id]

    @property
    def own_id(self) -> int:
        return self._brokers.own_id

    async def winner(self, slot: int) -> int | None:
        return winner_of(slot, [Candidate(record.broker_id, record.rack) for record in await self._brokers.live()])

    async def give_up(self, claim: Claim) -> None:
        """Let the winner have it. What was loaded under it must be gone before."""
        self.forget(claim)
        await write_one(self._metadata, Delete(keys.coordinator(claim.slot), claim.version))

    def forget(self, claim: Claim) -> None:
        """It does not stand any more."""
        if self._claims.get(claim.slot) is claim:
            del self._claims[claim.slot]


def slots_by_shard(metadata: MetadataStore, slots: Iterable[int]) -> Iterable[list[int]]:
    """Slots whose groups one scan finds."""
    by_shard: dict[int, list[int]] = {}
    for slot in slots:
        by_shard.setdefault(metadata.shard_of(keys.group_partition_key(slot)), []).append(slot)
    return by_shard.values()
