"""One cluster in virtual time: the real log of several brokers over counted stores in memory, with producers and consumers.

The stores are as far away as real ones are. Some clusters are run to fit the laws on, others to check them.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from bench.scale.laws import Observed
from bench.scale.loads import ANY_BROKER, HOT, ONE_LEADER, SETTINGS, ScaleLoad, ScaleSettings, Shape
from broker.cluster.leadership import Asker, Candidate, Question, leadership_of
from broker.delayed_fetch import TRUSTED_POLL_S, Waiters
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from sim.batches import encode as encode_batch
from sim.loop import VirtualClock, VirtualLoop, stable_order
from storage.cache.blocks import BlockCache
from storage.errors import AlreadyExists, NotFound, StorageError
from storage.formats.levels import LEVEL_MAX
from storage.formats.manifest import Entry, Manifest, encode
from storage.limits import MIB, WRITE_REQUEST_OPS_MAX
from storage.log.batch import Append, Batch
from storage.log.flush import EarlySettings, FlushSettings
from storage.log.limits import DEFAULT_LIMITS
from storage.log.partition import BrokerEpoch, PartitionLog
from storage.log.parts import LogParts, open_log
from storage.log.scan import BatchRun, Elsewhere
from storage.metadata.keys import MANIFEST_SUFFIX, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import (
    ABSENT,
    Applied,
    DeleteRange,
    Key,
    OnChange,
    Put,
    Record,
    Session,
    Status,
    Subscription,
    WriteOp,
    WriteOutcome,
)
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

TOPIC: Final = TopicId("00000000-0000-4000-8000-000000000001")
KNOWN_AT_ONCE: Final = 10_000
READ_BYTES_MAX: Final = MIB
CACHE_BYTES: Final = 64 * MIB
TAIL_BYTES: Final = 16 * MIB
DRIFT: Final = 0.1
WARM_UP_S: Final = 1.0
FIT: Final = {ONE_LEADER: ((3, 3_000), (10, 3_000), (10, 10_000)), ANY_BROKER: ((3, 1_000), (10, 1_000), (10, 3_000))}
CHECK: Final = {ONE_LEADER: ((30, 10_000), (10, 100_000)), ANY_BROKER: ((15, 3_000), (10, 10_000))}
"""Brokers and partitions. Where every broker knows every partition, their product is what fits into one process."""
SECONDS_MIN: Final = 1.0
SECONDS_MAX: Final = 20.0
BATCHES_PER_RUN: Final = 8_000


@dataclass(slots=True)
class Counts:
    """Requests and bytes of all brokers since the counts were last cleared."""

    write_requests: int = 0
    write_ops: int = 0
    commits: int = 0
    conflicts: int = 0
    read_requests: int = 0
    read_keys: int = 0
    hints: int = 0
    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    batches: int = 0

    def clear(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class _Waiting(NamedTuple):
    ops: Sequence[WriteOp]
    outcome: asyncio.Future[WriteOutcome]


class _Line:
    __slots__ = ("is_served", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.is_served = False


class DistantMetadata:
    """One broker's client of the shared records. As the client of Oxia (docs/internals/adr/0006), it has one write request per shard under
    way; what arrives meanwhile travels in the next.
    """

    def __init__(self, inner: MemoryMetadataStore, settings: ScaleSettings, counts: Counts, nursery: Nursery) -> None:
        self._inner = inner
        self._settings = settings
        self._counts = counts
        self._nursery = nursery
        self._lines: dict[int, _Line] = {}

    def shard_of(self, partition_key: str) -> int:
        return self._inner.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        first = ops[0].start if isinstance(ops[0], DeleteRange) else ops[0].key
        line = self._lines.setdefault(self.shard_of(first.partition_key), _Line())
        outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        line.waiting.append(_Waiting(ops, outcome))
        if not line.is_served:
            line.is_served = True
            self._nursery.spawn(self._serve(line), name="writes")
        return await outcome

    async def _serve(self, line: _Line) -> None:
        while line.waiting:
            together: list[_Waiting] = []
            ops: list[WriteOp] = []
            while line.waiting and len(ops) + len(line.waiting[0].ops) <= WRITE_REQUEST_OPS_MAX:
                waiting = line.waiting.popleft()
                together.append(waiting)
                ops += waiting.ops
            await asyncio.sleep(self._settings.oxia_write_s / 2)
            outcome = await self._inner.write(ops)
            assert isinstance(outcome, Applied)
            self._count(ops, outcome)
            await asyncio.sleep(self._settings.oxia_write_s / 2)
            first = 0
            for waiting in together:
                end = first + len(waiting.ops)
                if not waiting.outcome.done():
                    waiting.outcome.set_result(Applied(outcome.results[first:end]))
                first = end
        line.is_served = False

    def _count(self, ops: Sequence[WriteOp], outcome: Applied) -> None:
        counts = self._counts
        counts.write_requests += 1
        counts.write_ops += len(ops)
        for op, result in zip(ops, outcome.results, strict=True):
            if isinstance(op, Put) and op.key.path.endswith(MANIFEST_SUFFIX):
                if result.status is Status.OK:
                    counts.commits += 1
                else:
                    counts.conflicts += 1

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._counts.read_requests += 1
        self._counts.read_keys += len(keys)
        await asyncio.sleep(self._settings.oxia_read_s / 2)
        records = await self._inner.get_many(keys)
        await asyncio.sleep(self._settings.oxia_read_s / 2)
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._counts.read_requests += 1
        self._counts.read_keys += 1
        await asyncio.sleep(self._settings.oxia_read_s)
        return await self._inner.get_ceiling(key, within=within)

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self._counts.read_requests += 1
        return self._inner.range_scan(start, end)

    async def list(self, start: Key, end: str) -> list[str]:
        self._counts.read_requests += 1
        return await self._inner.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        return await self._inner.open_session(timeout_ms=timeout_ms)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        """Hints take as long as answers do."""
        loop, counts, late_s = asyncio.get_running_loop(), self._counts, self._settings.oxia_write_s / 2

        def heard(path: str, version: int | None) -> None:
            counts.hints += 1
            loop.call_later(late_s, callback, path, version)

        return self._inner.subscribe(heard, prefix=prefix)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()


class DistantObjects(MemoryObjectStore):
    """Objects stay in the pieces that they came in: their batches share one buffer, so that gigabytes take no memory."""

    def __init__(self, settings: ScaleSettings, counts: Counts, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._settings = settings
        self._counts = counts
        self._pieces: dict[str, tuple[Buffer, ...]] = {}

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        pieces = tuple(parts)
        await asyncio.sleep(self._settings.put_s)
        if key in self._pieces:
            raise AlreadyExists(f"object exists: key={key!r}")
        self._pieces[key] = pieces
        self._counts.puts += 1
        self._counts.put_bytes += sum(map(len, pieces))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self._counts.gets += 1
        self._counts.get_bytes += end - start
        await asyncio.sleep(self._settings.get_s)
        pieces = self._pieces.get(key)
        if pieces is None:
            raise NotFound(f"no such object: key={key!r}")
        found = bytearray()
        position = 0
        for piece in pieces:
            if position < end and position + len(piece) > start:
                found += piece[max(0, start - position) : end - position]
            position += len(piece)
        return bytes(found)


class RefusedBatch(Exception):
    """A run in which a batch was not appended measures something else."""


class ScaledBroker:
    """The log of a broker without sockets, as broker/assembly.py opens it on S3 and Oxia."""

    def __init__(
        self, number: int, epochs: range, settings: ScaleSettings, metadata: DistantMetadata, objects: DistantObjects, nursery: Nursery
    ) -> None:
        """It has the epoch of its number among `epochs`, all of which are registered."""
        epoch = epochs[number - 1]

        async def live() -> frozenset[int]:
            return frozenset(epochs)

        loop = asyncio.get_running_loop()
        clock, self.chance = VirtualClock(loop), random.Random(f"scale {number}")
        telemetry = Telemetry()
        self.number = number
        self.log: LogParts = open_log(
            metadata=metadata,
            objects=objects,
            blocks=BlockCache(objects, bytes_max=CACHE_BYTES, clock=clock, telemetry=telemetry),
            tail_bytes_max=TAIL_BYTES,
            early=EarlySettings(bytes_per_s=settings.early_bytes_per_s),
            level=lambda: LEVEL_MAX,
            flush=FlushSettings(interval_s=self._interval_s(settings), bytes_max=settings.flush_bytes),
            epoch=BrokerEpoch(epoch, registered_epoch=lambda: epoch, live=live),
            ids=IdSource(clock=clock, entropy=self.chance.randbytes),
            clock=clock,
            chance=self.chance,
            nursery=nursery,
            telemetry=telemetry,
        )
        self.waiters = Waiters(
            metadata=metadata,
            partitions=self.log.partitions,
            manifest_reads=self.log.manifest_reads,
            clock=clock,
            trusted_poll_s=TRUSTED_POLL_S,
        )
        nursery.spawn(self.waiters.run(), name="waiters")
        self._sequences: dict[int, int] = {}

    def _interval_s(self, settings: ScaleSettings) -> float:
        """Brokers drift against each other, as those of several machines do: else how often they collide depends on when they began."""
        return settings.flush_interval_s * self.chance.uniform(1 - DRIFT, 1 + DRIFT)

    def submit(self, partition: int, template: bytearray, record_count: int, on_done: Callable[[Append], None]) -> None:
        """One request of the only producer that this broker has for the partition."""
        producer_id = self.number << 32 | partition
        first_seq = self._sequences.get(partition, 0)
        self._sequences[partition] = first_seq + record_count
        append = Append(self, on_done, [None], 1)
        batch = Batch(memoryview(template), append, 0, producer_id, 0, first_seq, record_count, 1_000, len(template))
        self.log.appender.submit(self.log.partitions.get(PartitionId(TOPIC, partition)), batch)

    async def know(self, partitions: Sequence[int]) -> None:
        """Have read the manifests, as a broker has that has run for a while."""
        for begin in range(0, len(partitions), KNOWN_AT_ONCE):
            part = partitions[begin : begin + KNOWN_AT_ONCE]
            await self.log.manifest_reads.refresh([self.log.partitions.get(PartitionId(TOPIC, one)) for one in part])

    async def follow(self, partitions: Sequence[int]) -> None:
        """One consumer at the ends of `partitions`, until cancelled."""
        logs = [self.log.partitions.get(PartitionId(TOPIC, one)) for one in partitions]
        await self.log.manifest_reads.refresh(logs)
        offsets = {log: log.seen.high_watermark for log in logs}
        with self.waiters.wait(logs) as wait:
            while True:
                await wait.moved(1.0)
                moved = [log for log in logs if offsets[log] < log.seen.high_watermark]
                ends = await asyncio.gather(*[self._catch_up(log, offsets[log]) for log in moved])
                offsets.update(zip(moved, ends, strict=True))

    async def _catch_up(self, log: PartitionLog, offset: int) -> int:
        while offset < log.seen.high_watermark:
            offset = (await self._read(log, offset)).last + 1
        return offset

    async def _read(self, log: PartitionLog, offset: int) -> BatchRun:
        reader = self.log.reader
        if (cached := reader.cached(log, offset)) is not None:
            return cached
        found = reader.stored_here(log, offset, bytes_max=READ_BYTES_MAX, at_least_one=True, is_in_order=True)
        if found is None or isinstance(found, Elsewhere):
            found = await reader.stored_within(log, offset, bytes_max=READ_BYTES_MAX, at_least_one=True, is_in_order=True)
        assert found is not None
        return found


def check_appended(append: Append) -> None:
    """Raise `RefusedBatch`."""
    for result in append.results:
        if isinstance(result, StorageError):
            raise RefusedBatch(str(result))


@dataclass(frozen=True, slots=True)
class Measured:
    """`counts` of all brokers within `seconds` of virtual time."""

    seconds: float
    counts: Counts


class ScaledCluster:
    def __init__(self, shape: Shape, settings: ScaleSettings, nursery: Nursery, *, epoch_first: int) -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        self.counts = Counts()
        self._shape = shape
        self._nursery = nursery
        self._chance = random.Random("scale")
        self._records = MemoryMetadataStore(clock=clock, shards=settings.shards)
        objects = DistantObjects(settings, self.counts, clock)
        epochs = range(epoch_first, epoch_first + shape.brokers)
        self.brokers = [
            ScaledBroker(
                number,
                epochs,
                settings,
                DistantMetadata(self._records.client(), settings, self.counts, nursery),
                objects,
                nursery,
            )
            for number in range(1, shape.brokers + 1)
        ]
        self._settings = settings
        self.template = _batch_of(shape.load.batch_bytes, shape.load.batch_records)
        self._leaders = self._placed()

    def _placed(self) -> list[int]:
        """By partition, the place of the broker that one client of it finds, under the strategy as clients see it."""
        shape, leadership = self._shape, leadership_of(self._shape.leader)
        live = [Candidate(broker.number, None) for broker in self.brokers]
        if shape.leader == ANY_BROKER:
            # A client has the broker that it happened to ask first.
            asked = [self._chance.choice(live).broker_id for _ in range(shape.partitions)]
            places = [leadership.placement(Question(Asker(f"client-{n}", "host"), own, live)) for n, own in enumerate(asked)]
            return [place(TOPIC, n)[0] - 1 for n, place in enumerate(places)]
        place = leadership.placement(Question(Asker("client", "host"), 1, live))
        return [place(TOPIC, n)[0] - 1 for n in range(shape.partitions)]

    def _by_broker(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.brokers]
        for partition, leader in enumerate(self._leaders):
            found[leader].append(partition)
        return found

    async def fill(self) -> None:
        """Logs in the middle of their life: rings of pending entries are of any length."""
        load = self._shape.load
        batches = ((0, load.batch_bytes),)
        ops = []
        for partition in range(self._shape.partitions):
            count = self._chance.randint(1, DEFAULT_LIMITS.pending_entries_max)
            entries = tuple(
                [Entry(n * 10, n * 10 + 9, ObjectId("0" * 26), batches, 1_000, 1_000) for n in range(count)],
            )
            manifest = Manifest(sequence_counter=count * 10, pending=entries)
            ops.append(Put(PartitionKeys(PartitionId(TOPIC, partition)).manifest, encode(manifest), ABSENT))
        for op in ops:
            await self._records.write([op])

    async def run(self, seconds: float) -> Measured:
        followed = self._by_broker()
        is_any = self._shape.leader == ANY_BROKER
        everything = list(range(self._shape.partitions))
        written = [everything if is_any else followed[place] for place in range(len(self.brokers))]
        for broker, partitions in zip(self.brokers, written, strict=True):
            await broker.know(partitions)
        tasks = []
        for broker, partitions in zip(self.brokers, followed, strict=True):
            for begin in range(0, len(partitions), self._settings.fetch_partitions):
                part = partitions[begin : begin + self._settings.fetch_partitions]
                tasks.append(self._nursery.spawn(broker.follow(part), name="consumer"))
        for broker, partitions in zip(self.brokers, written, strict=True):
            if partitions:
                tasks.append(self._nursery.spawn(self._produce(broker, partitions), name="producer"))
        await asyncio.sleep(WARM_UP_S)
        self.counts.clear()
        await asyncio.sleep(seconds)
        measured = Measured(seconds, Counts(**{name: getattr(self.counts, name) for name in Counts.__slots__}))
        for task in tasks:
            task.cancel()
        return measured

    async def _produce(self, broker: ScaledBroker, partitions: Sequence[int]) -> None:
        load, chance = self._shape.load, broker.chance
        mean_per_s = load.batches_per_s(self._shape.brokers, self._shape.partitions)
        if load.partition_batches_per_s and self._shape.leader != ANY_BROKER:
            mean_per_s = load.partition_batches_per_s * len(partitions)
        await asyncio.sleep(chance.random() * self._settings.flush_interval_s)  # brokers do not flush in step
        while True:
            await asyncio.sleep(chance.expovariate(mean_per_s))
            self.counts.batches += 1
            broker.submit(chance.choice(partitions), self.template, load.batch_records, check_appended)


def measure(shape: Shape, seconds: float, settings: ScaleSettings = SETTINGS) -> Measured:
    """Run one cluster for so long in virtual time. Raise `RefusedBatch`. Must not be called from a running loop."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(stable_order())
        runner = stack.enter_context(asyncio.Runner(loop_factory=VirtualLoop))
        return runner.run(_measure(shape, seconds, settings))


async def _measure(shape: Shape, seconds: float, settings: ScaleSettings) -> Measured:
    async with running(shape, settings) as cluster:
        await cluster.fill()
        return await cluster.run(seconds)


@contextlib.asynccontextmanager
async def running(shape: Shape, settings: ScaleSettings = SETTINGS, *, epoch_first: int = 1) -> AsyncIterator[ScaledCluster]:
    """Its brokers end with the context."""
    async with Nursery() as nursery:
        yield ScaledCluster(shape, settings, nursery, epoch_first=epoch_first)


def _batch_of(size_bytes: int, records: int) -> bytearray:
    """As many bytes, or one less where a length grows by a byte."""
    value_bytes = size_bytes - len(encode_batch(b"", record_count=records))
    while len(made := encode_batch(bytes(max(0, value_bytes)), record_count=records)) > size_bytes and value_bytes > 0:
        value_bytes -= 1
    return bytearray(made)


@dataclass(frozen=True, slots=True)
class Plan:
    shape: Shape
    seconds: float
    is_fit: bool


COLLIDING: Final = (
    Plan(Shape(HOT, ANY_BROKER, 10, 20), 40.0, is_fit=True),
    Plan(Shape(HOT, ANY_BROKER, 15, 20), 20.0, is_fit=False),
)
"""Other loads collide too seldom, in the time that there is, to fit a law of conflicts on them."""


def plans(load: ScaleLoad, leader: str) -> list[Plan]:
    made = []
    for is_fit, sizes in ((True, FIT[leader]), (False, CHECK[leader])):
        for brokers, partitions in sizes:
            per_s = brokers * load.batches_per_s(brokers, partitions)
            seconds = float(round(min(SECONDS_MAX, max(SECONDS_MIN, BATCHES_PER_RUN / per_s))))
            made.append(Plan(Shape(load, leader, brokers, partitions), seconds, is_fit))
    return made


def observe(plan: Plan, settings: ScaleSettings = SETTINGS) -> Observed:
    measured = measure(plan.shape, plan.seconds, settings)
    return Observed(plan.shape, measured.seconds, {one.name: float(getattr(measured.counts, one.name)) for one in fields(Counts)})
