"""Pages of producer states in a store: one read finds them, an absent one proves nothing, garbage goes and nothing else (ADR 13)."""

import asyncio
import functools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.errors import Corrupt, OutOfOrderSequence, StorageError
from storage.log.batch import Appended
from storage.log.fresh_reads import LogBounds
from storage.log.limits import LogLimits
from storage.log.page_store import PageStore
from storage.log.producer_pages import page_name, prepared_for
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put, Record
from storage.objects.memory import MemoryObjectStore
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig
from tests.unit.storage.log.rig import rig as opened_rig

KEYS = PartitionKeys(PARTITION)


def idempotent(pid: int, seq: int) -> bytearray:
    return batch_bytes(1, producer_id=pid, producer_epoch=0, first_seq=seq)


async def listed(broker: Rig) -> set[str]:
    start, end = KEYS.producer_pages()
    return {path.removeprefix(KEYS.producers_prefix) for path in await broker.shared.list(start, end)}


async def fill(broker: Rig, producers: Sequence[int], seq: int = 0) -> None:
    for pid in producers:
        (result,) = await broker.send(idempotent(pid, seq))
        assert isinstance(result, Appended), result


SMALL = LogLimits(producers_hot_max=2, producer_page_bytes_max=900)
rig = functools.partial(opened_rig, limits=SMALL)


def stores() -> tuple[MemoryMetadataStore, MemoryObjectStore]:
    clock = SystemClock()
    return MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)


def count_reads(broker: Rig) -> list[Sequence[Key]]:
    reads: list[Sequence[Key]] = []
    inner = broker.metadata.get_many

    async def get_many(wanted: Sequence[Key]) -> list[object]:
        if any("/producers/" in key.path for key in wanted):
            reads.append(wanted)
        return await inner(wanted)

    broker.metadata.get_many = get_many  # type: ignore[method-assign]
    return reads


async def test_states_in_many_pages_are_found_in_one_read_and_then_known() -> None:
    shared, objects = stores()
    async with rig(shared=shared, objects=objects, epoch=7) as one:
        await fill(one, range(30))
    async with rig(shared=shared, objects=objects, epoch=8) as other:
        reads = count_reads(other)
        repeated = [other.send(idempotent(pid, 0)) for pid in range(30)]

        assert [await sent for sent in repeated] == [[Appended(pid, 0)] for pid in range(30)]
        assert len(reads) == 1
        assert [await sent for sent in [other.send(idempotent(pid, 1)) for pid in range(30)]]
        assert len(reads) <= 3, "what this broker wrote itself it knows"


async def test_a_page_that_is_not_there_proves_nothing() -> None:
    """A deposed leader of the shard may answer from before the page was written."""
    shared, objects = stores()
    async with rig(shared=shared, objects=objects, epoch=7) as one:
        await fill(one, range(10))
    async with rig(shared=shared, objects=objects, epoch=8) as other:
        inner = other.metadata.get_many
        stale = 3

        async def get_many(wanted: Sequence[Key]) -> list[object]:
            nonlocal stale
            found = await inner(wanted)
            if stale and any("/producers/" in key.path for key in wanted):
                stale -= 1
                return [None if "/producers/" in key.path else record for key, record in zip(wanted, found, strict=True)]
            return found

        other.metadata.get_many = get_many  # type: ignore[method-assign]
        assert await other.send(idempotent(0, 0)) == [Appended(0, 0)], "known, not an unknown producer"
        assert stale == 0
        (gap,) = await other.send(idempotent(1, 5))
        assert isinstance(gap, OutOfOrderSequence)


async def test_replaced_pages_and_pages_of_commits_that_lost_are_deleted() -> None:
    shared, objects = stores()
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        sent = [
            broker.send(idempotent(pid, seq))
            for seq in range(3)
            for pid in range(20)
            for broker in (one, other)
            if pid % 2 == (broker is one)
        ]
        results = [result for future in sent for result in await future]
        assert all(isinstance(result, Appended) for result in results)
        for broker in (one, other):
            while broker.parts.partitions.get(PARTITION).producers.page_garbage:
                await broker.send(batch_bytes(1))
        named = {ref.name for ref in (await one.manifest()).pages}

        assert named <= await listed(one)
        assert len(await listed(one)) <= len(named) + 2


async def test_a_sweep_removes_what_no_manifest_can_name_any_more_and_nothing_else() -> None:
    async with rig() as broker:
        await fill(broker, range(12))
        log = broker.parts.partitions.get(PARTITION)
        named = {ref.name for ref in (await broker.manifest()).pages}
        old = {f"{log.seen.version - 1}-9-1-1-0", "1-9-1-1-0"}
        possible = {f"{log.seen.version}-9-1-1-0", f"{log.seen.version + 5}-9-1-1-0"}
        await broker.shared.write([Put(KEYS.producer_page(name), b"{}", None) for name in old | possible])
        store = PageStore(metadata=broker.shared, clock=SystemClock(), telemetry=Telemetry())
        assert log.seen.manifest is not None
        await store.sweep(log, log.seen.manifest, log.seen.version)

        assert await listed(broker) == named | possible


async def test_a_sweep_with_an_old_manifest_deletes_no_page_that_a_newer_one_names() -> None:
    async with rig() as broker:
        await fill(broker, range(6))
        log = broker.parts.partitions.get(PARTITION)
        manifest, version = log.seen.manifest, log.seen.version
        assert manifest is not None
        await fill(broker, range(6, 20))
        store = PageStore(metadata=broker.shared, clock=SystemClock(), telemetry=Telemetry())
        await store.sweep(log, manifest, version)

        assert {ref.name for ref in (await broker.manifest()).pages} <= await listed(broker)


async def test_sweeps_run_by_themselves_at_intervals() -> None:
    async with rig(limits=replace(SMALL, producer_pages_sweep_every_s=0.0)) as broker:
        await broker.shared.write([Put(KEYS.producer_page("0-9-1-1-0"), b"{}", None)])
        await fill(broker, range(12))
        await asyncio.sleep(0.01)

        assert "0-9-1-1-0" not in await listed(broker)


@pytest.mark.parametrize("seed", range(8))
async def test_any_mix_of_lost_requests_and_replies_through_two_brokers_appends_each_sequence_once(seed: int) -> None:
    """What the spill of before got wrong: two brokers, producers that come and go, replies that are lost, and nothing appended twice."""
    chance = random.Random(seed)
    shared, objects = stores()
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        offsets: dict[tuple[int, int], int] = {}
        for seq in range(6):
            for pid in chance.sample(range(14), 14):
                broker = chance.choice((one, other))
                if chance.random() < 0.3:
                    broker.metadata.faults.append(chance.choice(("request lost", "reply lost", "late", "refused")))
                result: Appended | StorageError | None = None
                for _ in range(20):
                    (result,) = await chance.choice((one, other)).send(idempotent(pid, seq))
                    if isinstance(result, Appended):
                        break
                assert isinstance(result, Appended), result
                offsets[pid, seq] = result.base_offset
                if chance.random() < 0.2:
                    await broker.metadata.deliver_late()
        for (pid, seq), offset in offsets.items():
            if seq >= 1:
                assert await chance.choice((one, other)).send(idempotent(pid, seq)) == [Appended(offset, 0)]
        manifest = await one.manifest()

        assert sorted(offsets.values()) == list(range(14 * 6)), "once each, and dense"
        assert manifest.sequence_counter == 14 * 6
        assert manifest.pages


def test_the_name_of_a_page_begins_with_the_version_it_was_prepared_for() -> None:
    assert prepared_for(page_name(version=812, epoch=7, commit_seq=3, attempt=2) + "-0") == 812


async def test_a_page_that_cannot_be_decoded_refuses_who_needs_it_and_nobody_else() -> None:
    """Whoever reads, and other producers, go on; and so does everybody when it can be read again."""
    shared, objects = stores()
    async with rig(shared=shared, objects=objects, epoch=7) as one:
        await fill(one, range(10))
    async with rig(shared=shared, objects=objects, epoch=8) as other:
        inner = other.metadata.get_many
        is_bad = True

        async def get_many(wanted: Sequence[Key]) -> list[Record | None]:
            found = await inner(wanted)
            if not is_bad:
                return found
            return [
                record._replace(value=b"\xff" + record.value) if record is not None and "/producers/" in key.path else record
                for key, record in zip(wanted, found, strict=True)
            ]

        other.metadata.get_many = get_many  # type: ignore[method-assign]
        (refused,) = await other.send(idempotent(0, 1))
        (bounds,) = await other.parts.manifest_reads.read([PARTITION])
        assert isinstance(refused, Corrupt)
        assert isinstance(bounds, LogBounds)
        assert [type(result) for result in await other.send(batch_bytes(1))] == [Appended]
        is_bad = False
        assert [type(result) for result in await other.send(idempotent(0, 1))] == [Appended]
