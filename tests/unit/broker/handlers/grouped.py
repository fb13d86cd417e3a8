"""Requests of group members as clients send them, in any version."""

import asyncio
import datetime
from typing import Any

from kio.index import load_request_schema

from broker.handlers.groups import join_group, offset_commit, offset_fetch, sync_group
from tests.unit.broker.handlers.asking import Cluster, error_of

GROUP = "g"


def request_of(api_key: int, version: int, /, **fields: Any) -> Any:
    """The request of that version; fields that it does not have are left out."""
    schema = load_request_schema(api_key, version)
    return schema(**{name: value for name, value in fields.items() if name in schema.__dataclass_fields__})


def nested(api_key: int, version: int, structure: str, /, **fields: Any) -> Any:
    """As `request_of`, a structure inside of it."""
    module = __import__(load_request_schema(api_key, version).__module__, fromlist=["_"])
    schema = getattr(module, structure)
    return schema(**{field: value for field, value in fields.items() if field in schema.__dataclass_fields__})


async def join(broker: Cluster, version: int = 9, *, member_id: str = "", group: str = GROUP, **fields: Any) -> Any:
    protocols = tuple(nested(11, version, "JoinGroupRequestProtocol", name=name, metadata=b"m") for name in ("range", "sticky"))
    session = datetime.timedelta(milliseconds=fields.pop("session_timeout_ms", 10_000))
    rebalance = datetime.timedelta(seconds=20)
    values = {"protocol_type": "consumer", "protocols": protocols, "session_timeout": session, "rebalance_timeout": rebalance}
    return await broker.ask(join_group.handle, request_of(11, version, group_id=group, member_id=member_id, **(values | fields)))


async def sync(broker: Cluster, version: int, joined: Any, assignments: dict[str, bytes], *, generation: int | None = None) -> Any:
    given = tuple(
        nested(14, version, "SyncGroupRequestAssignment", member_id=member, assignment=data) for member, data in assignments.items()
    )
    number = joined.generation_id if generation is None else generation
    named = {"protocol_type": "consumer", "protocol_name": joined.protocol_name}
    request = request_of(14, version, group_id=GROUP, member_id=joined.member_id, generation_id=number, assignments=given, **named)
    return await broker.ask(sync_group.handle, request)


async def member(broker: Cluster) -> Any:
    """A stable group of one; the answer of its join."""
    joined = await join(broker, 3)
    async with asyncio.timeout(25):
        await sync(broker, 5, joined, {joined.member_id: b"all"})
    return joined


async def commit(
    broker: Cluster,
    version: int,
    offsets: dict[int, int],
    *,
    topic: str = "t",
    group: str = GROUP,
    member_id: str = "",
    generation: int = -1,
    metadata: str | None = "",
    **fields: Any,
) -> dict[int, Any]:
    """The error of each partition."""
    partitions = tuple(
        nested(
            8,
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=0,
            committed_metadata=metadata,
        )
        for partition, offset in offsets.items()
    )
    topics = (nested(8, version, "OffsetCommitRequestTopic", name=topic, partitions=partitions),)
    values = {"group_id": group, "member_id": member_id, "generation_id_or_member_epoch": generation, "topics": topics}
    answer = await broker.ask(offset_commit.handle, request_of(8, version, **(values | fields)))
    return {partition.partition_index: error_of(partition) for partition in answer.topics[0].partitions}


async def fetched(broker: Cluster, version: int, asked: dict[str, tuple[int, ...]] | None, *, group: str = GROUP) -> Any:
    """(topic, partition) → (offset, metadata, error), or the error of the group."""
    name = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    topics = (
        None
        if asked is None
        else tuple(nested(9, version, name, name=topic, partition_indexes=partitions) for topic, partitions in asked.items())
    )
    if version >= 8:
        groups = (nested(9, version, "OffsetFetchRequestGroup", group_id=group, topics=topics),)
        answer = (await broker.ask(offset_fetch.handle, request_of(9, version, groups=groups))).groups[0]
    else:
        answer = await broker.ask(offset_fetch.handle, request_of(9, version, group_id=group, topics=topics))
    if getattr(answer, "error_code", 0):
        return error_of(answer)
    return {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.metadata, int(partition.error_code))
        for topic in answer.topics
        for partition in topic.partitions
    }
