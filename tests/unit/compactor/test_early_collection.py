"""Collection and early pages: an object in pieces is not missing, pages go when nobody needs them, and rubbish stays bounded."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactor.collector import CollectionReport, Judged, ObjectsMissing
from compactor.discovery import Looks
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.measures import CycleReport, Measures
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.collections import Deletions, MetadataWentBack, NewerStore, read_collections
from storage.errors import Corrupt, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, encode
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put, Record, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.batches import batch_bytes
from tests.unit.compactor.aging import Counting
from tests.unit.compactor.early import EarlyObject
from tests.unit.compactor.test_collector import ONE, OTHER, Failing, Stored, meanwhile, revokes, stored
from tests.unit.storage.log.rig import TOPIC

OLDEST = ObjectId("0" * 26)
NEWEST = ObjectId("7" + "Z" * 25)


def early(it: Stored, object_id: ObjectId | None = None) -> EarlyObject:
    return EarlyObject(it.shared, it.blobs, object_id=object_id)


async def dead(it: Stored, *partitions: PartitionId, commits: int = 2) -> EarlyObject:
    """What a broker leaves that died before it stored its object."""
    made = early(it)
    for number in range(commits):
        await made.commit({one: [batch_bytes(payload=b"early %d" % number)] for one in partitions or (ONE, OTHER)})
    return made


# What is missing


async def test_an_object_in_pieces_is_not_missing_and_what_nothing_names_goes() -> None:
    async with stored() as it:
        pieces = await dead(it)
        orphan = await it.orphan(ONE)
        report = await it.collect()

        assert (report.deleted, orphan in await it.keys()) == (1, False)
        assert (await read_collections(it.shared)).missing == ()
        assert len(await pieces.left()) == 2


@pytest.mark.parametrize("gone", [0, 1])
async def test_an_entry_that_has_neither_object_nor_page_keeps_everything(gone: int) -> None:
    async with stored() as it:
        pieces, garbage = await dead(it), early(it)
        await garbage.put_page({ONE: [batch_bytes()]})
        await it.orphan(ONE)
        before, pages = await it.keys(), pieces.pages
        pieces.pages = [pages[gone]]
        (lost,) = await it.shared.get_many(pieces.pages)
        assert lost is not None
        await pieces.delete_pages()
        with pytest.raises(ObjectsMissing, match=pieces.key):
            await it.collect()
        with pytest.raises(ObjectsMissing, match="accept-lost"):
            await it.collect()

        assert await it.keys() == before
        assert len(await garbage.left()) == 1
        assert {one.key for one in (await read_collections(it.shared)).missing} == {pieces.key}

        await it.shared.write([Put(pages[gone], lost.value, ABSENT)])
        report = await it.collect()
        assert (report.deleted, report.pages.deleted) == (1, 1), "the page is back"


async def test_an_object_that_is_stored_while_its_pages_are_looked_for_is_not_missing() -> None:
    async with stored() as it:
        pieces = await dead(it, ONE, commits=1)

        class Finishing:
            """It shows no list of pages, and when they are asked for by name, they have just gone."""

            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def list(self, start: Key, end: str) -> Sequence[str]:
                return [] if start.path.startswith(EARLY_PREFIX) else await it.shared.list(start, end)

            async def get_many(self, wanted: Sequence[Key]) -> Sequence[Record | None]:
                if any(key.path.startswith(EARLY_PREFIX) for key in wanted) and await pieces.left():
                    await pieces.store()
                    await pieces.delete_pages()
                return await it.shared.get_many(wanted)

        await it.collect(Finishing())

        assert await pieces.left() == []
        assert (await read_collections(it.shared)).missing == ()


async def test_an_entry_that_is_compacted_while_its_pages_are_looked_for_misses_none() -> None:
    """Another collector has deleted them since."""
    async with stored() as it:
        pieces = await dead(it, ONE, commits=1)

        class Compacting:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def list(self, start: Key, end: str) -> Sequence[str]:
                return [] if start.path.startswith(EARLY_PREFIX) else await it.shared.list(start, end)

            async def get_many(self, wanted: Sequence[Key]) -> Sequence[Record | None]:
                if any(key.path.startswith(EARLY_PREFIX) for key in wanted) and await pieces.left():
                    await it.compact(ONE)
                    await it.collect()
                return await it.shared.get_many(wanted)

        await it.collect(Compacting())

        assert await pieces.left() == []
        assert (await read_collections(it.shared)).missing == ()


async def test_pages_that_a_deposed_leader_does_not_show_make_no_object_missing() -> None:
    async with stored() as it:
        pieces = await dead(it)

        class Deposed:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def list(self, start: Key, end: str) -> Sequence[str]:
                return [] if start.path.startswith(EARLY_PREFIX) else await it.shared.list(start, end)

            async def get_many(self, wanted: Sequence[Key]) -> Sequence[Record | None]:
                found = await it.shared.get_many(wanted)
                is_of_pages = any(key.path.startswith(EARLY_PREFIX) for key in wanted)
                return [None] * len(found) if is_of_pages else found  # of before the sentinel that is asked for with them

        with pytest.raises(Unavailable, match="from the past"):
            await it.collect(Deposed())

        assert (await read_collections(it.shared)).missing == ()
        assert len(await pieces.left()) == 2


async def test_pages_that_a_list_does_not_show_are_asked_for_certain() -> None:
    async with stored() as it:
        await dead(it)
        orphan = await it.orphan(ONE)

        class Behind:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def list(self, start: Key, end: str) -> Sequence[str]:
                return [] if start.path.startswith(EARLY_PREFIX) else await it.shared.list(start, end)

        await it.collect(Behind())

        assert orphan not in await it.keys()


async def test_a_compaction_that_missed_an_object_notes_none_that_is_young_and_in_pieces() -> None:
    async with stored() as it:
        pieces = await dead(it)
        lost = (await it.keys("wal/"))[0]
        await it.blobs.delete_many([lost])
        async with it.collector(grace_ms=60_000) as one:
            await one.note_missing_of(ONE)
        assert {one.key for one in (await read_collections(it.shared)).missing} == {lost}

        await pieces.delete_pages()
        async with it.collector(grace_ms=60_000) as one:
            await one.note_missing_of(ONE)
        assert {one.key for one in (await read_collections(it.shared)).missing} == {lost, pieces.key}


async def test_the_pages_of_a_broker_with_many_partitions_are_looked_for_together() -> None:
    partitions = [PartitionId(TOPIC, number) for number in range(2, 102)]
    async with stored() as it:
        for one in partitions:
            await it.shared.write([Put(PartitionKeys(one).manifest, encode(Manifest()), ABSENT)])
        pieces = await dead(it, *partitions, commits=3)
        counting = Counting(it.shared)
        report = await it.collect(counting)

        assert (report.pages.looked_at, report.pages.live) == (3, 3)
        assert "write" not in counting.calls, "nothing is asked for certain"
        assert counting.calls.count("list") <= 2
        assert len(await pieces.left()) == 3


# Pages that nobody needs


async def test_pages_of_a_stored_object_go_and_young_ones_stay() -> None:
    async with stored() as it:
        one = await dead(it)
        await one.store()
        young = await it.collect(grace_ms=60_000)
        dry = await it.collect(dry_run=True)
        assert len(await one.left()) == 2, "a dry run changes nothing"
        number = (await read_collections(it.shared)).number
        wet = await it.collect()

        assert (young.pages.looked_at, dry.pages.deleted, wet.pages.deleted) == (0, 2, 2)
        assert (dry.pages.deleted_bytes, await one.left()) == (wet.pages.deleted_bytes, [])
        assert (await it.manifest(ONE)).revoked_floor == ""
        assert (await read_collections(it.shared)).number == number, "the object is there: it is no deletion"
        await it.compact()
        assert [content.count(b"early") for content in await it.contents()] == [2, 2]


async def test_pages_in_pieces_stay_until_every_partition_that_they_name_has_compacted() -> None:
    async with stored() as it:
        one = await dead(it)
        nothing = await it.collect()
        await it.compact(ONE)
        half = await it.collect()
        before = await it.contents_of(ONE)
        await it.compact(OTHER)
        dry = await it.collect(dry_run=True)
        rest = await it.collect()

        assert (nothing.pages.live, half.pages.live, half.pages.deleted) == (2, 2, 0)
        assert (dry.pages.deleted, rest.pages.deleted, rest.pages.unsure) == (2, 2, 0)
        assert await one.left() == []
        assert before == await it.contents_of(ONE)
        assert (await it.manifest(ONE)).revoked_floor >= one.object_id


async def test_a_page_whose_commit_was_refused_goes_behind_a_floor_in_each_of_its_partitions() -> None:
    async with stored() as it:
        refused = early(it)
        await refused.commit({ONE: [batch_bytes(payload=b"kept")]})
        await refused.put_page({ONE: [batch_bytes()], OTHER: [batch_bytes()]})
        await it.compact()
        number = (await read_collections(it.shared)).number
        report = await it.collect()

        assert (report.pages.deleted, await refused.left()) == (2, [])
        assert [(await it.manifest(one)).revoked_floor for one in (ONE, OTHER)] == [refused.object_id] * 2
        assert (await read_collections(it.shared)).number > number, "it is counted, as the only bytes that there are"


async def test_a_commit_before_the_floor_keeps_its_pages() -> None:
    async with stored() as it:
        late = early(it)
        commit = await late.put_page({ONE: [batch_bytes(payload=b"late")], OTHER: [batch_bytes()]})
        report = await meanwhile(it, commit, before=revokes)

        assert (report.pages.live, report.pages.deleted, len(await late.left())) == (1, 0, 1)
        await it.compact()
        assert b"late" in await it.contents_of(ONE)


async def test_partitions_that_are_gone_need_no_page_and_unknown_ones_keep_theirs() -> None:
    async with stored() as it:
        unknown = PartitionId(TopicId("00000000-0000-4000-8000-000000000009"), 0)
        of_gone, of_unknown = early(it), early(it)
        await of_gone.commit({OTHER: [batch_bytes()]})
        await of_unknown.put_page({unknown: [batch_bytes()], ONE: [batch_bytes()]})
        (record,) = await it.shared.get_many([PartitionKeys(OTHER).manifest])
        assert record is not None
        await it.shared.write([Put(PartitionKeys(OTHER).manifest, encode(Manifest(log_state=LogState.DELETED)), record.version)])
        report = await it.collect()

        assert (len(await of_gone.left()), len(await of_unknown.left())) == (0, 1)
        assert (report.pages.deleted, report.pages.unsure) == (1, 1)
        assert str(unknown) in report.pages.failed


async def put_raw(it: Stored, path: str, value: bytes = b"rubbish") -> Key:
    key = Key(f"{EARLY_PREFIX}{path}", PartitionKeys(ONE).partition_key)
    await it.shared.write([Put(key, value, ABSENT)])
    return key


async def test_what_is_no_page_stays_and_is_reported_wherever_it_lies() -> None:
    async with stored() as it:
        names = ["!", "01ABC", f"{OLDEST}-1", f"{NEWEST}", "8", "readme"]
        strange = [await put_raw(it, name) for name in names]
        undecodable = await put_raw(it, f"{OLDEST}-0000000064")
        young = await put_raw(it, f"{NEWEST}-0000000064")
        pieces = await dead(it)
        report = await it.collect()

        kept = await it.shared.get_many([*strange, undecodable, young])
        assert None not in kept
        assert set(report.pages.failed) == {key.path for key in (*strange, undecodable)}
        assert {type(error) for error in report.pages.failed.values()} == {Corrupt}
        assert (report.pages.unsure, report.pages.live, len(await pieces.left())) == (7, 2, 2)


async def test_a_damaged_page_goes_with_the_others_once_its_object_is_there() -> None:
    async with stored() as it:
        one = await dead(it)
        await it.shared.write([Put(one.pages[0], b"damaged", None)])
        kept = await it.collect()
        await one.store()
        gone = await it.collect()

        assert (kept.pages.unsure, kept.pages.deleted, set(kept.pages.failed)) == (1, 0, {one.pages[0].path})
        assert (gone.pages.deleted, gone.pages.failed) == (2, {})


@pytest.mark.parametrize("how", ["no object of ours", "under another name", "damaged"])
async def test_pages_stay_while_what_lies_under_the_name_of_their_object_is_another(how: str) -> None:
    async with stored() as it:
        one, other = await dead(it), await dead(it)
        await other.store()
        stat = await it.blobs.stat(other.key)
        body = bytearray(await it.blobs.get_range(other.key, 0, stat.size_bytes))
        body[-1] ^= how == "damaged"
        await it.blobs.put_if_absent(one.key, [b"foreign" if how == "no object of ours" else bytes(body)])
        before = await it.contents()
        report = await it.collect()

        assert (len(await one.left()), len(await other.left())) == (2, 0)
        assert (report.pages.deleted, report.pages.unsure, set(report.pages.failed)) == (2, 2, {one.key})
        assert isinstance(report.pages.failed[one.key], Corrupt)
        assert await it.contents() == before
        await it.blobs.delete_many([one.key])
        await it.compact()
        assert (await it.collect()).pages.deleted == 2, "once it is gone they are the only ones"


async def test_rubbish_is_looked_at_in_bounded_cycles_and_named_up_to_a_bound() -> None:
    limits = CompactorLimits(early_pages_named_max=3)
    async with stored() as it:
        for number in range(25):
            await put_raw(it, f"rubbish-{number}")
        behind = await dead(it, OTHER)
        await behind.store()
        async with it.collector(limits=limits, objects_max=10, batch_max=4) as one:
            seen, deleted = [], 0
            for _ in range(3):
                ended = await one.cycle(report := CollectionReport())
                seen.append((report.pages.looked_at, EARLY_PREFIX in ended))
                deleted += report.pages.deleted
                assert len(report.pages.failed) == 3

        assert seen == [(10, False), (10, False), (7, True)]
        assert deleted == 2


async def test_a_cycle_reads_a_bounded_number_of_bytes() -> None:
    limits = CompactorLimits(early_pages_read_bytes_max=1, early_pages_cycle_bytes_max=EARLY_PAGE_BYTES_MAX)
    async with stored() as it:
        one = early(it)
        for _ in range(5):
            await one.commit({ONE: [batch_bytes(payload=b"x" * 40_000)]})
        await one.store()
        async with it.collector(limits=limits) as collector:
            seen = []
            for _ in range(3):
                await collector.cycle(report := CollectionReport())
                seen.append(report.pages.looked_at)

        assert seen == [2, 2, 1]
        assert await one.left() == []


async def test_pages_of_all_shards_are_found() -> None:
    shared, blobs = MemoryMetadataStore(clock=SystemClock(), shards=13), MemoryObjectStore(clock=SystemClock())
    partitions = [PartitionId(TOPIC, number) for number in range(60)]
    for one in partitions:
        await shared.write([Put(PartitionKeys(one).manifest, encode(Manifest()), ABSENT)])
    assert len({shared.shard_of(PartitionKeys(one).partition_key) for one in partitions}) == 13
    made = []
    for one in partitions:
        made.append(EarlyObject(shared, blobs))
        await made[-1].commit({one: [batch_bytes()]})
        await made[-1].store()
    it: Any = Stored(None, shared, blobs)  # type: ignore[arg-type]
    report = await it.collect()

    assert report.pages.deleted == 60
    assert [await one.left() for one in made] == [[]] * 60


async def test_two_collectors_of_pages_harm_nobody() -> None:
    async with stored() as it:
        kept = await dead(it)
        gone = await dead(it)
        await gone.store()
        await early(it).put_page({ONE: [batch_bytes()]})
        reports = await asyncio.gather(*[it.collect() for _ in range(3)])

        assert sum(report.pages.deleted for report in reports) == 3
        assert not any(report.pages.failed for report in reports)
        assert (len(await kept.left()), len(await gone.left())) == (2, 0)


@pytest.mark.parametrize("way", ["refused", "request lost", "reply lost"])
@pytest.mark.parametrize("number", range(1, 7))
async def test_whatever_fails_no_page_goes_that_is_needed_and_another_cycle_does_the_rest(number: int, way: str) -> None:
    async with stored() as it:
        kept, gone = await dead(it), await dead(it)
        await gone.store()
        refused = early(it)
        await refused.put_page({ONE: [batch_bytes()], OTHER: [batch_bytes()]})
        with contextlib.suppress(StorageError):
            await it.collect(Failing(it.shared, number, way))
        assert len(await kept.left()) == 2
        await it.collect()

        assert (len(await kept.left()), await gone.left(), await refused.left()) == (2, [], [])
        await it.compact()
        assert [content.count(b"early") for content in await it.contents()] == [4, 4]


def test_pages_are_counted_by_what_became_of_them_and_kept_ones_are_said() -> None:
    telemetry = Telemetry()
    measures = Measures(telemetry, SystemClock())
    report = CycleReport()
    report.collection.pages = Judged(
        looked_at=6, live=1, unsure=2, deleted=3, deleted_bytes=90, failed={"llog/early/readme": Corrupt("why")}
    )
    with capture_logs() as events:
        measures.note_cycle(report, Looks())

    pages = {
        sample.labels["outcome"]: sample.value
        for family in telemetry.registry.collect()
        for sample in family.samples
        if sample.name == "forebay_gc_early_pages_total"
    }
    assert pages == {"deleted": 3, "live": 1, "unsure": 2}
    assert [(event["event"], event.get("of"), event.get("pages")) for event in events] == [
        ("early_pages_kept", "llog/early/readme", None),
        ("early_pages_deleted", None, 3),
    ]


# Metadata that went back


async def test_pages_in_pieces_stay_when_the_metadata_were_put_back_behind_the_look() -> None:
    """The entry is compacted, and nobody needs its page. Then an older copy is put back, whose entry has its bytes in that page alone."""
    async with stored(0) as it:
        pieces = await dead(it)
        copy = it.shared.shared.copy()
        await it.compact()
        has_put_back = False

        class PutBack:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
                nonlocal has_put_back
                if not has_put_back and any(isinstance(op, Put) and op.key == metadata_keys.COLLECTIONS for op in ops):
                    has_put_back = True
                    it.shared.shared.put_back(copy)
                return await it.shared.write(ops)

        report = await it.collect(PutBack())

        assert has_put_back
        assert (report.pages.deleted, len(await pieces.left())) == (0, 2)


async def test_pages_stay_while_the_metadata_are_older_than_the_object_store() -> None:
    async with stored() as it:
        pieces = await dead(it)
        await it.compact()
        copy = it.shared.shared.copy()
        await Deletions(it.shared, it.blobs, ids=IdSource(clock=SystemClock()), clock=SystemClock()).count()
        it.shared.shared.put_back(copy)
        with pytest.raises(MetadataWentBack):
            await it.collect()

        assert len(await pieces.left()) == 2


async def test_an_object_that_is_stored_long_after_its_commits_and_pages_without_entries_are_no_sign_of_older_metadata() -> None:
    async with stored() as it:
        one, refused = await dead(it), early(it)
        await refused.put_page({ONE: [batch_bytes()]})
        await it.append(20)
        await it.compact()
        await one.store()
        await refused.store()
        report = await it.collect()

        assert await NewerStore(it.shared, it.blobs, IdSource(clock=SystemClock())).look() is None
        assert (one.key in await it.keys(), refused.key in await it.keys()) == (False, False)
        assert (report.failed, report.pages.failed) == ({}, {})


async def test_limits_of_pages_fit_each_other() -> None:
    assert DEFAULT_LIMITS.early_page_bytes_per_delete >= EARLY_PAGE_BYTES_MAX
