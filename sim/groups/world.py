"""One seed of a group: its coordinators, its members, its nemesis, and the verdict."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from structlog.testing import capture_logs

from sim.faults import PROFILES, FaultPlan, Profile, Temper
from sim.groups.broker import GroupBroker, GroupGround, Guessing
from sim.groups.history import (
    GroupHistory,
    backwards,
    committed_unprocessed,
    generations_with_two_assignments,
    reread_below_a_commit,
    shown_from_nowhere,
)
from sim.groups.member import GroupClient, Moved, SimMember, fetch_committed
from sim.history import History
from sim.loop import Deadlock, OrderedNursery, VirtualClock, VirtualLoop, no_collection_of_cycles, stable_order
from storage.metadata.memory import MemoryMetadataStore
from storage.vocabulary import PartitionId, TopicId

TOPIC: Final = TopicId("00000000-0000-4000-8000-000000000001")
FAULTS_S: Final = (10.0, 40.0)
LIVENESS_S: Final = 120.0
"""After the last fault every partition goes on within this: a request that is late by 14 s, sessions, and a rebalance or two."""
BROKER_PAUSE_S: Final = (0.2, 8.0)
PARTITIONED_S: Final = (2.0, 20.0)
MEMBER_PAUSE_S: Final = (1.0, 20.0)
LOOK_S: Final = 0.3
SHARDS: Final = 2


@dataclass(frozen=True, slots=True)
class GroupReport:
    """`violations` is what the group did wrong; equal seeds have equal digests."""

    violations: list[str]
    digest: str
    commits: int
    generations: int
    looks: int
    wrong_guesses: int
    lost_claims: int


def run_seed(seed: int, faults: str, *, guesses: float = 0.0, show: Callable[[str], None] | None = None) -> GroupReport:
    """Must not be called from a running loop. `guesses`: how likely a broker takes another for dead, whatever that does."""
    chance = random.Random(f"groups {seed} {faults}")
    loop = VirtualLoop()
    trace, history, guessing = History(loop, show=show), GroupHistory(), Guessing(guesses)

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        trace.violation(f"loop: {context.get('message')} {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    with capture_logs(), no_collection_of_cycles(), stable_order(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(_World(chance, PROFILES[faults], trace, history, loop, guessing).run())
        except Deadlock as error:
            trace.violation(f"deadlock: {error}")
    judges = (backwards, shown_from_nowhere, reread_below_a_commit, committed_unprocessed, generations_with_two_assignments)
    wrong = [text for judge in judges for text in judge(history)]
    generations = {fact.generation for fact in history.assigned}
    return GroupReport(
        trace.violations + wrong, trace.digest(), len(history.committed), len(generations), len(history.seen), guessing.wrong, guessing.lost
    )


class _World:
    def __init__(
        self, chance: random.Random, profile: Profile, trace: History, history: GroupHistory, loop: VirtualLoop, guessing: Guessing
    ) -> None:
        self._chance = chance
        self._profile = profile
        self._trace = trace
        self._history = history
        self._loop = loop
        self._guessing = guessing
        self._partitions = tuple(PartitionId(TOPIC, number) for number in range(chance.randint(1, 4)))
        self._brokers: list[GroupBroker] = []
        self._members: list[tuple[SimMember, asyncio.Task[None]]] = []
        self._lives = 0

    async def run(self) -> None:
        metadata = MemoryMetadataStore(clock=VirtualClock(self._loop), shards=SHARDS)
        plan = FaultPlan(self._child(), Temper(self._profile), self._loop)
        async with OrderedNursery() as nursery:
            self._nursery = nursery
            self._ground = GroupGround(metadata, plan, nursery, self._trace, self._guessing)
            self._brokers = [self._start(broker_id) for broker_id in range(1, self._chance.randint(2, 4) + 1)]
            for _ in range(self._chance.randint(1, 3)):
                self._join()
            eyes = [nursery.spawn(self._look(f"eye-{number}"), name="eye") for number in range(2)]
            if self._profile.nemesis_s:
                await self._nemesis(plan)
            else:
                await asyncio.sleep(FAULTS_S[0])
            self._guessing.rate = 0.0
            await self._goes_on()
            for task in [*eyes, *(task for _, task in self._members)]:
                task.cancel()
            for broker in self._brokers:
                await broker.crash()

    async def _goes_on(self) -> None:
        since_s = self._loop.time()
        while self._history.recovered_s(since_s, len(self._partitions)) is None:
            if self._loop.time() - since_s > LIVENESS_S:
                self._trace.violation(f"liveness: not every partition has a commit {LIVENESS_S} s after the last fault")
                return
            await asyncio.sleep(1.0)

    async def _nemesis(self, plan: FaultPlan) -> None:
        """Crashes, pauses and lost sessions of brokers; members that come, go, die and stop for a while; in the end all is well again."""
        ends_s = self._loop.time() + self._chance.uniform(*FAULTS_S)
        while (pause_s := self._chance.expovariate(1 / self._profile.nemesis_s)) and self._loop.time() + pause_s < ends_s:
            await asyncio.sleep(pause_s)
            place = self._chance.randrange(len(self._brokers))
            broker = self._brokers[place]
            number = self._chance.randrange(len(self._members))
            member, task = self._members[number]
            event = self._chance.choice(
                ("crash", "pause", "estrange", "estrange", "session", "outage", "join", "leave", "die", "stop", "stop")
            )
            self._trace.trace("nemesis", event, f"{broker.name} {member.name}")
            match event:
                case "crash":
                    await broker.crash()
                    self._brokers[place] = self._start(broker.broker_id)
                case "pause":
                    broker.pause()
                    self._loop.call_later(self._chance.uniform(*BROKER_PAUSE_S), broker.resume)
                case "estrange":
                    broker.estrange()
                    self._loop.call_later(self._chance.uniform(*PARTITIONED_S), broker.resume)
                case "session":
                    broker.lose_session()
                case "outage":
                    plan.begin_outage(self._chance.uniform(0.1, 3.0))
                case "join" if len(self._members) < 4:
                    self._join()
                case "leave" if len(self._members) > 1:
                    member.leave.set()
                    del self._members[number]
                case "die" if len(self._members) > 1:
                    task.cancel()
                    del self._members[number]
                case "stop":
                    member.gate.clear()
                    self._loop.call_later(self._chance.uniform(*MEMBER_PAUSE_S), member.gate.set)
        await asyncio.sleep(max(0.0, ends_s - self._loop.time()))
        self._trace.trace("nemesis", "over", "")
        plan.heal()
        for broker in self._brokers:
            broker.resume()
        for member, _ in self._members:
            member.gate.set()

    async def _look(self, name: str) -> None:
        """Somebody who asks for the offsets again and again, whoever answers."""
        client = GroupClient(name, self._live, self._trace, self._child())
        while True:
            with contextlib.suppress(Moved):
                await fetch_committed(client, self._partitions, self._history)
            await asyncio.sleep(LOOK_S)

    def _join(self) -> None:
        self._lives += 1
        member = SimMember(f"member-{self._lives}", self._partitions, self._history, self._live, self._trace, self._child())
        self._members.append((member, self._nursery.spawn(member.run(), name=member.name)))

    def _start(self, broker_id: int) -> GroupBroker:
        self._lives += 1
        return GroupBroker(broker_id, self._lives, self._ground, self._child())

    def _live(self) -> list[GroupBroker]:
        return self._brokers

    def _child(self) -> random.Random:
        return random.Random(self._chance.random())
