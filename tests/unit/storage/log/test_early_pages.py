"""Slices whose object is not stored yet are read from early pages (docs/internals/design/reading.md)."""

from collections.abc import Sequence

import msgspec
import pytest

from runtime.ulid import encode_ulid
from storage.errors import Corrupt, IncompatibleFormat, StorageError, Unavailable
from storage.formats.early_page import encode_page
from storage.formats.manifest import Early, Entry, Manifest, encode
from storage.limits import EARLY_PAGE_BYTES_MAX, EARLY_SLICE_BYTES_MAX, KIB
from storage.log.early_pages import OLD_MS, EarlyPages, EarlySlice, page_keys, read_pages_certainly, read_pages_of_all
from storage.log.limits import LogLimits
from storage.metadata.keys import PartitionKeys, early_page
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, Delete, Key, MetadataStore, Put, Record
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.stepping_clock import SteppingClock

PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)
OTHER = PartitionId(PARTITION.topic_id, 1)
KEYS = PartitionKeys(PARTITION)


def id_at(ms: int, number: int = 0) -> ObjectId:
    return ObjectId(encode_ulid((ms << 80) + number))


ID = id_at(1_700_000_000_000)


def entry(start: int, *spans: tuple[int, int], object_id: ObjectId = ID, base: int = 0) -> Entry:
    return Entry(base, base + 9, object_id, Early(start, spans), 0, 0)


def pattern(length: int, begin: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return bytes((begin + n) * 7 % 251 for n in range(length))


class Store:
    """A metadata store of several shards with pages in it, which counts what is asked for."""

    def __init__(self) -> None:
        self.inner = MemoryMetadataStore(clock=SteppingClock(), shards=3)
        self.asked: list[list[str]] = []
        self.forgets: set[str] = set()
        """What a deposed leader has not heard of."""

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        self.asked.append([key.path for key in wanted])
        found = await self.inner.get_many(wanted)
        return [None if record is not None and record.path in self.forgets else record for record in found]

    async def put(self, key: Key, value: bytes) -> int:
        outcome = await self.inner.write([Put(key, value, None)])
        assert isinstance(outcome, Applied)
        version = outcome.results[0].version
        assert version is not None
        return version

    async def slice(self, data: bytes, *, start: int, object_id: ObjectId = ID) -> None:
        """As its writer puts it: in pages, one behind the other."""
        for begin in range(0, len(data), EARLY_PAGE_BYTES_MAX):
            page = encode_page([PARTITION, OTHER], data[begin : begin + EARLY_PAGE_BYTES_MAX])
            await self.put(early_page(object_id, start + begin, KEYS.partition_key), page)

    async def drop(self, position: int, *, object_id: ObjectId = ID) -> None:
        await self.inner.write([Delete(early_page(object_id, position, KEYS.partition_key))])

    async def manifest(self, **fields: int) -> int:
        return await self.put(KEYS.manifest, encode(Manifest(**fields)))


def bytes_of(found: EarlySlice | None, of: Entry) -> list[bytes]:
    assert found is not None
    return [bytes(view) for view in found.batches_of(of)]


async def read_pages(store: MetadataStore, keys: PartitionKeys, entries: Sequence[Entry]) -> list[EarlySlice | None]:
    """The slices of entries of one partition. Raise what is wrong with one."""
    slices: list[EarlySlice | None] = []
    for one in await read_pages_of_all(store, [(keys, entry) for entry in entries]):
        if isinstance(one, StorageError):
            raise one
        slices.append(one)
    return slices


async def test_the_batches_of_an_entry_are_cut_out_of_its_page() -> None:
    store, data = Store(), pattern(1_000)
    await store.slice(data, start=64)
    one, other = entry(64, (164, 88), (300, 10)), entry(64, (64, 100))

    found = await read_pages(store, KEYS, [one, other])

    assert bytes_of(found[0], one) == [data[100:188], data[236:246]]
    assert bytes_of(found[1], other) == [data[:100]]


@pytest.mark.parametrize("length", [1, EARLY_PAGE_BYTES_MAX, EARLY_PAGE_BYTES_MAX + 1, 2 * EARLY_PAGE_BYTES_MAX, EARLY_SLICE_BYTES_MAX])
async def test_a_slice_of_any_legal_length_is_read_from_the_pages_that_hold_it(length: int) -> None:
    store, data = Store(), pattern(length)
    await store.slice(data, start=1_000)
    whole = entry(1_000, (1_000, length))

    assert len(page_keys(KEYS, whole)) == -(-length // EARLY_PAGE_BYTES_MAX)
    assert bytes_of((await read_pages(store, KEYS, [whole]))[0], whole) == [data]


async def test_batches_that_begin_in_one_page_and_end_in_the_next_are_whole() -> None:
    store, data = Store(), pattern(150 * KIB)
    await store.slice(data, start=64)
    across = entry(64, (64 + 59 * KIB, 2 * KIB), (64 + 119 * KIB, 31 * KIB))

    assert bytes_of((await read_pages(store, KEYS, [across]))[0], across) == [data[59 * KIB : 61 * KIB], data[119 * KIB :]]


async def test_several_entries_are_one_read() -> None:
    store = Store()
    for start in (64, 1_000, 2_000):
        await store.slice(pattern(100, start), start=start)
    await store.drop(1_000)
    entries = [entry(start, (start, 100)) for start in (64, 1_000, 2_000)]

    first, second, third = await read_pages(store, KEYS, entries)

    assert len(store.asked) == 1
    assert second is None
    assert (bytes_of(first, entries[0]), bytes_of(third, entries[2])) == ([pattern(100, 64)], [pattern(100, 2_000)])


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_a_slice_with_a_page_that_is_gone_is_not_there(missing: int) -> None:
    store = Store()
    await store.slice(pattern(150 * KIB), start=64)
    await store.drop(64 + missing * EARLY_PAGE_BYTES_MAX)

    assert await read_pages(store, KEYS, [entry(64, (64, 150 * KIB))]) == [None]


async def test_a_page_in_the_middle_that_is_too_short_is_damage_and_is_named() -> None:
    store = Store()
    await store.slice(pattern(150 * KIB), start=64)
    short = early_page(ID, 64 + EARLY_PAGE_BYTES_MAX, KEYS.partition_key)
    await store.put(short, encode_page([PARTITION], pattern(EARLY_PAGE_BYTES_MAX - 1)))

    with pytest.raises(Corrupt, match=f"cut short.*{short.path}"):
        await read_pages(store, KEYS, [entry(64, (64, 150 * KIB))])


async def test_a_last_page_that_is_too_short_for_its_entry_is_damage() -> None:
    store = Store()
    await store.slice(pattern(99), start=64)
    (found,) = await read_pages(store, KEYS, [entry(64, (64, 100))])

    assert found is not None
    with pytest.raises(Corrupt, match="shorter than their entry says"):
        found.batches_of(entry(64, (64, 100)))


def test_an_entry_that_begins_before_its_page_is_damage() -> None:
    with pytest.raises(Corrupt):
        EarlySlice(164, memoryview(pattern(200))).batches_of(entry(164, (100, 20)))


async def test_a_page_with_other_bytes_than_were_written_is_damage() -> None:
    store = Store()
    key = early_page(ID, 64, KEYS.partition_key)
    value = bytearray(encode_page([PARTITION], pattern(100)))
    value[-1] ^= 1
    await store.put(key, bytes(value))

    with pytest.raises(Corrupt, match=key.path):
        await read_pages(store, KEYS, [entry(64, (64, 100))])


async def test_a_page_of_a_newer_release_is_refused() -> None:
    store = Store()
    await store.put(early_page(ID, 64, KEYS.partition_key), b"FBEP\x00\x02 and more")

    with pytest.raises(IncompatibleFormat, match="format 2"):
        await read_pages(store, KEYS, [entry(64, (64, 100))])


async def test_absence_is_certain_where_the_same_answer_knows_the_entry() -> None:
    store = Store()
    version = await store.manifest()

    assert await read_pages_certainly(store, KEYS, entry(64, (64, 100)), known_version=version) is None
    assert len(store.asked) == 1


async def test_absence_is_certain_with_a_manifest_that_is_newer_than_the_one_known() -> None:
    store = Store()
    version = await store.manifest()
    await store.manifest(sequence_counter=1)

    assert await read_pages_certainly(store, KEYS, entry(64, (64, 100)), known_version=version) is None


async def test_absence_beside_an_older_manifest_says_nothing() -> None:
    """A deposed leader of the shard has heard neither of the entry nor of its page."""
    store = Store()
    version = await store.manifest()

    with pytest.raises(Unavailable, match=f"answered from the past.*version={version} known_version={version + 1}"):
        await read_pages_certainly(store, KEYS, entry(64, (64, 100)), known_version=version + 1)


async def test_absence_beside_no_manifest_says_nothing() -> None:
    with pytest.raises(Unavailable, match="answered from the past"):
        await read_pages_certainly(Store(), KEYS, entry(64, (64, 100)), known_version=1)


async def test_pages_that_are_there_count_beside_any_manifest() -> None:
    store, data = Store(), pattern(100)
    version = await store.manifest()
    await store.slice(data, start=64)
    one = entry(64, (64, 100))
    for known_version in (version, version + 9):
        assert bytes_of(await read_pages_certainly(store, KEYS, one, known_version=known_version), one) == [data]


class Own:
    """What this broker has of its own early objects."""

    def __init__(self) -> None:
        self.slices: dict[ObjectId, EarlySlice] = {}
        self.stored: set[ObjectId] = set()

    def find(self, of: Entry) -> EarlySlice | None:
        return self.slices.get(of.object_id)

    def is_stored(self, object_id: ObjectId) -> bool:
        return object_id in self.stored


def pages_of(store: Store, clock: SteppingClock | None = None, *, own: Own | None = None, **limits: int) -> EarlyPages:
    return EarlyPages(metadata=store, own=own or Own(), clock=clock or SteppingClock(), limits=LogLimits(**limits))


async def test_what_was_fetched_is_kept_until_it_is_dropped() -> None:
    store, data = Store(), pattern(1_000)
    await store.slice(data, start=64)
    pages, one = pages_of(store), entry(64, (164, 88))

    assert pages.find(one) is None
    assert bytes_of(await pages.fetch(KEYS, one, []), one) == [data[100:188]]
    assert bytes_of(pages.find(one), one) == [data[100:188]]
    assert bytes_of(pages.find(entry(64, (900, 100))), entry(64, (900, 100))) == [data[836:936]]
    pages.drop(one)
    assert pages.find(one) is None
    assert len(store.asked) == 1


async def test_an_entry_that_ends_behind_what_is_kept_is_not_found() -> None:
    store = Store()
    await store.slice(pattern(100), start=64)
    pages = pages_of(store)
    await pages.fetch(KEYS, entry(64, (64, 100)), [])

    assert pages.find(entry(64, (64, 101))) is None


async def test_what_is_kept_is_bounded() -> None:
    store = Store()
    entries = [entry(start, (start, 10_000)) for start in range(64, 64 + 10 * 10_000, 10_000)]
    for one in entries:
        await store.slice(pattern(10_000), start=one.extent[0])
    pages = pages_of(store, early_kept_bytes_max=35_000)
    for one in entries:
        await pages.fetch(KEYS, one, [])

    assert [pages.find(one) is not None for one in entries] == [False] * 7 + [True] * 3


async def test_the_entries_that_follow_come_with_the_same_read_as_far_as_its_bound_goes() -> None:
    store, clock = Store(), SteppingClock()
    young = id_at(clock.now_ms())
    entries = [entry(start, (start, 10_000), object_id=young, base=start) for start in range(64, 64 + 10 * 10_000, 10_000)]
    for one in entries:
        await store.slice(pattern(10_000), start=one.extent[0], object_id=young)
    pages = pages_of(store, clock, early_read_bytes_max=45_000)

    await pages.fetch(KEYS, entries[0], entries[1:])

    assert [pages.find(one) is not None for one in entries] == [True] * 4 + [False] * 6
    assert [len(paths) for paths in store.asked] == [4]


async def test_entries_that_are_kept_or_stored_or_not_early_are_not_read_with_another() -> None:
    store, clock = Store(), SteppingClock()
    young, stored = id_at(clock.now_ms(), 1), id_at(clock.now_ms(), 2)
    first, kept = (entry(start, (start, 100), object_id=young) for start in (64, 1_000))
    for one in (first, kept):
        await store.slice(pattern(100), start=one.extent[0], object_id=young)
    pages = pages_of(store, clock)
    await pages.fetch(KEYS, kept, [])
    pages.note_stored(stored)
    with_spans = msgspec.structs.replace(first, batches=((64, 100),))
    following = [kept, entry(64, (64, 100), object_id=stored), with_spans, msgspec.structs.replace(first, batches=b"inline")]

    await pages.fetch(KEYS, first, following)

    assert store.asked[-1] == [early_page(young, 64, KEYS.partition_key).path]


async def test_the_object_comes_first_once_the_entry_is_old_or_its_object_is_known() -> None:
    clock = SteppingClock()
    pages = pages_of(Store(), clock, early_stored_kept_max=2)
    one, other = (entry(64, (64, 100), object_id=id_at(clock.now_ms(), number)) for number in (1, 2))

    assert not pages.is_object_first(one)
    pages.note_stored(one.object_id)
    assert (pages.is_object_first(one), pages.is_object_first(other)) == (True, False)
    pages.drop(one)
    assert not pages.is_object_first(one)
    clock.advance(OLD_MS / 1_000 + 1)
    assert pages.is_object_first(other)


async def test_the_objects_that_are_known_are_bounded() -> None:
    clock = SteppingClock()
    pages = pages_of(Store(), clock, early_stored_kept_max=2)
    entries = [entry(64, (64, 100), object_id=id_at(clock.now_ms(), number)) for number in range(5)]
    for one in entries:
        pages.note_stored(one.object_id)

    assert [pages.is_object_first(one) for one in entries] == [False, False, False, True, True]


async def test_a_certain_read_of_a_broker_says_what_that_of_the_store_says() -> None:
    store, data = Store(), pattern(100)
    version = await store.manifest()
    pages, one = pages_of(store), entry(64, (64, 100))

    assert await pages.fetch_certainly(KEYS, one, known_version=version) is None
    with pytest.raises(Unavailable):
        await pages.fetch_certainly(KEYS, one, known_version=version + 1)
    await store.slice(data, start=64)
    assert bytes_of(await pages.fetch_certainly(KEYS, one, known_version=version), one) == [data]


async def test_what_the_broker_has_of_its_own_is_not_read() -> None:
    own, clock = Own(), SteppingClock()
    young = id_at(clock.now_ms())
    pages, one = pages_of(Store(), clock, own=own), entry(64, (164, 88), object_id=young)
    own.slices[young] = EarlySlice(64, memoryview(pattern(188)))

    assert bytes_of(pages.find(one), one) == [pattern(188)[100:]]
    assert pages.find(entry(64, (164, 89), object_id=young)) is None
    assert not pages.is_object_first(one)
    own.stored.add(young)
    assert pages.is_object_first(one)
