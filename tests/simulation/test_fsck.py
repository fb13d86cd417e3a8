"""The check of the stores, on logs that are small enough to be judged by eye: entries whose object is stored later."""

import uuid
from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from sim.batches import encode as batch
from sim.check import Stored
from sim.fsck import Floor, fsck, named_objects, unlike_their_objects
from sim.objects import KeptObjects
from sim.watches import PageWatch
from storage.formats.early_page import encode_page
from storage.formats.manifest import Early, Entry, IndexChunk, LogState, Manifest, encode
from storage.formats.wal import HEAD_BYTES, Slice, object_key
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata.keys import PartitionKeys, early_page
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Delete, Key, Put
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.early_entries import around

PARTITION = PartitionId(TopicId(str(uuid.UUID(int=5))), 0)
KEYS = PartitionKeys(PARTITION)
ID, LATER = ObjectId(encode_ulid(7 << 80)), ObjectId(encode_ulid(9 << 80))
VALUES: Final = (b"espresso", b"latte", b"mocha")
TIMESTAMP_MS = 1_000


class Stores:
    """A log of one entry for each batch. All batches lie in one object, which may not be stored yet, and in its early pages."""

    def __init__(self, values: Sequence[bytes] = VALUES, *, chunked: int = 0) -> None:
        clock = SystemClock()
        self.metadata, self.objects = MemoryMetadataStore(clock=clock, shards=3), KeptObjects(clock=clock)
        batches = [batch(value, record_count=1, timestamp_ms=TIMESTAMP_MS) for value in values]
        self.data = b"".join(batches)
        entries, position = [], HEAD_BYTES
        for offset, one in enumerate(batches):
            early = Early(HEAD_BYTES, ((position, len(one)),))
            entries.append(Entry(offset, offset, ID, early, TIMESTAMP_MS, TIMESTAMP_MS))
            position += len(one)
        self.entries = entries
        self.chunk = tuple(entries[:chunked])
        self.manifest = Manifest(sequence_counter=len(entries), pending=tuple(entries[chunked:]))
        self.expected = [Stored(offset, 1, value) for offset, value in enumerate(values)]

    def begin_of(self, offset: int) -> int:
        return self.entries[offset].extent[0] - HEAD_BYTES

    async def put(self, key: Key, value: bytes) -> None:
        await self.metadata.write([Put(key, value, None)])

    async def put_pages(self, data: bytes | None = None) -> dict[str, bytes]:
        data, found = self.data if data is None else data, {}
        for begin in range(0, len(data), EARLY_PAGE_BYTES_MAX):
            key = early_page(ID, HEAD_BYTES + begin, KEYS.partition_key)
            found[key.path] = encode_page([PARTITION], data[begin : begin + EARLY_PAGE_BYTES_MAX])
            await self.put(key, found[key.path])
        return found

    async def put_object(self, data: bytes | None = None) -> None:
        data = self.data if data is None else data
        head, directory = around(ID, 1, [Slice(PARTITION, HEAD_BYTES, len(data))])
        await self.objects.put_if_absent(object_key(ID), [head, data, directory])

    async def drop_page(self, position: int = HEAD_BYTES) -> None:
        await self.metadata.write([Delete(early_page(ID, position, KEYS.partition_key))])

    async def check(self, *, floors: Sequence[Floor] = (), pages: dict[str, bytes] | None = None) -> list[str]:
        """What is wrong; the log is as it was written where nothing is."""
        if self.chunk:
            await self.put(KEYS.index(self.chunk[-1].last), encode(IndexChunk(entries=self.chunk)))
        log, wrong = await fsck(self.metadata, self.objects, PARTITION, self.manifest, place="t/0", floors=floors, pages=pages or {})
        assert wrong or log.batches == self.expected
        return wrong

    async def named(self) -> set[str]:
        if self.chunk:
            await self.put(KEYS.index(self.chunk[-1].last), encode(IndexChunk(entries=self.chunk)))
        return await named_objects(self.metadata, PARTITION, self.manifest)


@pytest.mark.parametrize("chunked", [0, 2])
async def test_entries_whose_object_is_not_stored_are_read_from_early_pages(chunked: int) -> None:
    stores = Stores(chunked=chunked)
    await stores.put_pages()

    assert await stores.check() == []
    assert await stores.named() == set()


async def test_entries_without_pages_are_read_from_their_object_as_any_other() -> None:
    stores = Stores()
    await stores.put_object()

    assert await stores.check() == []
    assert await stores.named() == {object_key(ID)}


async def test_an_entry_with_neither_object_nor_page_is_wrong() -> None:
    stores = Stores()

    assert len(await stores.check()) == len(VALUES)
    assert all("NotFound" in text for text in await stores.check())
    assert await stores.named() == {object_key(ID)}


async def test_a_slice_of_which_one_page_is_gone_is_not_in_the_pages() -> None:
    stores = Stores([b"a" * EARLY_PAGE_BYTES_MAX * 2])
    await stores.put_pages()
    assert await stores.check() == []
    await stores.drop_page(HEAD_BYTES + EARLY_PAGE_BYTES_MAX)

    (text,) = await stores.check()
    assert "NotFound" in text
    assert await stores.named() == {object_key(ID)}


async def test_a_page_that_is_shorter_than_its_entry_is_wrong() -> None:
    stores = Stores()
    await stores.put_pages(stores.data[:-1])

    (text,) = await stores.check()
    assert "shorter than their entry says" in text


async def test_a_page_that_is_damaged_is_wrong() -> None:
    stores = Stores([b"espresso"])
    await stores.put(early_page(ID, HEAD_BYTES, KEYS.partition_key), b"FBEP")

    (text,) = await stores.check()
    assert "Corrupt" in text


async def test_a_page_with_the_bytes_of_its_object_is_right() -> None:
    stores = Stores()
    await stores.put_pages()
    await stores.put_object()

    assert await stores.check() == []


async def test_a_page_with_other_bytes_than_its_object_is_wrong() -> None:
    stores = Stores()
    changed = bytearray(stores.data)
    changed[stores.begin_of(1)] ^= 1
    await stores.put_pages(bytes(changed))
    await stores.put_object()

    assert all("other bytes than its object" in text for text in await stores.check())
    assert len(await stores.check()) == len(VALUES)


async def test_an_object_that_ends_before_its_pages_is_wrong() -> None:
    """Its broker stored it with fewer places than it gave."""
    stores = Stores()
    await stores.put_pages(stores.data + b"of another partition" * 50)
    await stores.put_object()

    assert all("other bytes than its object" in text for text in await stores.check())


async def test_a_revoked_object_is_wrong_before_it_is_stored_and_after() -> None:
    stores = Stores()
    await stores.put_pages()
    revoked, other = Floor(PARTITION, 1, ID), Floor(PARTITION, 1, ObjectId(encode_ulid(6 << 80)))

    assert await stores.check(floors=[other]) == []
    for text in await stores.check(floors=[revoked]):
        assert text.startswith("fsck: a revoked object was committed")
    assert len(await stores.check(floors=[revoked])) == len(VALUES) - 1
    await stores.put_object()
    assert len(await stores.check(floors=[revoked])) == len(VALUES) - 1


@pytest.mark.parametrize("log_state", LogState)
async def test_pages_that_were_deleted_count_for_a_deleted_log_alone(log_state: LogState) -> None:
    stores = Stores()
    stores.manifest = msgspec.structs.replace(stores.manifest, log_state=log_state)
    pages = await stores.put_pages()
    await stores.drop_page()

    assert (await stores.check(pages=pages) == []) == (log_state is LogState.DELETED)
    assert await stores.check() != []


async def test_of_a_deleted_log_the_object_may_be_deleted_too() -> None:
    stores = Stores()
    stores.manifest = msgspec.structs.replace(stores.manifest, log_state=LogState.DELETED)
    await stores.put_object()
    await stores.objects.delete_many([object_key(ID)])

    assert await stores.check() == []


async def test_an_object_has_the_bytes_of_every_page_that_was_ever_put_for_it() -> None:
    stores = Stores()
    pages = await stores.put_pages()
    strange = {early_page(LATER, 64, KEYS.partition_key).path: encode_page([PARTITION], b"never stored")}

    assert await unlike_their_objects(pages | strange, stores.objects) == []
    await stores.put_object()
    assert await unlike_their_objects(pages | strange, stores.objects) == []
    for position, data in ((HEAD_BYTES, b"x"), (HEAD_BYTES + len(stores.data) + 500, b"x")):
        wrong = {early_page(ID, position, KEYS.partition_key).path: encode_page([PARTITION], data)}
        (text,) = await unlike_their_objects(wrong, stores.objects)
        assert "other bytes than its object" in text
    await stores.objects.delete_many([object_key(ID)])
    assert len(await unlike_their_objects(wrong, stores.objects)) == 1, "nor had one that was deleted"
    assert await unlike_their_objects({"llog/early/x": b""}, stores.objects) == [
        "fsck: an early page whose key names no place: llog/early/x"
    ]


def looked_at(*puts: Put) -> list[str]:
    found: list[str] = []
    watch = PageWatch(found.append)
    for put in puts:
        watch.look([Delete(KEYS.manifest), put])
    return found


def test_a_place_has_one_content_forever() -> None:
    key, other = early_page(ID, 64, KEYS.partition_key), early_page(LATER, 64, KEYS.partition_key)

    assert looked_at(Put(key, b"a", ABSENT), Put(key, b"a", ABSENT), Put(other, b"b", ABSENT), Put(KEYS.manifest, b"c", 7)) == []
    (text,) = looked_at(Put(key, b"a", ABSENT), Put(other, b"a", ABSENT), Put(key, b"b", ABSENT))
    assert "other bytes at a place that was given before" in text


@pytest.mark.parametrize("expected_version", [None, 3])
def test_a_page_is_put_if_absent(expected_version: int | None) -> None:
    (text,) = looked_at(Put(early_page(ID, 64, KEYS.partition_key), b"a", expected_version))

    assert "put over what may be there" in text
