"""The object store tells metadata that are older than it: by the count of deletions, and by marks of commits."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from structlog.testing import capture_logs

from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import (
    COUNTS_KEPT,
    KEPT_RANGES_MAX,
    LOST_MAX,
    MARKS_PREFIX,
    MARKS_READ_MAX,
    CollectionsRecord,
    CommitMarks,
    Deletions,
    KeptRange,
    MetadataWentBack,
    MissingObject,
    NewerStore,
    WentBack,
    accept_older,
    count_key,
    read_collections,
    read_mark,
    with_lost,
    with_missing,
    without_missing,
)
from storage.catalog.records import encode as encode_catalog
from storage.catalog.topic import TopicIdRecord
from storage.errors import Conflict, Corrupt, OutcomeUnknown, Unavailable
from storage.formats.manifest import Manifest, encode
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, Put
from storage.metadata.version_watch import PutManifest
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStat
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)


class LossyObjects(MemoryObjectStore):
    """The next put is stored, and its answer is lost."""

    reply_lost = False
    request_lost = False

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.request_lost:
            self.request_lost = False
            raise OutcomeUnknown("the request was lost")
        await super().put_if_absent(key, parts)
        if self.reply_lost:
            self.reply_lost = False
            raise OutcomeUnknown("the reply was lost")


class Both:
    """Both stores, and those who ask them."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.ids = IdSource(clock=self.clock)
        self.metadata = MemoryMetadataStore(clock=self.clock, shards=2)
        self.objects = LossyObjects(clock=self.clock)
        self.commits: dict[int, PutManifest] = {}
        self.marks = CommitMarks(self.objects, commits=self.commits, broker_id=lambda: 1, ids=self.ids, clock=self.clock)

    def deletions(self) -> Deletions:
        return Deletions(self.metadata, self.objects, ids=self.ids, clock=self.clock)

    async def count(self, times: int = 1) -> None:
        for _ in range(times):
            await self.deletions().count()

    async def look(self) -> WentBack | None:
        return await NewerStore(self.metadata, self.objects, self.ids).look()

    async def commit(self, partition: PartitionId = PARTITION) -> None:
        key = PartitionKeys(partition).manifest
        outcome = await self.metadata.write([Put(key, encode(Manifest()), None)])
        version = outcome.results[0].version  # type: ignore[union-attr]
        assert version is not None
        self.commits[self.metadata.shard_of(key.partition_key)] = PutManifest(key, version)

    async def names(self, prefix: str = "forebay-") -> list[str]:
        return [stat.key async for stat in self.objects.list(prefix)]


async def test_metadata_that_know_of_all_deletions_are_not_older() -> None:
    it = Both()
    assert await it.look() is None
    await it.count(3)
    assert await it.look() is None
    assert (await read_collections(it.metadata)).number == 3


async def test_metadata_from_before_a_deletion_are_older() -> None:
    it = Both()
    await it.count()
    backup = it.metadata.shared.copy()
    known_ms = (await read_collections(it.metadata)).at_ms
    await it.count(2)
    it.metadata.shared.put_back(backup)

    found = await it.look()
    assert found is not None
    assert (found.evidence, found.metadata_ms) == ("objects were deleted 3 times, and the metadata know of 1", known_ms)
    assert found.store_ms >= known_ms


async def test_a_deletion_that_was_killed_before_it_was_counted_in_the_object_store_is_no_alarm() -> None:
    it = Both()
    it.objects.request_lost = True
    with pytest.raises(Unavailable, match="was not counted"):
        await it.count()
    assert await it.look() is None
    await it.count()
    assert await it.names() == [count_key(2)]


async def test_a_count_whose_answer_was_lost_is_counted_all_the_same() -> None:
    it = Both()
    it.objects.reply_lost = True
    await it.count()
    assert await it.names() == [count_key(1)]
    assert await it.look() is None


async def test_a_count_that_another_has_put_stops_the_deletion() -> None:
    """The metadata were put back between two deletions of a compactor that runs."""
    it = Both()
    backup = it.metadata.shared.copy()
    await it.count()
    it.metadata.shared.put_back(backup)
    with pytest.raises(MetadataWentBack, match="was put before"):
        await it.count()


async def test_a_count_that_went_into_older_metadata_does_not_hide_that_they_are_older() -> None:
    """Both stores are at 1, and mean another deletion (model F-restore-number)."""
    it = Both()
    backup = it.metadata.shared.copy()
    await it.count()
    it.metadata.shared.put_back(backup)
    with pytest.raises(MetadataWentBack):
        await it.count()
    found = await it.look()
    assert found is not None
    assert found.evidence == "objects were deleted 1 times, the last of them another, and the metadata know of 1"


async def test_metadata_that_counted_another_deletion_can_be_accepted() -> None:
    it = Both()
    backup = it.metadata.shared.copy()
    await it.count()
    it.metadata.shared.put_back(backup)
    with pytest.raises(MetadataWentBack):
        await it.count()

    await accept_older(it.metadata, it.objects, it.ids, it.clock)

    assert await it.look() is None
    await it.count()


async def test_a_collector_that_counts_while_another_looks_is_no_alarm() -> None:
    """Model F-restore-read-once."""

    class Counting(MemoryObjectStore):
        def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
            return self.counted_first(prefix, start_after)

        async def counted_first(self, prefix: str, start_after: str) -> AsyncIterator[ObjectStat]:
            if not counted:
                counted.append(True)
                await Deletions(it.metadata, self, ids=it.ids, clock=it.clock).count()
            async for stat in super().list(prefix, start_after=start_after):
                yield stat

    it, counted = Both(), list[bool]()
    assert await NewerStore(it.metadata, Counting(clock=it.clock), it.ids).look() is None
    assert counted


async def test_an_object_of_a_broker_that_the_metadata_do_not_know_yet_stops_the_deletion() -> None:
    it = Both()
    with pytest.raises(MetadataWentBack, match="broker of epoch 9"):
        await it.deletions().count(newest_epoch=9)
    await it.deletions().count(newest_epoch=1)


async def test_an_epoch_that_the_metadata_give_only_now_stops_the_deletion() -> None:
    it = Both()
    await it.count()
    (record,) = await it.metadata.get_many([keys.COLLECTIONS])
    assert record is not None
    with pytest.raises(MetadataWentBack):
        await it.deletions().count(newest_epoch=record.version + 1)


async def test_two_that_delete_at_once_count_apart() -> None:
    it = Both()
    await asyncio.gather(*[it.deletions().count() for _ in range(5)])
    assert await it.names() == [count_key(number) for number in range(1, 6)]


async def test_old_counts_go() -> None:
    it = Both()
    for number in (1, 2):
        await it.objects.put_if_absent(count_key(number), [b"{}"])
    record = CollectionsRecord(number=COUNTS_KEPT + 1)
    await it.metadata.write([Put(keys.COLLECTIONS, encode_catalog(record), None)])
    await it.count()
    assert await it.names() == [count_key(1), count_key(COUNTS_KEPT + 2)]


async def test_a_commit_that_a_mark_names_and_the_metadata_lack_shows_that_they_are_older() -> None:
    it = Both()
    await it.commit()
    backup = it.metadata.shared.copy()
    await it.commit()
    await it.marks.put()
    assert await it.look() is None
    it.metadata.shared.put_back(backup)

    found = await it.look()
    assert found is not None
    assert "broker 1 committed to partition 0" in found.evidence
    assert "that was version 2, and the metadata have version 1" in found.evidence


async def test_of_many_marks_the_newest_are_compared() -> None:
    it = Both()
    await it.commit()
    for broker_id in range(MARKS_READ_MAX + 1):
        await CommitMarks(it.objects, commits=it.commits, broker_id=lambda known=broker_id: known, ids=it.ids, clock=it.clock).put()  # type: ignore[misc]
    backup = it.metadata.shared.copy()
    await it.commit()
    await it.marks.put()
    it.metadata.shared.put_back(backup)

    assert await it.look() is not None


async def test_a_partition_that_was_created_after_the_copy_shows_it_too() -> None:
    it = Both()
    backup = it.metadata.shared.copy()
    await it.commit()
    await it.marks.put()
    it.metadata.shared.put_back(backup)
    found = await it.look()
    assert found is not None
    assert "no record" in found.evidence


async def test_a_partition_whose_topic_was_deleted_and_purged_shows_nothing() -> None:
    it = Both()
    await it.commit()
    await it.marks.put()
    await it.metadata.write([Delete(PartitionKeys(PARTITION).manifest)])
    deleted = TopicIdRecord(name="t", deleted_logs=1)
    await it.metadata.write([Put(keys.topic_id(PARTITION.topic_id), encode_catalog(deleted), None)])
    assert await it.look() is None


async def test_a_broker_has_one_mark_and_puts_another_only_when_it_has_committed() -> None:
    it = Both()
    await it.marks.put()
    assert await it.names(MARKS_PREFIX) == [], "nothing was committed"
    await it.commit()
    await it.marks.put()
    (first,) = await it.names(MARKS_PREFIX)
    await it.marks.put()
    assert await it.names(MARKS_PREFIX) == [first]
    await it.commit()
    await it.marks.put()
    (second,) = await it.names(MARKS_PREFIX)
    assert second > first
    assert (await read_mark(it.objects, second)).commits[0].version == 2


async def test_a_mark_that_cannot_be_put_is_put_later() -> None:
    it = Both()
    await it.commit()
    it.objects.request_lost = True
    await it.marks.put()
    assert await it.names(MARKS_PREFIX) == []
    await it.marks.put()
    assert len(await it.names(MARKS_PREFIX)) == 1


async def test_a_mark_that_cannot_be_read_is_said_and_passed_over() -> None:
    """What it says may not be believed: a byte of it may name another commit."""
    it = Both()
    await it.commit()
    await it.marks.put()
    (key,) = await it.names(MARKS_PREFIX)
    mark = bytearray(await it.objects.get_range(key, 0, (await it.objects.stat(key)).size_bytes))
    mark[mark.index(b"00000000")] ^= 1
    await it.objects.delete_many([key])
    await it.objects.put_if_absent(key, [mark])
    with capture_logs() as logged:
        assert await it.look() is None
    assert [(line["event"], line["key"]) for line in logged] == [("commit_mark_unreadable", key)]


async def test_a_count_that_cannot_be_read_is_an_error_that_names_it() -> None:
    it = Both()
    await it.count()
    await it.objects.delete_many([count_key(1)])
    await it.objects.put_if_absent(count_key(1), [b"no count"])
    with pytest.raises(Corrupt, match=count_key(1)):
        await it.look()


async def test_names_that_are_not_ours_count_nothing() -> None:
    it = Both()
    await it.objects.put_if_absent("forebay-collections/readme.txt", [b""])
    assert await it.look() is None


async def test_older_metadata_that_were_accepted_are_not_older_any_more() -> None:
    it = Both()
    await it.count()
    before = ObjectId(it.ids.next_ulid())
    backup = it.metadata.shared.copy()
    await it.commit()
    await it.marks.put()
    await it.count(2)
    named = ObjectId(it.ids.next_ulid())
    it.metadata.shared.put_back(backup)
    assert await it.look() is not None

    await accept_older(it.metadata, it.objects, it.ids, it.clock)

    assert await it.look() is None
    known = await read_collections(it.metadata)
    assert known.number == 3
    assert (known.keeps(named), known.keeps(before)) == (True, True)
    assert not known.keeps(ObjectId(it.ids.next_ulid()))
    assert known.keeps(ObjectId("0" * 26)), "clocks differ: no age tells what is newer than the metadata"
    await it.count()
    assert count_key(4) in await it.names()


async def test_an_acceptance_that_was_killed_half_way_is_done_again() -> None:
    class Killed(MemoryObjectStore):
        async def delete_many(self, keys: Sequence[str]) -> None:
            raise Unavailable("killed")

    it = Both()
    backup = it.metadata.shared.copy()
    await it.commit()
    await it.marks.put()
    it.metadata.shared.put_back(backup)
    killed = Killed(clock=it.clock)
    async for stat in it.objects.list(""):
        await killed.put_if_absent(stat.key, [await it.objects.get_range(stat.key, 0, stat.size_bytes)])
    with pytest.raises(Unavailable):
        await accept_older(it.metadata, killed, it.ids, it.clock)
    assert await it.look() is not None, "the next start is refused as before"
    await accept_older(it.metadata, it.objects, it.ids, it.clock)
    assert await it.look() is None


async def test_what_is_kept_is_bounded_by_keeping_more() -> None:
    it = Both()
    for _ in range(KEPT_RANGES_MAX + 3):
        await accept_older(it.metadata, it.objects, it.ids, it.clock)
    known = await read_collections(it.metadata)
    assert len(known.kept) == KEPT_RANGES_MAX
    assert known.kept[0].first == "0" * 26, "the first began with nothing known"


def test_missing_objects_are_noted_once_and_go_when_they_are_accepted_as_lost() -> None:
    one, other = MissingObject("wal/1", "t", 0), MissingObject("wal/2", "t", 1)
    known = with_missing(CollectionsRecord(), [one, other, one])
    assert with_missing(known, [one]).missing == known.missing
    assert without_missing(known, [one]).missing == (other,)
    lost = with_lost(known, "wal/2")
    assert (lost.missing, lost.lost) == ((one,), ("wal/2",))
    assert with_missing(lost, [other]).missing == (one,), "it is not noted again"
    assert with_lost(lost, "wal/2") == lost
    with pytest.raises(Conflict, match="as many objects as may be"):
        with_lost(CollectionsRecord(lost=tuple(map(str, range(LOST_MAX)))), "wal/3")


def test_a_range_holds_both_of_its_ends() -> None:
    known = CollectionsRecord(kept=(KeptRange(ObjectId("B"), ObjectId("D"), 1),))
    assert [known.keeps(ObjectId(one)) for one in "ABCDE"] == [False, True, True, True, False]
