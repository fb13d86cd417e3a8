"""The store that makes its objects up is a store: what tests of collectors stand on."""

import time
import tracemalloc
from collections.abc import Sequence

import pytest

from compactor.collector import CYCLE_OBJECTS_MAX, WAL_PREFIX, CollectionReport, Collector
from compactor.references import References
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.ulid import encode_ulid
from storage.catalog.collections import Deletions
from storage.errors import EndsEarly, NotFound
from storage.formats.manifest import Entry, Manifest, encode
from storage.formats.wal import decode_header, object_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Put
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from storage.vocabulary import PartitionId, TopicId
from tests.kit.endless_objects import EndlessObjects

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
FIRST_MS = 1_800_000_000_000
MIB = 1 << 20


def two_of_seven(number: int) -> Sequence[PartitionId]:
    return [PartitionId(TOPIC, number % 7), PartitionId(TOPIC, (number + 1) % 7)]


def endless(count: int, *, every_ms: int = 7_000) -> EndlessObjects:
    return EndlessObjects(count, first_ms=FIRST_MS, every_ms=every_ms, partitions_of=two_of_seven)


async def listed(store: ObjectStore, prefix: str, start_after: str) -> list[tuple[str, int]]:
    return [(one.key, one.size_bytes) async for one in store.list(prefix, start_after=start_after)]


async def test_it_answers_as_a_store_that_holds_these_objects() -> None:
    made_up, real = endless(2_500), MemoryObjectStore(clock=SystemClock())
    names = [one.key async for one in made_up.list("wal/")]
    for name in names:
        size_bytes = (await made_up.stat(name)).size_bytes
        await real.put_if_absent(name, [await made_up.get_range(name, 0, size_bytes)])
    for store in (made_up, real):
        await store.delete_many([*names[100:700], "wal/AAAAAA/none", names[100]])
    prefixes = ["", "wal/", names[0][:10], names[2_000][:10], names[5], "w", "x", "segments/"]
    starts = ["", "a", "wal/", names[0], names[50], names[150], names[-1], "wal/~"]

    assert made_up.deleted == 600
    assert len(list(made_up.remaining())) == 1_900
    for prefix in prefixes:
        for start_after in starts:
            assert await listed(made_up, prefix, start_after) == await listed(real, prefix, start_after), (prefix, start_after)
    with pytest.raises(NotFound):
        await made_up.stat(names[100])
    with pytest.raises(EndsEarly):
        await made_up.get_range(names[0], 0, 10_000)


async def test_headers_name_object_and_partitions() -> None:
    store = endless(50)
    for number in (0, 1, 49):
        object_id = store.object_id(number)
        key = object_key(object_id)
        header = decode_header(await store.get_range(key, 0, (await store.stat(key)).size_bytes), key=key)

        assert object_id == encode_ulid((FIRST_MS + number * 7_000) << 80 | number)
        assert header.object_id == object_id
        assert [one.partition for one in header.slices] == two_of_seven(number)


@pytest.mark.parametrize(
    "count", [60_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3_600)])]
)
async def test_any_number_of_objects_takes_a_bit_of_memory_each(count: int) -> None:
    store = endless(count, every_ms=30)
    batch: list[str] = []
    seen = 0
    began_s = time.process_time()
    async for one in store.list("wal/"):
        seen += 1
        batch.append(one.key)
        if len(batch) == 1_000:
            await store.delete_many(batch)
            batch = []
        if seen == 20_000:
            tracemalloc.start()  # it makes everything slow: a part is enough
        if seen == 40_000:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    print(f"{count} objects listed and deleted: {time.process_time() - began_s:.1f} s")

    assert (seen, store.deleted, store.pages, store.deletes) == (count, count, count // 1_000, count // 1_000)
    assert list(store.remaining()) == []
    assert peak_bytes < MIB


@pytest.mark.parametrize(
    "count", [15_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3_600)])]
)
async def test_a_collector_goes_through_any_number_of_objects_in_bounded_memory_and_deletes_all_but_those_referred_to(count: int) -> None:
    clock = SystemClock()
    metadata = MemoryMetadataStore(clock=clock)
    store = EndlessObjects(count, first_ms=clock.now_ms() - count * 30 - 3_600_000, every_ms=30, partitions_of=two_of_seven)
    live = sorted({0, 3, count // 2, count - 1})
    for number in range(7):
        pending = tuple(
            Entry(place, place, store.object_id(one), ((200, 100),), 0, 0)
            for place, one in enumerate(one for one in live if PartitionId(TOPIC, number) == two_of_seven(one)[0])
        )
        manifest = Manifest(sequence_counter=len(pending), pending=pending)
        await metadata.write([Put(PartitionKeys(PartitionId(TOPIC, number)).manifest, encode(manifest), ABSENT)])
    session = await metadata.open_session(timeout_ms=600_000)
    ids = IdSource(clock=clock)
    references = References(metadata, session=session, ids=ids)
    deletions = Deletions(metadata, MemoryObjectStore(clock=clock), ids=ids, clock=clock)
    collector = Collector(metadata=metadata, objects=store, references=references, deletions=deletions, clock=clock)
    report, cycles, peak_bytes = CollectionReport(), 0, 0
    began_s = time.process_time()
    ended: set[str] = set()
    while WAL_PREFIX not in ended:
        if cycles == 1:
            tracemalloc.start()
        ended = await collector.cycle(report, kinds=[WAL_PREFIX])
        if cycles == 1:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        cycles += 1
    print(f"{count} objects collected: {time.process_time() - began_s:.1f} s, peak {peak_bytes >> 10} KiB, {store.gets} GETs")
    await session.close()

    assert (report.looked_at, report.deleted, report.live, report.failed) == (count, count - len(live), len(live), {})
    assert list(store.remaining()) == live
    assert cycles == count // CYCLE_OBJECTS_MAX + 1
    assert store.gets == count
    assert 0 < peak_bytes < 16 * MIB
