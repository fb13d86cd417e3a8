"""The commit protocol under lost requests, lost replies and other brokers (docs/internals/design/commit.md; model variants in brackets)."""

import asyncio

import pytest

from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.errors import InvalidProducerEpoch, NotFound, OutcomeUnknown, OutOfOrderSequence, Unavailable
from storage.formats.manifest import LogState, Manifest, WriterEntry, encode
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import PartitionId, TopicId
from tests.kit.batches import batch_bytes
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.rig import PARTITION, Rig, rig

MANIFEST = keys.PartitionKeys(PARTITION).manifest


def idempotent(first_seq: int, count: int = 1, *, pid: int = 5, epoch: int = 0) -> bytearray:
    return batch_bytes(count, producer_id=pid, producer_epoch=epoch, first_seq=first_seq)


async def replace_manifest(store: MemoryMetadataStore, manifest: Manifest) -> None:
    await store.write([Put(MANIFEST, encode(manifest), None)])


async def test_an_append_gets_the_next_offset_and_can_be_read() -> None:
    async with rig() as broker:
        assert await broker.send(batch_bytes(3)) == [Appended(0, 0)]
        assert await broker.send(batch_bytes(2)) == [Appended(3, 0)]

        assert len(await broker.read_all()) == len(batch_bytes(3)) + len(batch_bytes(2))


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "refused"])
async def test_a_plain_batch_is_appended_once_whatever_becomes_of_one_request(fault: str) -> None:
    """[R2] A lost reply must not be retried into a second append."""
    async with rig() as broker:
        broker.metadata.faults.append(fault)

        assert await broker.send(batch_bytes(2)) == [Appended(0, 0)]
        await broker.metadata.deliver_late()

        assert (await broker.manifest()).sequence_counter == 2


async def test_many_faults_in_a_row_still_end_in_one_append() -> None:
    async with rig() as broker:
        broker.metadata.faults.extend(["late", "reply lost", "request lost", "refused"])

        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        await broker.metadata.deliver_late()

        assert (await broker.manifest()).sequence_counter == 1


async def test_a_late_request_that_wins_the_race_is_recognised_by_its_attempt() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        broker.metadata.faults.append("late")
        broker.metadata.reads_fail = True
        sent = broker.send(batch_bytes(2))
        await broker.metadata.until_late()
        await broker.metadata.deliver_late()
        broker.metadata.reads_fail = False

        assert await sent == [Appended(1, 0)]
        assert (await broker.manifest()).sequence_counter == 3


@pytest.mark.parametrize("fault", ["seen first", "seen first, reply lost"])
async def test_a_reader_that_sees_a_commit_before_its_writer_hears_of_it_does_no_harm(fault: str) -> None:
    async with rig() as broker:
        log = broker.parts.partitions.get(PARTITION)
        await broker.send(batch_bytes(1))
        broker.metadata.on_seen_first = lambda: broker.parts.manifest_reads.refresh([log])
        broker.metadata.faults.append(fault)

        assert await broker.send(batch_bytes(2)) == [Appended(1, 0)]
        assert await broker.send(batch_bytes(1)) == [Appended(3, 0)]
        assert (await broker.manifest()).sequence_counter == 4


async def test_a_newer_record_that_is_seen_before_the_reply_is_kept() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        log = one.parts.partitions.get(PARTITION)
        await one.send(batch_bytes(1))

        async def somebody_else_commits() -> None:
            await other.send(batch_bytes(5))
            await one.parts.manifest_reads.refresh([log])

        one.metadata.on_seen_first = somebody_else_commits
        one.metadata.faults.append("seen first")

        assert await one.send(batch_bytes(1)) == [Appended(1, 0)]
        assert log.seen.high_watermark == 7
        assert await one.send(batch_bytes(1)) == [Appended(7, 0)]


async def test_a_conflict_after_an_unknown_attempt_is_not_taken_for_a_refusal() -> None:
    """[F-conflict] The first attempt applied, the second one conflicts with it."""
    async with rig() as broker:
        broker.metadata.faults.extend(["reply lost", "none"])

        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        assert (await broker.manifest()).sequence_counter == 1


async def test_a_dropped_writer_entry_makes_the_outcome_unknown_for_ever() -> None:
    """[F-absent] Somebody dropped our entry: nobody can tell any more whether the attempt applied, so it is not sent again."""
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        broker.metadata.faults.append("late")
        broker.metadata.reads_fail = True
        sent = broker.send(batch_bytes(1))
        await broker.metadata.until_late()
        manifest = await broker.manifest()
        await replace_manifest(
            broker.shared, Manifest(sequence_counter=manifest.sequence_counter, pending=manifest.pending, writers={99: WriterEntry(1, 1)})
        )
        broker.metadata.reads_fail = False

        (result,) = await sent
        assert isinstance(result, OutcomeUnknown)
        assert (await broker.manifest()).sequence_counter == 1


async def test_an_unregistered_broker_cannot_call_an_absent_entry_not_applied() -> None:
    async with rig() as broker:
        await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])
        broker.metadata.faults.append("late")
        broker.epoch.registered_epoch = lambda: None
        broker.metadata.reads_fail = True
        sent = broker.send(batch_bytes(1))
        await broker.metadata.until_late()
        await replace_manifest(broker.shared, Manifest())
        broker.metadata.reads_fail = False

        (result,) = await sent
        assert isinstance(result, OutcomeUnknown)


async def test_two_brokers_take_turns_without_losing_or_repeating() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        sent = [broker.send(batch_bytes(1)) for _ in range(50) for broker in (one, other)]
        results = [result for future in sent for result in await future]

        offsets = [result.base_offset for result in results if isinstance(result, Appended)]
        assert sorted(offsets) == list(range(100))
        assert await one.read_all() == await other.read_all()


async def test_a_record_that_others_are_said_to_have_changed_is_read_before_it_is_decided_on() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        assert await one.send(batch_bytes(1)) == [Appended(0, 0)]
        log = one.parts.partitions.get(PARTITION)
        log.seen.note_hint(log.seen.version, 0.0)  # of the commit just made
        assert not log.seen.is_hinted
        assert await other.send(batch_bytes(1)) == [Appended(1, 0)]
        log.seen.note_hint(other.parts.partitions.get(PARTITION).seen.version, 0.0)

        sent_before = len(one.metadata.writes)
        assert await one.send(batch_bytes(1)) == [Appended(2, 0)]
        assert len(one.metadata.writes) == sent_before + 1, "no CAS that could only fail"


async def test_hints_of_own_commits_that_never_come_hide_no_other() -> None:
    async with rig() as broker:
        for offset in range(20):
            assert await broker.send(batch_bytes(1)) == [Appended(offset, 0)]
        seen = broker.parts.partitions.get(PARTITION).seen
        was_hinted = seen.is_hinted
        seen.note_hint(seen.version + 1, 0.0)

    assert not was_hinted
    assert seen.is_hinted


async def test_an_idempotent_producer_that_hops_between_brokers_is_appended_once_and_in_order() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        assert await one.send(idempotent(0)) == [Appended(0, 0)]
        assert await other.send(idempotent(0)) == [Appended(0, 0)], "its retry elsewhere has the first offset"
        (early,) = await other.send(idempotent(2))
        assert isinstance(early, OutOfOrderSequence)
        assert await other.send(idempotent(1)) == [Appended(1, 0)]
        assert await one.send(idempotent(2)) == [Appended(2, 0)], "a stale cache does not make it out of order"


async def test_a_refusal_is_never_given_from_a_record_that_may_be_old() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        await one.send(idempotent(0))
        await other.send(idempotent(1))
        await other.send(idempotent(2))

        assert await one.send(idempotent(3)) == [Appended(3, 0)]


async def test_an_older_producer_epoch_is_fenced() -> None:
    async with rig() as broker:
        await broker.send(idempotent(0, epoch=1))

        (result,) = await broker.send(idempotent(1, epoch=0))
        assert isinstance(result, InvalidProducerEpoch)


async def test_a_deleted_partition_answers_not_found() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        await replace_manifest(broker.shared, Manifest(log_state=LogState.DELETED))

        (result,) = await broker.send(batch_bytes(1))
        assert isinstance(result, NotFound)


async def test_a_partition_without_a_record_answers_not_found() -> None:
    async with rig() as broker:
        (result,) = await broker.send(batch_bytes(1), partition=PartitionId(TopicId("00000000-0000-4000-8000-00000000ffff"), 0))

        assert isinstance(result, NotFound)


async def test_entries_that_left_the_ring_are_found_in_the_index() -> None:
    async with rig() as broker:
        for n in range(3 * DEFAULT_LIMITS.pending_entries_max):
            assert await broker.send(batch_bytes(1, max_timestamp=n)) == [Appended(n, 0)]

        manifest = await broker.manifest()
        assert len(manifest.pending) <= DEFAULT_LIMITS.pending_entries_max
        assert len(await broker.read_all()) == 3 * DEFAULT_LIMITS.pending_entries_max * len(batch_bytes(1))


async def test_a_failed_upload_refuses_the_flush_and_what_followed_it_from_the_same_source() -> None:
    flush, limits = FlushSettings(interval_s=0.0, gather_s=0.0, bytes_max=1), LogLimits(upload_timeout_s=0.05)
    async with rig(flush=flush, limits=limits) as broker:
        broker.objects.puts_fail, broker.objects.gate = Unavailable("disk full"), asyncio.Event()
        lost = broker.send(batch_bytes(1))
        await asyncio.sleep(0)
        broker.objects.puts_fail, gate, broker.objects.gate = None, broker.objects.gate, None
        follower, other = broker.send(batch_bytes(1)), broker.send(batch_bytes(2), source=object())
        gate.set()

        assert isinstance((await lost)[0], Unavailable)
        assert isinstance((await follower)[0], Unavailable), "it must not overtake the retry of what was lost"
        assert await other == [Appended(0, 0)], "others are not concerned"


async def test_states_of_too_many_producers_are_kept_in_producers_and_still_count() -> None:
    async with rig() as broker:
        count = DEFAULT_LIMITS.producers_hot_max + 60
        for pid in range(count):
            assert await broker.send(idempotent(0, pid=pid)) == [Appended(pid, 0)]
        await broker.send(idempotent(1, pid=count - 1))
        await broker.send(idempotent(2, pid=count - 1))
        manifest = await broker.manifest()

        assert len(manifest.producers) < count, "some have left the manifest"
        assert len(encode(manifest)) < 16 * 1024
        assert await broker.send(idempotent(0, pid=0)) == [Appended(0, 0)], "a repeated batch of a producer that left"
        (gap,) = await broker.send(idempotent(5, pid=1))
        assert isinstance(gap, OutOfOrderSequence)


@pytest.mark.parametrize("fault", ["seen first", "seen first, reply lost"])
async def test_a_commit_that_a_read_has_found_first_explains_no_later_hint(fault: str) -> None:
    async with rig() as broker:
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])

        async def see_first() -> None:
            log.seen.note_hint(log.seen.version + 1, 0.0)
            await broker.parts.manifest_reads.refresh([log])

        broker.metadata.faults.append(fault)
        broker.metadata.on_seen_first = see_first
        await broker.send(record_batch(b"x"))
        was_hinted = log.seen.is_hinted
        log.seen.note_hint(log.seen.version + 1, 0.0)

    assert not was_hinted
    assert log.seen.is_hinted


async def test_a_manifest_that_would_be_too_large_gives_its_entries_to_the_index() -> None:
    objects = MemoryObjectStore(clock=SystemClock())
    async with rig(objects=objects) as first:
        for offset in range(DEFAULT_LIMITS.pending_entries_max // 2):
            assert await first.send(batch_bytes(1)) == [Appended(offset, 0)]
        before = await first.manifest()
    limits = LogLimits(manifest_bytes_max=len(encode(before)))
    async with rig(shared=first.shared, objects=objects, limits=limits) as broker:
        assert await broker.send(batch_bytes(1)) == [Appended(len(before.pending), 0)]

        assert len((await broker.manifest()).pending) == 1
        assert len(await broker.read_all()) == (len(before.pending) + 1) * len(batch_bytes(1))


async def test_a_commit_that_no_manifest_has_room_for_is_refused_for_a_retry() -> None:
    async with rig() as broker, rig(shared=broker.shared, limits=LogLimits(manifest_bytes_max=10)) as small:
        await broker.send(batch_bytes(1))
        (refused,) = await small.send(idempotent(0))

        assert isinstance(refused, Unavailable)
        assert "manifest is full" in str(refused)
        assert (await broker.manifest()).sequence_counter == 1
        assert await broker.send(idempotent(0)) == [Appended(1, 0)]


async def test_a_commit_whose_pages_are_too_large_for_a_request_is_halved() -> None:
    count = 600
    async with rig(limits=LogLimits(write_request_bytes_max=24 * 1024)) as broker:
        assert await broker.send(*[idempotent(0, pid=pid) for pid in range(count)]) == [Appended(offset, 0) for offset in range(count)]

        manifest = await broker.manifest()
        assert len(manifest.pending) == 2, "one commit each"
        assert manifest.pages
        assert await broker.send(*[idempotent(0, pid=pid) for pid in range(count)]) == [Appended(offset, 0) for offset in range(count)]
        assert (await broker.manifest()).sequence_counter == count


async def test_entries_of_dead_brokers_leave_writers() -> None:
    async with rig(epoch=700, live=frozenset({700, 3})) as broker:
        writers = {epoch: WriterEntry(1, 1) for epoch in range(100, 100 + DEFAULT_LIMITS.writers_kept_max)} | {3: WriterEntry(9, 1)}
        await replace_manifest(broker.shared, Manifest(writers=writers))

        await broker.send(batch_bytes(1))
        assert len((await broker.manifest()).writers) == DEFAULT_LIMITS.writers_kept_max + 2, "no commit waits for the look"
        await broker.send(batch_bytes(1))
        assert set((await broker.manifest()).writers) == {3, 700}


async def test_an_object_at_or_below_the_revoked_floor_is_stored_again_under_a_higher_id() -> None:
    async with rig() as broker:
        floor = encode_ulid(4_102_444_800_000 << 80)
        await replace_manifest(broker.shared, Manifest(revoked_floor=floor))  # type: ignore[arg-type]

        assert await broker.send(batch_bytes(2)) == [Appended(0, 0)]
        (entry,) = (await broker.manifest()).pending
        assert entry.object_id > floor
        assert len(await broker.read_all()) == len(batch_bytes(2))
        assert await broker.send(batch_bytes(1)) == [Appended(2, 0)]


async def test_metadata_that_stays_away_ends_in_a_retriable_error_and_no_append_later() -> None:
    async with rig(limits=LogLimits(commit_timeout_s=0.2)) as broker:
        await broker.send(batch_bytes(1))
        broker.metadata.reads_fail = True
        broker.metadata.faults.extend(["late"])
        (unknown,), (queued,) = await asyncio.gather(broker.send(batch_bytes(1)), _after(0.02, broker))
        assert isinstance(unknown, OutcomeUnknown)
        assert isinstance(queued, Unavailable)

        broker.metadata.reads_fail = False
        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)], "the unanswered attempt was fenced first"
        await broker.metadata.deliver_late()
        assert (await broker.manifest()).sequence_counter == 2


async def _after(seconds: float, broker: Rig) -> list[object]:
    await asyncio.sleep(seconds)
    return list(await broker.send(batch_bytes(1)))


async def test_a_stopped_appender_begins_no_flush() -> None:
    async with rig() as broker:
        broker.parts.appender.stop()
        sent = broker.send(batch_bytes(1))
        for _ in range(10):
            await asyncio.sleep(0)

        assert not sent.done()
        assert broker.objects.put_keys == []


async def test_draining_waits_for_every_flush() -> None:
    async with rig(flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker:
        sent = [broker.send(batch_bytes(1)) for _ in range(10)]

        await broker.parts.appender.drain()

        assert all(future.done() for future in sent)
        assert len(broker.objects.put_keys) == 1
