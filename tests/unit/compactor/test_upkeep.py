"""Cycles of a compactor: what is due is done, what has not changed costs nothing, what fails is said and does not stop the rest."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from compactor import upkeep as upkeep_module
from compactor.collector import CollectorPolicy, UploadsReport
from compactor.compaction import RoundPolicy
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.measures import CycleReport, Measures
from compactor.merge import MergeEnd, MergeResult, Merging
from compactor.plan import CompactionPolicy
from compactor.upkeep import DAMAGED_AGAIN_MS, Upkeep
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from runtime.ulid import encode_ulid
from storage.catalog.brokers import compactor_of, live_compactors
from storage.catalog.identity import open_cluster, read_cluster, write_marker
from storage.catalog.records import encode as encode_record
from storage.catalog.topics import Topics
from storage.errors import Corrupt, NotFound, Unavailable
from storage.formats.manifest import Manifest, decode_manifest, encode, with_rewritten
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.log.flush import FlushSettings
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, Key, NotApplied, Put, Record
from storage.objects.port import UnfinishedUpload
from storage.vocabulary import ObjectId, PartitionId
from tests.kit.objects_contract import listed
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import left_behind, listed_segments
from tests.unit.storage.log.rig import Rig, rig

AT_ONCE = CompactionPolicy(entries_due=1)
MERGELESS = CompactionPolicy(entries_due=1, segment_bytes=1)
"""No segment is small beside one of a byte."""
PARTITIONS = 6


class LaterClock(SystemClock):
    """It can be put forward."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


class Cluster(NamedTuple):
    """A log of some partitions, in stores that are one cluster's."""

    broker: Rig
    metadata: "CountingMetadata"
    clock: LaterClock
    partitions: list[PartitionId]
    telemetry: Telemetry

    def upkeep(
        self,
        policy: CompactionPolicy = AT_ONCE,
        rounds: RoundPolicy | None = None,
        *,
        grace_ms: int = 900_000,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> Upkeep:
        store: Any = self.metadata
        objects: Any = self.broker.objects
        return Upkeep(
            metadata=store,
            objects=objects,
            blocking=InlineBlocking(),
            ids=IdSource(clock=self.clock),
            clock=self.clock,
            policy=policy,
            rounds=rounds or RoundPolicy(),
            measures=Measures(self.telemetry, self.clock),
            collecting=CollectorPolicy(grace_ms=grace_ms),
            collect_every_s=0.0,
            http=lambda: "127.0.0.1:8170",
            limits=limits,
        )

    async def append(self, partitions: Sequence[PartitionId] | None = None, count: int = 3, *, padding: bytes = b"") -> None:
        for number in range(count):
            batches = [(record_batch(b"%d" % number + padding), one) for one in partitions or self.partitions]
            await asyncio.gather(*[self.broker.send(batch, partition=one) for batch, one in batches])

    async def manifest(self, partition: PartitionId) -> Manifest:
        (record,) = await self.metadata.get_many([PartitionKeys(partition).manifest])
        assert record is not None
        return decode_manifest(record.value, path=record.path)

    async def cursors(self) -> list[int]:
        return [(await self.manifest(partition)).compaction_cursor for partition in self.partitions]

    def counted(self, name: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(name, labels) or 0.0


class CountingMetadata:
    """The store inside, and which index ranges were read."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self.scanned: list[str] = []
        self.fails: Unavailable | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        if self.fails is not None:
            raise self.fails
        self.scanned += [key.path for key in wanted if key.path.endswith("/compactor-claim")]
        return await self._inner.get_many(wanted)

    async def write(self, ops: Any) -> Any:
        self.scanned += [op.key.path for op in ops if isinstance(op, Put) and op.key.path.endswith("/compactor-claim")]
        return await self._inner.write(ops)


@contextlib.asynccontextmanager
async def cluster(*, level: int = 2, **configs: str) -> AsyncIterator[Cluster]:
    """The records of these tests are years old."""
    clock, telemetry = LaterClock(), Telemetry()
    shared = MemoryMetadataStore(clock=clock, shards=1)
    topics = Topics(shared, clock=clock, ids=IdSource(clock=clock), telemetry=Telemetry())
    topic = await topics.create("t", partition_count=PARTITIONS, replication_factor=1, configs={"retention.ms": "-1"} | configs)
    topics.close()
    async with rig(shared=shared, flush=FlushSettings(interval_s=0.005, gather_s=0.0)) as broker:
        record = await open_cluster(shared, IdSource(clock=clock), clock, level_max=level)
        await write_marker(broker.objects, record)  # type: ignore[arg-type]
        one = Cluster(broker, CountingMetadata(shared), clock, [topic.partition(number) for number in range(PARTITIONS)], telemetry)
        await one.append()
        yield one


async def until_nothing_is_due(upkeep: Upkeep) -> list[CycleReport]:
    """Collections are due in each cycle here, so each has one round."""
    reports = [await upkeep.cycle()]
    while reports[-1].segments:
        reports.append(await upkeep.cycle())
    return reports


async def test_a_cycle_compacts_what_is_due_and_says_so() -> None:
    async with cluster() as it:
        before = [await it.broker.read_all(partition) for partition in it.partitions]
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
        await upkeep.close()

        assert (report.partitions, report.segments, report.failed, report.blocked) == (PARTITIONS, PARTITIONS, {}, "")
        assert report.gets == report.objects == 3, "each object is read once for all partitions"
        assert await it.cursors() == [3] * PARTITIONS
        assert [await it.broker.read_all(partition) for partition in it.partitions] == before
        assert [line["segments"] for line in logged if line["event"] == "compacted"] == [PARTITIONS]
        assert it.counted("forebay_compactor_runs_total", outcome="compacted") == PARTITIONS
        assert it.counted("forebay_compactor_bytes_total", direction="read") == report.read_bytes > 0
        assert it.counted("forebay_compactor_entries_total") == report.entries == 3 * PARTITIONS
        assert it.counted("forebay_compactor_cycles_total", ended="done") == 1
        assert await live_compactors(it.broker.shared) == []


async def test_what_has_not_changed_is_not_looked_at_until_it_is_due_by_its_age() -> None:
    async with cluster() as it:
        upkeep = it.upkeep(CompactionPolicy(entries_due=100, age_due_ms=60_000))
        await upkeep.cycle()
        waiting = it.counted("forebay_compactor_waiting_bytes"), it.counted("forebay_compactor_waiting_seconds")
        first = len(it.metadata.scanned)
        await upkeep.cycle()
        unchanged = len(it.metadata.scanned) - first
        await it.append(it.partitions[:1])
        await upkeep.cycle()
        changed = set(it.metadata.scanned[first:])
        it.clock.later_ms = 61_000
        report = await upkeep.cycle()
        await upkeep.close()

        assert first >= PARTITIONS
        assert waiting[0] > 0
        assert 0 <= waiting[1] < 60
        assert unchanged == 0
        assert changed == {PartitionKeys(it.partitions[0]).compactor_claim.path}
        assert report.segments == PARTITIONS
        assert it.counted("forebay_compactor_waiting_bytes") == 0


async def test_a_backlog_becomes_several_segments_in_rounds_of_bounded_size() -> None:
    async with cluster() as it:
        await it.append(count=12)
        upkeep = it.upkeep(CompactionPolicy(entries_due=1, segment_bytes=300), RoundPolicy(slice_bytes_max=800))
        reports = await until_nothing_is_due(upkeep)
        await upkeep.close()

        segments = sum(report.segments for report in reports)
        assert await it.cursors() == [15] * PARTITIONS
        assert segments > 2 * PARTITIONS
        assert [len(await listed_segments(it.broker.shared, one)) + 1 for one in it.partitions] == [segments // PARTITIONS] * PARTITIONS
        assert [await left_behind(it.broker.shared, one) for one in it.partitions] == [[]] * PARTITIONS


async def test_appends_that_never_pause_do_not_keep_a_cycle_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as it:
        objects: Any = it.broker.objects
        put = objects.put_if_absent

        async def appending(key: str, parts: Any) -> None:
            await put(key, parts)
            if key.startswith("segments/"):
                await it.append(it.partitions[:1], count=1)

        monkeypatch.setattr(objects, "put_if_absent", appending)
        upkeep = it.upkeep()
        async with asyncio.timeout(25):
            report = await upkeep.cycle()
        await upkeep.close()

        assert report.segments == PARTITIONS


async def test_two_compactors_share_the_partitions_and_who_stays_takes_over_those_of_who_left() -> None:
    async with cluster() as it:
        one, other = it.upkeep(), it.upkeep()
        await one.cycle()
        await other.cycle()
        names = [record.name for record in await live_compactors(it.broker.shared)]
        await it.append()
        shares = [(await upkeep.cycle()).partitions for upkeep in (one, other)]
        both = await it.cursors()
        await other.close()
        await it.append()
        alone = (await one.cycle()).partitions
        await one.close()

        assert sorted(names) == sorted([one.name, other.name])
        assert shares == [sum(compactor_of(partition, names) == name for partition in it.partitions) for name in (one.name, other.name)]
        assert sum(shares) == alone == PARTITIONS
        assert both == [6] * PARTITIONS
        assert await it.cursors() == [9] * PARTITIONS


async def test_a_compactor_that_lost_its_session_goes_on_with_another() -> None:
    async with cluster() as it:
        upkeep = it.upkeep()
        await upkeep.cycle()
        assert upkeep._life is not None
        await upkeep._life.session.close()
        await it.append()
        await upkeep.cycle()
        names = [record.name for record in await live_compactors(it.broker.shared)]
        await upkeep.close()

        assert names == [upkeep.name]
        assert await it.cursors() == [6] * PARTITIONS


async def test_what_is_damaged_is_said_with_its_object_and_offset_and_tried_again_later_while_the_rest_goes_on() -> None:
    async with cluster() as it:
        entry = (await it.manifest(it.partitions[2])).pending[1]
        ((position, length),) = entry.batches
        stored: Any = it.broker.objects.inner._objects
        key = object_key(entry.object_id)
        sound = stored[key]
        broken = bytearray(sound.body)
        broken[position + length - 1] ^= 1
        stored[key] = sound._replace(body=bytes(broken))
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
            await it.append()
            second = await upkeep.cycle()
            it.clock.later_ms = DAMAGED_AGAIN_MS + 1
            third = await upkeep.cycle()
        stored[key] = sound
        it.clock.later_ms *= 2
        mended = await upkeep.cycle()
        await upkeep.close()

        (line,) = [line for line in logged if line["event"] == "partition_not_compacted"]
        assert (line["outcome"], line["partition"]) == ("damaged", str(it.partitions[2]))
        assert key in line["cause"]
        assert "offset=1" in line["cause"]
        assert "storage verify" in line["fix"]
        assert list(report.failed) == list(third.failed) == [it.partitions[2]]
        assert second.failed == {}, "not before its time"
        assert second.segments == PARTITIONS - 1
        assert mended.failed == {}
        assert await it.cursors() == [6] * PARTITIONS


async def test_a_record_that_cannot_be_read_keeps_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as it:
        store = it.broker.shared
        await store.write([Put(PartitionKeys(it.partitions[1]).manifest, b"{}}", None)])
        await store.write([Put(keys.topic("broken"), b"no topic", None)])
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
        await upkeep.close()

        assert list(report.failed) == [it.partitions[1]]
        assert report.segments == PARTITIONS - 1
        assert {line["event"] for line in logged} >= {"topic_not_readable", "partition_not_compacted"}


async def test_nothing_is_written_that_a_broker_of_the_cluster_might_not_read() -> None:
    async with cluster(level=1) as it:
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
            await upkeep.cycle()
        record = await read_cluster(it.broker.shared)
        assert record is not None
        await it.broker.shared.write([Put(keys.CLUSTER, encode_record(msgspec.structs.replace(record, level=2)), None)])
        raised = await upkeep.cycle()
        await upkeep.close()

        assert "forebay cluster upgrade" in report.blocked
        assert [line["why"] for line in logged if line["event"] == "nothing_compacted"] == [report.blocked]
        assert raised.segments == PARTITIONS


async def test_a_store_of_another_cluster_is_left_alone() -> None:
    async with cluster() as it:
        record = await read_cluster(it.broker.shared)
        assert record is not None
        await it.broker.shared.write([Put(keys.CLUSTER, encode_record(msgspec.structs.replace(record, cluster_id="x" * 22)), None)])
        upkeep = it.upkeep()
        report = await upkeep.cycle()
        await upkeep.close()

        assert "does not bear the id of this cluster" in report.blocked
        assert await it.cursors() == [0] * PARTITIONS


async def test_one_topic_or_partition_can_be_compacted_by_itself() -> None:
    async with cluster() as it:
        upkeep = it.upkeep()
        report = await upkeep.cycle(only={"t"}, number=4, is_share=False)
        with pytest.raises(NotFound, match="no such topic: elsewhere, nowhere"):
            await upkeep.cycle(only={"t", "nowhere", "elsewhere"}, is_share=False)
        await upkeep.close()

        assert report.partitions == 1
        assert await it.cursors() == [0, 0, 0, 0, 3, 0]


async def test_a_store_that_does_not_answer_fails_the_cycle_and_is_said_once() -> None:
    async with cluster() as it:
        upkeep = it.upkeep()
        measures = upkeep._measures
        it.metadata.fails = Unavailable("no answer")
        with capture_logs() as logged:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await upkeep.cycle()
                measures.note_failed_cycle(Unavailable("no answer"))
            it.metadata.fails = None
            await upkeep.cycle()
        await upkeep.close()

        assert [line["event"] for line in logged if line["event"].startswith("compactor_")] == ["compactor_failing", "compactor_recovered"]
        assert it.counted("forebay_compactor_cycles_total", ended="failed") == 3
        assert measures.success_age_s() < 5


async def test_retention_of_the_topic_is_applied_in_a_cycle_also_where_nothing_is_compacted_yet() -> None:
    async with cluster(level=1, **{"retention.ms": "3600000"}) as it:
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
            again = await upkeep.cycle()
        await upkeep.close()

        assert [(await it.manifest(partition)).log_start for partition in it.partitions] == [3] * PARTITIONS
        assert (report.trimmed, report.removed_offsets, again.trimmed) == (PARTITIONS, 3 * PARTITIONS, 0)
        assert [(line["partitions"], line["offsets"]) for line in logged if line["event"] == "retention"] == [(PARTITIONS, 3 * PARTITIONS)]
        assert it.counted("forebay_retention_offsets_total") == 3 * PARTITIONS


async def test_of_a_backlog_no_more_than_a_round_is_added_before_what_may_go_is_deleted() -> None:
    async with cluster() as it:
        await it.append(count=12)
        upkeep = it.upkeep(CompactionPolicy(entries_due=1, segment_bytes=300), RoundPolicy(slice_bytes_max=800), grace_ms=-60_000)
        reports = await until_nothing_is_due(upkeep)
        alone = it.upkeep(CompactionPolicy(entries_due=1, segment_bytes=300), RoundPolicy(slice_bytes_max=800))
        await it.append(count=12)
        by_hand = await alone.cycle(is_share=False)
        await upkeep.close()
        await alone.close()

        assert len(reports) > 2
        assert sum(report.collection.deleted > 0 for report in reports) > 1
        assert await listed(it.broker.objects.inner, "wal/") != []
        assert by_hand.segments >= sum(report.segments for report in reports[1:]), "a cycle by hand does all there is"


async def test_objects_that_became_segments_go_in_the_same_cycle_once_they_are_old_enough() -> None:
    async with cluster() as it:
        young = it.upkeep()
        await young.cycle()
        await young.close()
        kept = await listed(it.broker.objects.inner, "wal/")
        upkeep = it.upkeep(grace_ms=-60_000)
        with capture_logs() as logged:
            report = await upkeep.cycle()
        await upkeep.close()

        assert len(kept) == 3
        assert await listed(it.broker.objects.inner, "wal/") == []
        assert (report.collection.deleted, report.collection.live) == (3, PARTITIONS)
        assert [line["objects"] for line in logged if line["event"] == "objects_deleted"] == [3]
        assert it.counted("forebay_gc_objects_total", outcome="deleted") == 3
        assert it.counted("forebay_gc_bytes_total") == report.collection.deleted_bytes > 0


async def test_what_a_deleted_topic_left_is_removed_and_counted() -> None:
    async with cluster() as it:
        await it.append(count=40)
        names = [PartitionKeys(partition) for partition in it.partitions]
        topics = Topics(it.broker.shared, clock=it.clock, ids=IdSource(clock=it.clock))
        (topic,) = await topics.all()
        await topics.delete(topic)
        topics.close()
        left = [path for one in names for first, end in one.lists() for path in await it.broker.shared.list(first, end)]
        upkeep = it.upkeep()
        with capture_logs() as logged:
            report = await upkeep.cycle()
        await upkeep.close()
        after = [path for one in names for first, end in one.lists() for path in await it.broker.shared.list(first, end)]

        assert len(left) >= PARTITIONS
        assert after == []
        assert report.purge is not None
        assert (report.purge.partitions, report.purge.keys, report.purge.failed) == (PARTITIONS, len(left), {})
        assert [line["keys"] for line in logged if line["event"] == "topics_purged"] == [len(left)]
        assert it.counted("forebay_purge_removed_total", what="keys") == len(left)


async def test_of_two_compactors_one_collects() -> None:
    async with cluster() as it:
        one, other = it.upkeep(grace_ms=-60_000), it.upkeep(grace_ms=-60_000)
        for upkeep in (one, other):
            await upkeep.cycle()
        looked_at = [(await upkeep.cycle()).collection.looked_at for upkeep in (one, other)]
        for upkeep in (one, other):
            await upkeep.close()

        assert sorted(looked_at) == [0, PARTITIONS]


async def test_objects_are_looked_at_once_in_each_interval() -> None:
    async with cluster() as it:
        upkeep = it.upkeep(grace_ms=-60_000)
        upkeep._collect_every_s = 3_600.0
        reports = [await upkeep.cycle() for _ in range(3)]
        await upkeep.close()

        assert [one.collection.looked_at > 0 for one in reports] == [True, False, False]
        assert [one.collection.uploads is not None for one in reports] == [True, False, False]


async def test_nothing_of_a_store_of_another_cluster_is_deleted() -> None:
    async with cluster() as it:
        record = await read_cluster(it.broker.shared)
        assert record is not None
        await it.broker.shared.write([Put(keys.CLUSTER, encode_record(msgspec.structs.replace(record, cluster_id="x" * 22)), None)])
        before = await listed(it.broker.objects.inner, "")
        upkeep = it.upkeep(grace_ms=-60_000)
        await upkeep.cycle()
        with pytest.raises(Unavailable, match="does not bear the id of this cluster"):
            await upkeep.collect(dry_run=False)
        await upkeep.close()

        assert await listed(it.broker.objects.inner, "") == before


async def test_all_objects_can_be_collected_by_hand_and_only_counted() -> None:
    async with cluster() as it:
        upkeep = it.upkeep(grace_ms=-60_000)
        for partition in it.partitions:
            await it.broker.parts.trimmer.trim(partition, 3)
        counted = await upkeep.collect(dry_run=True)
        there = await listed(it.broker.objects.inner, "wal/")
        deleted = await upkeep.collect(dry_run=False)
        await upkeep.close()

        assert (counted.deleted, deleted.deleted, len(there)) == (3, 3, 3)
        assert await listed(it.broker.objects.inner, "wal/") == []


def leave_uploads(it: Cluster, monkeypatch: pytest.MonkeyPatch, *, refused: str = "") -> list[UnfinishedUpload]:
    """Two uploads that killed compactors left, one an hour ago and one now. `refused`: what the store answers to aborts."""
    now_ms = it.clock.now_ms()
    ids = [encode_ulid((now_ms - age_ms) << 80) for age_ms in (3_600_000, 0)]
    left = [UnfinishedUpload(segment_key(it.partitions[0], ObjectId(one)), one, now_ms - 3_600_000) for one in ids]

    async def unfinished_uploads(prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        for upload in list(left):
            if upload.key.startswith(prefix) and upload.key > start_after:
                yield upload

    async def abort_upload(key: str, upload_id: str) -> None:
        if refused:
            raise Unavailable(refused)
        left[:] = [upload for upload in left if upload.upload_id != upload_id]

    monkeypatch.setattr(it.broker.objects, "unfinished_uploads", unfinished_uploads, raising=False)
    monkeypatch.setattr(it.broker.objects, "abort_upload", abort_upload, raising=False)
    return left


async def test_uploads_that_nobody_will_finish_are_aborted_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as it:
        left = leave_uploads(it, monkeypatch)
        upkeep = it.upkeep()
        with capture_logs() as logged:
            dry = await upkeep.collect(dry_run=True)
            there = len(left)
            report = await upkeep.cycle()
        await upkeep.close()

        assert (dry.uploads, there) == (UploadsReport(looked_at=2, aborted=1), 2)
        assert report.collection.uploads == UploadsReport(looked_at=2, aborted=1)
        assert [upload.upload_id for upload in left] == [max(upload.upload_id for upload in left)]
        assert [(line["uploads"], line["looked_at"]) for line in logged if line["event"] == "uploads_aborted"] == [(1, 2)]
        assert it.counted("forebay_gc_uploads_total", outcome="aborted") == it.counted("forebay_gc_uploads_total", outcome="kept") == 1


async def test_uploads_that_may_not_be_aborted_are_said_once_and_keep_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as it:
        leave_uploads(it, monkeypatch, refused="it takes the permission s3:AbortMultipartUpload")
        upkeep = it.upkeep(grace_ms=-60_000)
        with capture_logs() as logged:
            reports = [await upkeep.cycle() for _ in range(3)]
            leave_uploads(it, monkeypatch)
            await upkeep.cycle()
            leave_uploads(it, monkeypatch, refused="not now")
            await upkeep.cycle()
        by_hand = await upkeep.collect(dry_run=False)
        await upkeep.close()

        assert [report.collection.deleted for report in reports] == [3, 0, 0]
        said = [(line["log_level"], line["cause"]) for line in logged if line["event"] == "uploads_not_aborted"]
        assert said == [("warning", "it takes the permission s3:AbortMultipartUpload"), ("warning", "not now")]
        assert by_hand.uploads is not None
        assert str(by_hand.uploads.failed) == "not now"
        assert it.counted("forebay_compactor_cycles_total", ended="done") == 5


async def test_small_segments_are_merged_and_a_merge_that_was_left_undone_is_finished() -> None:
    async with cluster() as it:
        upkeep = it.upkeep()
        for _ in range(9):
            await it.append(count=1, padding=bytes(5_000))
            report = await upkeep.cycle()
        before = [await it.broker.read_all(partition) for partition in it.partitions]
        listed = [len({one.object_id for one in await listed_segments(it.broker.shared, partition)}) for partition in it.partitions]
        (record,) = await it.broker.shared.get_many([PartitionKeys(it.partitions[0]).manifest])
        assert record is not None
        merged = (await listed_segments(it.broker.shared, it.partitions[0]))[0]
        undone = with_rewritten(decode_manifest(record.value, path=record.path), merged)
        await it.broker.shared.write([Put(PartitionKeys(it.partitions[0]).manifest, encode(undone), record.version)])
        await upkeep.cycle()
        await upkeep.close()

        assert report.segments == PARTITIONS
        assert it.counted("forebay_compactor_merges_total") == PARTITIONS + 1
        assert max(listed) <= 2, "eight became one"
        assert (await it.manifest(it.partitions[0])).rewritten is None
        assert [await it.broker.read_all(partition) for partition in it.partitions] == before


async def with_small_segments(it: Cluster, upkeep: Upkeep) -> CycleReport:
    """Nine of each partition: what the last cycle merged is in its report."""
    for _ in range(9):
        await it.append(count=1, padding=bytes(5_000))
        report = await upkeep.cycle()
    return report


async def with_merges_to_do(it: Cluster) -> None:
    """Small segments that nobody has merged, and in each partition what becomes another."""
    await with_small_segments(it, before := it.upkeep(MERGELESS))
    await before.close()
    await it.append(count=1, padding=bytes(5_000))


async def test_merges_that_are_too_many_for_a_cycle_are_done_in_the_next_ones_though_nothing_is_appended() -> None:
    async with cluster() as it:
        upkeep = it.upkeep(limits=CompactorLimits(merged_partitions_max=2))
        merges = [(await with_small_segments(it, upkeep)).merges]
        merges += [(await upkeep.cycle()).merges for _ in range(3)]
        await upkeep.close()

        assert merges == [2, 2, 2, 0]


async def test_a_merge_that_failed_is_tried_again_in_the_next_cycle_though_nothing_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[MergeResult | Exception] = [Unavailable("for a moment"), MergeResult(MergeEnd.CLAIMED), Corrupt("for good")]
    asked: list[PartitionId] = []
    original = Merging.run

    async def run(self: Merging, partition: PartitionId) -> MergeResult:
        asked.append(partition)
        if len(asked) > len(ends):
            return await original(self, partition)
        end = ends[len(asked) - 1]
        if isinstance(end, Exception):
            raise end
        return end

    async with cluster() as it:
        upkeep = it.upkeep()
        await with_merges_to_do(it)
        monkeypatch.setattr(Merging, "run", run)
        merges = [(await upkeep.cycle()).merges for _ in range(3)]
        await upkeep.close()

        assert merges == [PARTITIONS - 3, 2, 0], "one that is damaged is left alone"


@pytest.mark.parametrize(
    ("limits", "first"),
    [(DEFAULT_LIMITS, PARTITIONS), (CompactorLimits(unmerged_partitions_max=2), 2), (CompactorLimits(taken_over_partitions_max=2), 2)],
)
async def test_merges_that_a_compactor_left_undone_are_done_by_whoever_has_its_partitions_next(limits: CompactorLimits, first: int) -> None:
    async with cluster() as it:
        await with_small_segments(it, before := it.upkeep(MERGELESS, limits=limits))
        await it.append(count=1, padding=bytes(5_000))
        await until_nothing_is_due(before)
        await before.close()
        upkeep = it.upkeep(limits=limits)
        merges = [(await upkeep.cycle()).merges for _ in range(4)]
        await upkeep.close()

        assert sum(merges) == PARTITIONS
        assert merges[0] == first


async def test_merges_wait_for_the_next_cycle_when_it_cannot_be_seen_which_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    pages, reads = upkeep_module.manifest_pages, [0]

    def failing_second(*args: Any, **options: Any) -> Any:
        reads[0] += 1
        if reads[0] == 2:
            raise Unavailable("for a moment")
        return pages(*args, **options)

    async with cluster() as it:
        await with_merges_to_do(it)
        monkeypatch.setattr(upkeep_module, "manifest_pages", failing_second)
        upkeep = it.upkeep()
        with pytest.raises(Unavailable, match="for a moment"):
            await upkeep.cycle()
        merges = (await upkeep.cycle()).merges
        await upkeep.close()

        assert merges == PARTITIONS


async def test_no_more_partitions_wait_with_their_merges_than_may() -> None:
    async with cluster() as it:
        upkeep = it.upkeep(limits=CompactorLimits(merged_partitions_max=1, unmerged_partitions_max=2))
        merges = [(await with_small_segments(it, upkeep)).merges]
        merges += [(await upkeep.cycle()).merges for _ in range(4)]
        await upkeep.close()

        assert merges == [1, 1, 1, 0, 0]


async def test_merges_that_fail_in_every_cycle_do_not_keep_those_beyond_the_bound_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They go behind those that were not tried yet."""
    failing: set[PartitionId] = set()
    original = Merging.run

    async def run(self: Merging, partition: PartitionId) -> MergeResult:
        if len(failing) < 2 or partition in failing:
            failing.add(partition)
            raise Unavailable("its objects cannot be read")
        return await original(self, partition)

    async with cluster() as it:
        await with_merges_to_do(it)
        monkeypatch.setattr(Merging, "run", run)
        upkeep = it.upkeep(limits=CompactorLimits(merged_partitions_max=2))
        merges = [(await upkeep.cycle()).merges for _ in range(6)]
        await upkeep.close()

        assert sum(merges) == PARTITIONS - 2


async def test_merges_of_partitions_that_another_compactor_has_by_now_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PartitionId] = []

    async def run(_self: Merging, partition: PartitionId) -> MergeResult:
        asked.append(partition)
        raise Unavailable("not now")

    async with cluster() as it:
        await with_small_segments(it, before := it.upkeep(MERGELESS))
        await before.close()
        monkeypatch.setattr(Merging, "run", run)
        await it.append(count=1, padding=bytes(5_000))
        one, other = it.upkeep(), it.upkeep()
        await one.cycle()
        alone = set(asked)
        await other.cycle()
        asked.clear()
        await one.cycle()
        await one.close()
        await other.close()

        assert alone == {*it.partitions}
        assert set(asked) == {partition for partition in it.partitions if compactor_of(partition, {one.name, other.name}) == one.name}


@pytest.mark.parametrize("left_by", ["compaction", "merge"])
async def test_a_claim_whose_release_was_lost_keeps_the_compactor_from_nothing(monkeypatch: pytest.MonkeyPatch, left_by: str) -> None:
    """It goes with a session that lasts as long as the process."""
    async with cluster() as it:
        await with_small_segments(it, before := it.upkeep(MERGELESS))
        await before.close()
        write, run, is_merging, lost = it.metadata.write, Merging.run, [False], [0]

        async def lose_releases(ops: Sequence[Any]) -> Any:
            is_release = isinstance(ops[-1], Delete) and ops[-1].key.path.endswith("/compactor-claim")
            if is_release and is_merging[0] == (left_by == "merge"):
                lost[0] += 1
                return NotApplied("not now")
            return await write(ops)

        async def note_and_run(self: Merging, partition: PartitionId) -> MergeResult:
            is_merging[0] = True
            return await run(self, partition)

        monkeypatch.setattr(Merging, "run", note_and_run)
        it.metadata.write = lose_releases  # type: ignore[method-assign]
        upkeep = it.upkeep()
        await it.append(count=1, padding=bytes(5_000))
        merges = (await upkeep.cycle()).merges
        it.metadata.write = write  # type: ignore[method-assign]
        await it.append(count=1)
        claimed = await it.metadata.get_many([PartitionKeys(partition).compactor_claim for partition in it.partitions])
        after = [await upkeep.cycle() for _ in range(3)]
        left = await it.metadata.get_many([PartitionKeys(partition).compactor_claim for partition in it.partitions])
        await upkeep.close()

        assert lost == [PARTITIONS]
        assert merges == PARTITIONS
        assert all(claimed) == (left_by == "merge"), "a merge takes over what a compaction has left"
        assert left == [None] * PARTITIONS
        assert sum(one.segments for one in after) == PARTITIONS
        assert await it.cursors() == [(await it.manifest(partition)).sequence_counter for partition in it.partitions]


async def test_where_every_object_of_a_partition_is_missing_nothing_is_deleted_until_they_are_back() -> None:
    """No list shows such a partition: whoever was to compact it does."""
    async with cluster() as it:
        stored: Any = it.broker.objects.inner._objects
        lost = {key: stored.pop(key) for key in [one for one in stored if one.startswith("wal/")]}
        await it.append(it.partitions[:1], count=2)
        garbage = object_key(ObjectId(IdSource(clock=it.clock).next_ulid(above="")))
        stored[garbage] = next(iter(lost.values()))
        upkeep = it.upkeep(grace_ms=-60_000)
        missed = await upkeep.cycle()
        found = it.counted("forebay_gc_missing_objects")
        still = await upkeep.cycle()
        stored.update(lost)
        it.clock.later_ms = DAMAGED_AGAIN_MS + 1
        await upkeep.cycle()
        await upkeep.close()

        assert {one.key for one in missed.collection.missing or ()} == lost.keys()
        assert still.collection.missing
        assert found > 0
        assert it.counted("forebay_gc_missing_objects") == 0
        assert missed.collection.deleted == still.collection.deleted == 0
