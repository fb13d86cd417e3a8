import datetime
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.log import init_producer_id
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, version: int = 5, **fields: Any) -> tuple[ErrorCode, int, int]:
    request = load_request_schema(22, version)(
        **{"transactional_id": None, "transaction_timeout": datetime.timedelta(milliseconds=60_000), **fields}
    )
    answer = await broker.ask(init_producer_id.handle, request)
    return error_of(answer), answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
async def test_each_producer_gets_an_id_of_its_own_with_epoch_zero(version: int) -> None:
    async with cluster() as broker:
        answers = [await ask(broker, version) for _ in range(3)]

    assert answers == [(ErrorCode.none, producer_id, 0) for producer_id in range(3)]


@pytest.mark.parametrize("epoch", [0, 32_765, 32_767])
async def test_a_producer_that_gives_its_id_gets_another_as_nobody_keeps_its_epochs(epoch: int) -> None:
    async with cluster() as broker:
        answers = [await ask(broker, producer_id=41, producer_epoch=epoch) for _ in range(2)]

    assert answers == [(ErrorCode.none, 0, 0), (ErrorCode.none, 1, 0)]


@pytest.mark.parametrize(("producer_id", "epoch"), [(41, -1), (-1, 3), (-2, -2), (5, -2)])
async def test_half_an_identity_is_an_invalid_request(producer_id: int, epoch: int) -> None:
    async with cluster() as broker:
        assert await ask(broker, producer_id=producer_id, producer_epoch=epoch) == (ErrorCode.invalid_request, -1, -1)


@pytest.mark.parametrize("transactional_id", ["", "t"])
async def test_a_transactional_id_is_refused(transactional_id: str) -> None:
    async with cluster() as broker:
        answer = await ask(broker, 0, transactional_id=transactional_id)

    assert answer == (ErrorCode.transactional_id_authorization_failed, -1, -1)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST])
async def test_without_a_block_of_ids_the_client_asks_again(fault: Fault) -> None:
    async with cluster() as broker:
        broker.metadata.all_faults = fault
        answer = await ask(broker)

    assert answer == (ErrorCode.coordinator_load_in_progress, -1, -1)
