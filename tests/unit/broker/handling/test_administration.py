import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.handlers.groups import delete_groups
from broker.handlers.topics import create_topics, delete_topics, metadata
from broker.handling.administration import LISTED_MAX, NAMED_MAX, brief_offsets
from runtime.supervision import Nursery
from storage.errors import OutcomeUnknown
from tests.unit.broker.handlers.asking import Cluster, cluster
from tests.unit.broker.handlers.configs import test_alter_configs, test_incremental_alter_configs
from tests.unit.broker.handlers.grouped import commit, member, nested, request_of
from tests.unit.broker.handlers.groups import test_offset_delete
from tests.unit.broker.handlers.log import test_delete_records
from tests.unit.broker.handlers.topics import test_create_partitions, test_create_topics, test_delete_topics

BY = {"client_host": "127.0.0.1", "client_id": "client", "listener": "PLAINTEXT"}
Act = Callable[[Cluster], Awaitable[object]]


async def create(broker: Cluster, name: str = "new", *, validate_only: bool = False, **fields: Any) -> Any:
    configs = (nested(19, 7, "CreatableTopicConfig", name="retention.ms", value="5"),)
    topic = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": (), "configs": configs} | fields
    timeout = datetime.timedelta(seconds=30)
    request = request_of(19, 7, topics=(nested(19, 7, "CreatableTopic", **topic),), timeout=timeout, validate_only=validate_only)
    return await broker.ask(create_topics.handle, request)


async def delete(broker: Cluster, *names: str) -> Any:
    topics = tuple(nested(20, 6, "DeleteTopicState", name=name, topic_id=None) for name in names)
    return await broker.ask(delete_topics.handle, request_of(20, 6, topics=topics, timeout=datetime.timedelta(seconds=30)))


async def name_it(broker: Cluster, name: str) -> Any:
    topic = nested(3, 12, "MetadataRequestTopic", name=name, topic_id=None)
    return await broker.ask(
        metadata.handle, request_of(3, 12, topics=(topic,), allow_auto_topic_creation=True, include_topic_authorized_operations=False)
    )


async def delete_group(broker: Cluster, *names: str) -> Any:
    return await broker.ask(delete_groups.handle, request_of(42, 2, groups_names=names))


async def commit_and_delete_offsets(broker: Cluster) -> None:
    await commit(broker, 9, {0: 1, 1: 2})
    await test_offset_delete.delete(broker, "t", 0, 1)


async def commit_and_delete_group(broker: Cluster) -> None:
    await commit(broker, 9, {0: 1}, group="simple")
    await delete_group(broker, "simple")


async def leave(asked: Awaitable[object]) -> None:
    await asked


async def alter(broker: Cluster) -> None:
    changes = [("retention.ms", 0, "9"), ("flush.ms", 1, None), ("segment.ms", 0, "60000")]
    await test_incremental_alter_configs.ask(broker, (2, "t", changes))


CHANGES: list[tuple[Act, str, dict[str, object]]] = [
    (create, "topic_created", {"topic": "new", "partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "5"}}),
    (lambda broker: name_it(broker, "named"), "topic_created", {"topic": "named", "partitions": 1, "why": "a client named it"}),
    (lambda broker: delete(broker, "t"), "topic_deleted", {"topic": "t"}),
    (
        lambda broker: test_create_partitions.ask(broker, ("t", 5, None)),
        "partitions_added",
        {"topic": "t", "partitions_before": 2, "partitions": 5},
    ),
    (
        alter,
        "configs_altered",
        {"resource_type": 2, "name": "t", "configs": {"retention.ms": "9", "segment.ms": "60000"}, "removed": ["flush.ms"]},
    ),
    (
        lambda broker: test_alter_configs.ask(broker, (2, "t", [("segment.ms", "60000")])),
        "configs_altered",
        {"resource_type": 2, "name": "t", "configs": {"segment.ms": "60000"}, "removed": ["flush.ms"]},
    ),
    (
        lambda broker: test_delete_records.ask(broker, ("t", 0, 7), ("t", 1, 9)),
        "records_deleted",
        {"topic": "t", "partitions": 2, "log_start_offsets": {"0": 7, "1": 9}},
    ),
    (commit_and_delete_offsets, "offsets_deleted", {"group": "g", "topics": ["t"], "partitions": 2}),
    (commit_and_delete_group, "group_deleted", {"group": "simple"}),
]


@pytest.mark.parametrize(("act", "event", "facts"), CHANGES)
async def test_a_change_is_one_line_of_the_log_that_says_what_and_who(act: Act, event: str, facts: dict[str, object]) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2, flush_ms="1")
        with capture_logs() as logged:
            await act(broker)

        (line,) = [line for line in logged if line["event"] == event]
        assert facts.items() <= line.items()
        assert BY.items() <= line.items()
        assert line["log_level"] == "info"
        (audited,) = broker.audited
        assert {"event": event, "outcome": "done", **facts, **BY}.items() <= audited.items()


@pytest.mark.parametrize(
    ("act", "event", "error", "facts"),
    [
        (lambda broker: create(broker, "t"), "topic_created", "TOPIC_ALREADY_EXISTS", {"topic": "t"}),
        (lambda broker: delete(broker, "absent"), "topic_deleted", "UNKNOWN_TOPIC_OR_PARTITION", {"topic": "absent"}),
        (
            lambda broker: test_create_partitions.ask(broker, ("t", 1, None)),
            "partitions_added",
            "INVALID_PARTITIONS",
            {"topic": "t"},
        ),
        (
            lambda broker: test_incremental_alter_configs.ask(broker, (4, "1", [("num.partitions", 0, "3")])),
            "configs_altered",
            "INVALID_REQUEST",
            {"resource_type": 4, "name": "1", "keys": ["num.partitions"]},
        ),
        (
            lambda broker: test_delete_records.ask(broker, ("t", 0, -7), ("t", 9, 1)),
            "records_deleted",
            "OFFSET_OUT_OF_RANGE",
            {"topic": "t", "partitions": 1, "numbers": [0]},
        ),
        (lambda broker: delete_group(broker, "absent"), "group_deleted", "GROUP_ID_NOT_FOUND", {"group": "absent"}),
    ],
)
async def test_what_was_refused_is_in_the_audit_log_only(act: Act, event: str, error: str, facts: dict[str, object]) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        with capture_logs() as logged:
            await act(broker)

        assert not logged
        found = [line for line in broker.audited if line["error"] == error]
        assert len(found) == 1
        assert {"event": event, "outcome": "refused", **facts, **BY}.items() <= found[0].items()


async def test_what_is_only_validated_is_in_neither() -> None:
    async with cluster() as broker:
        await broker.create("t")
        with capture_logs() as logged:
            await create(broker, "new", validate_only=True)
            await create(broker, "t", validate_only=True)
            await test_create_partitions.ask(broker, ("t", 1, None), validate_only=True)
            await test_incremental_alter_configs.ask(broker, (2, "t", [("nonsense", 0, "1")]), validate_only=True)

        assert not logged
        assert not broker.audited


async def test_a_change_of_which_nobody_knows_what_became_is_said_to_be_unknown() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        broker.trimmer.known[topic.partition(0)] = OutcomeUnknown("no answer")
        with capture_logs() as logged:
            await test_delete_records.ask(broker, ("t", 0, 7))

        (line,) = logged
        assert (line["event"], line["change"], line["topic"], line["log_level"]) == ("outcome_unknown", "records_deleted", "t", "warning")
        assert broker.audited[0]["outcome"] == "unknown"


async def never(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("api", ["CreateTopics", "CreatePartitions", "DeleteTopics"])
async def test_all_that_one_request_leaves_unknown_is_one_line_with_a_count_and_some_names(api: str) -> None:
    names = [f"t{number}" for number in range(NAMED_MAX + 20)]
    async with cluster() as broker:
        if api != "CreateTopics":
            for name in names:
                await broker.create(name)
        broker.metadata.before_write = never
        with capture_logs() as logged:
            match api:
                case "CreateTopics":
                    await test_create_topics.ask(broker, *map(test_create_topics.topic, names), timeout_ms=30)
                    change = "topic_created"
                case "CreatePartitions":
                    await test_create_partitions.ask(broker, *((name, 3, None) for name in names), timeout_ms=30)
                    change = "partitions_added"
                case _:
                    await test_delete_topics.ask(broker, *((name, None) for name in names), timeout_ms=30)
                    change = "topic_deleted"

        (line,) = [line for line in logged if line["event"] == "outcome_unknown"]
        assert (line["change"], line["count"], line["named"]) == (change, len(names), names[:NAMED_MAX])
        assert "not done in the time" in line["cause"]
        assert BY.items() <= line.items()
        assert [audited["topic"] for audited in broker.audited if audited["outcome"] == "unknown"] == names


async def test_what_was_deleted_before_the_client_left_is_said() -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        trim, stuck = broker.trimmer.trim, asyncio.Event()

        async def trimmed(partition: Any, before: int) -> int:
            if partition == topic.partition(1):
                stuck.set()
                await asyncio.Event().wait()
            return await trim(partition, before)

        broker.trimmer.trim = trimmed  # type: ignore[method-assign]
        with capture_logs() as logged:
            async with Nursery() as nursery:
                nursery.spawn(leave(test_delete_records.ask(broker, ("t", 0, 7), ("t", 1, 7))), name="client")
                await stuck.wait()

        assert [(line["event"], line["log_start_offsets"]) for line in logged if line["log_level"] == "info"] == [
            ("records_deleted", {"0": 7})
        ]


async def test_members_that_keep_their_group_leave_one_line_for_who_tried_to_delete_it() -> None:
    async with cluster() as broker:
        await member(broker)
        await delete_group(broker, "g")

        assert [(line["event"], line["error"]) for line in broker.audited] == [("group_deleted", "NON_EMPTY_GROUP")]


def test_a_line_lists_some_partitions_and_counts_all() -> None:
    assert brief_offsets(dict.fromkeys(range(5_000), 1)) == {str(partition): 1 for partition in range(LISTED_MAX)}
