"""A broker of the simulation: the real log over faulty stores, registered as a real broker is, and mortal.

What a client gets is what its handlers would give: fresh reads at the end of a partition, the tail cache first, results as they are.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from broker.fetching.waiters import Waiters
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from sim.determinism import OrderedNursery, OrderedSet
from sim.faults import FaultPlan, Wire
from sim.history import History
from sim.loop import VirtualClock
from sim.metadata import SimMetadata
from sim.objects import SimObjects
from storage.cache.blocks import BlockCache
from storage.catalog.brokers import BrokerDirectory, Endpoint
from storage.errors import StorageError
from storage.log.append import Appender
from storage.log.batch import Append, Appended, batch_of
from storage.log.batcher import FlushSettings
from storage.log.bounds import LogBounds
from storage.log.broker_epoch import BrokerEpoch
from storage.log.index import check_range
from storage.log.parts import LogParts, open_log
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 2_000
REGISTER_PAUSE_S: Final = 0.2
FETCH_BYTES_MAX: Final = 600
CLIENT_LATENCY_S: Final = 0.004


class ConnectionLost(Exception):
    """The broker went away: what was asked may or may not have been done."""


class Fetched(NamedTuple):
    """Batches as (offset, bytes); `end` is the high watermark that the broker knew."""

    batches: list[tuple[int, memoryview]]
    end: int


@dataclass(frozen=True, slots=True)
class Ground:
    """What all brokers stand on."""

    metadata: MemoryMetadataStore
    objects: MemoryObjectStore
    metadata_plan: FaultPlan
    objects_plan: FaultPlan
    nursery: Nursery
    history: History
    partitions: tuple[PartitionId, ...]


class SimBroker:
    """One life of a broker. `run` is that life; `crash` ends it at whatever await it stands."""

    def __init__(self, broker_id: int, life: int, ground: Ground, chance: random.Random) -> None:
        loop = asyncio.get_running_loop()
        self.name = f"broker-{broker_id}.{life}"
        self.clock = VirtualClock(loop, skew_ms=chance.choice((0, 0, -3_600_000, 3_600_000, 40)))
        self._broker_id = broker_id
        self._ground = ground
        self._chance = chance
        self._gate = asyncio.Event()
        self._gate.set()
        plan = ground.metadata_plan
        self._metadata = SimMetadata(ground.metadata, Wire(f"{self.name} metadata", plan, self._gate, ground.nursery, ground.history))
        objects_wire = Wire(f"{self.name} objects", ground.objects_plan, self._gate, ground.nursery, ground.history)
        self._objects = SimObjects(ground.objects, objects_wire)
        self._asked: dict[asyncio.Future[object], None] = {}
        self._parts: LogParts | None = None
        self._waiters: Waiters | None = None
        self._nursery: Nursery | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._parts is not None

    def start(self) -> None:
        self._task = self._ground.nursery.spawn(self._run(), name=self.name)

    def pause(self) -> None:
        """Nothing gets in or out, keep-alives included, until `resume`: the session ends meanwhile if that takes long enough."""
        self._gate.clear()
        self._metadata.lose_session()

    def resume(self) -> None:
        self._gate.set()

    def lose_session(self) -> None:
        self._metadata.lose_session()

    async def crash(self) -> None:
        """Returns when nothing of it runs any more."""
        assert self._task is not None
        self._metadata.crash()
        self._go_down()
        self._task.cancel()
        await asyncio.wait({self._task})

    def connect(self) -> "Connection":
        """Raises `ConnectionLost` if nobody listens."""
        if self._parts is None:
            raise ConnectionLost(self.name)
        return Connection(self)

    async def fetch(self, partition: PartitionId, offset: int, *, wait_s: float) -> Fetched | StorageError:
        return await self._ask(lambda: self._fetch(partition, offset, wait_s))

    async def end_of(self, partition: PartitionId) -> LogBounds | StorageError:
        async def read() -> LogBounds | StorageError:
            assert self._parts is not None
            return (await self._parts.control_reads.read([partition]))[0]

        return await self._ask(read)

    async def travel(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / CLIENT_LATENCY_S))
        await self._gate.wait()

    def expect(self, answer: "asyncio.Future[object]") -> None:
        """`answer` fails with `ConnectionLost` if the broker goes down before it has one."""
        self._asked[answer] = None
        answer.add_done_callback(self._forget)

    @property
    def running(self) -> tuple[Nursery, LogParts]:
        assert self._nursery is not None
        assert self._parts is not None
        return self._nursery, self._parts

    def _forget(self, answer: "asyncio.Future[object]") -> None:
        self._asked.pop(answer, None)

    async def _run(self) -> None:
        try:
            async with OrderedNursery() as nursery:
                try:
                    await self._live(nursery)
                finally:
                    nursery.is_dead = True
        except BaseExceptionGroup as group:
            self._ground.history.violation(f"{self.name} died: {_leaves(group)}")
            self._metadata.crash()
        finally:
            self._go_down()

    async def _live(self, nursery: Nursery) -> None:
        directory = BrokerDirectory(self._metadata, clock=self.clock, session_timeout_ms=SESSION_TIMEOUT_MS)
        epoch = BrokerEpoch(
            await self._register(directory), registered_epoch=lambda: directory.registered_epoch, live=lambda: _live_epochs(self._metadata)
        )
        chance, telemetry = self._chance, Telemetry()
        parts = open_log(
            metadata=self._metadata,
            objects=self._objects,
            blocks=BlockCache(self._objects, bytes_max=chance.choice((0, 4_096, 1 << 20)), block_bytes=1_024, telemetry=telemetry),
            tail_bytes_max=chance.choice((0, 2_048, 1 << 20)),
            flush=FlushSettings(interval_s=chance.choice((0.0, 0.02, 0.25)), gather_s=0.005, bytes_max=chance.choice((400, 1 << 20))),
            epoch=epoch,
            ids=IdSource(clock=self.clock, entropy=chance.randbytes),
            clock=self.clock,
            chance=chance,
            nursery=nursery,
            telemetry=telemetry,
        )
        for partition in self._ground.partitions:
            parts.partitions.get(partition).wakers = OrderedSet()
        waiters = Waiters(metadata=self._metadata, partitions=parts.partitions, control_reads=parts.control_reads, clock=self.clock)
        nursery.spawn(waiters.run(), name="waiters")
        self._nursery, self._waiters, self._parts = nursery, waiters, parts
        self._ground.history.trace(self.name, "up", f"epoch={epoch.current}")
        while True:
            await directory.wait_lost()
            self._ground.history.trace(self.name, "session lost", f"epoch={epoch.current}")
            epoch.renew(await self._register(directory))
            self._ground.history.trace(self.name, "registered again", f"epoch={epoch.current}")

    async def _register(self, directory: BrokerDirectory) -> int:
        endpoint = Endpoint("PLAINTEXT", f"broker-{self._broker_id}", 9092)
        while True:
            await self._gate.wait()
            with contextlib.suppress(StorageError):
                return (await directory.register(listeners=(endpoint,), rack=None, version="sim", broker_id=self._broker_id)).epoch
            await asyncio.sleep(REGISTER_PAUSE_S)

    def _go_down(self) -> None:
        self._parts = None
        for answer in tuple(self._asked):
            if not answer.done():
                answer.set_exception(ConnectionLost(self.name))
                answer.exception()  # whoever asked may have left

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._nursery is None or self._parts is None:
            raise ConnectionLost(self.name)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            await self.travel()
            result = await work()
            await self.travel()
            if not answer.done():
                answer.set_result(result)

        self.expect(answer)  # type: ignore[arg-type]
        self._nursery.spawn(serve(), name="serve")
        return await answer

    async def _fetch(self, partition: PartitionId, offset: int, wait_s: float) -> Fetched | StorageError:
        """As broker/handlers/fetch.py does it, for one partition."""
        _, parts = self.running
        assert self._waiters is not None
        log = parts.partitions.get(partition)
        try:
            if log.control is None or offset >= log.high_watermark:
                await parts.control_reads.refresh([log])
            found = await _gather(parts, partition, offset)
            if not found and wait_s > 0:
                with self._waiters.wait([log]) as wait:
                    found = await _gather(parts, partition, offset)
                    if not found and await wait.moved(wait_s):
                        found = await _gather(parts, partition, offset)
        except StorageError as error:
            return error
        return Fetched(found, log.high_watermark)


class Connection:
    """Produce requests in the order sent; answers come whenever they come. Its requests arrive even when it is closed meanwhile."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._arriving: asyncio.Queue[tuple[PartitionId, bytes, asyncio.Future[Appended | StorageError]]] = asyncio.Queue(maxsize=16)
        nursery, parts = broker.running
        nursery.spawn(self._serve(nursery, parts), name="connection")

    def produce(self, partition: PartitionId, batch: bytes) -> "asyncio.Future[Appended | StorageError]":
        """The future may fail with `ConnectionLost`."""
        answer: asyncio.Future[Appended | StorageError] = asyncio.get_running_loop().create_future()
        self._broker.expect(answer)  # type: ignore[arg-type]
        if not self._broker.is_up:
            answer.set_exception(ConnectionLost(self._broker.name))
        self._arriving.put_nowait((partition, batch, answer))
        return answer

    async def _serve(self, nursery: Nursery, parts: LogParts) -> None:
        while True:
            partition, batch, answer = await self._arriving.get()
            await self._broker.travel()
            self._submit(nursery, parts, partition, bytearray(batch), answer)

    def _submit(
        self, nursery: Nursery, parts: LogParts, partition: PartitionId, body: bytearray, answer: "asyncio.Future[Appended | StorageError]"
    ) -> None:
        async def reply(result: Appended | StorageError) -> None:
            await self._broker.travel()
            if not answer.done():
                answer.set_result(result)

        def finish(append: Append) -> None:
            (result,) = append.results
            assert result is not None
            nursery.spawn(reply(result), name="reply")

        view = memoryview(body)
        batch = batch_of(view, parse_header(view), Append(self, finish, [None], 1), 0)
        appender: Appender = parts.appender
        appender.submit(parts.partitions.get(partition), batch)


async def _gather(parts: LogParts, partition: PartitionId, offset: int) -> list[tuple[int, memoryview]]:
    """Raises `StorageError`."""
    log = parts.partitions.get(partition)
    check_range(log, offset)
    found: list[tuple[int, memoryview]] = []
    taken_bytes = 0
    while offset < log.high_watermark and taken_bytes < FETCH_BYTES_MAX:
        run = parts.reader.cached(log, offset)
        if run is None:
            run = await parts.reader.stored(log, offset, bytes_max=FETCH_BYTES_MAX - taken_bytes)
        ends = (*run.positions[1:], len(run.buffer))
        for start, position, end in zip(run.starts, run.positions, ends, strict=True):
            if start >= offset:
                found.append((start, run.buffer[position:end]))
        taken_bytes += len(run.buffer)
        offset = run.last + 1
    return found


async def _live_epochs(metadata: SimMetadata) -> frozenset[int]:
    start, end = keys.brokers()
    return frozenset([record.version async for record in metadata.range_scan(start, end)])


def _leaves(group: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(_leaves(error) if isinstance(error, BaseExceptionGroup) else repr(error) for error in group.exceptions)
