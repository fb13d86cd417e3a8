import asyncio
import datetime
import uuid
from typing import Any

import msgspec
import pytest
from kio.index import load_request_schema
from kio.schema.delete_topics import v6
from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.errors import ErrorCode

from broker.handlers.topics import delete_topics
from storage.catalog.records import encode
from storage.catalog.topics import TopicState
from storage.metadata import keys
from storage.metadata.port import Put
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import Cluster, as_uuid, cluster, error_of
from tests.unit.storage.catalog.deposed import DeposedMetadata

UNKNOWN = uuid.UUID(int=77)


async def ask(broker: Cluster, *asked: tuple[str | None, uuid.UUID | None], timeout_ms: int = 30_000) -> list[tuple[Any, Any, ErrorCode]]:
    topics: Any = tuple(DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in asked)
    request: Any = v6.DeleteTopicsRequest(topics=topics, timeout=datetime.timedelta(milliseconds=timeout_ms))
    answer = await broker.ask(delete_topics.handle, request)
    return [(found.name, found.topic_id, error_of(found)) for found in answer.responses]


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        request = load_request_schema(20, version)(topic_names=("t", "nothing"), timeout=datetime.timedelta(seconds=1))
        answer = await broker.ask(delete_topics.handle, request)

        assert [(found.name, error_of(found)) for found in answer.responses] == [
            ("t", ErrorCode.none),
            ("nothing", ErrorCode.unknown_topic_or_partition),
        ]
        assert await broker.topics.all() == []


async def test_topics_are_deleted_by_name_and_by_id() -> None:
    async with cluster() as broker:
        first, second = await broker.create("first"), await broker.create("second")

        assert await ask(broker, ("first", None), (None, as_uuid(second)), ("nothing", None), (None, UNKNOWN)) == [
            ("first", as_uuid(first), ErrorCode.none),
            ("second", as_uuid(second), ErrorCode.none),
            ("nothing", None, ErrorCode.unknown_topic_or_partition),
            (None, UNKNOWN, ErrorCode.unknown_topic_id),
        ]
        assert await broker.topics.all() == []


async def test_requests_that_name_a_topic_wrongly_delete_nothing() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        other = await broker.create("u")
        invalid = ErrorCode.invalid_request

        assert await ask(broker, ("t", as_uuid(topic)), (None, None)) == [("t", as_uuid(topic), invalid), (None, None, invalid)]
        assert await ask(broker, ("t", None), ("t", None)) == [("t", None, invalid)]
        assert await ask(broker, (None, as_uuid(topic)), (None, as_uuid(topic))) == [(None, as_uuid(topic), invalid)]
        both = await ask(broker, ("t", None), (None, as_uuid(topic)), ("u", None))
        assert both == [("t", as_uuid(topic), invalid), ("t", as_uuid(topic), invalid), ("u", as_uuid(other), ErrorCode.none)]
        assert [left.name for left in await broker.topics.all()] == ["t"]


async def test_a_topic_recreated_elsewhere_is_deleted_by_its_name_but_not_by_its_old_id() -> None:
    async with cluster() as broker:
        old = await broker.create("t")
        broker.topics.close()
        elsewhere = await broker.other_topics()
        await elsewhere.delete(old)
        new = await elsewhere.create("t", partition_count=1, replication_factor=1, configs={})

        assert await ask(broker, (None, as_uuid(old))) == [(None, as_uuid(old), ErrorCode.unknown_topic_id)]
        assert await ask(broker, ("t", None)) == [("t", as_uuid(new), ErrorCode.none)]


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault.REFUSED, ErrorCode.kafka_storage_error), (Fault.REQUEST_LOST, ErrorCode.request_timed_out)]
)
async def test_a_store_that_fails_is_retriable(fault: Fault, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.all_faults = fault

        assert [answer[2] for answer in await ask(broker, ("t", None))] == [code]


async def test_a_store_that_cannot_be_read_is_retriable() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True

        assert [answer[2] for answer in await ask(broker, ("t", None), (None, UNKNOWN))] == [ErrorCode.kafka_storage_error] * 2


async def test_what_is_not_done_in_time_is_timed_out_and_finished_by_the_next_who_looks() -> None:
    async with cluster() as broker:
        await broker.create("t")
        never = asyncio.Event()
        marked = len(broker.metadata.writes) + 1

        async def hang_after_the_mark(_: object) -> None:
            if len(broker.metadata.writes) > marked:
                await never.wait()

        broker.metadata.before_write = hang_after_the_mark
        answers = await ask(broker, ("t", None), timeout_ms=20)
        broker.metadata.before_write = None

        assert answers == [("t", None, ErrorCode.request_timed_out)]
        assert await ask(broker, ("t", None)) == [("t", None, ErrorCode.unknown_topic_or_partition)]
        assert await broker.metadata.list(*keys.topics()) == []


@pytest.mark.parametrize("is_elected", [False, True])
async def test_a_topic_that_a_deposed_leader_has_not_heard_of_is_not_said_to_be_gone(is_elected: bool) -> None:
    metadata = DeposedMetadata()
    async with cluster(metadata=metadata) as broker:
        metadata.depose()
        await (await broker.other_topics()).create("t", partition_count=1, replication_factor=1, configs={})
        looks = 0

        async def elect_after_a_look(_: object) -> None:
            nonlocal looks
            looks += 1
            if is_elected and looks == 2:
                metadata.elect()

        metadata.before_write = elect_after_a_look
        ((_, _, error),) = await ask(broker, ("t", None))
        metadata.before_write = None
        metadata.elect()

        assert error is (ErrorCode.none if is_elected else ErrorCode.kafka_storage_error)
        assert bool(await broker.topics.lookup_now(["t"])) is not is_elected


async def test_a_name_that_is_only_reserved_is_no_topic_to_delete() -> None:
    async with cluster() as broker:
        made = await broker.create("t")
        await broker.topics.delete(made)
        creating = msgspec.structs.replace(made, state=TopicState.CREATING)
        await broker.metadata.write([Put(keys.topic("t"), encode(creating), None)])

        assert [error for _, _, error in await ask(broker, ("t", None))] == [ErrorCode.unknown_topic_or_partition]
