"""One broker of a simulated cluster: its real log over counted stores, what producers send it, and consumers that follow."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from bench.scale.loads import ScaleSettings
from bench.scale.stores import DistantMetadata, DistantObjects
from broker.fetching.waiters import TRUSTED_POLL_S, Waiters
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from sim.loop import VirtualClock
from storage.cache.blocks import BlockCache
from storage.errors import StorageError
from storage.formats.levels import LEVEL_MAX
from storage.limits import MIB
from storage.log.batch import Append, Batch
from storage.log.flush import FlushSettings, InlineSettings
from storage.log.limits import LogLimits
from storage.log.partition import BrokerEpoch, PartitionLog
from storage.log.parts import LogParts, open_log
from storage.log.scan import BatchRun, Elsewhere
from storage.vocabulary import PartitionId, TopicId

TOPIC: Final = TopicId("00000000-0000-4000-8000-000000000001")
KNOWN_AT_ONCE: Final = 10_000
READ_BYTES_MAX: Final = MIB
CACHE_BYTES: Final = 64 * MIB
TAIL_BYTES: Final = 16 * MIB
DRIFT: Final = 0.1


class RefusedBatch(Exception):
    """A run in which a batch was not appended measures something else."""


WITHOUT_RESERVES: Final = LogLimits(larger_commits_kept_max=1)
"""A steady load spends within seconds the larger commits that a broker keeps for a pause. A run is too short for that."""


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
            inline=InlineSettings(bytes_max=settings.inline_bytes, commits_per_s=settings.inline_commits_per_s),
            level=lambda: LEVEL_MAX,
            flush=FlushSettings(interval_s=self._interval_s(settings), bytes_max=settings.flush_bytes),
            epoch=BrokerEpoch(epoch, registered_epoch=lambda: epoch, live=live),
            ids=IdSource(clock=clock, entropy=self.chance.randbytes),
            clock=clock,
            chance=self.chance,
            nursery=nursery,
            telemetry=telemetry,
            limits=WITHOUT_RESERVES,
        )
        self.waiters = Waiters(
            metadata=metadata,
            partitions=self.log.partitions,
            control_reads=self.log.control_reads,
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
        """Have read the control records, as a broker has that has run for a while."""
        for begin in range(0, len(partitions), KNOWN_AT_ONCE):
            part = partitions[begin : begin + KNOWN_AT_ONCE]
            await self.log.control_reads.refresh([self.log.partitions.get(PartitionId(TOPIC, one)) for one in part])

    async def follow(self, partitions: Sequence[int]) -> None:
        """One consumer at the ends of `partitions`, until cancelled."""
        logs = [self.log.partitions.get(PartitionId(TOPIC, one)) for one in partitions]
        await self.log.control_reads.refresh(logs)
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
