"""Doctor's look at early batches whose object is late."""

import pytest

from forebay.commands.doctor.early import LOOKED_AT_MAX, Unstored, find_unstored, of_unstored
from forebay.commands.doctor.finding import FindingStatus
from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.formats.wal import object_key
from storage.metadata.keys import early_page
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId

LATE_MS = 1_000_000
NOW_MS = LATE_MS + 300_000


def object_of(begun_ms: int, number: int = 0) -> ObjectId:
    return ObjectId(encode_ulid((begun_ms << 80) + number))


async def made(
    *object_ids: ObjectId, stored: tuple[ObjectId, ...] = (), partitions: int = 1
) -> tuple[MemoryMetadataStore, MemoryObjectStore]:
    clock = SystemClock()
    metadata, objects = MemoryMetadataStore(clock=clock, shards=4), MemoryObjectStore(clock=clock)
    for object_id in object_ids:
        for partition in range(partitions):
            for position in (40, 900):
                await metadata.write([Put(early_page(object_id, position, f"topic/{partition}"), b"page", ABSENT)])
    for object_id in stored:
        await objects.put_if_absent(object_key(object_id), [b"object"])
    return metadata, objects


async def test_objects_that_are_late_are_found_once_each_whatever_shards_their_pages_lie_on() -> None:
    late, later, there, young = object_of(10), object_of(20), object_of(5), object_of(LATE_MS)
    stores = await made(later, late, there, young, stored=(there,), partitions=20)

    assert await find_unstored(*stores, before_ms=LATE_MS) == Unstored([late, later], is_all=True)


async def test_the_oldest_are_looked_at_where_there_are_very_many() -> None:
    ids = [object_of(10, number) for number in range(LOOKED_AT_MAX + 1)]
    stores = await made(*ids)

    assert await find_unstored(*stores, before_ms=LATE_MS) == Unstored(ids[:-1], is_all=False)


async def test_a_record_that_is_no_page_is_passed_over() -> None:
    late = object_of(10)
    metadata, objects = await made(late)
    start = early_page(late, 0, "topic/0")
    await metadata.write([Put(Key(f"{start.path}-rubbish", start.partition_key), b"", ABSENT)])

    assert await find_unstored(metadata, objects, before_ms=LATE_MS) == Unstored([late], is_all=True)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (Unstored([], is_all=True), FindingStatus.OK, "none waits longer than 5 min"),
        (Unstored([object_of(NOW_MS - 600_000)], is_all=True), FindingStatus.WARNING, "1 object(s) that hold them are not stored"),
        (Unstored([object_of(NOW_MS - 600_000)], is_all=False), FindingStatus.WARNING, "for 10 min: their broker cannot reach"),
    ],
)
def test_a_late_object_is_a_warning_that_names_the_oldest_and_what_to_do(found: Unstored, verdict: FindingStatus, words: str) -> None:
    finding = of_unstored(found, now_ms=NOW_MS)

    assert finding.verdict is verdict
    assert words in finding.detail
    assert all(object_key(object_id) in finding.detail for object_id in found.object_ids)
