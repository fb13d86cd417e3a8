"""Compaction of early entries: from their object once it is stored, from their pages until then, and from whichever is there in a race."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from compactor.compaction import CompactionEnd, Round, RoundReport
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from storage.errors import Corrupt, NotFound, Unavailable
from storage.formats.manifest import Manifest, encode
from storage.limits import EARLY_PAGE_BYTES_MAX, MIB
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put, Record
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.compactor.compacting import listed_segments, opened
from tests.unit.compactor.early import EarlyObject
from tests.unit.storage.log.rig import TOPIC, rig

ONE, OTHER = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1)
LARGE = b"L" * (EARLY_PAGE_BYTES_MAX + 5_000)


class Stores:
    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore(clock=SystemClock(), shards=1)
        self.blobs = MemoryObjectStore(clock=SystemClock())

    async def compact(self, *partitions: PartitionId, metadata: Any = None, blobs: Any = None) -> RoundReport:
        async with opened(metadata or self.metadata, blobs or self.blobs) as compaction:
            one = Round(compaction, objects=blobs or self.blobs, blocking=InlineBlocking(), clock=SystemClock())
            return await one.run(partitions or (ONE,))

    async def payloads(self, partition: PartitionId = ONE) -> list[bytes]:
        """What a broker that has read nothing before reads, in order; offsets are checked."""
        async with rig(shared=self.metadata, objects=self.blobs, epoch=8) as broker:
            view = memoryview(await broker.read_all(partition))
        found, offset = [], 0
        while len(view):
            header = parse_header(view)
            assert header.base_offset == offset
            found.append(bytes(view[61 : header.size_bytes]))
            offset += header.last_offset_delta + 1
            view = view[header.size_bytes :]
        return found


@contextlib.asynccontextmanager
async def stores(partitions: int = 2) -> AsyncIterator[Stores]:
    made = Stores()
    for number in range(partitions):
        await made.metadata.write([Put(PartitionKeys(PartitionId(TOPIC, number)).manifest, encode(Manifest()), ABSENT)])
    yield made


def ended(report: RoundReport, partition: PartitionId = ONE) -> Any:
    found = report.ended[partition]
    return found if isinstance(found, Exception) else found.ended


class Acting:
    """An object store in front of which something happens: `act` runs when the n-th GET has found no object."""

    def __init__(self, inner: MemoryObjectStore, act: Callable[[], Awaitable[None]], *, at: int = 1) -> None:
        self._inner = inner
        self._act = act
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        try:
            return bytes(await self._inner.get_range(key, start, end))
        except NotFound:
            self._left -= 1
            if not self._left:
                await self._act()
            raise


class Reading:
    """A metadata store that counts what reads of early pages bring, and leaves pages out of the first `stale` of them."""

    def __init__(self, inner: MemoryMetadataStore, *, stale: int = 0) -> None:
        self._inner = inner
        self._stale = stale
        self.reads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        found = await self._inner.get_many(wanted)
        if any(key.path.startswith(EARLY_PREFIX) for key in wanted):
            self.reads.append(sum(len(record.value) for record in found if record is not None))
            if len(self.reads) <= self._stale:
                return [None if key.path.startswith(EARLY_PREFIX) else record for key, record in zip(wanted, found, strict=True)]
        return found


async def test_entries_of_a_stored_object_are_read_from_it_and_from_no_page() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")], OTHER: [batch_bytes(payload=b"other")]})
        await early.commit({ONE: [batch_bytes(payload=b"second")]})
        await early.store()
        counting = Reading(it.metadata)
        report = await it.compact(ONE, OTHER, metadata=counting)

        assert (ended(report), ended(report, OTHER)) == (CompactionEnd.COMPACTED, CompactionEnd.COMPACTED)
        assert (report.objects, report.gets, counting.reads) == (1, 1, [])
        assert len(await early.left()) == 2, "the compactor deletes no page"
        assert await it.payloads() == [b"first", b"second"]
        assert await it.payloads(OTHER) == [b"other"]


async def test_entries_of_a_broker_that_died_are_read_from_their_pages_which_stay() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")], OTHER: [batch_bytes(payload=b"other")]})
        await early.commit({ONE: [batch_bytes(payload=b"second"), batch_bytes(payload=LARGE), batch_bytes(payload=b"third")]})
        report = await it.compact(ONE, OTHER)

        assert (ended(report), ended(report, OTHER)) == (CompactionEnd.COMPACTED, CompactionEnd.COMPACTED)
        assert report.gets == 0
        assert await early.left() == [key.path for key in early.pages]
        assert await it.payloads() == [b"first", b"second", LARGE, b"third"]
        assert await it.payloads(OTHER) == [b"other"]


async def test_early_entries_become_one_segment_with_those_of_objects_and_inline_ones() -> None:
    async with stores() as it:
        dead, stored = EarlyObject(it.metadata, it.blobs), EarlyObject(it.metadata, it.blobs)
        async with rig(shared=it.metadata, objects=it.blobs) as broker:
            await broker.send(batch_bytes(payload=b"of an object"))
        await dead.commit({ONE: [batch_bytes(payload=b"of a page")]})
        await stored.commit({ONE: [batch_bytes(payload=b"stored later")]})
        await stored.store()
        await stored.delete_pages()

        assert ended(await it.compact()) is CompactionEnd.COMPACTED
        assert await it.payloads() == [b"of an object", b"of a page", b"stored later"]


async def test_an_object_that_is_stored_while_its_pages_go_is_read_again() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")]})
        await early.commit({ONE: [batch_bytes(payload=b"second")]})

        async def finish() -> None:
            await early.store()
            await early.delete_pages()

        report = await it.compact(blobs=Acting(it.blobs, finish))

        assert ended(report) is CompactionEnd.COMPACTED
        assert await it.payloads() == [b"first", b"second"]


async def test_an_object_that_is_stored_after_the_second_look_at_it_is_read_once_more() -> None:
    """The pages were not seen by a deposed leader, then not there: what was asked for before that proves nothing."""
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")]})

        async def finish() -> None:
            await early.store()
            await early.delete_pages()

        report = await it.compact(metadata=Reading(it.metadata, stale=1), blobs=Acting(it.blobs, finish, at=2))

        assert ended(report) is CompactionEnd.COMPACTED
        assert await it.payloads() == [b"first"]


async def test_pages_that_a_deposed_leader_does_not_show_are_found_by_a_certain_look() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        for number in range(3):
            await early.commit({ONE: [batch_bytes(payload=b"%d" % number)]})
        report = await it.compact(metadata=Reading(it.metadata, stale=1))

        assert ended(report) is CompactionEnd.COMPACTED
        assert await it.payloads() == [b"0", b"1", b"2"]


async def test_an_answer_from_before_the_entry_is_no_damage() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        (before,) = await it.metadata.get_many([PartitionKeys(ONE).manifest])
        await early.commit({ONE: [batch_bytes(payload=b"first")]})

        class Deposed(Reading):
            async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
                found = await super().get_many(wanted)
                is_certain = len(wanted) > 1 and wanted[1].path.startswith(EARLY_PREFIX)
                return [before, *found[1:]] if is_certain else found

        report = await it.compact(metadata=Deposed(it.metadata, stale=9))

        assert isinstance(ended(report), Unavailable)
        assert "from the past" in str(ended(report))


async def test_what_has_neither_object_nor_page_is_damage_of_its_partition_alone() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({OTHER: [batch_bytes(payload=b"other")]})
        lost = len(early.pages)
        await early.commit({ONE: [batch_bytes(payload=b"first")]})
        await early.commit({ONE: [batch_bytes(payload=b"second")]})
        page = early.pages[lost]
        early.pages = early.pages[lost : lost + 1]
        await early.delete_pages()
        report = await it.compact(ONE, OTHER)

        error = ended(report)
        assert isinstance(error, NotFound)
        assert all(fact in str(error) for fact in (early.key, page.path, "entry=0..0", f"{TOPIC}/0"))
        assert await listed_segments(it.metadata) == []
        assert ended(report, OTHER) is CompactionEnd.COMPACTED
        assert await it.payloads(OTHER) == [b"other"]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_damaged_page_is_damage_unless_the_object_was_stored_meanwhile(is_stored: bool) -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")]})
        await early.commit({OTHER: [batch_bytes(payload=b"other")]})
        (page, _) = await it.metadata.get_many(early.pages)
        assert page is not None
        await it.metadata.write([Put(early.pages[0], page.value[:-1] + b"?", None)])

        async def finish() -> None:
            if is_stored:
                await early.store()

        report = await it.compact(ONE, OTHER, blobs=Acting(it.blobs, finish))

        assert ended(report, OTHER) is CompactionEnd.COMPACTED
        if is_stored:
            assert ended(report) is CompactionEnd.COMPACTED
            assert await it.payloads() == [b"first"]
        else:
            assert isinstance(ended(report), Corrupt)
            assert early.pages[0].path in str(ended(report))


async def test_entries_of_many_partitions_are_read_together_and_no_read_brings_more_than_a_mebibyte() -> None:
    partitions = [PartitionId(TOPIC, number) for number in range(100)]
    async with stores(100) as it:
        early = EarlyObject(it.metadata, it.blobs)
        for number in range(10):
            for first in range(0, 100, 20):
                await early.commit({one: [batch_bytes(payload=b"%d" % number * 2_900)] for one in partitions[first : first + 20]})
        counting = Reading(it.metadata)
        report = await it.compact(*partitions, metadata=counting)

        assert {ended(report, one) for one in partitions} == {CompactionEnd.COMPACTED}
        assert len(early.pages) == 50
        assert len(counting.reads) <= 4, "1,000 entries of 50 pages"
        assert max(counting.reads) <= MIB
        assert await it.payloads(partitions[-1]) == [b"%d" % number * 2_900 for number in range(10)]


async def test_metadata_that_do_not_answer_leave_the_partitions_for_another_round() -> None:
    async with stores() as it:
        early = EarlyObject(it.metadata, it.blobs)
        await early.commit({ONE: [batch_bytes(payload=b"first")]})

        class Silent(Reading):
            async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
                if any(key.path.startswith(EARLY_PREFIX) for key in wanted):
                    raise Unavailable("no answer")
                return await super().get_many(wanted)

        report = await it.compact(metadata=Silent(it.metadata))

        assert isinstance(ended(report), Unavailable)
        assert ended(await it.compact()) is CompactionEnd.COMPACTED
