"""The shard of the catalog is silent, and every topic was looked up too long ago: what real handlers answer."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.topics import metadata
from broker.handling.kio_types import as_uuid
from broker.handling.topics import Located, TopicPartition, read_bounds
from broker.limits import DEFAULT_BROKER_LIMITS, DEFAULT_FETCH_LIMITS, BrokerLimits, FetchLimits
from broker.protocol.produce import PartitionResult
from storage.catalog.limits import DEFAULT_LIMITS as DEFAULT_CATALOG_LIMITS
from storage.catalog.limits import CatalogLimits
from storage.catalog.topics import Topic
from storage.errors import Unavailable
from storage.metadata import keys
from storage.metadata.port import Key
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import nested, request_of
from tests.unit.broker.handlers.logged import Node, Stores, asking, node, offsets_of

SOON_S = 25.0
UNKNOWN = uuid.UUID(int=7)
FORGETFUL = CatalogLimits(topics_cache_age_s=0.0, topics_timeout_s=0.05, topics_stale_timeout_s=0.05, topics_silent_timeout_s=0.05)
"""A topic is too old in the cache at once, and nobody waits for long."""


@dataclass
class Scene:
    """`broker` has looked up `known`, of one partition; `other` hears and reads everything."""

    broker: Node
    other: Node
    known: Topic
    is_silent: bool = False

    async def send(self, *named: tuple[str, int, Any]) -> list[PartitionResult]:
        async with asyncio.timeout(SOON_S):
            return await self.broker.send(*named)

    async def codes(self, *asked: Any, version: int = 12) -> list[ErrorCode]:
        async with asyncio.timeout(SOON_S):
            response = await self.broker.read(*asked, version=version)
        return [ErrorCode(answer.error_code) for answer in response.partitions]


@contextlib.asynccontextmanager
async def scene(
    monkeypatch: pytest.MonkeyPatch,
    *,
    request_limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
    fetch_limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    catalog_limits: CatalogLimits = FORGETFUL,
) -> AsyncIterator[Scene]:
    stores = Stores()
    async with (
        node(stores, is_deaf=True, request_limits=request_limits, fetch_limits=fetch_limits, catalog_limits=catalog_limits) as broker,
        node(stores, epoch=8, catalog_limits=catalog_limits) as other,
    ):
        made = Scene(broker, other, await other.create("t"))
        await broker.topics.lookup(["t"])
        get_many = broker.log.metadata.get_many

        async def silent(wanted: Sequence[Key]) -> Any:
            if made.is_silent and any(key.partition_key == keys.ROOT for key in wanted):
                await asyncio.Event().wait()
            return await get_many(wanted)

        monkeypatch.setattr(broker.log.metadata, "get_many", silent)
        yield made


def codes(results: list[PartitionResult]) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in results]


async def test_a_known_topic_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as made:
        made.is_silent = True
        assert codes(await made.send(("t", 0, record_batch(b"a")))) == [ErrorCode.none]
        async with asyncio.timeout(SOON_S):
            by_name = await made.broker.read_one(asking("t"))
            by_id = await made.broker.read_one(asking(made.known.topic_id), version=13)

        assert offsets_of(by_name) == offsets_of(by_id) == [0]


async def test_an_append_for_a_topic_that_is_gone_is_refused_though_its_name_is_another_topic_s(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as made:
        await made.send(("t", 0, record_batch(b"a")))
        await made.other.topics.delete(made.known)
        new = await made.other.create("t")
        made.is_silent = True
        (first,) = await made.send(("t", 0, record_batch(b"b")))

        assert ErrorCode(first.error_code) is ErrorCode.unknown_topic_or_partition
        assert codes(await made.send(("t", 0, record_batch(b"c")))) == [ErrorCode.kafka_storage_error]
        made.is_silent = False
        (after,) = await made.send(("t", 0, record_batch(b"d")))
        assert (after.error_code, after.base_offset) == (0, 0)
        assert (await made.broker.topics.lookup(["t"]))["t"] == new
        assert offsets_of(await made.other.read_one(asking("t"))) == [0]


async def test_a_topic_that_is_gone_takes_no_other_topic_of_its_request_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as made:
        await made.other.create("beside")
        await made.broker.topics.lookup(["beside"])
        await made.other.topics.delete(made.known)
        made.is_silent = True
        both = await made.send(("t", 0, record_batch(b"a")), ("beside", 0, record_batch(b"b")))
        again = await made.send(("beside", 0, record_batch(b"c")))

        assert codes(both + again) == [ErrorCode.unknown_topic_or_partition, ErrorCode.none, ErrorCode.none]


async def test_a_client_that_names_a_partition_that_is_not_there_takes_the_topic_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was added meanwhile cannot be told: the answer is one that clients repeat."""
    parts: Any
    async with scene(monkeypatch, fetch_limits=FetchLimits(refresh_timeout_s=0.05, topics_timeout_s=0.05)) as made:
        lookup_now = made.broker.topics.lookup_now

        async def within_its_deadline(names: Any) -> Any:
            try:
                async with asyncio.timeout(0.05):
                    return await lookup_now(names)
            except TimeoutError:
                raise Unavailable("no answer") from None

        monkeypatch.setattr(made.broker.topics, "lookup_now", within_its_deadline)
        parts = type("BrokerParts", (), {"topics": made.broker.topics, "bounds": made.broker.log.parts.manifest_reads})
        made.is_silent = True
        for _ in range(2):
            produced = codes(await made.send(("t", 99, record_batch(b"a")), ("t", 0, record_batch(b"b"))))
            fetched = await made.codes(asking("t", 99), asking("t"))
            by_id = await made.codes(asking(made.known.topic_id, 99), version=13)
            located = await read_bounds(parts, [TopicPartition("t", 99), TopicPartition("t", 0)])
            answers = list(located.values())

            assert produced == fetched == [ErrorCode.kafka_storage_error, ErrorCode.none]
            assert by_id == [ErrorCode.kafka_storage_error]
            assert answers[0] is ErrorCode.kafka_storage_error
            assert isinstance(answers[1], Located)
        assert codes(await made.send(("t", 0, record_batch(b"a")))) == [ErrorCode.none]


async def test_an_append_beside_one_for_a_partition_that_is_not_there_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    request_limits, catalog_limits = BrokerLimits(produce_topics_timeout_s=0.05), replace(FORGETFUL, topics_cache_age_s=1_000.0)
    async with scene(monkeypatch, request_limits=request_limits, catalog_limits=catalog_limits) as made:
        made.is_silent = True
        results = await made.send(("t", 0, record_batch(b"a")), ("t", 1, record_batch(b"b")))

        assert codes(results) == [ErrorCode.none, ErrorCode.kafka_storage_error]


async def test_a_topic_that_nobody_has_is_unknown_though_nobody_can_tell_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, catalog_limits=replace(FORGETFUL, topics_cache_age_s=1_000.0)) as made:

        async def away(names: Any) -> Any:
            raise Unavailable("no answer")

        monkeypatch.setattr(made.broker.topics, "lookup_now", away)
        results = await made.send(("nobody", 0, record_batch(b"a")), ("t", 0, record_batch(b"b")), ("t", 1, record_batch(b"c")))

        assert codes(results) == [ErrorCode.unknown_topic_or_partition, ErrorCode.none, ErrorCode.kafka_storage_error]


async def test_a_partition_that_was_added_is_found_when_the_catalog_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, catalog_limits=replace(FORGETFUL, topics_cache_age_s=1_000.0)) as made:
        await made.other.topics.add_partitions(made.known, 2)

        assert codes(await made.send(("t", 1, record_batch(b"a")))) == [ErrorCode.none]
        await made.other.topics.add_partitions(made.known, 3)
        assert await made.codes(asking("t", 2), asking("t", 3)) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        await made.other.topics.add_partitions(made.known, 4)
        assert await made.codes(asking(made.known.topic_id, 3), asking(made.known.topic_id, 4), version=13) == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]


async def test_an_unknown_topic_is_refused_beside_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as made:
        made.is_silent = True

        produced = await made.send(("u", 0, record_batch(b"a")), ("t", 0, record_batch(b"b")))
        assert codes(produced) == [ErrorCode.kafka_storage_error, ErrorCode.none]
        assert await made.codes(asking("u"), asking("t")) == [ErrorCode.kafka_storage_error, ErrorCode.none]
        parts: Any = type("BrokerParts", (), {"topics": made.broker.topics, "bounds": made.broker.log.parts.manifest_reads})
        unknown, known = (await read_bounds(parts, [TopicPartition("u", 0), TopicPartition("t", 0)])).values()
        assert unknown is ErrorCode.kafka_storage_error
        assert isinstance(known, Located)


@pytest.mark.parametrize("by_id", [False, True])
async def test_metadata_tells_of_known_topics_and_lets_clients_ask_again_for_others(by_id: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as broker:
        known = await broker.create("t")
        await broker.topics.lookup(["t"])
        nobody = nested(3, 12, "MetadataRequestTopic", topic_id=None if not by_id else UNKNOWN, name=None if by_id else "u")
        somebody = nested(3, 12, "MetadataRequestTopic", topic_id=as_uuid(known.topic_id) if by_id else None, name=None if by_id else "t")
        broker.clock.seconds += DEFAULT_CATALOG_LIMITS.topics_cache_age_s
        await broker.context.parts.brokers.live()
        broker.metadata.reads_fail = True
        request = request_of(3, 12, topics=(nobody, somebody), allow_auto_topic_creation=True, include_topic_authorized_operations=False)
        answer = await broker.ask(metadata.handle, request)

    assert [error_of(topic) for topic in answer.topics] == [ErrorCode.kafka_storage_error, ErrorCode.none]
