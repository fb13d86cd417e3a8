from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.configs import alter_configs
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

TOPIC, BROKER = 2, 4

Asked = tuple[int, str, list[tuple[str, str | None]]]


async def ask(broker: Cluster, *resources: Asked, version: int = 2, validate_only: bool = False) -> list[Any]:
    cls: Any = load_request_schema(33, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = tuple(
        module.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=tuple(module.AlterableConfig(name=key, value=value) for key, value in configs),
        )
        for kind, name, configs in resources
    )
    answer = await broker.ask(alter_configs.handle, cls(resources=asked, validate_only=validate_only))
    assert [(found.resource_type, found.resource_name) for found in answer.responses] == [(kind, name) for kind, name, _ in resources]
    return list(answer.responses)


async def configs_of(broker: Cluster) -> dict[str, str]:
    return (await broker.topics.lookup_now(["t"]))["t"].configs


@pytest.mark.parametrize("version", range(3))
async def test_all_configs_are_replaced(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5", flush_ms="1")
        (result,) = await ask(broker, (TOPIC, "t", [("flush.ms", "2"), ("segment.ms", " 3 ")]), version=version)

        assert (error_of(result), result.error_message) == (ErrorCode.none, None)
        assert await configs_of(broker) == {"flush.ms": "2", "segment.ms": "3"}


async def test_no_configs_go_back_to_the_defaults() -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        await ask(broker, (TOPIC, "t", []))

        assert await configs_of(broker) == {}


async def test_validate_only_changes_nothing() -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        (good,) = await ask(broker, (TOPIC, "t", []), validate_only=True)
        (bad,) = await ask(broker, (TOPIC, "t", [("flush.ms", "soon")]), validate_only=True)

        assert (error_of(good), error_of(bad)) == (ErrorCode.none, ErrorCode.invalid_config)
        assert await configs_of(broker) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, "nothing", []), ErrorCode.unknown_topic_or_partition),
        ((TOPIC, "no/name", []), ErrorCode.invalid_topic_exception),
        ((TOPIC, "t", [("flush.sm", "1")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("compression.type", "brotli")]), ErrorCode.invalid_config),
        ((TOPIC, "t", [("flush.ms", None)]), ErrorCode.invalid_request),
        ((TOPIC, "t", [("flush.ms", "1"), ("flush.ms", "2")]), ErrorCode.invalid_request),
        ((BROKER, "1", [("num.partitions", "3")]), ErrorCode.invalid_request),
        ((BROKER, "2", [("num.partitions", "3")]), ErrorCode.invalid_request),
        ((8, "1", []), ErrorCode.invalid_request),
    ],
)
async def test_what_cannot_be_altered_is_said(resource: Asked, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        (refused,) = await ask(broker, resource)

        assert error_of(refused) is code
        assert refused.error_message
        assert await configs_of(broker) == {"retention.ms": "5"}


async def test_a_resource_named_twice_is_not_altered() -> None:
    async with cluster() as broker:
        await broker.create("t", retention_ms="5")
        results = await ask(broker, (TOPIC, "t", []), (TOPIC, "t", []))

        assert [error_of(result) for result in results] == [ErrorCode.invalid_request] * 2
        assert await configs_of(broker) == {"retention.ms": "5"}
