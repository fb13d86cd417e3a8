"""What a broker says that coordinates nothing, or cannot now. Brokers of this process, whose metadata a case lets fail."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest
from kio.schema.errors import ErrorCode

from broker.cluster.leadership import slot_of
from storage.metadata.memory import MemoryMetadataStore
from tests.kit.clustering import running_cluster
from tests.kit.faulty_metadata import FaultyMetadata
from tests.kit.raw_client import API_VERSIONS, RawClient, header
from tests.kit.seen_errors import Scene, Seen, aiokafka_client, of_aiokafka, of_frame

GROUP = "g"
_GROUP_KEY = 0
NEIGHBOUR = next(name for name in map(str, range(10_000)) if slot_of(name) == slot_of(GROUP))


async def heartbeat_at_another_broker(_: Scene) -> Seen:
    async with running_cluster() as cluster:
        await cluster.join()
        await cluster.join()
        async with aiokafka_client(cluster.bootstrap) as client:
            await client.force_metadata_update()
            found = await client.send(cluster.members[0].broker_id, FindCoordinatorRequest(GROUP, _GROUP_KEY))
            (other,) = {member.broker_id for member in cluster.members} - {found.coordinator_id}
            told = await client.send(other, HeartbeatRequest(GROUP, 1, "nobody"))
            return of_aiokafka(told.error_code)


async def coordinator_while_the_metadata_is_away(_: Scene) -> Seen:
    async with _of_one() as (client, metadata, node_id):
        metadata.reads_fail = True
        told = await client.send(node_id, FindCoordinatorRequest(GROUP, _GROUP_KEY))
        metadata.reads_fail = False
        return of_aiokafka(told.error_code, told.error_message)


async def group_that_cannot_be_loaded_now(_: Scene) -> Seen:
    async with _of_one() as (client, metadata, node_id):
        loaded = await client.send(node_id, HeartbeatRequest(GROUP, 1, "nobody"))
        assert loaded.error_code == ErrorCode.unknown_member_id
        metadata.reads_fail = True
        told = await client.send(node_id, JoinGroupRequest(NEIGHBOUR, 30_000, 30_000, "", None, "consumer", [("range", b"")]))
        metadata.reads_fail = False
        return of_aiokafka(told.error_code)


async def version_of_the_far_future(scene: Scene) -> Seen:
    """Answered in the format of v0, which every client reads."""
    with RawClient(scene.served.kafka_port) as client:
        client.send(header(API_VERSIONS, 99))
        return of_frame(client.answer(API_VERSIONS, 0).error_code)


@contextlib.asynccontextmanager
async def _of_one() -> AsyncIterator[tuple[Any, FaultyMetadata, int]]:
    wrapped: list[FaultyMetadata] = []

    def wrap(store: MemoryMetadataStore) -> FaultyMetadata:
        wrapped.append(FaultyMetadata(store))
        return wrapped[-1]

    async with running_cluster() as cluster:
        member = await cluster.join(wrap=wrap)
        async with aiokafka_client(cluster.bootstrap) as client:
            await client.force_metadata_update()
            yield client, wrapped[0], member.broker_id
