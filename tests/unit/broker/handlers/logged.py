"""Produce and Fetch over a real log, in memory, whose stores fail when a test says so. Several nodes may share the stores."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.delayed_fetch import Waiters
from broker.handlers.log.fetch import Fetch
from broker.handlers.log.produce import NOTHING_UNREAD, Produce
from broker.handling.validation import Recompression
from broker.limits import DEFAULT_BROKER_LIMITS, DEFAULT_FETCH_LIMITS, BrokerLimits, FetchLimits
from broker.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest
from runtime.blocking import Blocking, InlineBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.catalog.limits import DEFAULT_LIMITS as DEFAULT_CATALOG_LIMITS
from storage.catalog.limits import CatalogLimits
from storage.catalog.topics import Topic, Topics
from storage.log.flush import FlushSettings
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import OnChange
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header
from tests.kit.faulty_metadata import no_jitter
from tests.kit.record_batches import NOW_MS
from tests.unit.storage.log.rig import Rig, rig

Named = tuple[str, int, bytes | bytearray | None]


@dataclass
class Stores:
    """What the nodes of one cluster share."""

    metadata: MemoryMetadataStore = field(default_factory=lambda: MemoryMetadataStore(clock=SystemClock(), shards=1))
    objects: MemoryObjectStore = field(default_factory=lambda: MemoryObjectStore(clock=SystemClock()))


class RecordTimes:
    """The wall's time is set by hand. Time that passes is the system's, as in the log below: two that differ would make what was lost
    just now look old, or not, by how long the machine has been up."""

    def __init__(self) -> None:
        self._now_ms = NOW_MS
        self.monotonic_s = SystemClock().monotonic_s

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)


@dataclass(eq=False)
class Node:
    """`clock` only decides what time records get: time passes for it as it does for the log."""

    log: Rig
    topics: Topics
    waiters: Waiters
    produce: Produce
    fetch: Fetch
    clock: RecordTimes
    make_fetch: Callable[[FetchLimits], Fetch]
    """Another handler of fetches over the same parts, with other limits."""

    async def create(self, name: str, *, partition_count: int = 1, **configs: str) -> Topic:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return await self.topics.create(name, partition_count=partition_count, replication_factor=1, configs=named)

    async def send(self, *named: Named, acks: int = -1, version: int = 9, source: object = None) -> list[PartitionResult]:
        """One Produce request, looked up if it has to be."""
        request = produce_request(*named, acks=acks)
        topics, unread = self.produce.find_topics(request), NOTHING_UNREAD
        if topics is None:
            highest: dict[str, int] = {}
            for topic, partition, _ in request.partitions:
                highest[topic] = max(partition, highest.get(topic, partition))
            topics, unread = await self.produce.lookup_topics(highest)
        done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()
        self.produce.start(request, topics, version=version, source=source or self, done=done.set_result, unread=unread)
        return await done

    async def read(self, *asked: FetchPartition, version: int = 12, **options: Any) -> FetchResponse:
        return await self.fetch.handle(fetch_request(*asked, **options), version=version)

    async def read_one(self, asked: FetchPartition, *, version: int = 12, **options: Any) -> FetchedPartition:
        response = await self.read(asked, version=version, **options)
        (answer,) = response.partitions
        return answer

    def log_of(self, topic: Topic, partition: int = 0) -> Any:
        return self.log.parts.partitions.get(topic.partition(partition))


def produce_request(*named: Named, acks: int = -1) -> ProduceRequest:
    partitions = [
        PartitionRecords(topic, partition, None if records is None else memoryview(bytearray(records)))
        for topic, partition, records in named
    ]
    return ProduceRequest(None, acks, 30_000, partitions)


def asking(topic: str, partition: int = 0, offset: int = 0, *, max_bytes: int = 1 << 20, leader_epoch: int = -1) -> FetchPartition:
    return FetchPartition(topic, partition, leader_epoch, offset, max_bytes, -1, -1)


def fetch_request(
    *asked: FetchPartition,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 30,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    rack: str = "",
) -> FetchRequest:
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, rack, list(asked), [])


def batches_of(answer: FetchedPartition) -> list[bytes]:
    """The whole batches of an answer; nothing may be left over."""
    data = b"".join(bytes(view) for view in answer.records)
    found = []
    while data:
        size = parse_header(data).size_bytes
        assert size <= len(data), "part of a batch"
        found.append(data[:size])
        data = data[size:]
    return found


def offsets_of(answer: FetchedPartition) -> list[int]:
    """The offset of every record of an answer."""
    headers = [parse_header(batch) for batch in batches_of(answer)]
    return [header.base_offset + delta for header in headers for delta in range(header.record_count)]


class Deaf:
    """A metadata store whose hints get lost."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Any:
        return self._inner.subscribe(lambda _path, _version: None, prefix=prefix)


@contextlib.asynccontextmanager
async def node(
    stores: Stores | None = None,
    *,
    epoch: int = 7,
    is_deaf: bool = False,
    flush: FlushSettings | None = None,
    replicas: Any = None,
    blocking: Blocking | None = None,
    reads_records: bool = False,
    request_limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
    fetch_limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    recompression_clock: Clock | None = None,
    catalog_limits: CatalogLimits = DEFAULT_CATALOG_LIMITS,
    log_limits: LogLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Node]:
    """`is_deaf`: no hint about other brokers' commits arrives."""
    stores = stores or Stores()
    clock = RecordTimes()
    async with (
        rig(shared=stores.metadata, objects=stores.objects, epoch=epoch, flush=flush, limits=log_limits) as log,
        Nursery() as nursery,
    ):
        metadata: Any = Deaf(log.metadata) if is_deaf else log.metadata
        parts = log.parts
        topics = Topics(metadata, clock=SystemClock(), ids=IdSource(clock=clock), entropy=no_jitter, limits=catalog_limits)
        waiters = Waiters(
            metadata=metadata, partitions=parts.partitions, manifest_reads=parts.manifest_reads, clock=SystemClock(), limits=fetch_limits
        )
        nursery.spawn(waiters.run(), name="waiters")
        recompression = Recompression(
            blocking=blocking or InlineBlocking(),
            nursery=nursery,
            clock=recompression_clock or SystemClock(),
            telemetry=Telemetry(),
            limits=request_limits,
        )

        def make_fetch(limits: FetchLimits) -> Fetch:
            return Fetch(
                topics=topics,
                partitions=parts.partitions,
                manifest_reads=parts.manifest_reads,
                reader=parts.reader,
                waiters=waiters,
                clock=SystemClock(),
                replicas=replicas,
                limits=limits,
            )

        yield Node(
            log=log,
            topics=topics,
            waiters=waiters,
            produce=Produce(
                topics=topics,
                partitions=parts.partitions,
                appender=parts.appender,
                recompression=recompression,
                clock=clock,
                reads_records=reads_records,
                limits=request_limits,
            ),
            fetch=make_fetch(fetch_limits),
            clock=clock,
            make_fetch=make_fetch,
        )
        topics.close()


@contextlib.asynccontextmanager
async def nodes(count: int, **options: Any) -> AsyncIterator[Sequence[Node]]:
    """Brokers of one cluster."""
    stores = Stores()
    async with contextlib.AsyncExitStack() as closing:
        yield [await closing.enter_async_context(node(stores, epoch=7 + number, **options)) for number in range(count)]
