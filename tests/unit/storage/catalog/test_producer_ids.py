import asyncio
import random

import pytest

from storage.catalog.producer_ids import BLOCK_IDS, ProducerIds
from storage.errors import OutcomeUnknown, Unavailable
from storage.metadata.keys import PRODUCER_IDS
from tests.kit.faulty_metadata import Fault, FaultyMetadata, no_jitter


def open_ids(metadata: FaultyMetadata) -> ProducerIds:
    return ProducerIds(metadata, entropy=no_jitter)


async def test_ids_count_from_zero() -> None:
    producer_ids = open_ids(FaultyMetadata())

    assert [await producer_ids.next() for _ in range(3)] == [0, 1, 2]


async def test_a_block_is_taken_with_one_write() -> None:
    metadata = FaultyMetadata()
    producer_ids = open_ids(metadata)

    taken = [await producer_ids.next() for _ in range(2 * BLOCK_IDS)]

    assert taken == list(range(2 * BLOCK_IDS))
    assert len(metadata.writes) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_concurrent_callers_share_an_allocation_and_no_id_is_given_twice(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))
    producer_ids = open_ids(metadata)

    taken = await asyncio.gather(*(producer_ids.next() for _ in range(1_500)))

    assert sorted(taken) == list(range(1_500))
    assert len(metadata.writes) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_no_two_brokers_give_the_same_id(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))
    brokers = [open_ids(metadata) for _ in range(4)]

    taken = await asyncio.gather(*(broker.next() for broker in brokers for _ in range(100)))

    assert len(set(taken)) == 400


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_a_fault_wastes_a_block_at_most(fault: Fault) -> None:
    metadata = FaultyMetadata()
    metadata.faults[0] = fault

    first, second = await open_ids(metadata).next(), await open_ids(metadata).next()

    assert first == (BLOCK_IDS if fault is Fault.REPLY_LOST else 0)
    assert second == first + BLOCK_IDS


async def test_an_allocation_that_arrives_late_takes_nothing_from_the_one_that_was_made() -> None:
    metadata = FaultyMetadata()
    metadata.faults[0] = Fault.LATE
    first = await open_ids(metadata).next()
    await metadata.deliver()

    assert await open_ids(metadata).next() == first + BLOCK_IDS


@pytest.mark.parametrize(("fault", "error"), [(Fault.REFUSED, Unavailable), (Fault.REQUEST_LOST, OutcomeUnknown)])
async def test_without_a_block_there_is_no_id_until_the_store_answers_again(fault: Fault, error: type[Exception]) -> None:
    metadata = FaultyMetadata()
    metadata.all_faults = fault
    producer_ids = open_ids(metadata)
    with pytest.raises(error):
        await producer_ids.next()
    metadata.all_faults = None

    assert await producer_ids.next() == 0


async def test_the_record_names_the_next_free_id() -> None:
    metadata = FaultyMetadata()
    await open_ids(metadata).next()

    (record,) = await metadata.get_many([PRODUCER_IDS])
    assert record is not None
    assert record.value == b'{"fmt":1,"next_producer_id":1000}'
