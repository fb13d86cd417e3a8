"""Batches that are committed before their object is stored: the same order, the same answers, the same bytes wherever they lie."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from runtime.clock import SystemClock
from storage.errors import Corrupt, NotFound, OutOfOrderSequence, StorageError, Unavailable
from storage.formats.early_page import encode_page
from storage.formats.levels import LEVEL_OF_EARLY
from storage.formats.manifest import Early, encode
from storage.formats.wal import decode_header, object_key
from storage.limits import EARLY_PAGE_BYTES_MAX, EARLY_SLICE_BYTES_MAX, MIB
from storage.log.batch import Appended, AppendedBefore
from storage.log.early_objects import SLICE_COST_BYTES
from storage.log.flush import EarlySettings, FlushSettings, Gathered
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, DeleteRange, Put
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import ObjectId, PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig, until_put

EARLY = EarlySettings(bytes_per_s=1_000 * MIB)
SLOW = FlushSettings(interval_s=60.0, gather_s=60.0)
"""What is gathered is not sealed within a test."""
SOON = LogLimits(early_age_s=0.02, early_delete_after_s=0.0, early_delete_pause_s=0.0, early_pause_s=0.005)
OTHER = PartitionId(TOPIC, 1)


def of_size(size_bytes: int, fill: bytes = b"x") -> bytearray:
    return batch_bytes(payload=fill * (size_bytes - HEADER_BYTES))


def counted(broker: Rig, name: str, **labels: str) -> float | None:
    return broker.telemetry.registry.get_sample_value(f"forebay_{name}", labels)


def reasons(broker: Rig) -> dict[str, float]:
    """Why batches were gathered, and how many."""
    return {one: value for one in Gathered if (value := counted(broker, "gathered_batches_total", reason=one))}


def offsets(results: Sequence[Sequence[Appended | StorageError]]) -> list[int]:
    return [result.base_offset for (result,) in results if isinstance(result, Appended)]


async def pages(broker: Rig) -> list[str]:
    start, end = keys.early_pages("any")
    return list(await broker.shared.list(start, end))


async def until_no_page(broker: Rig) -> None:
    async with asyncio.timeout(25):
        while await pages(broker):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def with_other(broker: Rig, partition: PartitionId = OTHER) -> None:
    await broker.shared.write([Put(keys.PartitionKeys(partition).manifest, b'{"fmt":1}', None)])


async def test_a_batch_is_appended_at_once_and_its_page_travels_before_the_manifest_that_names_it() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker:
        assert await broker.send(of_size(1_024)) == [Appended(0, 0)]
        assert await broker.send(of_size(200)) == [Appended(1, 0)]

        assert broker.objects.put_keys == []
        assert [[op.key.path.split("/")[1] == "early" for op in ops if isinstance(op, Put)] for ops in broker.metadata.writes] == [
            [True, False],
            [True, False],
        ]
        first, second = (await broker.manifest()).pending
        assert isinstance(first.batches, Early)
        assert (first.object_id, first.batches.start, first.spans) == (second.object_id, 64, ((64, 1_024),))
        assert second.spans == ((1_088, 200),)
        assert len(await broker.read_all()) == 1_224
        assert (counted(broker, "early_commits_total"), counted(broker, "early_bytes_total"), reasons(broker)) == (2, 1_224, {})
        assert counted(broker, "early_pages") == 2


async def test_the_bytes_of_a_place_are_the_same_from_memory_page_object_and_tail() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    sizes = (100, 5_000, EARLY_PAGE_BYTES_MAX + 1, EARLY_SLICE_BYTES_MAX, 700)
    async with rig(shared=shared, objects=objects, epoch=8) as reader:
        async with rig(shared=shared, objects=objects, early=EARLY, flush=SLOW) as broker:
            for size in sizes:
                await broker.send(of_size(size))
            from_memory = await broker.read_all()
            tail = broker.parts.partitions.get(PARTITION).readers.tail
            from_tail = b"".join([run.buffer for offset in range(len(sizes)) if (run := tail.find(offset)) is not None])
            from_pages = await reader.read_all()
            assert len(await pages(broker)) == 1 + 1 + 2 + 8 + 1
            await broker.parts.appender.store_early()
            assert await pages(broker) == []
            (name,) = broker.objects.put_keys
            from_object = await broker.read_all()
        async with rig(shared=shared, objects=objects, epoch=9) as later:
            assert await later.read_all() == from_memory == from_tail == from_pages == from_object

    assert len(from_memory) == sum(sizes)
    stat = await objects.stat(name)
    header = decode_header(bytes(await objects.get_range(name, 0, stat.size_bytes)), key=name)
    assert [one.length for one in header.slices] == list(sizes)


async def test_an_object_is_stored_after_its_age_with_all_its_places_and_then_its_pages_go() -> None:
    async with rig(early=EARLY, flush=SLOW, limits=SOON) as broker:
        await with_other(broker)
        results = await asyncio.gather(*(broker.send(of_size(300), partition=PartitionId(TOPIC, n % 2)) for n in range(6)))
        await until_put(broker, 1)
        await until_no_page(broker)

        assert offsets(results) == [0, 0, 1, 1, 2, 2]
        assert len(broker.objects.put_keys) == 1
        assert len(await broker.read_all()) == len(await broker.read_all(OTHER)) == 900
        assert counted(broker, "early_objects_total", trigger="time") == 1
        assert (counted(broker, "early_pages"), counted(broker, "early_waiting_bytes")) == (0, 0)
        assert await broker.send(of_size(300)) == [Appended(3, 0)], "and the next one takes a place in another"


async def test_a_full_object_is_stored_at_once_and_the_next_slice_has_a_place_in_another() -> None:
    limits = LogLimits(early_object_bytes=1_000, early_delete_after_s=0.0)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker:
        for _ in range(5):
            await broker.send(of_size(600))
        await until_put(broker, 2)
        ids = [entry.object_id for entry in (await broker.manifest()).pending]

        assert len(set(ids)) == 3
        assert ids == sorted(ids)
        assert counted(broker, "early_objects_total", trigger="bytes") == 2
        assert len(await broker.read_all()) == 3_000


async def test_a_large_batch_goes_into_a_flush_and_what_is_behind_it_does_not_overtake_it() -> None:
    async with rig(early=EARLY, flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        sizes = (EARLY_SLICE_BYTES_MAX + 1, 200, EARLY_SLICE_BYTES_MAX + 1)
        results = await asyncio.gather(*(broker.send(of_size(size)) for size in sizes))

        assert offsets(results) == [0, 1, 2]
        assert [entry.is_early for entry in (await broker.manifest()).pending] == [False]
        assert reasons(broker) == {Gathered.LARGE: 2, Gathered.QUEUED: 1}


async def test_an_early_batch_waits_for_the_object_before_it() -> None:
    async with rig(early=EARLY) as broker:
        broker.objects.gate = asyncio.Event()
        first = broker.send(of_size(EARLY_SLICE_BYTES_MAX + 1))
        await until_put(broker, 1)
        second = broker.send(of_size(200))
        await asyncio.sleep(0.02)
        assert not second.done()
        broker.objects.gate.set()

        assert offsets([await first, await second]) == [0, 1]
        assert [entry.is_early for entry in (await broker.manifest()).pending] == [False, True]


async def test_what_arrives_while_a_commit_is_under_way_goes_into_the_next_one_as_far_as_it_fits() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        third = EARLY_SLICE_BYTES_MAX // 3
        behind = [broker.send(of_size(third)) for _ in range(4)]  # the fourth has no room there, and begins another
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == [1, 2, 3, 4, 5]
        assert [(entry.base, entry.last) for entry in (await broker.manifest()).pending] == [(0, 0), (1, 1), (2, 4), (5, 5)]
        assert reasons(broker) == {}


async def test_nothing_goes_early_before_every_broker_can_read_it() -> None:
    async with rig(early=EARLY, level=LEVEL_OF_EARLY - 1) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]

        assert len(broker.objects.put_keys) == 1
        assert (await broker.manifest()).fmt == 1
        assert reasons(broker) == {Gathered.OFF: 1}


async def test_a_ring_that_leaves_takes_its_early_entries_along_as_they_are() -> None:
    limits = LogLimits(pending_entries_max=3)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker, rig(shared=broker.shared, epoch=8) as reader:
        for _ in range(8):
            await broker.send(of_size(150))

        assert len((await broker.manifest()).pending) == 2
        assert len(await broker.read_all()) == 8 * 150
        assert await reader.read_all() == await broker.read_all()


async def test_another_broker_reads_what_follows_with_the_same_request() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        for _ in range(10):
            await broker.send(of_size(150))
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])
        before = reader.metadata.reads
        await reader.parts.reader.stored(log, 0, bytes_max=1_000)

        assert reader.metadata.reads == before + 1
        for offset in range(10):
            spare = reader.parts.reader.stored_reads.spare(log, offset, bytes_max=1_000, at_least_one=True)
            assert getattr(spare, "base", None) == offset, "it is in memory: nobody waits for it"
        assert reader.parts.reader.stored_reads.spare(log, 0, bytes_max=149, at_least_one=False) is None
        assert reader.metadata.reads == before + 1


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "seen first, reply lost", "refused"])
async def test_an_early_batch_is_appended_once_whatever_becomes_of_one_request(fault: str) -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        log = broker.parts.partitions.get(PARTITION)
        broker.metadata.on_seen_first = lambda: broker.parts.manifest_reads.refresh([log])
        assert await broker.send(of_size(100, b"a")) == [Appended(0, 0)]
        broker.metadata.faults.append(fault)
        assert await broker.send(of_size(100, b"b")) == [Appended(1, 0)]
        await broker.metadata.deliver_late()
        assert await broker.send(of_size(100, b"c")) == [Appended(2, 0)]

        assert len(await broker.read_all()) == 300
        assert await reader.read_all() == await broker.read_all()


async def test_a_request_that_is_late_until_its_object_was_stored_and_its_pages_went_says_what_is_true() -> None:
    limits = LogLimits(early_age_s=0.02, early_delete_after_s=0.0, early_delete_pause_s=0.0, commit_write_timeout_s=0.05)
    async with (
        rig(early=EARLY, flush=SLOW, limits=limits) as broker,
        rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader,
    ):
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        sent = broker.send(of_size(100, b"b"))
        await until_put(broker, 1)
        assert await sent == [Appended(1, 0)]
        await until_no_page(broker)
        await broker.metadata.deliver_late()
        assert await broker.send(of_size(100, b"c")) == [Appended(2, 0)]

        assert await reader.read_all() == await broker.read_all()
        assert len(await broker.read_all()) == 300


@pytest.mark.parametrize("is_exact", [True, False], ids=["at the floor", "below it"])
async def test_a_place_at_or_below_the_floor_is_given_up_for_one_above_it(is_exact: bool) -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        assert await broker.send(of_size(100, b"a")) == [Appended(0, 0)]
        manifest = await broker.manifest()
        (before,) = manifest.pending
        floor = before.object_id if is_exact else ObjectId("7" + before.object_id[1:])
        await broker.shared.write(
            [Put(keys.PartitionKeys(PARTITION).manifest, encode(type(manifest)(**{**_fields(manifest), "revoked_floor": floor})), None)]
        )
        assert await broker.send(of_size(100, b"b")) == [Appended(1, 0)]

        assert (await broker.manifest()).pending[1].object_id > floor
        assert await reader.read_all() == await broker.read_all()
        assert broker.objects.put_keys == [object_key(before.object_id)], "the one before gives no place any more"


def _fields(manifest: object) -> dict[str, object]:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}  # type: ignore[attr-defined]


async def test_while_the_object_store_is_away_slices_go_early_as_far_as_memory_goes_and_all_is_caught_up_with() -> None:
    limits = LogLimits(
        early_object_bytes=1_000,
        early_waiting_bytes_max=6 * (500 + SLICE_COST_BYTES),
        early_pause_s=0.01,
        early_pause_s_max=0.01,
        upload_timeout_s=0.02,
    )
    async with rig(early=EARLY, flush=FlushSettings(interval_s=0.0, gather_s=0.0), limits=limits) as broker:
        broker.objects.puts_fail = Unavailable("away")
        answers = [await broker.send(of_size(500, bytes([n + 1]))) for n in range(6)]
        assert offsets(answers) == list(range(6))
        assert counted(broker, "early_waiting_objects") == 3
        (refused,) = await broker.send(of_size(500))
        assert isinstance(refused, Unavailable)
        assert reasons(broker) == {Gathered.UNSTORED: 1}
        assert len(await broker.read_all()) == 3_000, "what waits is read"

        broker.objects.puts_fail = None
        await until_no_page(broker)
        assert (counted(broker, "early_waiting_objects"), counted(broker, "early_waiting_bytes")) == (0, 0)
        assert offsets([await broker.send(of_size(500))]) == [6]
        assert len(await broker.read_all()) == 3_500


async def test_an_object_whose_put_had_no_answer_is_put_again_and_is_found_to_be_ours() -> None:
    async with rig(early=EARLY, flush=SLOW, limits=SOON) as broker:
        put = broker.objects.inner.put_if_absent
        lost = iter([True])

        async def put_and_lose(key: str, parts: Sequence[bytes]) -> None:
            await put(key, parts)
            if next(lost, False):
                raise Unavailable("no answer")

        broker.objects.inner.put_if_absent = put_and_lose  # type: ignore[method-assign,assignment]
        await broker.send(of_size(300))
        await until_put(broker, 2)
        await until_no_page(broker)

        assert len(set(broker.objects.put_keys)) == 1
        assert len(await broker.read_all()) == 300


async def test_a_refused_batch_at_the_head_of_a_slice_has_a_place_that_no_entry_names() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        first = batch_bytes(producer_id=5, producer_epoch=0, first_seq=0)
        assert await broker.send(bytearray(first)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        ahead = broker.send(of_size(100))
        await broker.metadata.until_late()
        again, following = broker.send(bytearray(first)), broker.send(batch_bytes(producer_id=5, producer_epoch=0, first_seq=1))
        await broker.metadata.deliver_late()

        assert [await ahead, await again, await following] == [[Appended(1, 0)], [AppendedBefore(0, 0)], [Appended(2, 0)]]
        entry = (await broker.manifest()).pending[-1]
        assert isinstance(entry.batches, Early)
        assert entry.spans[0][0] == entry.batches.start + len(first)
        assert await reader.read_all() == await broker.read_all()


async def test_a_refused_batch_at_the_head_of_a_slice_is_answered_so_and_what_is_behind_it_is_appended() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        assert await broker.send(batch_bytes(producer_id=5, producer_epoch=0, first_seq=0)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        ahead = broker.send(of_size(100))
        await broker.metadata.until_late()
        gap = batch_bytes(producer_id=5, producer_epoch=0, first_seq=7)
        refused, following = broker.send(gap), broker.send(of_size(150), source=object())
        await broker.metadata.deliver_late()

        assert [await ahead, await following] == [[Appended(1, 0)], [Appended(2, 0)]]
        assert isinstance((await refused)[0], OutOfOrderSequence)
        entry = (await broker.manifest()).pending[-1]
        assert isinstance(entry.batches, Early)
        assert (entry.spans, entry.batches.start) == (((entry.batches.start + len(gap), 150),), entry.spans[0][0] - len(gap))
        assert await reader.read_all() == await broker.read_all()


async def test_a_broker_that_is_killed_leaves_pages_that_others_read() -> None:
    shared = MemoryMetadataStore(clock=SystemClock(), shards=1)
    async with rig(shared=shared, early=EARLY, flush=SLOW) as broker:
        for n in range(5):
            await broker.send(of_size(200, bytes([n + 1])))
        expected = await broker.read_all()
    async with rig(shared=shared, epoch=8) as other:
        assert await other.read_all() == expected
        assert len(await pages(other)) == 5


async def test_a_broker_that_leaves_stores_what_it_has_and_deletes_its_pages() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, early=EARLY, flush=SLOW) as broker:
        await broker.send(of_size(200))
        await broker.parts.appender.store_early()
        broker.parts.appender.stop()
        assert await pages(broker) == []
    async with rig(shared=shared, objects=objects, epoch=8) as other:
        assert len(await other.read_all()) == 200


async def test_a_partition_that_others_commit_to_gathers_until_it_is_alone_again() -> None:
    async with rig(early=EARLY) as one, rig(shared=one.shared, objects=one.objects.inner, epoch=8, early=EARLY) as other:
        async with asyncio.timeout(25):
            while not reasons(one):
                await other.send(of_size(100))
                await one.send(of_size(100))
        assert reasons(one) == {Gathered.CONFLICTS: 1}
        before = counted(one, "early_commits_total")
        async with asyncio.timeout(25):
            while counted(one, "early_commits_total") == before:
                await one.send(of_size(100))

        assert await one.read_all() == await other.read_all()


async def test_what_follows_a_lost_early_batch_of_its_connection_is_refused_with_it() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = broker.send(of_size(100))
        broker.parts.appender.refuse("the broker lost its place")

        assert isinstance((await first)[0], StorageError)
        assert isinstance((await behind)[0], Unavailable)


async def test_a_batch_that_was_answered_still_has_its_page_in_the_attempt_that_lands() -> None:
    limits = LogLimits(commit_timeout_s=0.2, overdue_check_s=0.02, commit_write_timeout_s=0.1)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker, rig(shared=broker.shared, epoch=8) as reader:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults += ["request lost"] * 200
        (given_up,) = await broker.send(of_size(100, b"b"))
        assert isinstance(given_up, StorageError)
        broker.metadata.faults.clear()
        (after,) = await broker.send(of_size(100, b"c"))

        assert isinstance(after, Appended)
        assert len(await reader.read_all()) == 100 * (after.base_offset + 1)


async def test_what_arrives_behind_as_many_commits_as_may_wait_is_gathered() -> None:
    async with rig(early=EARLY, flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        first = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(EARLY_SLICE_BYTES_MAX)) for _ in range(DEFAULT_LIMITS.queued_commits_max)]
        await broker.metadata.deliver_late()

        assert offsets([await first, *[await one for one in behind]]) == list(range(1, DEFAULT_LIMITS.queued_commits_max + 2))
        assert reasons(broker) == {Gathered.FULL: 1}


async def test_pages_go_a_few_at_a_time() -> None:
    limits = LogLimits(early_pages_per_delete=3, early_bytes_per_delete=700, early_delete_after_s=0.0, early_delete_pause_s=0.0)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker:
        for size in (100, 100, 100, 100, 300, 300, 300, 900):
            await broker.send(of_size(size))
        before = len(broker.metadata.writes)
        await broker.parts.appender.store_early()

        assert await pages(broker) == []
        assert [type(op) for ops in broker.metadata.writes[before:] for op in ops] == [DeleteRange] * 4, "3, 3, 1 and 1 pages"


async def test_a_batch_does_not_join_a_commit_that_reads_the_record_it_will_decide_on() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker:
        log = broker.parts.partitions.get(PARTITION)
        first = broker.send(of_size(100))  # nothing is known of the partition: its commit reads first
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.commit_queue.commits[0].is_open
        assert not log.commit_queue.commits[0].has_begun
        second = broker.send(of_size(100))

        assert [len(commit.batches) for commit in log.commit_queue.commits] == [1, 1]
        assert offsets([await first, await second]) == [0, 1]


async def test_a_commit_that_is_cut_takes_new_places_for_both_parts() -> None:
    limits = LogLimits(write_request_bytes_max=2_500)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker, rig(shared=broker.shared, epoch=8) as reader:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        ahead = broker.send(of_size(100))
        await broker.metadata.until_late()
        behind = [broker.send(of_size(600, bytes([n + 1]))) for n in range(5)]
        await broker.metadata.deliver_late()
        assert offsets([await ahead, *[await one for one in behind]]) == [1, 2, 3, 4, 5, 6]

        sent_bytes = 200 + 5 * 600
        taken_bytes = counted(broker, "early_bytes_total")
        assert taken_bytes is not None
        assert taken_bytes > sent_bytes, "what was placed before it was cut has another place"
        extents = [entry.extent for entry in (await broker.manifest()).pending]
        assert all(before[1] <= after[0] for before, after in pairwise(extents)), "no place is given twice"
        assert len(await broker.read_all()) == sent_bytes
        assert await reader.read_all() == await broker.read_all()


@pytest.mark.parametrize("is_stored", [True, False], ids=["its object is stored", "it is not"])
async def test_a_page_that_is_not_what_was_written_is_read_from_the_object_or_is_damage_that_names_it(is_stored: bool) -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader:
        await broker.send(of_size(300))
        (path,) = await pages(broker)
        (entry,) = (await broker.manifest()).pending
        expected = await broker.read_all()
        if is_stored:
            await broker.parts.appender.store_early()
        damaged = bytearray(encode_page((PARTITION,), of_size(300)))
        damaged[-1] ^= 1
        await broker.shared.write([Put(keys.Key(path, keys.PartitionKeys(PARTITION).partition_key), bytes(damaged), None)])

        if is_stored:
            assert await reader.read_all() == expected
        else:
            with pytest.raises(Corrupt, match=rf"checksum mismatch: key='{path}' part=early page"):
                await reader.read_all()
        assert entry.is_early


async def test_bytes_that_are_nowhere_are_missing_and_the_entry_is_named() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        await broker.send(of_size(300))
        (path,) = await pages(broker)
        await broker.shared.write([Delete(keys.Key(path, keys.PartitionKeys(PARTITION).partition_key))])

        with pytest.raises(Corrupt, match="object of a live entry is missing"):
            await reader.read_all()
        assert reader.telemetry.registry.get_sample_value("forebay_corrupt_reads_total", {"cause": "missing"}) == 2


async def test_a_deposed_leader_that_has_no_page_is_not_believed() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        await broker.send(of_size(300))
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])
        real = broker.shared.get_many

        async def from_the_past(wanted: Sequence[keys.Key]) -> list[object]:
            return [None for _ in wanted]

        broker.shared.get_many = from_the_past  # type: ignore[method-assign,assignment]
        with pytest.raises(Unavailable, match="metadata answered from the past"):
            await reader.parts.reader.stored(log, 0, bytes_max=1_000)
        broker.shared.get_many = real  # type: ignore[method-assign]

        assert len(await reader.read_all()) == 300
        assert reader.telemetry.registry.get_sample_value("forebay_corrupt_reads_total", {"cause": "missing"}) == 0


async def test_a_broker_that_refuses_stores_and_deletes_nothing_and_its_end_waits_for_no_outcome() -> None:
    limits = LogLimits(early_age_s=0.05, early_delete_after_s=0.0)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults += ["request lost"] * 1_000
        unknown = broker.send(of_size(100))
        async with asyncio.timeout(25):
            while len(broker.metadata.writes) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        broker.parts.appender.refuse("the metadata went back")
        assert isinstance((await unknown)[0], StorageError)
        async with asyncio.timeout(25):
            await broker.parts.appender.drain()
            await broker.parts.appender.store_early()
        await asyncio.sleep(0.1)

        assert broker.objects.put_keys == []
        assert len(await pages(broker)) == 1


async def test_a_place_that_was_revoked_before_its_attempt_was_decided_again_is_given_up() -> None:
    """The collector sets the floor to the very object."""
    async with rig(early=EARLY, flush=SLOW) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]

        async def raise_the_floor() -> None:
            manifest = await broker.manifest()
            raised = encode(type(manifest)(**{**_fields(manifest), "revoked_floor": manifest.pending[0].object_id}))
            await broker.shared.write([Put(keys.PartitionKeys(PARTITION).manifest, raised, None)])

        await raise_the_floor()
        assert await broker.send(of_size(100)) == [Appended(1, 0)]
        first, second = (await broker.manifest()).pending
        assert second.object_id > first.object_id


async def test_a_damaged_page_is_no_damage_of_the_entries_before_it() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader:
        for _ in range(3):
            await broker.send(of_size(300))
        last = (await pages(broker))[-1]
        await broker.shared.write([Put(keys.Key(last, keys.PartitionKeys(PARTITION).partition_key), b"no page", None)])
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])

        assert [(await reader.parts.reader.stored(log, offset, bytes_max=100)).base for offset in (0, 1)] == [0, 1]
        with pytest.raises(Corrupt, match="not an early page"):
            await reader.parts.reader.stored(log, 2, bytes_max=100)


async def test_an_object_that_is_stored_between_two_looks_is_read() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader:
        await broker.send(of_size(300))
        expected = await broker.read_all()
        await broker.parts.appender.store_early()
        get_range, looks = broker.objects.inner.get_range, []

        async def not_yet(key: str, begin: int, end: int) -> bytes:
            looks.append(key)
            if len(looks) == 1:
                raise NotFound(f"no such object: key={key!r}")
            return bytes(await get_range(key, begin, end))

        broker.objects.inner.get_range = not_yet  # type: ignore[method-assign,assignment]

        assert await reader.read_all() == expected
        assert reader.telemetry.registry.get_sample_value("forebay_corrupt_reads_total", {"cause": "missing"}) == 0


async def test_while_the_object_store_does_not_answer_old_entries_are_read_from_their_pages() -> None:
    clock = Later()
    async with (
        rig(early=EARLY, flush=SLOW) as broker,
        rig(shared=broker.shared, objects=broker.objects.inner, epoch=8, clock=clock) as reader,
    ):
        for _ in range(3):
            await broker.send(of_size(300))

        async def away(key: str, begin: int, end: int) -> bytes:
            raise Unavailable("away")

        broker.objects.inner.get_range = away  # type: ignore[method-assign,assignment]

        assert await reader.read_all() == await broker.read_all()


class Later(SystemClock):
    """An hour ahead: what is young is old."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


async def test_objects_are_stored_one_after_the_other_and_little_ones_do_not_pile_up() -> None:
    limits = LogLimits(early_object_bytes=1_000, early_age_s=0.01, early_delete_after_s=0.0, early_pause_s=0.01, early_pause_s_max=0.01)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker:
        broker.objects.gate = asyncio.Event()
        for _ in range(6):
            await broker.send(of_size(600))
        await broker.send(of_size(100))
        await asyncio.sleep(0.1)
        assert len(broker.objects.put_keys) == 1
        assert counted(broker, "early_waiting_objects") == 3, "the open one goes on giving places"
        broker.objects.gate.set()
        await until_no_page(broker)

        assert len(broker.objects.put_keys) == 4
        assert len(await broker.read_all()) == 3_700


async def test_pages_that_are_not_deleted_fast_enough_make_batches_wait_for_objects() -> None:
    limits = LogLimits(early_object_bytes=1_000, early_waiting_bytes_max=1_500, early_delete_after_s=60.0)
    async with rig(early=EARLY, flush=FlushSettings(interval_s=0.0, gather_s=0.0), limits=limits) as broker:
        for _ in range(8):
            assert isinstance((await broker.send(of_size(600)))[0], Appended)
            await asyncio.sleep(0.01)

        assert set(reasons(broker)) == {Gathered.UNSTORED}
        assert counted(broker, "early_waiting_bytes") is not None
        assert len(await broker.read_all()) == 4_800
