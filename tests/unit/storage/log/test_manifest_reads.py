"""Fresh reads that are shared."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.errors import NotFound, Unavailable
from storage.formats.manifest import Manifest, decode_manifest, encode
from storage.log import fresh_reads
from storage.log.fresh_reads import DECODED_AT_ONCE, LogBounds, ManifestReads
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Record
from tests.unit.storage.log.rig import PARTITION, rig

SOON_S = 25.0


class Slow:
    """Answers a read with what stands at the moment it is let go."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.let_go = asyncio.Event()
        self.manifest = Manifest()
        self.version = 1
        self.silent: int | None = None
        """The shard that waits to be let go; None: both."""

    def shard_of(self, partition_key: str) -> int:
        """Two, by the number of the partition."""
        return int(partition_key.rpartition("/")[2]) % 2

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self.reads.append([key.path for key in keys])
        if self.silent is None or any(self.shard_of(key.partition_key) == self.silent for key in keys):
            await self.let_go.wait()
        return [Record(key.path, encode(self.manifest), self.version) for key in keys]


async def test_callers_of_one_moment_share_a_read_and_later_ones_get_a_later_one() -> None:
    store, partitions = Slow(), Partitions()
    log = partitions.get(PARTITION)
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for _ in range(5):
                group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            store.let_go.set()

    assert len(store.reads) == 2, "one under way, one for all who asked meanwhile"


async def test_nothing_is_read_for_nobody() -> None:
    store = Slow()
    async with Nursery() as nursery, asyncio.timeout(5):
        reads = ManifestReads(metadata=store, partitions=Partitions(), nursery=nursery)  # type: ignore[arg-type]
        await reads.refresh([])

    assert store.reads == []


async def test_a_read_that_is_not_answered_is_unavailable() -> None:
    store, partitions, limits = Slow(), Partitions(), LogLimits(manifest_read_timeout_s=0.01)
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery, limits=limits)  # type: ignore[arg-type]

        with pytest.raises(Unavailable, match="did not answer"):
            await reads.refresh([partitions.get(PARTITION)])


async def test_one_caller_that_gives_up_does_not_take_the_read_from_others() -> None:
    store, partitions = Slow(), Partitions()
    log = partitions.get(PARTITION)
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            impatient = group.create_task(reads.refresh([log]))
            patient = group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.sleep(0)
            store.let_go.set()
        assert impatient.cancelled()
        assert patient.done()
    assert log.seen.high_watermark == 0


async def test_bounds_are_those_of_the_record() -> None:
    store, partitions = Slow(), Partitions()
    store.manifest = Manifest(sequence_counter=9, log_start=4, bytes_total=77)
    store.let_go.set()
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]

        assert await reads.read([PARTITION]) == [LogBounds(4, 9, 77)]


def test_idle_partitions_are_forgotten_when_there_are_too_many() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=10))
    busy = partitions.get(PARTITION)
    busy.commit_queue.is_busy = True
    for n in range(1, 100):
        partitions.get(PARTITION._replace(partition=n))

    assert len(partitions) <= 10
    assert partitions.get(PARTITION) is busy
    assert partitions.by_manifest_path(busy.keys.manifest.path) is busy
    assert isinstance(fresh_reads.bounds_of(busy), NotFound)


@contextlib.asynccontextmanager
async def two_shards(*, limits: LogLimits = DEFAULT_LIMITS) -> AsyncIterator[tuple[Slow, ManifestReads, PartitionLog, PartitionLog]]:
    """The log of the first lies on a shard that does not answer."""
    store, partitions = Slow(), Partitions()
    store.silent = 0
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery, limits=limits)  # type: ignore[arg-type]
        yield store, reads, partitions.get(PARTITION), partitions.get(PARTITION._replace(partition=1))


async def test_a_silent_shard_holds_up_no_read_of_another() -> None:
    async with two_shards() as (_, reads, silent, healthy), asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        stuck = group.create_task(reads.refresh([silent]))
        await asyncio.sleep(0)
        for _ in range(3):
            await reads.refresh([healthy])
        assert not stuck.done()
        stuck.cancel()


async def test_each_partition_of_one_question_is_answered_by_its_own_shard() -> None:
    limits = LogLimits(bounds_timeout_s=0.05)
    async with two_shards(limits=limits) as (_, reads, silent, healthy), asyncio.timeout(SOON_S):
        refused, found = await reads.read([silent.partition, healthy.partition])

        assert isinstance(refused, Unavailable)
        assert found == LogBounds(0, 0, 0)
        assert await reads.refresh_each([healthy]) == {}


async def test_a_shard_that_is_known_to_be_silent_is_waited_for_shortly_and_by_few() -> None:
    limits = LogLimits(silent_after_s=0.0, silent_timeout_s=0.05, bounds_timeout_s=60.0, waiting_for_silent_max=1)
    async with two_shards(limits=limits) as (store, reads, silent, _), asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        first = group.create_task(reads.refresh([silent]))
        await asyncio.sleep(0.01)
        second = group.create_task(reads.read([silent.partition]))
        await asyncio.sleep(0)
        (at_once,) = await reads.read([silent.partition])
        (in_time,) = await second

        assert isinstance(at_once, Unavailable)
        assert "many wait" in str(at_once)
        assert isinstance(in_time, Unavailable)
        assert len(store.reads) == 1, "one read under way, whoever asks"
        store.let_go.set()
        await first
        assert await reads.read([silent.partition]) == [LogBounds(0, 0, 0)]


async def test_what_a_shard_failed_with_concerns_its_own_partitions() -> None:
    async with rig(shared=MemoryMetadataStore(clock=SystemClock(), shards=2)) as broker:
        logs = [broker.parts.partitions.get(PARTITION._replace(partition=number)) for number in range(8)]
        failing = broker.shared.shard_of(logs[0].keys.partition_key)
        get_many = broker.metadata.get_many

        async def half(wanted: Sequence[Key]) -> list[object]:
            if any(broker.shared.shard_of(key.partition_key) == failing for key in wanted):
                raise Unavailable("away")
            return await get_many(wanted)

        broker.metadata.get_many = half  # type: ignore[method-assign]
        failed = await broker.parts.manifest_reads.refresh_each(logs)
        with pytest.raises(Unavailable, match="away"):
            await broker.parts.manifest_reads.refresh(logs)

        assert set(failed) == {log for log in logs if broker.shared.shard_of(log.keys.partition_key) == failing}
        assert 0 < len(failed) < len(logs)


async def test_a_record_that_is_known_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most reads find what was there before: decoding it would be most of their price."""
    decoded: list[str] = []

    def decode(value: bytes, *, path: str) -> Manifest:
        decoded.append(path)
        return decode_manifest(value, path=path)

    monkeypatch.setattr(fresh_reads, "decode_manifest", decode)
    store, partitions = Slow(), Partitions()
    store.let_go.set()
    log = partitions.get(PARTITION)
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        await reads.refresh([log])
        await reads.refresh([log])
        log.observe_absent()
        await reads.refresh([log])

    assert len(store.reads) == 3
    assert len(decoded) == 2, "the first, and the one after it seemed to be gone"
    assert log.seen.manifest == store.manifest


async def test_a_hint_counts_until_the_record_it_is_about_is_taken_over() -> None:
    """Records are decoded in turns: who asks in between must ask the store, or is served what another broker has deleted."""
    store, partitions = Slow(), Partitions()
    store.let_go.set()
    logs = [partitions.get(PARTITION._replace(partition=2 * number)) for number in range(3 * DECODED_AT_ONCE)]
    async with Nursery() as nursery:
        reads = ManifestReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        for log in logs:
            log.seen.note_hint(store.version, 0.0)

        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            refreshing = group.create_task(reads.refresh(logs))
            while logs[0].seen.manifest is None:  # noqa: ASYNC110 - a log tells nobody that it was read
                await asyncio.sleep(0)
            untaken = [log for log in logs if log.keys.manifest.path in store.reads[0] and log.seen.manifest is None]
            between = [log.seen.is_hinted for log in untaken]
            untaken[-1].seen.note_hint(store.version + 1, 0.0)
            untaken[-2].seen.note_hint(None, asyncio.get_running_loop().time())
            await refreshing

    assert set(between) == {True}
    assert [log.seen.is_hinted for log in logs] == [log in untaken[-2:] for log in logs]
