"""Handlers asked as clients ask them: kio's request of some version, through our codec, to kio's response of that version."""

import asyncio
import io
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from broker.cluster.leadership import Leadership, SelfLeadership
from broker.cluster.ownership import Slots
from broker.cluster.roles import OwnRoles
from broker.groups.coordinator import Coordinator
from broker.groups.state import GroupSettings
from broker.handling.administration import Administration
from broker.handling.context import BrokerParts, Context, TopicDefaults
from broker.limits import DEFAULT_BROKER_LIMITS, DEFAULT_GROUP_LIMITS, BrokerLimits, GroupLimits
from broker.protocol import codec
from broker.protocol.wire import Request
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Endpoint, Role
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.identity import open_cluster
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topic, Topics
from storage.errors import NotFound, StorageError
from storage.formats.manifest import LogState, decode_manifest
from storage.log.fresh_reads import LogBounds
from storage.log.page_store import ActiveProducer
from storage.log.time_search import TimestampedOffset
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.vocabulary import PartitionId
from tests.kit.faulty_metadata import FaultyMetadata, ManualClock, no_jitter

LISTENER = "PLAINTEXT"
INTERNAL = "INTERNAL"
CLIENT_ID = "client"
AT_ONCE = GroupSettings(initial_delay_s=0)


@dataclass
class FakeBounds:
    """Bounds that a test sets; other partitions are empty, if their manifest is open."""

    metadata: FaultyMetadata
    known: dict[PartitionId, LogBounds | StorageError] = field(default_factory=dict)
    calls: list[Sequence[PartitionId]] = field(default_factory=list)

    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        self.calls.append(partitions)
        return [self.known.get(partition) or await self._read(partition) for partition in partitions]

    async def _read(self, partition: PartitionId) -> LogBounds | StorageError:
        (record,) = await self.metadata.get_many([PartitionKeys(partition).manifest])
        if record is None or decode_manifest(record.value, path=record.path).log_state is LogState.DELETED:
            return NotFound(f"no such partition: {partition}")
        return LogBounds(log_start=0, high_watermark=0, bytes_total=0)


@dataclass
class FakeTimestamps:
    """`found` answers every search for a time, but of the partition `stuck`; `maximum` every search for the greatest."""

    found: TimestampedOffset | StorageError | None = None
    maximum: TimestampedOffset | StorageError | None = None
    stuck: PartitionId | None = None
    searches: list[tuple[PartitionId, int]] = field(default_factory=list)

    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        self.searches.append((partition, timestamp_ms))
        if partition == self.stuck:
            await asyncio.Event().wait()
        return _raised(self.found)

    async def of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        return _raised(self.maximum)


@dataclass
class FakeTrimmer:
    """Answers what a test set for the partition; others are trimmed to the offset asked for."""

    known: dict[PartitionId, int | StorageError] = field(default_factory=dict)
    calls: list[tuple[PartitionId, int]] = field(default_factory=list)

    async def trim(self, partition: PartitionId, before: int) -> int:
        self.calls.append((partition, before))
        answer = self.known.get(partition, before)
        if isinstance(answer, StorageError):
            raise answer
        return answer


@dataclass
class FakeProducers:
    """The producers that a test set for a partition; others have none."""

    known: dict[PartitionId, list[ActiveProducer] | StorageError] = field(default_factory=dict)
    expiration_ms: int = 86_400_000

    async def of(self, partition: PartitionId) -> list[ActiveProducer]:
        answer = self.known.get(partition, [])
        if isinstance(answer, StorageError):
            raise answer
        return answer


def _raised(answer: TimestampedOffset | StorageError | None) -> TimestampedOffset | None:
    if isinstance(answer, StorageError):
        raise answer
    return answer


@dataclass
class Cluster:
    """One broker's context, and what stands behind it."""

    metadata: FaultyMetadata
    clock: ManualClock
    context: Context
    bounds: FakeBounds
    timestamps: FakeTimestamps
    trimmer: FakeTrimmer
    producers: FakeProducers
    audited: list[Mapping[str, object]]
    """The lines of the audit log."""

    @property
    def topics(self) -> Topics:
        return self.context.parts.topics

    async def create(self, name: str, *, partition_count: int = 1, replication_factor: int = 1, **configs: str) -> Topic:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return await self.topics.create(name, partition_count=partition_count, replication_factor=replication_factor, configs=named)

    async def other_topics(self) -> Topics:
        """Those of another broker, with a cache of its own."""
        return Topics(self.metadata, clock=self.clock, ids=IdSource(clock=self.clock), entropy=no_jitter)

    async def join(self, broker_id: int, *, rack: str | None = None, listener: str = LISTENER) -> None:
        """One more live broker."""
        directory = BrokerDirectory(self.metadata, clock=self.clock)
        endpoint = Endpoint(listener, f"broker-{broker_id}", 9000 + broker_id)
        await directory.register(listeners=[endpoint], rack=rack, version="0", broker_id=broker_id)

    async def lose_registration(self) -> None:
        session = self.context.parts.brokers._session
        assert session is not None
        await session.close()
        await asyncio.sleep(0)

    async def ask(
        self, handle: Callable[..., Awaitable[object]], request: object, *, listener: str = LISTENER, client_id: str = CLIENT_ID
    ) -> Any:
        """What the client would read."""
        context = Context(self.context.parts, listener, self.context.client_host)
        return answered(request, await handle(context, sent(request, client_id=client_id)))


@asynccontextmanager
async def cluster(
    *,
    broker_id: int = 1,
    auto_create: bool = True,
    partition_count: int = 1,
    leadership: Leadership | None = None,
    shards: int = 1,
    metadata: FaultyMetadata | None = None,
    roles: Collection[Role] = ALL_ROLES,
    limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
    group_limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    group_settings: GroupSettings = AT_ONCE,
) -> AsyncIterator[Cluster]:
    metadata = metadata or FaultyMetadata(MemoryMetadataStore(clock=SystemClock(), shards=shards))
    clock = ManualClock()
    if ALL_ROLES.difference(roles):
        await open_cluster(metadata, IdSource(clock=clock), clock)
    brokers = BrokerDirectory(metadata, clock=clock)
    listeners = [Endpoint(LISTENER, f"broker-{broker_id}", 9000 + broker_id), Endpoint(INTERNAL, "internal", 7)]
    await brokers.register(listeners=listeners, rack="zone-a", version="0", broker_id=broker_id, roles=roles)
    bounds, timestamps = FakeBounds(metadata), FakeTimestamps()
    trimmer, producers = FakeTrimmer(), FakeProducers()
    audited: list[Mapping[str, object]] = []
    async with Nursery() as nursery:
        groups = Coordinator(
            metadata=metadata,
            slots=Slots(metadata, brokers),
            clock=clock,
            ids=IdSource(clock=clock),
            nursery=nursery,
            settings=group_settings,
            limits=group_limits,
        )
        nursery.spawn(groups.run(), name="groups")
        topics = Topics(metadata, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter)
        parts = BrokerParts(
            cluster_id="cluster-of-this-test-00",
            clock=clock,
            topics=topics,
            confirmed_topics=ConfirmedTopics(metadata, topics, clock=clock, nursery=nursery),
            brokers=brokers,
            leadership=leadership or SelfLeadership(),
            producer_ids=ProducerIds(metadata, entropy=no_jitter),
            bounds=bounds,
            timestamps=timestamps,
            trimmer=trimmer,
            active_producers=producers,
            topic_defaults=TopicDefaults(auto_create=auto_create, partition_count=partition_count),
            groups=groups,
            administration=Administration(audited.append),
            roles=OwnRoles(roles, brokers=brokers, telemetry=Telemetry()),
            limits=limits,
        )
        yield Cluster(metadata, clock, Context(parts, LISTENER, "127.0.0.1"), bounds, timestamps, trimmer, producers, audited)
    await metadata.close()


def sent(request: object, *, client_id: str = CLIENT_ID) -> Request[Any]:
    """`request`, which is kio's, as our codec hands it to a handler."""
    cls = cast("Any", type(request))
    buffer = io.BytesIO()
    entity_writer(cls)(buffer, request)
    body = codec.decode_request(cls.__api_key__, cls.__version__, memoryview(buffer.getvalue()), 0)
    return Request(cls.__api_key__, cls.__version__, 7, client_id, body)


def answered(request: object, response: object) -> Any:
    """`response` as a client that sent `request` decodes it."""
    cls = cast("Any", type(request))
    frame = b"".join(bytes(part) for part in codec.encode_response(cls.__api_key__, cls.__version__, 7, response))
    schema = load_response_schema(cls.__api_key__, cls.__version__)
    header_bytes = 5 if schema.__header_schema__.__flexible__ else 4
    entity, size = entity_reader(schema)(frame, header_bytes)
    assert header_bytes + size == len(frame)
    return entity


def error_of(answer: Any) -> ErrorCode:
    return ErrorCode(answer.error_code)


def as_uuid(topic: Topic) -> uuid.UUID:
    return uuid.UUID(topic.topic_id)
