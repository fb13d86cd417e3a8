"""One seed: its cluster, its clients, its weather, and the verdict."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from runtime.ids import IdSource
from sim.broker import Ground, SimBroker
from sim.check import Stored, check
from sim.determinism import SHORT_DEADLINES, SMALL_LIMITS, OrderedNursery, replaced, stable_order
from sim.faults import PROFILES, FaultPlan, Profile
from sim.fsck import Floor, control_of, fsck
from sim.history import History
from sim.loop import Deadlock, VirtualClock, VirtualLoop
from sim.producers import Producer
from sim.readers import EndAsker, Reader
from storage.formats.control import Control, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Put
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId, PartitionId, TopicId

TOPIC: Final = TopicId("00000000-0000-4000-8000-000000000001")
FAULTS_S: Final = (4.0, 16.0)
LIVENESS_S: Final = 150.0
"""After the last fault everything is answered and read within this: the longest client timeout, and a commit's (30 s) twice."""
PAUSE_S: Final = (0.2, 6.0)
SHARDS: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    faults: str = "usual"
    brokers: int | None = None
    """None: 2 to 4, by the seed."""


@dataclass(frozen=True, slots=True)
class Report:
    """`violations` is what the log did wrong; `digest` names the run: equal seeds have equal digests."""

    seed: int
    violations: list[str]
    digest: str
    turns: int
    virtual_s: float
    appends: int
    reads: int


def run_seed(plan: Plan, *, show: Callable[[str], None] | None = None) -> Report:
    """Must not be called from a running loop. `show` is given every line of the trace."""
    chance = random.Random(f"forebay {plan.seed} {plan.faults}")  # noqa: S311 - the seed decides everything
    loop = VirtualLoop()
    history = History(loop, show=show)

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        history.violation(f"loop: {context.get('message')} {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stable_order())
        if chance.random() < 0.6:
            stack.enter_context(replaced(SMALL_LIMITS))
        if plan.faults != "none" and chance.random() < 0.4:
            stack.enter_context(replaced(SHORT_DEADLINES))
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
        try:
            runner.run(_World(plan, chance, history, loop).run())
        except Deadlock as error:
            history.violation(f"deadlock: {error}")
        appends = sum(sent.acked is not None for sent in history.sent)
        return Report(plan.seed, history.violations, history.digest(), history.turns, loop.time(), appends, len(history.seen))


class _World:
    def __init__(self, plan: Plan, chance: random.Random, history: History, loop: VirtualLoop) -> None:
        self._chance = chance
        self._history = history
        self._loop = loop
        self._profile: Profile = PROFILES[plan.faults]
        self._count = plan.brokers or chance.randint(2, 4)
        self._partitions = tuple(PartitionId(TOPIC, number) for number in range(chance.randint(1, 2)))
        clock = VirtualClock(loop)
        self._metadata = MemoryMetadataStore(clock=clock, shards=SHARDS)
        self._objects = MemoryObjectStore(clock=clock)
        self._brokers: list[SimBroker] = []
        self._lives = 0
        self._floors: list[Floor] = []
        self._ids = IdSource(clock=clock, entropy=chance.randbytes)

    async def run(self) -> None:
        for partition in self._partitions:
            await self._metadata.write([Put(PartitionKeys(partition).control, encode(Control()), ABSENT)])
        metadata_plan = FaultPlan(self._child(), self._profile, self._loop)
        objects_plan = FaultPlan(self._child(), self._profile, self._loop)
        async with OrderedNursery() as nursery:
            self._ground = Ground(self._metadata, self._objects, metadata_plan, objects_plan, nursery, self._history, self._partitions)
            for broker_id in range(1, self._count + 1):
                self._brokers.append(self._start(broker_id))
            readers = [self._reader(f"reader-{n}", partition) for n, partition in enumerate(self._partitions * 2)]
            tasks = [nursery.spawn(reader.run(), name="reader") for reader in readers]
            nursery.spawn(EndAsker("asker", self._partitions, self._live, self._history, self._child()).run(), name="asker")
            # Some logs have a few busy producers, others many that nobody has heard of yet.
            count, batches = self._chance.choice(((self._chance.randint(2, 4), 16), (7, 5)))
            producers = [nursery.spawn(self._producer(number, batches).run(), name="producer") for number in range(count)]
            if self._profile.weather_s:
                await self._weather(self._chance.uniform(*FAULTS_S))
            await self._end(producers, "a producer has no answers")
            for reader in readers:
                control, _ = await control_of(self._metadata, reader.partition)
                reader.stop_at = control.sequence_counter
            await self._end(tasks, "a reader does not reach the end")
        await self._judge()

    async def _end(self, tasks: list[asyncio.Task[None]], complaint: str) -> None:
        _, waiting = await asyncio.wait(tasks, timeout=LIVENESS_S)
        if waiting:
            self._history.violation(f"liveness: {complaint} after {LIVENESS_S} s without faults")

    async def _judge(self) -> None:
        logs: dict[int, list[Stored]] = {}
        for partition in self._partitions:
            log, wrong = await fsck(self._metadata, self._objects, partition, self._floors)
            logs[partition.partition] = log
            for text in wrong:
                self._history.violation(text)
        for text in check(self._history, logs):
            self._history.violation(text)

    async def _weather(self, duration_s: float) -> None:
        """Crashes, pauses, lost sessions, outages, jumps of wall clocks; in the end all is well again."""
        ends_s = self._loop.time() + duration_s
        while (pause_s := self._chance.expovariate(1 / self._profile.weather_s)) and self._loop.time() + pause_s < ends_s:
            await asyncio.sleep(pause_s)
            place = self._chance.randrange(self._count)
            broker = self._brokers[place]
            match self._chance.choice(("crash", "crash", "pause", "session", "outage", "clock", "floor")):
                case "crash":
                    self._history.trace("weather", "crash", broker.name)
                    await broker.crash()
                    await asyncio.sleep(self._chance.choice((0.0, 0.5, 3.0)))
                    self._brokers[place] = self._start(place + 1)
                case "pause":
                    paused_s = self._chance.uniform(*PAUSE_S)
                    self._history.trace("weather", "pause", f"{broker.name} {paused_s:.3f}")
                    broker.pause()
                    self._loop.call_later(paused_s, broker.resume)
                case "session":
                    self._history.trace("weather", "session", broker.name)
                    broker.lose_session()
                case "outage":
                    hit = self._chance.choice((self._ground.metadata_plan, self._ground.objects_plan))
                    fault = hit.begin_outage(self._chance.uniform(0.1, 3.0))
                    self._history.trace("weather", "outage", fault.value)
                case "clock":
                    broker.clock.skew_ms += self._chance.choice((-3_600_000, -50, 50, 3_600_000))
                case "floor":
                    await self._raise_floor(self._chance.choice(self._partitions))
        await asyncio.sleep(max(0.0, ends_s - self._loop.time()))
        self._history.trace("weather", "over", "")
        self._ground.metadata_plan.heal()
        self._ground.objects_plan.heal()
        for broker in self._brokers:
            broker.resume()

    async def _raise_floor(self, partition: PartitionId) -> None:
        """As a collector would before it looks for garbage: ids up to now may no longer be committed."""
        control, version = await control_of(self._metadata, partition)
        raised = msgspec.structs.replace(control, revoked_floor=ObjectId(self._ids.next_ulid(above=control.revoked_floor)))
        await self._metadata.write([Put(PartitionKeys(partition).control, encode(raised), version)])
        self._floors.append(Floor(partition, control.sequence_counter, raised.revoked_floor))
        self._history.trace("weather", "floor", raised.revoked_floor)

    def _live(self) -> list[SimBroker]:
        return self._brokers

    def _start(self, broker_id: int) -> SimBroker:
        self._lives += 1
        broker = SimBroker(broker_id, self._lives, self._ground, self._child())
        broker.start()
        return broker

    def _reader(self, name: str, partition: PartitionId) -> Reader:
        return Reader(name, partition, self._live, self._history, self._child())

    def _producer(self, number: int, batches_max: int) -> Producer:
        return Producer(
            f"producer-{number}",
            producer_id=100 + number if self._chance.random() < 0.75 else -1,
            partition=self._chance.choice(self._partitions),
            batches=self._chance.randint(4, batches_max),
            brokers=self._live,
            history=self._history,
            chance=self._child(),
        )

    def _child(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))  # noqa: S311 - the seed decides everything
