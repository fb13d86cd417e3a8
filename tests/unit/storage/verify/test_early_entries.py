"""`storage verify` and `summary` of entries whose object is stored later, and of the early pages that have their bytes until then."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.formats.early_page import encode_page
from storage.formats.manifest import Early, IndexChunk, encode
from storage.formats.wal import HEAD_BYTES, Slice
from storage.metadata import keys
from storage.metadata.keys import early_page
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Record
from storage.objects.memory import MemoryObjectStore
from storage.verify.early import has_early_pages, list_early_pages
from storage.verify.findings import FindingKind, Severity, StoreFinding
from storage.verify.inventory import Inventory, StoreTotals, partition_totals, unreferenced_findings
from storage.verify.reading import DEFAULT_LIMITS, StoreReading, VerifyLimits
from storage.verify.verification import Depth, Verified
from storage.vocabulary import ObjectId
from tests.kit.early_entries import EarlyEntry, made_early
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import (
    DEEP,
    KEYS,
    NAME,
    OTHER,
    change_manifest,
    change_object,
    delete,
    fill,
    flipped,
    make_topic,
    objects_of,
    put,
    verify,
)

FAST = VerifyLimits(pause_s=0.001, second_look_s=0.001)


async def early_entries(broker: Rig, values: Sequence[bytes] = (b"espresso", b"latte", b"mocha")) -> list[EarlyEntry]:
    """The log of a partition, without its objects: they are stored later. There are no pages yet, either."""
    for value in values:
        await broker.send(record_batch(value, b"and"))
    return await made_early(broker.shared, objects_of(broker), PARTITION)


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


async def kinds_of(broker: Rig, *, depth: Depth | None = None, **stores: Any) -> dict[FindingKind, StoreFinding]:
    found = (await verify(broker, depth=depth, limits=FAST, **stores)).findings.kept
    return {one.kind: one for one in found}


def counts(result: Verified) -> tuple[int, int, int]:
    return result.checked.entries, result.checked.objects, result.checked.early


@pytest.mark.parametrize("depth", [Depth(), DEEP])
async def test_entries_whose_batches_are_in_early_pages_are_sound_and_looked_at_whole(broker: Rig, depth: Depth) -> None:
    for one in await early_entries(broker):
        await one.put_pages()

    result = await verify(broker, depth=depth)

    assert result.findings.kept == []
    assert counts(result) == (3, 0, 3)
    assert result.checked.deep_bytes == (await broker.manifest()).bytes_total


@pytest.mark.parametrize("depth", [Depth(), DEEP])
@pytest.mark.parametrize("has_pages", [True, False])
async def test_entries_whose_object_is_stored_are_as_any_others(broker: Rig, depth: Depth, has_pages: bool) -> None:
    for one in await early_entries(broker):
        await one.put_object()
        if has_pages:
            await one.put_pages()

    result = await verify(broker, depth=depth)

    assert result.findings.kept == []
    assert counts(result) == (3, 3, 0)


async def test_entries_of_index_chunks_are_read_from_early_pages_too(broker: Rig) -> None:
    found = await early_entries(broker)
    for one in found:
        await one.put_pages()
    await put(broker.shared, KEYS.index(found[1].entry.last), encode(IndexChunk(entries=(found[0].entry, found[1].entry))))
    await change_manifest(broker, pending=(found[2].entry,))

    result = await verify(broker)

    assert result.findings.kept == []
    assert counts(result) == (3, 0, 3)


async def test_a_slice_of_several_pages_is_read_from_all_of_them(broker: Rig) -> None:
    first, large = await early_entries(broker, [b"espresso", b"x" * 150_000])
    for one in (first, large):
        await one.put_pages()
    assert len(large.pages) == 3
    assert (await verify(broker)).findings.kept == []
    await delete(broker.shared, large.pages[1])

    found = await kinds_of(broker)
    assert list(found) == [FindingKind.OBJECT_MISSING]
    assert found[FindingKind.OBJECT_MISSING].first_offset == large.entry.base


async def test_an_entry_with_neither_object_nor_pages_is_missing_and_says_what_was_looked_for(broker: Rig) -> None:
    lost, *others = await early_entries(broker)
    for one in others:
        await one.put_pages()

    found = (await kinds_of(broker))[FindingKind.OBJECT_MISSING]

    assert (found.severity, found.object, found.first_offset, found.last_offset) == (Severity.ERROR, lost.object_key, 0, 1)
    assert "neither the object nor all of its early pages are there" in found.found
    assert lost.pages[0].path in found.found


class Storing:
    """An object store in which an object arrives, and its pages go, when it was asked for in vain."""

    def __init__(self, broker: Rig, one: EarlyEntry) -> None:
        self.inner, self.one, self.is_stored = objects_of(broker), one, False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def stat(self, key: str) -> object:
        try:
            return await self.inner.stat(key)
        finally:
            if not self.is_stored and key == self.one.object_key:
                self.is_stored = True
                await self.one.put_object()
                await self.one.drop_pages()


async def test_an_object_that_is_stored_while_it_is_looked_for_is_found(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_pages()
    storing = Storing(broker, one)

    result = await verify(broker, objects=storing, depth=DEEP)

    assert storing.is_stored
    assert result.findings.kept == []
    assert counts(result) == (1, 1, 0)


class OldAnswers:
    """A metadata store where a deposed leader answers some reads of pages: it knows neither the pages nor the newest manifest."""

    def __init__(self, broker: Rig, manifest: Record, answers: int) -> None:
        self.inner, self.manifest, self.answers = broker.shared, manifest, answers

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        found = await self.inner.get_many(wanted)
        if self.answers and any(key.path.startswith(keys.EARLY_PREFIX) for key in wanted):
            self.answers -= 1
            return [self.manifest if key == KEYS.manifest else None for key in wanted]
        return found


async def test_a_page_that_an_old_leader_has_not_heard_of_is_asked_for_again(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    (old,) = await broker.shared.get_many([KEYS.manifest])
    assert old is not None
    await one.put_pages()
    await change_manifest(broker)
    metadata = OldAnswers(broker, old, 2)

    assert await kinds_of(broker, metadata=metadata) == {}
    assert metadata.answers == 0


def cut(value: bytes) -> bytes:
    return value[:-1]


def changed(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def newer(value: bytes) -> bytes:
    return value[:4] + b"\x00\x02" + value[6:]


def shorter(value: bytes) -> bytes:
    return encode_page([PARTITION], value[32:-1])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (cut, FindingKind.EARLY_PAGE_DAMAGED),
        (changed, FindingKind.EARLY_PAGE_DAMAGED),
        (shorter, FindingKind.EARLY_PAGE_DAMAGED),
        (newer, FindingKind.NEWER_FORMAT),
    ],
)
async def test_a_page_that_is_not_what_was_written_is_named_while_the_object_is_not_there(
    broker: Rig, damage: Callable[[bytes], bytes], expected: FindingKind
) -> None:
    one, *others = await early_entries(broker)
    for each in (one, *others):
        await each.put_pages()
    (record,) = await broker.shared.get_many(one.pages)
    assert record is not None
    await put(broker.shared, one.pages[0], damage(record.value))

    found = await kinds_of(broker)

    assert list(found) == [expected]
    assert found[expected].key == one.pages[0].path
    assert (found[expected].object, found[expected].first_offset) == (one.object_key, 0)
    await one.put_object()
    assert await kinds_of(broker) == {}, "nobody needs the page"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"last": 2}, FindingKind.OFFSETS_WRONG),
        ({"max_timestamp": 9, "running_max_timestamp": 9}, FindingKind.TIMESTAMP_WRONG),
    ],
)
async def test_batches_in_pages_are_compared_with_their_entry(broker: Rig, change: dict[str, int], expected: FindingKind) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_pages()
    wrong = msgspec.structs.replace(one.entry, **change)
    await change_manifest(
        broker, pending=(wrong,), sequence_counter=wrong.last + 1, max_timestamp=wrong.running_max_timestamp, bytes_total=wrong.size_bytes
    )

    assert list(await kinds_of(broker)) == [expected]


async def test_a_batch_that_was_damaged_before_it_came_into_its_page_is_found(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_pages(changed(one.data))

    found = await kinds_of(broker)

    assert list(found) == [FindingKind.BATCH_DAMAGED]
    assert one.pages[0].path in found[FindingKind.BATCH_DAMAGED].found


@pytest.mark.parametrize(
    "batches", [Early(0, ()), Early(HEAD_BYTES + 1, ((HEAD_BYTES, 10),)), Early(-1, ((64, 10),)), Early(0, ((10**12, 10),))]
)
async def test_a_record_with_an_early_entry_that_can_name_no_slice_is_not_readable(broker: Rig, batches: Early) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await change_manifest(broker, pending=(msgspec.structs.replace(one.entry, batches=batches),))

    assert FindingKind.UNDECODABLE in await kinds_of(broker)


async def test_two_records_of_one_early_entry_that_disagree_are_found(broker: Rig) -> None:
    first, second = await early_entries(broker, [b"espresso", b"latte"])
    for one in (first, second):
        await one.put_object()
    other = msgspec.structs.replace(first.entry, batches=first.entry.spans)
    await put(broker.shared, KEYS.index(first.entry.last), encode(IndexChunk(entries=(other,))))
    await put(broker.shared, KEYS.index(second.entry.last), encode(IndexChunk(entries=(first.entry, second.entry))))
    await change_manifest(broker, pending=())

    found = (await kinds_of(broker))[FindingKind.OVERLAP_DISAGREES]
    assert "its early page at 64" in found.found


# The directory behind the slices


async def test_a_directory_with_its_slices_back_to_back_is_sound(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_object([Slice(PARTITION, HEAD_BYTES, 40), Slice(OTHER, HEAD_BYTES + 40, len(one.data) - 40)])

    assert list(await kinds_of(broker, depth=DEEP)) == [FindingKind.NOT_NAMED]


async def test_a_directory_that_gives_the_bytes_to_another_partition_is_found_at_any_depth(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_object([Slice(OTHER, HEAD_BYTES, len(one.data))])

    found = (await kinds_of(broker))[FindingKind.NOT_NAMED]
    assert str(OTHER) in found.found


@pytest.mark.parametrize("by", [-1, 1])
async def test_a_directory_with_slices_that_overlap_or_leave_a_gap_is_found_in_a_deep_check(broker: Rig, by: int) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    half = len(one.data) // 2
    slices = [Slice(PARTITION, HEAD_BYTES, half), Slice(PARTITION, HEAD_BYTES + half + by, len(one.data) - half - by)]
    await one.put_object([*slices])

    found = await kinds_of(broker, depth=DEEP)
    assert f"ends at {HEAD_BYTES + half}" in found[FindingKind.HEADER_DAMAGED].found
    assert FindingKind.HEADER_DAMAGED not in await kinds_of(broker)


async def test_a_directory_that_is_damaged_is_found(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_object()
    await change_object(broker, one.object_key, flipped(-10))

    found = await kinds_of(broker)
    assert list(found) == [FindingKind.HEADER_DAMAGED]
    assert "part=directory" in found[FindingKind.HEADER_DAMAGED].found


async def test_an_object_that_was_cut_short_is_found(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_object()
    await change_object(broker, one.object_key, lambda body: body[: HEAD_BYTES + 10])

    assert FindingKind.OBJECT_CUT in await kinds_of(broker, depth=DEEP)


# What waits, and what no entry names


async def totals_of(broker: Rig, *, limits: VerifyLimits = DEFAULT_LIMITS) -> StoreTotals:
    return await Inventory(StoreReading(broker.shared, objects_of(broker), concurrency=2, limits=limits), SystemClock()).run()


async def test_what_waits_in_early_pages_is_counted_apart_from_what_is_in_objects(broker: Rig) -> None:
    first, second, third = await early_entries(broker)
    for one in (first, second):
        await one.put_pages()
    for one in (second, third):
        await one.put_object()

    totals = await totals_of(broker)
    (topic,) = totals.topics
    partition, _ = await partition_totals(StoreReading(broker.shared, objects_of(broker), concurrency=4), [NAME])

    assert (topic.entries, topic.early_entries, topic.early_bytes) == (3, 1, len(first.data))
    assert topic.wal_bytes == len(second.data) + len(third.data)
    assert (partition.early_entries, partition.early_bytes) == (1, len(first.data))
    assert (partition.wal_objects, partition.wal_bytes) == (2, topic.wal_bytes)
    assert (totals.early_pages.pages, totals.early_pages.unnamed, totals.live["wal"].objects) == (2, 0, 2)
    assert unreferenced_findings(totals) == []


async def test_pages_that_no_entry_names_are_counted_and_are_no_damage(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_pages()
    strange = [
        early_page(ObjectId(encode_ulid(7 << 80)), 64, KEYS.partition_key),
        early_page(one.entry.object_id, 9_000, KEYS.partition_key),
        Key(f"{keys.EARLY_PREFIX}notes", KEYS.partition_key),
    ]
    for key in strange:
        await put(broker.shared, key, b"12345")

    totals = await totals_of(broker)
    (found,) = unreferenced_findings(totals)

    assert (totals.early_pages.pages, totals.early_pages.unnamed, totals.early_pages.unnamed_bytes) == (4, 3, 15)
    assert totals.early_pages.is_all
    assert (found.kind, found.severity, found.found) == (FindingKind.EARLY_PAGES_UNNAMED, Severity.INFO, "pages=3 bytes=15")
    assert await kinds_of(broker) == {}


async def test_pages_of_compacted_entries_are_named_by_none(broker: Rig) -> None:
    first, second = await early_entries(broker, [b"espresso", b"latte"])
    for one in (first, second):
        await one.put_pages()
    await change_manifest(broker, log_start=second.entry.base)

    assert (await totals_of(broker)).early_pages.unnamed == 1


async def test_pages_that_went_meanwhile_are_not_counted(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    reading = StoreReading(broker.shared, objects_of(broker), concurrency=2)
    await one.put_pages()
    pages = await list_early_pages(reading)
    await one.drop_pages()
    await pages.finish(reading)

    assert (pages.total.pages, pages.total.unnamed) == (1, 0)


async def test_no_page_is_called_unnamed_where_entries_cannot_be_read(broker: Rig) -> None:
    (one,) = await early_entries(broker, [b"espresso"])
    await one.put_pages()
    await put(broker.shared, KEYS.manifest, b"")

    totals = await totals_of(broker)
    assert totals.early_pages.unnamed == 1
    assert unreferenced_findings(totals) == []


class CountedMetadata(MemoryMetadataStore):
    """Counts the records that a range hands out."""

    scanned = 0

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        async for record in super().range_scan(start, end):
            self.scanned += 1
            yield record


async def stores_of_shards(pages: int, *, shards: int) -> tuple[CountedMetadata, MemoryObjectStore]:
    """Pages on every shard, as many on each."""
    clock = SystemClock()
    metadata, objects = CountedMetadata(clock=clock, shards=shards), MemoryObjectStore(clock=clock)
    for partition_key in keys.shard_keys(metadata.shard_of):
        for number in range(pages):
            await put(metadata, early_page(ObjectId(encode_ulid(7 << 80)), number, partition_key), b"12345")
    return metadata, objects


@pytest.mark.parametrize("shards", [1, 2, 7, 64])
async def test_the_pages_of_every_shard_are_listed(shards: int) -> None:
    metadata, objects = await stores_of_shards(9, shards=shards)
    reading = StoreReading(metadata, objects, concurrency=1, limits=VerifyLimits(early_pages_per_read=4))

    total = (await list_early_pages(reading)).total

    assert (total.pages, total.size_bytes, total.is_all) == (9 * shards, 9 * shards * 5, True)


async def test_pages_of_an_object_are_found_on_whichever_shard_they_are() -> None:
    metadata, objects = await stores_of_shards(0, shards=7)
    reading = StoreReading(metadata, objects, concurrency=1)
    before, here, behind = (ObjectId(encode_ulid(number << 80)) for number in (6, 7, 8))
    for partition_key in keys.shard_keys(metadata.shard_of):
        page = early_page(here, keys.EARLY_POSITION_MAX, partition_key)
        assert not await has_early_pages(reading, here)
        await put(metadata, page, b"12345")
        found = [await has_early_pages(reading, object_id) for object_id in (before, here, behind)]
        await delete(metadata, page)
        assert found == [False, True, False]


@pytest.mark.parametrize(("bound", "listed", "is_all"), [(99, 30, True), (30, 30, True), (29, 27, False), (12, 12, False), (1, 3, False)])
async def test_the_list_of_each_shard_is_bounded(bound: int, listed: int, is_all: bool) -> None:
    metadata, objects = await stores_of_shards(10, shards=3)
    reading = StoreReading(metadata, objects, concurrency=1, limits=VerifyLimits(early_pages_per_read=4, early_pages_max=bound))

    total = (await list_early_pages(reading)).total

    assert (total.pages, total.is_all) == (listed, is_all)
    assert metadata.scanned <= listed + 3


async def test_a_list_that_is_not_whole_says_so(broker: Rig) -> None:
    for number in range(5):
        await put(broker.shared, early_page(ObjectId(encode_ulid(7 << 80)), number, KEYS.partition_key), b"12345")

    (found,) = unreferenced_findings(await totals_of(broker, limits=VerifyLimits(early_pages_max=3)))
    assert found.found == "pages=3 bytes=15, of the 3 that were listed"


async def test_a_partition_of_a_level_before_is_verified_without_a_word_of_pages(broker: Rig) -> None:
    await fill(broker, 3)

    result = await verify(broker, depth=DEEP)
    assert result.findings.kept == []
    assert (await totals_of(broker)).early_pages == type((await totals_of(broker)).early_pages)()
