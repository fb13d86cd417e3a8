"""Which broker coordinates a slot: claims that go with a broker's registration (docs/internals/design/coordination.md#slots).

A slot is claimed by its rendezvous winner among the brokers of the role `groups` when it is first asked for, so a cluster without groups
has no claims; and given up when another broker has become the winner.
The claim of a dead broker is replaced by the winner among the live ones (ADR 0011).
A claim says where to ask. That nobody writes over its successor is the business of versions (broker/groups/store.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

from broker.cluster.leadership import COORDINATOR_SLOTS, Candidate, slot_of, winner_of
from runtime.turns import Turns
from storage.catalog.brokers import BrokerDirectory, BrokerRecord, Role, able
from storage.catalog.groups import ClaimRecord, decode_claim
from storage.catalog.records import encode, write_one
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, MetadataStore, OpResult, Put, Record, Session

log = structlog.get_logger("groups")

CLAIMS_PREFIX: Final = keys.coordinator(0).path.removesuffix("00")


@dataclass(frozen=True, slots=True)
class Claim:
    """`version` is greater with every claim of a slot that follows."""

    slot: int
    version: int
    session: Session


class Standing(Protocol):
    """Which registered brokers are alive, as this broker sees it. It may be wrong: that costs a takeover, and nothing else."""

    async def standing(self) -> list[BrokerRecord]:
        """The brokers not known to be dead, including this one. Nobody is asked. Raises `StorageError`."""
        ...

    async def meet(self) -> list[BrokerRecord]:
        """As `standing`, for a question about a group."""
        ...

    async def is_valid(self, session_id: int) -> bool:
        """False if who registered under that session is known to be dead. Raises `StorageError`."""
        ...

    def note_life(self, session_id: int) -> None:
        """It is not dead, whatever was known."""
        ...


class AsRegistered:
    """Takes every registered broker for alive."""

    def __init__(self, brokers: BrokerDirectory) -> None:
        self._brokers = brokers

    async def standing(self) -> list[BrokerRecord]:
        return await self._brokers.live()

    async def meet(self) -> list[BrokerRecord]:
        return await self._brokers.live()

    async def is_valid(self, session_id: int) -> bool:  # noqa: ARG002
        return True

    def note_life(self, session_id: int) -> None:
        pass


class _Replaced(NamedTuple):
    """Whose claim this broker replaced, and the version of its own."""

    session_id: int
    version: int


class Slots:
    def __init__(self, metadata: MetadataStore, brokers: BrokerDirectory, peers: Standing | None = None) -> None:
        """`peers` None: as registered."""
        self._metadata = metadata
        self._brokers = brokers
        self._peers = peers or AsRegistered(brokers)
        self._claims: dict[int, Claim] = {}
        self._replaced: dict[int, _Replaced] = {}
        self._leaving: set[int] = set()
        self._is_in_doubt = False
        self._subscription = metadata.subscribe(self._hinted, prefix=CLAIMS_PREFIX)

    @property
    def claims(self) -> list[Claim]:
        """Claims that were taken and not given up; `is_valid` says whether they are valid."""
        return list(self._claims.values())

    def find(self, slot: int) -> Claim | None:
        """The claim of this broker on that slot, if it is valid."""
        claim = self._claims.get(slot)
        return claim if claim is not None and self.is_valid(claim) else None

    def is_valid(self, claim: Claim) -> bool:
        """Whether the session of the claim is that of the registration, and not lost. False forever once it was false."""
        return self._brokers.session is claim.session and self._claims.get(claim.slot) is claim

    async def claim(self, slot: int) -> Claim | None:
        """The claim of this broker on that slot: taken now if it may be; None if it is another broker's. Raises `StorageError`."""
        if (standing := self.find(slot)) is not None:
            return standing
        session = self._brokers.session
        if session is None or slot in self._leaving:
            return None
        version = await self._own_version(slot, session, take=True)
        if version is None:
            return None
        if slot in self._leaving:
            return None
        if (standing := self.find(slot)) is None:  # not meanwhile taken by who asked beside us
            standing = self._claims[slot] = Claim(slot, version, session)
        return standing

    async def is_held(self, claim: Claim) -> bool:
        """Whether the claim is still there, as of a read made for this question. Raises `StorageError`."""
        (record,) = await self._metadata.get_many([keys.coordinator(claim.slot)])
        return record is not None and record.version == claim.version

    @property
    def is_in_doubt(self) -> bool:
        """Whether a claim of this broker may have changed since `replaced` looked. A hint: it may be missing."""
        return self._is_in_doubt

    async def replaced(self) -> list[Claim]:
        """The claims that are gone, as of one read made for this question: another broker took them. Raises `StorageError`."""
        self._is_in_doubt = False
        if not (claims := self.claims):
            return []
        try:
            records = await self._metadata.get_many([keys.coordinator(claim.slot) for claim in claims])
        except BaseException:
            self._is_in_doubt = True
            raise
        return [claim for claim, record in zip(claims, records, strict=True) if record is None or record.version != claim.version]

    async def _own_version(self, slot: int, session: Session, *, take: bool) -> int | None:
        key = keys.coordinator(slot)
        (record,) = await self._metadata.get_many([key])
        dead = None
        if record is not None:
            held = decode_claim(record)
            if held.session_id == session.session_id:
                return record.version
            if not take or await self._is_held(slot, record):
                return None
            dead = held.session_id
        if not take or await self.winner(slot) != self._brokers.own_id:
            return None
        value = encode(ClaimRecord(broker_id=self._brokers.own_id, session_id=session.session_id))
        expected = ABSENT if record is None else record.version
        outcome = await write_one(self._metadata, Put(key, value, expected, session=session.session_id))
        if isinstance(outcome, OpResult) and outcome.version is not None:
            version: int | None = outcome.version
        else:
            # Somebody was first, this broker itself perhaps; or nobody knows: what is there decides.
            version = await self._own_version(slot, session, take=False)
        # Whoever asked beside us finds the claim that we took, and has replaced nothing.
        if dead is not None and version is not None and self._replaced.get(slot) != (dead, version):
            self._replaced[slot] = _Replaced(dead, version)
            log.info("slot_taken_over", slot=slot, from_broker_id=held.broker_id, meaning="its groups are coordinated here from now on")
        return version

    async def _is_held(self, slot: int, record: Record) -> bool:
        """Whether the claim is that of a broker that is alive, as far as anybody knows."""
        session_id = decode_claim(record).session_id
        replaced = self._replaced.get(slot)
        if replaced is not None and replaced.session_id == session_id and replaced.version < record.version:
            # The dead do not take claims back.
            self._peers.note_life(session_id)
        return await self._peers.is_valid(session_id)

    async def holders(self, groups: Iterable[str]) -> dict[str, int | None]:
        """The coordinator of each group: the holder of its slot's claim, else the winner. None: no broker lives. Raises `StorageError`."""
        turns = Turns()
        by_group = await turns.by_key(slot_of, groups)
        holders = await self.holders_of(sorted(set(by_group.values())))
        return await turns.by_key(lambda group: holders[by_group[group]], by_group)

    async def holders_of(self, slots: Sequence[int]) -> dict[int, int | None]:
        """As `holders`, by slot."""
        records = await self._metadata.get_many([keys.coordinator(slot) for slot in slots])
        holders: dict[int, int | None] = {}
        for slot, record in zip(slots, records, strict=True):
            if record is not None and await self._is_held(slot, record):
                holders[slot] = decode_claim(record).broker_id
            else:
                holders[slot] = await self.winner(slot)
        return holders

    async def own(self) -> list[int]:
        """The slots that this broker holds, or is the winner of while nobody does. Raises `StorageError`."""
        records = await self._metadata.get_many([keys.coordinator(slot) for slot in range(COORDINATOR_SLOTS)])
        # For housekeeping, which costs no connection.
        standing = [Candidate(record.broker_id, record.rack) for record in able(await self._peers.standing(), Role.GROUPS)]
        holders = [winner_of(slot, standing) if record is None else decode_claim(record).broker_id for slot, record in enumerate(records)]
        return [slot for slot, holder in enumerate(holders) if holder == self.own_id]

    @property
    def own_id(self) -> int:
        return self._brokers.own_id

    async def winner(self, slot: int) -> int | None:
        """Among those alive. Raises `StorageError`."""
        standing = {record.broker_id: record for record in await self._peers.meet()}
        while True:
            candidates = able(list(standing.values()), Role.GROUPS)
            winner = winner_of(slot, [Candidate(record.broker_id, record.rack) for record in candidates])
            if winner in (None, self.own_id) or await self._peers.is_valid(standing[winner].session_id):
                return winner
            del standing[winner]

    async def give_up(self, claim: Claim) -> None:
        """Let the winner have it. What was loaded under it must be gone before."""
        self.forget(claim)
        # The record is this broker's own until it is gone: it must not be taken for a valid claim.
        self._leaving.add(claim.slot)
        try:
            await write_one(self._metadata, Delete(keys.coordinator(claim.slot), claim.version))
        finally:
            self._leaving.discard(claim.slot)

    def close(self) -> None:
        """Take no more hints."""
        self._subscription.cancel()

    def _hinted(self, path: str, _version: int | None) -> None:
        if any(path == keys.coordinator(slot).path for slot in self._claims):
            self._is_in_doubt = True

    def forget(self, claim: Claim) -> None:
        """Drop a claim that is no longer valid."""
        if self._claims.get(claim.slot) is claim:
            del self._claims[claim.slot]


def slots_by_shard(metadata: MetadataStore, slots: Iterable[int]) -> Iterable[list[int]]:
    """Slots whose groups one scan finds."""
    by_shard: dict[int, list[int]] = {}
    for slot in slots:
        by_shard.setdefault(metadata.shard_of(keys.group_partition_key(slot)), []).append(slot)
    return by_shard.values()
