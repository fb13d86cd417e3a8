"""Metadata that were put back to an older copy: nothing that they may have named is deleted, whoever collects."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from compactor.collector import CollectionReport, ObjectsMissing
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import (
    MetadataWentBack,
    NewerStore,
    accept_older,
    change_collections,
    count_key,
    read_collections,
    with_lost,
)
from storage.errors import NotFound, Unavailable
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.metadata.keys import COLLECTIONS, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put, Record
from storage.objects.port import ObjectStat
from storage.vocabulary import ObjectId, PartitionId
from tests.unit.compactor.test_collector import ONE, OTHER, Stored, meanwhile, stored
from tests.unit.compactor.test_upkeep import cluster
from tests.unit.storage.log.rig import TOPIC


async def counts(it: Stored) -> list[str]:
    return await it.keys("forebay-collections/")


async def test_every_delete_is_counted_before_it_and_a_cycle_that_deletes_nothing_counts_nothing() -> None:
    async with stored() as it:
        await it.collect()
        await it.collect(dry_run=True)
        assert await counts(it) == []
        await it.compact()
        counted: list[list[str]] = []

        class Noting:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.blobs, name)

            async def delete_many(self, keys: list[str]) -> None:
                counted.append(await counts(it))
                await it.blobs.delete_many(keys)

        report = await it.collect(objects=Noting())
        assert report.deleted == 5
        assert counted == [[count_key(1)]]


async def test_each_batch_of_objects_is_counted_behind_its_own_look() -> None:
    """A copy made between two batches names what the second one deletes: it must lack a count."""
    async with stored() as it:
        await it.compact()
        await it.collect(batch_max=2)
        assert len(await counts(it)) == 3


async def test_a_restore_of_a_copy_from_before_a_collection_shows_at_the_next_start() -> None:
    async with stored() as it:
        before = await it.contents()
        backup = it.shared.shared.copy()
        await it.compact()
        await it.collect()
        it.shared.shared.put_back(backup)

        found = await NewerStore(it.shared, it.blobs, IdSource(clock=SystemClock())).look()
        assert found is not None
        assert len(before[0]) > 0


async def test_metadata_that_are_put_back_while_a_collector_is_at_work_lose_nothing() -> None:
    """Its count goes into the older ones, which name what it is about to delete (model F-restore-looked-once)."""
    async with stored() as it:
        before = await it.contents()
        objects = set(await it.keys("wal/"))
        backup = it.shared.shared.copy()
        await it.compact()

        async def put_back() -> None:
            it.shared.shared.put_back(backup)

        report = await meanwhile(it, put_back, before=lambda ops: any(isinstance(op, Put) and op.key == COLLECTIONS for op in ops))
        assert report.deleted == 0
        assert objects <= set(await it.keys("wal/"))
        await it.check(before)


async def test_objects_of_a_broker_that_registered_after_the_copy_are_not_deleted() -> None:
    async with stored() as it:
        # Its broker registered under a version that the metadata have not given yet.
        orphan = await it.orphan(ONE)
        await it.blobs.delete_many([orphan])
        object_id = ObjectId(orphan.rsplit("/", 1)[1])
        header = encode_header(object_id, 1_000_000, [Slice(ONE, header_bytes(1), 10)])
        await it.blobs.put_if_absent(object_key(object_id), [header, bytes(10)])
        with pytest.raises(MetadataWentBack, match="broker of epoch 1000000"):
            await it.collect()
        assert orphan in await it.keys()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_segment_that_ends_behind_the_log_is_not_deleted(count: int) -> None:
    """It was made of records that were committed."""
    async with stored() as it:
        backup = it.shared.shared.copy()
        await it.append(count)
        await it.compact(ONE)
        it.shared.shared.put_back(backup)
        (segment,) = await it.keys("segments/")
        with pytest.raises(MetadataWentBack, match=f"ends with offset {4 + count}, and the metadata end the log at 5"):
            await it.collect()
        assert segment in await it.keys()


async def test_what_older_metadata_do_not_name_stays_once_they_were_accepted_and_new_garbage_goes() -> None:
    async with stored() as it:
        ids = IdSource(clock=SystemClock())
        backup = it.shared.shared.copy()
        await it.append(3)
        await it.compact(ONE)
        lost = set(await it.keys("segments/")) | set((await it.keys("wal/"))[5:])
        it.shared.shared.put_back(backup)
        await accept_older(it.shared, it.blobs, ids, SystemClock())

        report = await it.collect()
        assert (report.deleted, report.kept) == (0, len(lost))
        assert lost <= set(await it.keys())
        assert (await it.collect(dry_run=True)).kept == len(lost)
        new = await it.orphan(ONE)
        assert (await it.collect()).deleted == 1
        assert new not in await it.keys()
        assert lost <= set(await it.keys())


@pytest.mark.parametrize("hours", [-1, 1])
async def test_acceptance_keeps_what_a_broker_made_whose_clock_is_an_hour_off(hours: int) -> None:
    class Off(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + hours * 3_500_000

    async with stored() as it:
        await it.orphan(ONE)
        assert (await it.collect()).deleted == 1, "the metadata know when that was"
        there = await it.orphan(ONE, clock=Off())
        await accept_older(it.shared, it.blobs, IdSource(clock=SystemClock()), SystemClock())
        report = await it.collect()

        assert (report.deleted, report.kept) == (0, 1)
        assert there in await it.keys()


@pytest.mark.parametrize("kind", ["wal/", "segments/"])
async def test_while_an_object_that_is_named_is_missing_nothing_is_deleted(kind: str) -> None:
    async with stored() as it:
        # Two, so that a list of the kind still shows the partition when one is gone.
        for _ in range(2):
            await it.append(2)
            if kind == "segments/":
                await it.compact()
        await it.collect()
        missing = (await it.keys(kind))[0]
        size_bytes = (await it.blobs.stat(missing)).size_bytes
        kept = bytes(await it.blobs.get_range(missing, 0, size_bytes))
        await it.blobs.delete_many([missing])
        orphan = await it.orphan(ONE, OTHER)

        for _ in range(2):
            with pytest.raises(ObjectsMissing, match=missing):
                await it.collect()
        assert orphan in await it.keys()
        assert {one.key for one in (await read_collections(it.shared)).missing} == {missing}

        await it.blobs.put_if_absent(missing, [kept])
        assert (await it.collect()).deleted >= 1
        assert orphan not in await it.keys()
        assert (await read_collections(it.shared)).missing == ()


async def trim(it: Stored) -> None:
    for partition in (ONE, OTHER):
        await it.broker.parts.trimmer.trim(partition, 5)


async def accept_lost(metadata: MemoryMetadataStore, key: str) -> None:
    await change_collections(metadata, lambda known: with_lost(known, key), action="accept as lost")


@pytest.mark.parametrize("how", ["trimmed past", "accepted as lost"])
async def test_a_missing_object_that_nobody_needs_any_more_holds_up_nothing(how: str) -> None:
    async with stored() as it:
        await it.append(2)
        missing = (await it.keys("wal/"))[1]
        await it.blobs.delete_many([missing])
        orphan = await it.orphan(ONE, OTHER)
        with pytest.raises(ObjectsMissing):
            await it.collect()
        await (trim(it) if how == "trimmed past" else accept_lost(it.shared, missing))
        await it.collect()
        assert orphan not in await it.keys()


async def test_a_dry_run_says_nothing_of_missing_objects_and_changes_nothing() -> None:
    async with stored() as it:
        await it.blobs.delete_many([(await it.keys("wal/"))[0]])
        report = await it.collect(dry_run=True)
        assert isinstance(report, CollectionReport)
        assert (await read_collections(it.shared)).missing == ()


async def test_an_object_that_a_list_leaves_out_is_asked_for_before_it_is_called_missing() -> None:
    async with stored() as it:
        left_out = (await it.keys("wal/"))[0]

        class Forgetful:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.blobs, name)

            async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
                async for stat in it.blobs.list(prefix, start_after=start_after):
                    if stat.key != left_out:
                        yield stat

        orphan = await it.orphan(ONE, OTHER)
        report = await it.collect(objects=Forgetful())
        assert (report.deleted, orphan in await it.keys()) == (1, False)


async def test_a_segment_that_is_put_and_committed_after_the_store_was_asked_is_not_missing() -> None:
    """The first look is older than its PUT, and the entry that names it is newer."""
    async with stored() as it:
        await it.compact(ONE)
        await it.append(3)
        await it.compact(ONE)
        _, segment = await it.keys("segments/")
        asked: list[str] = []

        class Early:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.blobs, name)

            async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
                async for stat in it.blobs.list(prefix, start_after=start_after):
                    if stat.key != segment:
                        yield stat

            async def stat(self, key: str) -> ObjectStat:
                asked.append(key)
                if key == segment and asked.count(segment) == 1:
                    raise NotFound("no such object")
                return await it.blobs.stat(key)

        report = await it.collect(objects=Early())
        assert asked.count(segment) == 2
        assert (report.live, report.failed) == (report.looked_at, {})
        assert (await read_collections(it.shared)).missing == ()


async def test_what_retention_frees_goes_in_the_same_cycle() -> None:
    async with cluster(**{"retention.ms": "1"}) as it:
        upkeep = it.upkeep(grace_ms=-60_000)
        report = await upkeep.cycle()
        await upkeep.close()
        assert report.removed_offsets > 0
        assert report.collection.deleted > 0


async def test_objects_that_cannot_be_deleted_hold_up_no_compaction() -> None:
    async with cluster() as it:
        await it.broker.objects.put_if_absent(object_key(ObjectId("0" * 26)), [encode_header(ObjectId("0" * 26), 1, ORPHAN), bytes(10)])
        inner = it.broker.objects.inner

        async def refused(_keys: object) -> None:
            raise Unavailable("no permission")

        it.broker.objects.delete_many = refused  # type: ignore[attr-defined]
        upkeep = it.upkeep(grace_ms=-60_000)
        with pytest.raises(Unavailable, match="no permission"):
            await upkeep.cycle()
        await upkeep.close()
        assert [stat.key async for stat in inner.list("segments/")] != []


async def test_older_metadata_are_neither_compacted_nor_collected_until_they_are_accepted() -> None:
    async with cluster() as it:
        shared = it.broker.shared
        backup = shared.shared.copy()
        upkeep = it.upkeep(grace_ms=-60_000)
        await upkeep.cycle()
        await upkeep.cycle()
        shared.shared.put_back(backup)
        names = [stat.key async for stat in it.broker.objects.list("")]
        report = await upkeep.cycle()
        assert report.went_back is not None
        assert report.blocked.startswith("the metadata are older than the object store: objects were deleted")
        assert it.counted("forebay_metadata_went_back") == 1
        assert [stat.key async for stat in it.broker.objects.list("")] == names

        await accept_older(shared, it.broker.objects, IdSource(clock=it.clock), it.clock)  # type: ignore[arg-type]
        report = await upkeep.cycle()
        await upkeep.close()
        assert (report.went_back, report.blocked) == (None, "")
        assert it.counted("forebay_metadata_went_back") == 0
        assert set(names) <= {stat.key async for stat in it.broker.objects.list("")}


async def test_headers_of_live_objects_are_read_once() -> None:
    async with stored() as it, it.collector() as one:
        gets: list[str] = []
        inner = it.blobs.get_range

        async def get_range(key: str, start: int, end: int) -> object:
            gets.append(key)
            return await inner(key, start, end)

        it.blobs.get_range = get_range  # type: ignore[method-assign, assignment]
        for _ in range(3):
            await one.cycle(CollectionReport())
        assert sorted(gets) == await it.keys("wal/")


ORPHAN = [Slice(PartitionId(TOPIC, 0), header_bytes(1), 10)]


async def test_what_a_deposed_leader_says_is_named_is_not_called_missing() -> None:
    async with stored() as it:
        old = await it.shared.get_many([PartitionKeys(ONE).manifest, PartitionKeys(OTHER).manifest])
        await it.compact()
        assert (await it.collect()).deleted == 5
        await it.append()

        class Deposed:
            def __getattr__(self, name: str) -> Any:
                return getattr(it.shared, name)

            async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
                """Answer from the past, unless the question names what was put since."""
                found = await it.shared.get_many(wanted)
                if any("!" in key.path for key in wanted):
                    return found
                past = {one.path: one for one in old if one is not None}
                return [past.get(key.path, record) for key, record in zip(wanted, found, strict=True)]

        report = await it.collect(Deposed())
        assert report.deleted == 0
        assert (await read_collections(it.shared)).missing == ()
