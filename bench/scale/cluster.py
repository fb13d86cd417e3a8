"""One cluster in virtual time: the real log of several brokers over stores in memory, with producers and consumers, counted."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.scale.broker import TOPIC, ScaledBroker, check_appended
from bench.scale.loads import ANY_BROKER, SETTINGS, ScaleSettings, Shape
from bench.scale.stores import Counts, DistantMetadata, DistantObjects
from broker.coordination.rendezvous import Candidate
from broker.leadership import Asker, Question, leadership_of
from runtime.supervision import Nursery
from sim.batches import encode as encode_batch
from sim.loop import VirtualClock, VirtualLoop, stable_order
from storage.formats.control import Control, Entry, encode
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Put
from storage.vocabulary import ObjectId, PartitionId

WARM_UP_S: Final = 1.0


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
        is_small = load.batch_bytes <= self._settings.inline_bytes
        batches = bytes(self.template) if is_small else ((0, load.batch_bytes),)
        ops = []
        for partition in range(self._shape.partitions):
            count = self._chance.randint(1, DEFAULT_LIMITS.pending_entries_max)
            entries = tuple(
                [Entry(n * 10, n * 10 + 9, ObjectId("0" * 26), batches, 1_000, 1_000) for n in range(count)],
            )
            control = Control(sequence_counter=count * 10, pending=entries)
            ops.append(Put(PartitionKeys(PartitionId(TOPIC, partition)).control, encode(control), ABSENT))
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
