from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources import v0, v1

from broker.handlers.configs import list_config_resources
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def ask(broker: Cluster, *types: int) -> tuple[ErrorCode, list[tuple[int, str]]]:
    wanted: Any = types
    answer = await broker.ask(list_config_resources.handle, v1.ListConfigResourcesRequest(resource_types=wanted))
    return error_of(answer), [(found.resource_type, found.resource_name) for found in answer.config_resources]


async def test_client_metrics_have_no_resources() -> None:
    async with cluster() as broker:
        await broker.create("t")
        answer = await broker.ask(list_config_resources.handle, v0.ListConfigResourcesRequest())

    assert (error_of(answer), answer.config_resources) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("types", "resources"),
    [
        ((), [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (BROKER, "5")]),
        ((TOPIC,), [(TOPIC, "a"), (TOPIC, "b")]),
        ((BROKER, GROUP, LOGGER), [(BROKER, "1"), (BROKER, "5")]),
        ((METRICS,), []),
    ],
)
async def test_resources_are_listed_by_type(types: tuple[int, ...], resources: list[tuple[int, str]]) -> None:
    async with cluster() as broker:
        await broker.join(5)
        await broker.create("b")
        await broker.create("a")

        assert await ask(broker, *types) == (ErrorCode.none, resources)


@pytest.mark.parametrize("kind", [0, 1, 3, 64])
async def test_a_type_that_does_not_exist_is_unsupported(kind: int) -> None:
    async with cluster() as broker:
        assert await ask(broker, TOPIC, kind) == (ErrorCode.unsupported_version, [])


async def test_a_store_that_does_not_answer_is_retriable() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True

        assert await ask(broker) == (ErrorCode.kafka_storage_error, [])
