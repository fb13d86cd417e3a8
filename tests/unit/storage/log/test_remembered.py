"""What a broker remembers of logs is bounded, and what it has forgotten it reads again or waits for."""

import asyncio
from typing import Any

import msgspec
import pytest

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.errors import Corrupt, Unavailable
from storage.formats.manifest import Entry, IndexChunk, Manifest, encode
from storage.limits import COMMIT_BATCHES_MAX
from storage.log import producer_pages
from storage.log.batch import Appended
from storage.log.index import KeptChunks
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog, Partitions
from storage.log.producers import PAGE_GARBAGE_MAX
from storage.log.reader import CorruptReads, StoredReads
from storage.metadata import keys
from storage.metadata.port import ABSENT, Put
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.kit.faulty_metadata import ManualClock
from tests.unit.storage.log.rig import PARTITION, TOPIC, rig
from tests.unit.storage.log.test_dead_writers import Registry, named, turns, watched
from tests.unit.storage.log.test_time_search import timed


def entry(number: int) -> Entry:
    return Entry(number, number, "01" * 13, ((0, 1),), 0, 0)


def test_of_producers_whose_batches_were_lost_the_last_ones_are_known() -> None:
    log = PartitionLog(PARTITION)
    for producer_id in range(DEFAULT_LIMITS.lost_kept_max + 10):
        log.producers.lose(producer_id, 5, float(producer_id))
    log.producers.lose(10, 3, float(DEFAULT_LIMITS.lost_kept_max + 10))
    log.producers.lose(9_999, 0, float(DEFAULT_LIMITS.lost_kept_max + 11))

    assert len(log.producers.lost) == len(log._remembered.lost) == DEFAULT_LIMITS.lost_kept_max
    assert (log.producers.lost[10], log.producers.lost[9_999]) == (3, 0)
    assert min(log.producers.lost) == 10, "who lost one again is the last to be forgotten"
    assert 11 not in log.producers.lost


def test_of_lost_batches_of_all_partitions_the_last_ones_are_known_and_none_of_a_forgotten_partition() -> None:
    partitions = Partitions()
    logs = [partitions.get(PartitionId(TOPIC, number)) for number in range(40)]
    for log in logs:
        for producer_id in range(DEFAULT_LIMITS.lost_kept_max):
            log.producers.lose(producer_id, 5, 1.0)
    kept = partitions._remembered.lost

    assert len(kept) == DEFAULT_LIMITS.lost_of_all_kept_max == sum(len(log.producers.lost) for log in logs)
    assert (logs[0].producers.lost, len(logs[-1].producers.lost)) == ({}, DEFAULT_LIMITS.lost_kept_max)
    logs[-1].forget()
    assert len(kept) == DEFAULT_LIMITS.lost_of_all_kept_max - DEFAULT_LIMITS.lost_kept_max
    assert logs[-2].producers.lost_since(2.0) == {}
    assert len(kept) == DEFAULT_LIMITS.lost_of_all_kept_max - 2 * DEFAULT_LIMITS.lost_kept_max


async def test_a_producer_whose_lost_batch_was_forgotten_still_does_not_begin_behind_it() -> None:
    async with rig(limits=LogLimits(lost_kept_max=1, upload_timeout_s=0.1)) as broker:
        broker.objects.puts_fail = Unavailable("503")
        for producer_id in (1, 2):
            (refused,) = await broker.send(batch_bytes(producer_id=producer_id, producer_epoch=0, first_seq=0))
            assert isinstance(refused, Unavailable)
        broker.objects.puts_fail = None
        log = broker.parts.partitions.get(PARTITION)
        assert list(log.producers.lost) == [2]
        (behind,) = await broker.send(batch_bytes(producer_id=1, producer_epoch=0, first_seq=1))
        (first,) = await broker.send(batch_bytes(producer_id=1, producer_epoch=0, first_seq=0))

        assert isinstance(behind, Unavailable)
        assert first == Appended(0, 0)


def test_of_the_chunks_of_an_index_the_last_ones_of_a_partition_are_known() -> None:
    kept = KeptChunks()
    for number in range(DEFAULT_LIMITS.chunks_kept_max + 3):
        kept.add(PARTITION, IndexChunk(entries=(entry(number),)))

    assert [chunk.entries[0].base for chunk in kept.of(PARTITION)] == list(range(3, DEFAULT_LIMITS.chunks_kept_max + 3))
    assert len(kept) == DEFAULT_LIMITS.chunks_kept_max


def test_however_many_partitions_are_read_the_chunks_of_all_together_are_bounded() -> None:
    kept = KeptChunks()
    spans = tuple((number, 1) for number in range(1_000))
    partitions = [PartitionId(TOPIC, number) for number in range(60)]
    for each in partitions:
        for number in range(3):
            kept.add(each, IndexChunk(entries=(msgspec.structs.replace(entry(number), batches=spans),)))

    assert sum(len(list(kept.of(each))) for each in partitions) == len(kept) < 150
    assert 0.9 * DEFAULT_LIMITS.chunks_bytes_max < kept.size_bytes <= DEFAULT_LIMITS.chunks_bytes_max
    assert (len(list(kept.of(partitions[0]))), len(list(kept.of(partitions[-1])))) == (0, 3)


def test_chunks_that_were_dropped_with_what_was_damaged_do_not_count_for_ever() -> None:
    kept = KeptChunks()
    for _ in range(3):
        for number in range(DEFAULT_LIMITS.chunks_kept_max):
            kept.add(PARTITION, IndexChunk(entries=(entry(number),)))
        kept.drop(PARTITION)

    assert (len(kept), kept.size_bytes, list(kept.of(PARTITION))) == (0, 0, [])


async def test_places_where_reads_ended_are_forgotten_and_the_log_is_read_whole_all_the_same() -> None:
    async with rig(limits=LogLimits(read_places_kept_max=8)) as broker:
        count = 8 + 5
        for _ in range(count):
            await broker.send(batch_bytes(1))
        data = await broker.read_all()

        assert len(data) == count * len(batch_bytes(1))
        assert len(broker.parts.reader._places) == 8


def test_of_pages_that_are_to_be_removed_so_many_wait_and_the_rest_is_swept() -> None:
    log = PartitionLog(PARTITION)
    for begin in range(0, PAGE_GARBAGE_MAX * 2, 10):
        log.producers.discard_pages(f"{number}" for number in range(begin, begin + 10))

    assert log.producers.page_garbage == [f"{number}" for number in range(PAGE_GARBAGE_MAX)]


async def test_pages_of_producers_that_were_dropped_from_memory_are_read_again() -> None:
    limits = LogLimits(producers_hot_max=2, producer_page_bytes_max=900, producer_pages_cached_max=2)
    async with rig(limits=limits) as broker:
        for producer_id in range(60):
            assert await broker.send(batch_bytes(producer_id=producer_id, producer_epoch=0, first_seq=0)) == [Appended(producer_id, 0)]
        pages = broker.parts.appender._committer._pages

        assert len((await broker.manifest()).pages) > 4
        assert len(pages._cached) == 2
        for producer_id in range(60):
            again = await broker.send(batch_bytes(producer_id=producer_id, producer_epoch=0, first_seq=0))
            assert again == [Appended(producer_id, 0)], "as it was appended the first time"
        assert len(pages._cached) == 2


def test_damage_that_was_forgotten_is_looked_at_again() -> None:
    known = CorruptReads(clock=ManualClock(), telemetry=Telemetry(), limits=LogLimits(corrupt_reads_kept_max=3))
    for offset in range(5):
        known.confirm(PARTITION, offset, key=f"wal/{offset}", cause="missing", what=f"gone: {offset}")

    assert (len(known._confirmed), len(known._told_s)) == (3, 3)
    known.check(PARTITION, 1)
    for offset in (2, 3, 4):
        with pytest.raises(Corrupt, match=f"gone: {offset}"):
            known.check(PARTITION, offset)


async def test_answers_about_times_that_were_forgotten_are_looked_for_again() -> None:
    async with rig(limits=LogLimits(time_answers_kept_max=2)) as broker:
        for number in range(4):
            await broker.send(timed(number * 10, number * 10 + 5))
        search = broker.parts.time_search
        asked = [number * 10 + 3 for number in range(4)]
        answers = [await search.first_at_or_after(PARTITION, time) for time in asked]

        assert answers == [(2 * number + 1, 10 * number + 5) for number in range(4)]
        assert len(search._answers) == 2
        assert [await search.first_at_or_after(PARTITION, time) for time in asked] == answers
        assert len(search._answers) == 2


async def test_logs_whose_times_were_forgotten_are_gone_through_again() -> None:
    partitions = [PartitionId(TOPIC, number) for number in range(4)]
    async with rig(limits=LogLimits(logs_timed_max=2)) as broker:
        for number, one in enumerate(partitions):
            await broker.shared.write([Put(keys.PartitionKeys(one).manifest, encode(Manifest()), ABSENT)])
            for time in (9_000, 5, 100 + number, 7):
                await broker.send(timed(time), partition=one)
            await broker.parts.trimmer.trim(one, 1)
        search = broker.parts.time_search
        for _ in range(2):
            assert [await search.of_maximum(one) for one in partitions] == [(2, 100 + number) for number in range(4)]
            assert len(search._times) == 2


async def test_of_brokers_that_are_known_to_be_gone_the_last_ones_are_known() -> None:
    async with Nursery() as nursery:
        dead = watched(Registry(1), nursery, limits=LogLimits(dead_writers_kept_max=4))
        many = range(100, 130)
        dead.of(named(*many))
        await turns()

        assert list(dead.of(named(*many))) == [126, 127, 128, 129]


async def test_what_reads_may_bring_that_nobody_waits_for_is_bounded_in_bytes() -> None:
    ended: list[int] = []

    class Stuck:
        def cached(self, log: PartitionLog, offset: int) -> None:
            return None

        async def stored_within(self, log: PartitionLog, offset: int, **_: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(offset)

    def wake() -> None:
        raise AssertionError("nobody waits")

    async with Nursery() as nursery:
        reads = StoredReads(Stuck(), nursery=nursery, clock=SystemClock(), limits=LogLimits(unattended_bytes_max=250))
        log = PartitionLog(PARTITION)
        for offset in range(5):
            stored_read = reads.join(log, offset, bytes_max=100, runs_max=1, at_least_one=False, wake=wake)
            await asyncio.sleep(0)
            reads.leave(stored_read, wake)
        await asyncio.sleep(0)

        assert (ended, reads.unattended) == ([0, 1, 2], 2)


def test_a_commit_takes_so_many_batches_and_the_rest_waits_for_the_next() -> None:
    class Plain:
        producer_id = -1

    assert producer_pages.fitting(Manifest(), [Plain()] * (COMMIT_BATCHES_MAX + 1), DEFAULT_LIMITS) == COMMIT_BATCHES_MAX
