"""A member of a group as a client library has it: it finds the coordinator, joins, syncs, beats, processes, commits, and begins again.

Its log is endless: every partition always has a next record.
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from broker.groups.coordinator import Coordinator
from broker.groups.group import Closed, CommitOffsets
from broker.groups.state import Committed, GroupError, Heartbeat, Join, JoinAnswer, Leave, Protocol, Sync, SyncAnswer
from sim.broker import ConnectionLost
from sim.groups.broker import GroupBroker
from sim.groups.history import AcknowledgedCommit, Assigned, FetchedOffsets, GroupHistory, Processed, Tried
from sim.history import History
from storage.errors import StorageError
from storage.vocabulary import PartitionId

GROUP: Final = "g"
SESSION_TIMEOUT_S: Final = 6.0
REBALANCE_TIMEOUT_S: Final = 10.0
JOIN_WITHIN_S: Final = 30.0
ANSWER_WITHIN_S: Final = 3.0
WORK_S: Final = 0.2
RETRY_S: Final = 0.1
RECORDS_PER_COMMIT: Final = 3


class Moved(Exception):
    """Find the coordinator, and ask it again."""


class GroupClient:
    """Asks whoever coordinates the group."""

    def __init__(self, name: str, brokers: Callable[[], Sequence[GroupBroker]], trace: History, chance: random.Random) -> None:
        self.name = name
        self._brokers = brokers
        self.trace = trace
        self._chance = chance
        self._coordinator: GroupBroker | None = None

    async def ask(self, work: Callable[[Coordinator], object], *, within_s: float = ANSWER_WITHIN_S) -> object:
        """Raises `Moved` after any answer that is none."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._find()
            answer: object = await self._coordinator.ask(work, within_s=within_s)  # type: ignore[arg-type]
        except (ConnectionLost, TimeoutError) as error:
            self._coordinator = None
            raise Moved from error
        if isinstance(answer, Closed | StorageError):
            self._coordinator = None
            raise Moved from answer
        return answer

    async def _find(self) -> GroupBroker:
        """As a broker that is asked at random names it."""
        asked = self._chance.choice(self._brokers())
        holders = await asked.ask(lambda coordinator: coordinator.slots.holders([GROUP]), within_s=ANSWER_WITHIN_S)
        if isinstance(holders, Closed | StorageError):
            raise ConnectionLost(asked.name) from holders
        found = next((broker for broker in self._brokers() if broker.broker_id == holders[GROUP]), None)
        if found is None:
            raise ConnectionLost("nobody")
        return found


class SimMember(GroupClient):
    """`run` until `leave` is set; a member that is to pause does so between any two of its steps, and then goes on as if nothing were."""

    def __init__(
        self,
        name: str,
        partitions: Sequence[PartitionId],
        history: GroupHistory,
        brokers: Callable[[], Sequence[GroupBroker]],
        trace: History,
        chance: random.Random,
    ) -> None:
        super().__init__(name, brokers, trace, chance)
        self._partitions = partitions
        self._history = history
        self._member_id = ""
        self._generation = -1
        self.leave = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self) -> None:
        while not self.leave.is_set():
            await self._step_aside()
            try:
                share = await self._join()
                if share is not None:
                    await self._work(share)
            except Moved:
                await asyncio.sleep(RETRY_S)
        if self._member_id:
            leave = Leave(token=0, members=((self._member_id, None),))
            try:
                await self.ask(lambda coordinator: coordinator.leave(GROUP, leave))
            except Moved:
                return  # its session ends by itself

    async def _join(self) -> list[int] | None:
        """The share of the new generation; None: try again."""
        joined = await self.ask(self._joining, within_s=JOIN_WITHIN_S)
        assert isinstance(joined, JoinAnswer)
        match joined.error:
            case GroupError.NONE:
                pass
            case GroupError.MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
                return None
            case GroupError.UNKNOWN_MEMBER_ID:
                self._member_id = ""
                return None
            case GroupError.REBALANCE_IN_PROGRESS:
                return None
            case other:
                raise AssertionError(f"{self.name} is answered {other.name} to a join")
        self._member_id, self._generation = joined.member_id, joined.generation
        shares: list[tuple[str, bytes]] = []
        if joined.leader == joined.member_id:
            ids = sorted(member_id for member_id, _, _ in joined.members)
            shares = [(one, json.dumps(list(range(at, len(self._partitions), len(ids)))).encode()) for at, one in enumerate(ids)]
        await self._step_aside()
        sync = Sync(
            token=0,
            member_id=self._member_id,
            instance_id=None,
            generation=self._generation,
            protocol_type=None,
            protocol=None,
            assignments=tuple(shares),
        )
        synced = await self.ask(lambda coordinator: coordinator.sync(GROUP, sync), within_s=JOIN_WITHIN_S)
        assert isinstance(synced, SyncAnswer)
        if synced.error:
            self._forget(synced.error)
            return None
        share = json.loads(synced.assignment or b"[]")
        self._history.note(Assigned(self._member_id, self._generation, frozenset(share), self.trace.now_s))
        self.trace.trace(self.name, "assigned", f"generation={self._generation} {share}")
        return list(share)

    def _joining(self, coordinator: Coordinator) -> object:
        join = Join(
            token=0,
            member_id=self._member_id,
            new_member_id=coordinator.new_member_id(self.name),
            instance_id=None,
            client_id=self.name,
            client_host="/sim",
            session_timeout_s=SESSION_TIMEOUT_S,
            rebalance_timeout_s=REBALANCE_TIMEOUT_S,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
            knows_member_ids=True,
            knows_skip_assignment=True,
        )
        return coordinator.join(GROUP, join)

    def _beating(self, coordinator: Coordinator) -> object:
        beat = Heartbeat(token=0, member_id=self._member_id, instance_id=None, generation=self._generation)
        return coordinator.heartbeat(GROUP, beat)

    async def _work(self, share: Sequence[int]) -> None:
        """Until the generation is over. A step whose answer was lost is made again, by the same coordinator or the next."""
        assigned_s = self.trace.now_s
        positions: dict[int, int] | None = None
        while not self.leave.is_set():
            await self._step_aside()
            try:
                if positions is None:
                    assigned_s = self.trace.now_s
                    positions = await self._positions(share)
                else:
                    error = await self.ask(self._beating)
                    if isinstance(error, GroupError) and error:
                        self._forget(error)
                        return
                    if not await self._process(positions, assigned_s):
                        return
            except Moved:
                pass
            await asyncio.sleep(WORK_S * self._chance.uniform(0.5, 1.5))

    async def _positions(self, share: Sequence[int]) -> dict[int, int]:
        found = await fetch_committed(self, self._partitions, self._history)
        return {partition: max(found[partition], 0) for partition in share}

    async def _process(self, positions: dict[int, int], assigned_s: float) -> bool:
        """Some records of one partition, then their commit, made until there is an answer. False: the member is none any more."""
        if not positions:
            return True
        partition = self._chance.choice(sorted(positions))
        at = positions[partition]
        upto = at + self._chance.randint(1, RECORDS_PER_COMMIT)
        now_s = self.trace.now_s
        self._history.note(*(Processed(self._member_id, partition, offset, offset, assigned_s, now_s) for offset in range(at, upto)))
        await self._step_aside()
        offsets = {self._partitions[partition]: Committed(upto, -1, "", 1)}
        commit = CommitOffsets(member_id=self._member_id, instance_id=None, generation=self._generation, offsets=offsets)
        while not self.leave.is_set():
            began_s, ended_s, is_refused = self.trace.now_s, math.inf, False
            try:
                error = await self.ask(lambda coordinator: coordinator.commit(GROUP, commit))
                assert isinstance(error, GroupError)
                ended_s, is_refused = self.trace.now_s, bool(error)
            except Moved:
                ended_s = self.trace.now_s
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                if not is_refused:
                    self._history.note(Tried(self._member_id, partition, upto, began_s, ended_s))
            self.trace.trace(self.name, f"commit {partition}", f"{upto} {error.name}")
            if error:
                self._forget(error)
                return False
            self._history.note(AcknowledgedCommit(self._member_id, partition, upto, began_s, self.trace.now_s))
            positions[partition] = upto
            return True
        return False

    def _forget(self, error: GroupError) -> None:
        match error:
            case GroupError.UNKNOWN_MEMBER_ID | GroupError.ILLEGAL_GENERATION:
                self._member_id = ""
            case GroupError.REBALANCE_IN_PROGRESS:
                pass
            case other:
                raise AssertionError(f"{self.name} is answered {other.name}")

    async def _step_aside(self) -> None:
        await self.gate.wait()


async def fetch_committed(client: GroupClient, partitions: Sequence[PartitionId], history: GroupHistory) -> dict[int, int]:
    """What the coordinator says is committed; -1 for nothing. Raises `Moved`."""

    async def read(coordinator: Coordinator) -> dict[int, int]:
        loaded = await coordinator.checked(GROUP)
        return {one.partition: -1 if (found := loaded.stored.offset(one)) is None else found.offset for one in partitions}

    began_s = client.trace.now_s
    found = await client.ask(read)
    assert isinstance(found, dict)
    history.note(FetchedOffsets(0, found, began_s, client.trace.now_s))
    return found
