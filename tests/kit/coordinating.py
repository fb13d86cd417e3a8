"""Several brokers' coordinators over one metadata store, each with its own client of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from broker.cluster.ownership import Slots
from broker.groups.coordinator import Coordinator
from broker.groups.group import CommitOffsets
from broker.groups.state import Committed, GroupSettings, Join, JoinAnswer, Protocol, Sync
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.catalog.brokers import BrokerDirectory, Endpoint
from storage.catalog.topics import Topics
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId, TopicId
from tests.kit.faulty_metadata import FaultyMetadata, no_jitter

TOPIC = TopicId("0b6c1a9e-6d5c-4b7e-8a55-000000000001")
FIRST, SECOND = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1)


OpenClient = Callable[[], Awaitable[MetadataStore]]


class WallClock:
    """The wall stands still until it is moved; time passes as the running loop has it."""

    wall_ms = 1_700_000_000_000

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        return self.wall_ms


@dataclass
class Node:
    metadata: FaultyMetadata
    directory: BrokerDirectory
    coordinator: Coordinator
    clock: WallClock
    topics: Topics
    telemetry: Telemetry
    partitions: set[PartitionId]
    """That a test made, or committed offsets of, on any node."""

    async def lose_session(self) -> None:
        session = self.directory.session
        assert session is not None
        await session.close()


@dataclass
class World:
    nursery: Nursery
    client: OpenClient
    settings: GroupSettings
    clock: WallClock
    limits: GroupLimits = DEFAULT_GROUP_LIMITS
    nodes: list[Node] = field(default_factory=list)
    partitions: set[PartitionId] = field(default_factory=set)

    async def node(self, broker_id: int) -> Node:
        metadata = FaultyMetadata(await self.client())  # type: ignore[arg-type]
        clock, telemetry = self.clock, Telemetry()
        ids = IdSource(clock=clock)
        directory = BrokerDirectory(metadata, clock=clock)
        await directory.register(listeners=[Endpoint("PLAINTEXT", "h", broker_id)], rack=None, version="0", broker_id=broker_id)
        coordinator = Coordinator(
            metadata=metadata,
            slots=Slots(metadata, directory),
            clock=clock,
            ids=ids,
            nursery=self.nursery,
            settings=self.settings,
            telemetry=telemetry,
            limits=self.limits,
        )
        self.nursery.spawn(coordinator.run(), name="groups")
        topics = Topics(metadata, clock=clock, ids=ids, entropy=no_jitter)
        self.nodes.append(Node(metadata, directory, coordinator, clock, topics, telemetry, self.partitions))
        return self.nodes[-1]


@contextlib.asynccontextmanager
async def world(
    *, settings: GroupSettings | None = None, client: OpenClient | None = None, limits: GroupLimits = DEFAULT_GROUP_LIMITS
) -> AsyncIterator[World]:
    """Over a store in memory, or that of which `client` opens clients."""
    async with Nursery() as nursery:
        clock = WallClock()
        store = MemoryMetadataStore(clock=clock, shards=4)

        async def in_memory() -> MetadataStore:
            return store.client()

        made = World(nursery, client or in_memory, settings or GroupSettings(initial_delay_s=0), clock, limits)
        yield made
        for node in made.nodes:
            node.topics.close()
            node.directory.close()
            await node.metadata.close()
        await store.close()


def committed(offset: int, metadata: str = "") -> Committed:
    return Committed(offset, -1, metadata, 1)


def simple(offsets: dict[PartitionId, Committed]) -> CommitOffsets:
    """A commit without a member."""
    return CommitOffsets(member_id="", instance_id=None, generation=-1, offsets=offsets)


def join_of(member_id: str = "", new_member_id: str = "m", **fields: object) -> Join:
    event = {
        "token": 0,
        "member_id": member_id,
        "new_member_id": new_member_id,
        "instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_s": 6.0,
        "rebalance_timeout_s": 6.0,
        "protocol_type": "consumer",
        "protocols": (Protocol("range", b"meta"),),
        "knows_member_ids": False,
        "knows_skip_assignment": False,
    }
    return Join(**(event | fields))  # type: ignore[arg-type]


async def stable(node: Node, group: str, **fields: object) -> JoinAnswer:
    """A group of one member, with its assignment."""
    joined = await node.coordinator.join(group, join_of(**fields))  # type: ignore[arg-type]
    sync = Sync(
        token=0,
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        protocol_type=None,
        protocol=None,
        assignments=((joined.member_id, b"all"),),
    )
    synced = await node.coordinator.sync(group, sync)
    assert synced.assignment == b"all"
    return joined


def of_member(joined: JoinAnswer, offsets: dict[PartitionId, Committed]) -> CommitOffsets:
    return CommitOffsets(member_id=joined.member_id, instance_id=None, generation=joined.generation, offsets=offsets)
