"""A broker of the simulation that does nothing but coordinate groups: the real coordinator over faulty metadata, registered and mortal."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from broker.cluster.ownership import Claim, Slots
from broker.groups.coordinator import Coordinator
from broker.groups.group import Closed
from broker.groups.state import GroupSettings
from runtime.ids import IdSource
from runtime.supervision import Nursery
from sim.broker import CLIENT_LATENCY_S, SESSION_TIMEOUT_MS, START_PAUSE_S, ConnectionLost
from sim.faults import FaultPlan, Wire
from sim.groups.partitioned import PartitionedClient
from sim.history import History
from sim.loop import OrderedNursery, VirtualClock
from sim.metadata import SimMetadata
from storage.catalog.brokers import BrokerDirectory, BrokerRecord, Endpoint
from storage.errors import StorageError
from storage.metadata.memory import MemoryMetadataStore

T = TypeVar("T")

SETTINGS: Final = GroupSettings(initial_delay_s=0.5, retention_check_s=86_400.0)
"""The topic is in no catalog, so retention, should it look, would take its offsets for those of a topic that is gone."""


GUESS_S: Final = (0.05, 5.0)
"""How long a broker goes on thinking what it thinks of another."""


@dataclass(slots=True)
class Guessing:
    """Whether brokers take each other for dead without any reason, how often they answered so, and how many claims went to another."""

    rate: float = 0.0
    wrong: int = 0
    lost: int = 0


class Guesses:
    """Peers of which any may be taken for dead at any time, whatever it does. Each broker guesses for itself."""

    def __init__(self, directory: BrokerDirectory, guessing: Guessing, chance: random.Random, now_s: Callable[[], float]) -> None:
        self._directory = directory
        self._guessing = guessing
        self._chance = chance
        self._now_s = now_s
        self._thoughts: dict[int, tuple[float, bool]] = {}

    async def standing(self) -> list[BrokerRecord]:
        return [record for record in await self._directory.live() if not self._is_dead(record.session_id)]

    async def meet(self) -> list[BrokerRecord]:
        return await self.standing()

    async def is_valid(self, session_id: int) -> bool:
        listed = {record.session_id: record for record in await self._directory.live()}
        return session_id not in listed or not self._is_dead(session_id)

    def note_life(self, session_id: int) -> None:
        """No sign of life helps against guesses."""

    def _is_dead(self, session_id: int) -> bool:
        own = self._directory.session
        if not self._guessing.rate or (own is not None and own.session_id == session_id):
            return False
        until_s, is_dead = self._thoughts.get(session_id, (0.0, False))
        if self._now_s() >= until_s:
            is_dead = self._chance.random() < self._guessing.rate
            self._thoughts[session_id] = self._now_s() + self._chance.uniform(*GUESS_S), is_dead
        self._guessing.wrong += is_dead
        return is_dead


@dataclass(frozen=True, slots=True)
class GroupGround:
    """What all brokers stand on."""

    metadata: MemoryMetadataStore
    plan: FaultPlan
    nursery: Nursery
    trace: History
    guessing: Guessing


class GroupBroker:
    """One life of a broker, as `sim.broker.SimBroker` is one."""

    def __init__(self, broker_id: int, life: int, ground: GroupGround, chance: random.Random) -> None:
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}.{life}"
        self._ground = ground
        self._chance = chance
        self._clock = VirtualClock(asyncio.get_running_loop())
        self._gate = asyncio.Event()
        self._gate.set()
        self._metadata = SimMetadata(ground.metadata, Wire(self.name, ground.plan, self._gate, ground.nursery, ground.trace))
        self._heard = PartitionedClient(self._metadata)
        self._asked: dict[asyncio.Future[object], None] = {}
        self._running: tuple[Nursery, Coordinator] | None = None
        self._task = ground.nursery.spawn(self._run(), name=self.name)

    @property
    def is_up(self) -> bool:
        return self._running is not None

    def pause(self) -> None:
        """Nothing gets in or out, keep-alives included, until `resume`: the session ends meanwhile if that takes long enough."""
        self._gate.clear()
        self._metadata.lose_session()

    def estrange(self) -> None:
        """Its session ends, and until `resume` it does not hear of that: everything else passes."""
        self._heard.hears.clear()
        self._metadata.lose_session()

    def resume(self) -> None:
        self._gate.set()
        self._heard.return_to_the_world()

    def lose_session(self) -> None:
        self._metadata.lose_session()

    async def crash(self) -> None:
        """Returns when nothing of it runs any more."""
        self._metadata.crash()
        self._go_down()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def ask(self, work: Callable[[Coordinator], Awaitable[T]], *, within_s: float) -> T | Closed | StorageError:
        """Raises `ConnectionLost`, and `TimeoutError`: then the connection closes, and with it goes what was not done yet."""
        if self._running is None:
            raise ConnectionLost(self.name)
        nursery, coordinator = self._running
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            await self._travel()
            result: object
            try:
                result = await work(coordinator)
            except (Closed, StorageError) as error:
                result = error
            await self._travel()
            if not answer.done():
                answer.set_result(result)

        self._asked[answer] = None
        serving = nursery.spawn(serve(), name="serve")
        try:
            async with asyncio.timeout(within_s):
                return await answer  # type: ignore[return-value]
        except TimeoutError:
            serving.cancel()
            raise
        finally:
            self._asked.pop(answer, None)

    async def _travel(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / CLIENT_LATENCY_S))
        await self._gate.wait()

    async def _run(self) -> None:
        try:
            async with OrderedNursery() as nursery:
                try:
                    await self._live(nursery)
                finally:
                    nursery.is_dead = True
        except BaseExceptionGroup as group:
            self._ground.trace.violation(f"{self.name} died: {group.exceptions!r}")
            self._metadata.crash()
        finally:
            self._go_down()

    async def _live(self, nursery: Nursery) -> None:
        directory = BrokerDirectory(self._heard, clock=self._clock, session_timeout_ms=SESSION_TIMEOUT_MS, entropy=self._chance.randbytes)
        await self._register(directory)
        # From a chance of its own: seeds without guesses are what they were before there were any.
        guesses = Guesses(directory, self._ground.guessing, random.Random(f"guesses of {self.name}"), self._clock.monotonic_s)
        coordinator = Coordinator(
            metadata=self._heard,
            slots=self._watched(Slots(self._heard, directory, guesses)),
            clock=self._clock,
            ids=IdSource(clock=self._clock, entropy=self._chance.randbytes),
            nursery=nursery,
            settings=SETTINGS,
        )
        nursery.spawn(coordinator.run(), name="groups")
        self._running = nursery, coordinator
        while True:
            await directory.wait_lost()
            self._ground.trace.trace(self.name, "session lost", "")
            await self._register(directory)

    def _watched(self, slots: Slots) -> Slots:
        replaced = slots.replaced

        async def counted() -> list[Claim]:
            lost = await replaced()
            self._ground.guessing.lost += len(lost)
            return lost

        slots.replaced = counted  # type: ignore[method-assign]
        return slots

    async def _register(self, directory: BrokerDirectory) -> None:
        endpoint = Endpoint("PLAINTEXT", self.name, 9092)
        while True:
            await self._gate.wait()
            with contextlib.suppress(StorageError):
                await directory.register(listeners=(endpoint,), rack=None, version="sim", broker_id=self.broker_id)
                return
            await asyncio.sleep(START_PAUSE_S)

    def _go_down(self) -> None:
        self._running = None
        for answer in tuple(self._asked):
            if not answer.done():
                answer.set_exception(ConnectionLost(self.name))
                answer.exception()  # whoever asked may have left
