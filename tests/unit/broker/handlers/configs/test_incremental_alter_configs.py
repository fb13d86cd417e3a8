from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.configs import incremental_alter_configs
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)

Asked = tuple[int, str, list[tuple[str, int, str | None]]]


async def ask(broker: Cluster, *resources: Asked, version: int = 1, validate_only: bool = False) -> list[Any]:
    cls: Any = load_request_schema(44, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = tuple(
        module.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=tuple(module.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in configs),
        )
        for kind, name, configs in resources
    )
    answer = await broker.ask(incremental_alter_configs.handle, cls(resources=asked, validate_only=validate_only))
    assert [(found.resource_type, found.resource_name) for found in answer.responses] == [(kind, name) for kind, name, _ in resources]
    return list(answer.responses)


async def configs_of(broker: Cluster, name: str = "t") -> dict[str, str]:
    return (await broker.topics.lookup_now([name]))[name].configs


@pytest.mark.parametrize("version", range(2))
async def test_keys_are_set_deleted_appended_and_subtracted(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5", flush_ms="1")
        await broker.create("u", cleanup_policy="compact,delete")
        changes = [("retention.ms", DELETE, None), ("segment.ms", SET, "9"), ("cleanup.policy", APPEND, "compact")]
        first, second = await ask(broker, (TOPIC, "t", changes), (TOPIC, "u", [("cleanup.policy", SUBTRACT, "delete")]), version=version)

        assert (error_of(first), first.error_message) == (ErrorCode.none, None)
        assert error_of(second) is ErrorCode.none
        assert await configs_of(broker) == {"flush.ms": "1", "segment.ms": "9", "cleanup.policy": "delete,compact"}
        assert await configs_of(broker, "u") == {"cleanup.policy": "compact"}


async def test_what_was_altered_holds_for_the_next_request_without_a_hint() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await ask(broker, (TOPIC, "t", [("max.message.bytes", SET, "1000")]))

        assert (await broker.topics.lookup(["t"]))["t"].configs == {"max.message.bytes": "1000"}


async def test_validate_only_changes_nothing_and_says_what_is_wrong() -> None:
    async with cluster() as broker:
        await broker.create("t")
        good, bad = await ask(
            broker, (TOPIC, "t", [("flush.ms", SET, "1")]), (TOPIC, "missing", [("flush.ms", SET, "1")]), validate_only=True
        )
        (worse,) = await ask(broker, (TOPIC, "t", [("flush.ms", SET, "soon")]), validate_only=True)

        assert [error_of(good), error_of(bad)] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert error_of(worse) is ErrorCode.invalid_config
        assert await configs_of(broker) == {}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, "nothing", [("flush.ms", SET, "1")]), ErrorCode.unknown_topic_or_partition),
        ((TOPIC, "no/name", [("flush.ms", SET, "1")]), ErrorCode.invalid_topic_exception),
        ((TOPIC, "", [("flush.ms", SET, "1")]), ErrorCode.invalid_request),
        ((TOPIC, "t", [("flush.sm", SET, "1")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("flush.ms", SET, "one")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("flush.ms", APPEND, "1")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("flush.ms", SUBTRACT, "1")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("compression.type", SET, "brotli")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("remote.storage.enable", SET, "true")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("message.timestamp.type", SET, "Yesterday")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("max.message.bytes", SET, str(2**31 - 1))]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)]), ErrorCode.invalid_request),
        ((TOPIC, "t", [("flush.ms", SET, None)]), ErrorCode.invalid_request),
        ((TOPIC, "t", [("cleanup.policy", APPEND, None)]), ErrorCode.invalid_request),
        ((TOPIC, "t", [("flush.ms", 4, "1")]), ErrorCode.invalid_request),
        ((BROKER, "1", [("num.partitions", SET, "3")]), ErrorCode.invalid_request),
        ((BROKER, "", [("num.partitions", SET, "3")]), ErrorCode.invalid_request),
        ((BROKER, "2", [("num.partitions", SET, "3")]), ErrorCode.invalid_request),
        ((BROKER, "one", [("num.partitions", SET, "3")]), ErrorCode.invalid_request),
        ((8, "1", [("root", SET, "DEBUG")]), ErrorCode.invalid_request),
        ((16, "metrics", []), ErrorCode.invalid_request),
        ((32, "group", []), ErrorCode.invalid_request),
    ],
)
async def test_what_cannot_be_altered_is_said_and_does_not_spoil_the_rest(resource: Asked, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.create("u")
        refused, altered = await ask(broker, resource, (TOPIC, "u", [("flush.ms", SET, "1")]))

        assert error_of(refused) is code
        assert refused.error_message
        assert await configs_of(broker) == {}
        assert (error_of(altered), await configs_of(broker, "u")) == (ErrorCode.none, {"flush.ms": "1"})


async def test_a_resource_named_twice_is_not_altered() -> None:
    async with cluster() as broker:
        await broker.create("t")
        results = await ask(broker, (TOPIC, "t", [("flush.ms", SET, "1")]), (TOPIC, "t", [("segment.ms", SET, "1")]))

        assert [error_of(result) for result in results] == [ErrorCode.invalid_request] * 2
        assert await configs_of(broker) == {}


@pytest.mark.parametrize("configs", [[], [("leader.replication.throttled.rate", DELETE, None)]])
async def test_nothing_to_alter_at_this_broker_is_no_error(configs: list[tuple[str, int, str | None]]) -> None:
    async with cluster() as broker:
        (result,) = await ask(broker, (BROKER, "1", configs))

    assert error_of(result) is ErrorCode.none


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault.REFUSED, ErrorCode.kafka_storage_error), (Fault.REQUEST_LOST, ErrorCode.request_timed_out)]
)
async def test_a_store_that_fails_is_retriable(fault: Fault, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.all_faults = fault
        (written,) = await ask(broker, (TOPIC, "t", [("flush.ms", SET, "1")]))
        broker.metadata.reads_fail = True
        (read,) = await ask(broker, (TOPIC, "t", [("flush.ms", SET, "1")]))

    assert (error_of(written), error_of(read)) == (code, ErrorCode.kafka_storage_error)
