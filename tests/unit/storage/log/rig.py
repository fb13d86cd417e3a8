"""A log over memory stores whose metadata replies can be lost or delayed: what the tests of append, commit and read stand on."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from runtime.blocking import Blocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import DEFAULT_LIMITS as DEFAULT_CACHE_LIMITS
from storage.cache.blocks import BlockCache, CacheLimits
from storage.errors import StorageError, Unavailable
from storage.formats.levels import LEVEL_MAX
from storage.formats.manifest import Manifest, decode_manifest, encode
from storage.limits import BLOCK_BYTES, PART_BYTES
from storage.log.batch import Append, Appended, batch_of
from storage.log.flush import NO_EARLY, EarlySettings, FlushSettings
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import BrokerEpoch
from storage.log.parts import LogParts, open_log
from storage.log.unknown_producers import Former, no_former
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Applied, NotApplied, Put, Unknown, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.opening import open_shared_blocks
from storage.recordbatch import parse_header
from storage.vocabulary import Buffer, PartitionId, TopicId

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
PARTITION = PartitionId(TOPIC, 0)


class FaultyMetadata:
    """The store inside, but the next writes meet the faults queued here: lost requests, lost replies, late arrivals, refusals."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self.faults: deque[str] = deque()
        self.late: list[Sequence[WriteOp]] = []
        self.writes: list[Sequence[WriteOp]] = []
        self.reads_fail = False
        self.reads = 0
        self.write_s = 0.0
        self._is_late = asyncio.Event()
        self.on_seen_first: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def get_many(self, wanted: Sequence[keys.Key]) -> list[object]:
        self.reads += 1
        if self.reads_fail:
            raise Unavailable("reads are switched off")
        return list(await self._inner.get_many(wanted))

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self.writes.append(ops)
        if self.write_s:
            await asyncio.sleep(self.write_s)
        fault = self.faults.popleft() if self.faults else "none"
        match fault:
            case "none":
                return await self._inner.write(ops)
            case "request lost":
                return Unknown("request lost")
            case "reply lost":
                assert isinstance(await self._inner.write(ops), Applied)
                return Unknown("reply lost")
            case "late":
                self.late.append(ops)
                self._is_late.set()
                return Unknown("late")
            case "seen first":
                outcome = await self._inner.write(ops)
                assert self.on_seen_first is not None
                await self.on_seen_first()
                return outcome
            case "seen first, reply lost":
                await self._inner.write(ops)
                assert self.on_seen_first is not None
                await self.on_seen_first()
                return Unknown("reply lost")
            case "refused":
                return NotApplied("refused")
            case _:
                raise AssertionError(fault)

    async def until_late(self) -> None:
        """Return when a request is under way that will arrive late."""
        await self._is_late.wait()

    async def deliver_late(self) -> None:
        for ops in self.late:
            await self._inner.write(ops)
        self.late.clear()
        self._is_late.clear()


class FaultyObjects:
    """The store inside. Puts fail while `puts_fail` is set; while there is a `gate`, each waits for it first, and then does what was asked
    for when it came.
    """

    def __init__(self, inner: MemoryObjectStore) -> None:
        self.inner = inner
        self.puts_fail: StorageError | None = None
        self.put_keys: list[str] = []
        self.gate: asyncio.Event | None = None
        self.put_s = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        self.put_keys.append(key)
        failure, gate = self.puts_fail, self.gate
        if gate is not None:
            await gate.wait()
        if self.put_s:
            await asyncio.sleep(self.put_s)
        if failure is not None:
            raise failure
        await self.inner.put_if_absent(key, parts)


class Rig:
    """One broker's log. Several rigs may share the stores."""

    def __init__(
        self,
        parts: LogParts,
        epoch: BrokerEpoch,
        metadata: FaultyMetadata,
        objects: FaultyObjects,
        shared: MemoryMetadataStore,
        telemetry: Telemetry,
    ) -> None:
        self.parts = parts
        self.epoch = epoch
        self.metadata = metadata
        self.objects = objects
        self.shared = shared
        self.telemetry = telemetry
        self.source = object()

    def send(
        self, *batches: bytearray, partition: PartitionId = PARTITION, source: object = None, arrived: int = -1
    ) -> "asyncio.Future[list[Appended | StorageError]]":
        """One append of these batches; its results. `arrived`: how many losses there were when it came; -1: it comes now."""
        done: asyncio.Future[list[Appended | StorageError]] = asyncio.get_running_loop().create_future()

        def finish(append: Append) -> None:
            done.set_result([result for result in append.results if result is not None])

        append = Append(source or self.source, finish, [None] * len(batches), len(batches), arrived)
        log = self.parts.partitions.get(partition)
        for index, data in enumerate(batches):
            view = memoryview(data)
            self.parts.appender.submit(log, batch_of(view, parse_header(view), append, index))
        return done

    async def manifest(self, partition: PartitionId = PARTITION) -> Manifest:
        (record,) = await self.shared.get_many([keys.PartitionKeys(partition).manifest])
        assert record is not None
        return decode_manifest(record.value, path=record.path)

    async def read_all(self, partition: PartitionId = PARTITION) -> bytes:
        """Every committed batch, from the object store, as Fetch would send it."""
        return await self.read_all_from(0, partition)

    async def read_all_from(self, offset: int, partition: PartitionId = PARTITION) -> bytes:
        log = self.parts.partitions.get(partition)
        await self.parts.manifest_reads.refresh([log])
        found = bytearray()
        while offset < log.seen.high_watermark:
            run = await self.parts.reader.stored(log, offset, bytes_max=1 << 20)
            assert run.base == offset
            found += run.buffer
            offset = run.last + 1
        return bytes(found)


@contextlib.asynccontextmanager
async def rig(
    *,
    shared: MemoryMetadataStore | None = None,
    objects: MemoryObjectStore | None = None,
    epoch: int = 7,
    live: frozenset[int] = frozenset({7, 8}),
    flush: FlushSettings | None = None,
    walking: Blocking | None = None,
    registered: BrokerEpoch | None = None,
    cache_bytes: int = 1 << 20,
    block_bytes: int = BLOCK_BYTES,
    part_bytes: int = PART_BYTES,
    early: EarlySettings = NO_EARLY,
    level: int = LEVEL_MAX,
    level_now: Callable[[], int] | None = None,
    clock: Clock | None = None,
    former: Former = no_former,
    cache_dir: Path | None = None,
    cache_limits: CacheLimits = DEFAULT_CACHE_LIMITS,
    limits: LogLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Rig]:
    """`registered` is the epoch of a real registration, instead of `epoch` and `live`; `level_now` a level that may rise, instead of
    `level`.
    """
    clock, telemetry = clock or SystemClock(), Telemetry()
    shared = shared or MemoryMetadataStore(clock=clock, shards=1)
    await shared.write([Put(keys.PartitionKeys(PARTITION).manifest, encode(Manifest()), ABSENT)])
    metadata, faulty = FaultyMetadata(shared), FaultyObjects(objects or MemoryObjectStore(clock=clock))

    async def live_epochs() -> frozenset[int]:
        return live

    broker_epoch = registered or BrokerEpoch(epoch, registered_epoch=lambda: epoch, live=live_epochs)
    ids = IdSource(clock=clock)
    async with (
        open_shared_blocks(
            faulty,  # type: ignore[arg-type]
            cache_dir and str(cache_dir),
            bytes_max=1 << 30,
            cluster=lambda: "cluster",
            ids=ids,
            clock=clock,
            telemetry=telemetry,
        ) as shared_blocks,
        Nursery() as nursery,
    ):
        parts = open_log(
            metadata=metadata,  # type: ignore[arg-type]
            objects=faulty,  # type: ignore[arg-type]
            blocks=BlockCache(
                shared_blocks or faulty,  # type: ignore[arg-type]
                bytes_max=cache_bytes,
                block_bytes=block_bytes,
                part_bytes=part_bytes,
                clock=clock,
                telemetry=telemetry,
                on_damaged=shared_blocks.distrust if shared_blocks else None,
                limits=cache_limits,
            ),
            tail_bytes_max=1 << 20,
            flush=flush or FlushSettings(interval_s=0.0, gather_s=0.0),
            early=early,
            level=level_now or (lambda: level),
            epoch=broker_epoch,
            ids=ids,
            clock=clock,
            chance=random.Random(1),
            nursery=nursery,
            telemetry=telemetry,
            walking=walking,
            former=former,
            shared=shared_blocks,
            limits=limits,
        )
        yield Rig(parts, broker_epoch, metadata, faulty, shared, telemetry)


async def until_put(broker: Rig, count: int) -> None:
    async with asyncio.timeout(25):
        while len(broker.objects.put_keys) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_taken(broker: Rig, batch: bytearray) -> Appended | StorageError:
    """The answer to a batch of a producer that has to wait, sent again and again until it is another one."""
    async with asyncio.timeout(25):
        while True:
            (answer,) = await broker.send(bytearray(batch))
            if not isinstance(answer, Unavailable):
                return answer
            await asyncio.sleep(0.01)
