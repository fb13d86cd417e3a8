"""What each partition of a topic holds."""

from collections.abc import AsyncIterator

import pytest

from storage.metadata.keys import PartitionKeys
from storage.verify.inventory import PartitionTotal, partition_totals
from storage.verify.reading import StoreReading
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import NAME, OTHER, change_manifest, compact, fill, fill_both, make_topic, objects_of, put


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


async def totals_of(broker: Rig) -> list[PartitionTotal]:
    return await partition_totals(StoreReading(broker.shared, objects_of(broker), concurrency=2), [NAME])


async def test_records_and_objects_are_counted_in_each_partition_by_itself(broker: Rig) -> None:
    await fill_both(broker, 10)
    segment = await compact(broker)
    await fill(broker, 3)
    first, second = await totals_of(broker)

    assert (first.topic, first.partition, first.log_start, first.log_end, first.records) == (NAME, PARTITION.partition, 0, 26, 26)
    assert (first.segments, first.segment_bytes, first.wal_objects) == (1, segment.size_bytes, 3)
    assert (second.partition, second.segments, second.wal_objects, second.records) == (OTHER.partition, 0, 10, 20)
    assert second.wal_bytes == 10 * first.wal_bytes // 3
    assert first.is_readable
    assert second.is_readable


async def test_what_was_deleted_counts_no_more(broker: Rig) -> None:
    await fill_both(broker, 10)
    await broker.parts.trimmer.trim(PARTITION, 12)
    first, second = await totals_of(broker)

    assert (first.log_start, first.records, first.wal_objects) == (12, 8, 4)
    assert second.wal_objects == 10


async def test_a_partition_that_cannot_be_read_to_its_end_is_marked_and_one_that_cannot_be_decoded_is_left_out(broker: Rig) -> None:
    await fill_both(broker, 40)
    await change_manifest(broker, pending=(await broker.manifest()).pending[:-1])
    first, second = await totals_of(broker)
    await put(broker.shared, PartitionKeys(OTHER).manifest, b"no record")
    (only,) = await totals_of(broker)

    assert (first.is_readable, second.is_readable) == (False, True)
    assert only.partition == PARTITION.partition
