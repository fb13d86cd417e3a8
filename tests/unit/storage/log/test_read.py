"""Reading what was committed, from the object store: windows, hints, damage."""

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactor.plan import CompactionPolicy
from runtime.clock import SystemClock
from storage.errors import Corrupt, EndsEarly, NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.formats.manifest import Manifest, encode
from storage.formats.wal import object_key
from storage.log.flush import FlushSettings
from storage.log.index import check_range
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.reader import LOOK_AGAIN_S
from storage.log.scan import BatchRun
from storage.metadata import keys
from storage.metadata.port import Put
from storage.recordbatch import parse_header
from tests.kit.batches import batch_bytes
from tests.kit.collector import no_collector
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.rig import PARTITION, Rig, rig


async def many_in_one_object(broker: Rig, count: int, payload: bytes = b"x" * 20) -> None:
    sent = [broker.send(batch_bytes(2, payload=payload)) for _ in range(count)]
    await broker.parts.appender.drain()
    await asyncio.gather(*sent)


async def test_every_offset_of_an_object_can_be_read_alone() -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60)) as broker:
        await many_in_one_object(broker, 20)
        log = broker.parts.partitions.get(PARTITION)

        for offset in range(40):
            run = await broker.parts.reader.stored(log, offset, bytes_max=1)
            assert run.base == offset - offset % 2
            assert parse_header(run.buffer).base_offset == run.base


@pytest.mark.parametrize(("part_bytes", "bytes_max", "factor"), [(64, 1, 1), (64, 1 << 20, 1), (1 << 20, 1, 1), (64, 1_400, 4 / 3)])
async def test_a_run_keeps_little_more_in_memory_than_itself_however_many_parts_it_was_in(
    part_bytes: int, bytes_max: int, factor: float
) -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60), part_bytes=part_bytes) as broker:
        await many_in_one_object(broker, 20)
        run = await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=bytes_max)

        assert memoryview(run.views[0].obj).nbytes <= run.size_bytes * factor
        assert parse_header(run.buffer).base_offset == 0


async def test_a_batch_larger_than_the_window_is_read_whole() -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60), limits=LogLimits(read_window_bytes_min=100)) as broker:
        await many_in_one_object(broker, 5, payload=b"y" * 1_000)
        log = broker.parts.partitions.get(PARTITION)

        for offset in range(10):
            run = await broker.parts.reader.stored(log, offset, bytes_max=50)
            assert (run.base, run.last) == (offset - offset % 2, offset - offset % 2 + 1)


async def test_a_damaged_batch_is_corrupt_never_skipped() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1, payload=b"precious"))
        (entry,) = (await broker.manifest()).pending
        key = object_key(entry.object_id)
        stored = bytearray(await broker.objects.get_range(key, 0, entry.batches[0][0] + entry.batches[0][1]))  # type: ignore[operator]
        stored[-1] ^= 1
        await broker.objects.delete_many([key])  # type: ignore[operator]
        await broker.objects.put_if_absent(key, [stored])

        with pytest.raises(Corrupt, match="checksum mismatch"):
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)


async def test_a_missing_object_of_a_live_entry_is_corrupt() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        (entry,) = (await broker.manifest()).pending
        await broker.objects.delete_many([object_key(entry.object_id)])  # type: ignore[operator]

        with pytest.raises(Corrupt, match="object of a live entry is missing"):
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)


async def test_a_missing_object_below_a_new_log_start_is_out_of_range() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        await broker.send(batch_bytes(1))
        manifest = await broker.manifest()
        await broker.objects.delete_many([object_key(manifest.pending[0].object_id)])  # type: ignore[operator]
        moved = Manifest(sequence_counter=2, log_start=1, pending=manifest.pending)
        await broker.shared.write([Put(keys.PartitionKeys(PARTITION).manifest, encode(moved), None)])

        with pytest.raises(OffsetOutOfRange) as caught:
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)
        assert (caught.value.log_start, caught.value.high_watermark) == (1, 2)


@pytest.mark.parametrize("cursor", [0, 4])
async def test_a_committed_offset_that_neither_entry_nor_segment_covers_is_corrupt(cursor: int) -> None:
    async with rig() as broker:
        manifest = Manifest(sequence_counter=5, compaction_cursor=cursor)
        await broker.shared.write([Put(keys.PartitionKeys(PARTITION).manifest, encode(manifest), None)])
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])

        with pytest.raises(Corrupt, match="no entry covers"):
            await broker.parts.reader.stored(log, 3, bytes_max=100)


async def test_an_undecodable_manifest_concerns_its_own_partition_only() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        other = PARTITION._replace(partition=1)
        await broker.shared.write([Put(keys.PartitionKeys(other).manifest, b"{nonsense", None)])

        (good, bad) = await broker.parts.manifest_reads.read([PARTITION, other])
        assert not isinstance(good, Exception)
        assert isinstance(bad, Corrupt)
        (refused,) = await broker.send(batch_bytes(1), partition=other)
        assert isinstance(refused, Corrupt)


async def test_metadata_that_cannot_be_read_is_unavailable() -> None:
    async with rig() as broker:
        broker.metadata.reads_fail = True

        with pytest.raises(Unavailable):
            await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])


async def test_a_record_that_is_older_than_what_is_known_is_ignored() -> None:
    """Promise 5: reads never go back."""
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        log = broker.parts.partitions.get(PARTITION)
        log.observe(Manifest(), log.seen.version - 1)

        assert log.seen.high_watermark == 3
        check_range(log, 3)
        with pytest.raises(OffsetOutOfRange):
            check_range(log, 4)


BATCH_BYTES = len(batch_bytes(2))


class Scene:
    """Objects whose next GETs go wrong in the ways that are queued here."""

    def __init__(self, broker: Rig) -> None:
        self.broker = broker
        self.log = broker.parts.partitions.get(PARTITION)
        self.wrong: list[Callable[[bytes], bytes]] = []
        self.gets = 0
        inner: Any = broker.objects.inner
        real = inner.get_range

        async def get_range(key: str, start: int, end: int) -> bytes:
            self.gets += 1
            body: bytes = await real(key, start, end)
            return self.wrong.pop(0)(body) if self.wrong else body

        inner.get_range = get_range

    async def read(self, offset: int = 0, bytes_max: int = 1 << 20) -> BatchRun:
        return await self.broker.parts.reader.stored(self.log, offset, bytes_max=bytes_max)

    def counted(self, name: str, **labels: str) -> float:
        return self.broker.telemetry.registry.get_sample_value(name, labels) or 0.0


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(body: bytes) -> bytes:
        changed = bytearray(body)
        changed[at] ^= 1
        return bytes(changed)

    return flip


def missing(_body: bytes) -> bytes:
    raise NotFound("no such object")


def ended_early(_body: bytes) -> bytes:
    raise EndsEarly("object ends before the range")


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (flipped(-1), "corrupt"),
        (flipped(16 - BATCH_BYTES), "corrupt"),
        (missing, "missing"),
        (ended_early, "short"),
        (lambda body: body[:-1], "short"),
    ],
    ids=["record byte", "magic", "missing", "short by the store's word", "short"],
)
async def test_what_a_get_gives_wrongly_once_is_read_again_and_served(wrong: Callable[[bytes], bytes], cause: str) -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        scene = Scene(broker)
        scene.wrong = [wrong]
        with capture_logs() as told:
            first, second = await scene.read(), await scene.read()

        assert (first.base, first.last) == (second.base, second.last) == (0, 2)
        assert scene.gets == 2, "the second read is served by the cache"
        assert scene.counted("forebay_corrupt_reads_total", cause=cause) == 1
        assert scene.counted("forebay_recovered_reads_total") == 1
        assert [line["log_level"] for line in told] == ["warning"]


def errors_with_frames() -> list[StorageError]:
    """Those that were alive when the collector was switched off are not among them."""
    return [found for found in gc.get_objects() if isinstance(found, StorageError) and found.__traceback__ is not None]


@pytest.mark.parametrize(
    "wrong", [flipped(-1), missing, ended_early, lambda body: body[:-1]], ids=["flipped", "missing", "said short", "short"]
)
@pytest.mark.parametrize("times", [1, 2], ids=["healed", "confirmed"])
async def test_a_damaged_read_leaves_no_error_that_holds_what_was_read(times: int, wrong: Callable[[bytes], bytes]) -> None:
    """Frames hold the window that was read. In a circle with its error, one lives until somebody looks for circles: minutes."""
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        scene = Scene(broker)
        scene.wrong = [wrong] * times
        with no_collector():
            for _ in range(2):
                with contextlib.suppress(StorageError):
                    await scene.read()

            assert errors_with_frames() == []


async def test_readers_who_share_a_damaged_piece_share_its_second_read() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        scene = Scene(broker)
        scene.wrong = [flipped(-1)]
        runs = await asyncio.gather(*[scene.read() for _ in range(20)])

        assert {(run.base, run.last) for run in runs} == {(0, 2)}
        assert scene.gets == 2


async def test_a_flipped_header_of_a_batch_that_is_passed_over_moves_no_offset() -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60)) as broker:
        await many_in_one_object(broker, 3)
        scene = Scene(broker)
        scene.wrong = [flipped(26 - 3 * BATCH_BYTES)]  # its last offset delta: 3 records where there are 2
        run = await scene.read(offset=3, bytes_max=1)

        assert (run.base, run.last) == (2, 3)
        assert scene.counted("forebay_recovered_reads_total") == 1


async def test_damage_is_told_once_and_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda _: now_s)
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        scene = Scene(broker)
        scene.wrong = [flipped(-1)] * 4
        with capture_logs() as told:
            for _ in range(50):
                with pytest.raises(Corrupt, match="checksum mismatch"):
                    await scene.read()
        assert scene.gets == 2
        assert [line["log_level"] for line in told] == ["error"]
        now_s += LOOK_AGAIN_S
        with capture_logs() as told, pytest.raises(Corrupt):
            await scene.read()

        assert scene.gets == 4
        assert told == []
        now_s += LOOK_AGAIN_S
        assert (await scene.read()).last == 2, "what an operator repaired is served"


async def test_what_lies_before_a_damaged_batch_is_served_and_then_the_damage_is_told() -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60)) as broker:
        await many_in_one_object(broker, 3)
        scene = Scene(broker)
        scene.wrong = [flipped(-1)] * 9
        run = await scene.read()

        assert (run.base, run.last) == (0, 3)
        with pytest.raises(Corrupt, match="checksum mismatch"):
            await scene.read(offset=4)


async def test_a_batch_larger_than_what_may_be_sent_is_neither_copied_nor_checked() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(3, payload=bytes(5_000)))
        scene = Scene(broker)
        scene.wrong = [flipped(-1)]

        assert await broker.parts.reader.stored_within(scene.log, 0, bytes_max=4_000, at_least_one=False) is None
        assert scene.counted("forebay_corrupt_reads_total", cause="corrupt") == 0


async def test_a_record_is_located_in_the_manifest_then_in_a_chunk_of_the_index_then_in_a_segment() -> None:
    policy = CompactionPolicy(entries_due=1)
    async with rig() as broker, compacting(broker.shared, broker.objects, policy=policy) as compaction:
        log = broker.parts.partitions.get(PARTITION)
        for _ in range(3 * DEFAULT_LIMITS.pending_entries_max):
            await broker.send(batch_bytes(1))
        newest = await broker.parts.index.locate(log, 3 * DEFAULT_LIMITS.pending_entries_max - 1)
        oldest = await broker.parts.index.locate(log, 0)
        assert newest.index_key == log.keys.manifest.path
        assert oldest.index_key.startswith(log.keys.index_prefix)
        for place in (newest, oldest):
            assert place.object_key is not None
            data = await broker.objects.get_range(place.object_key, place.byte_offset, place.byte_offset + place.byte_length)
            assert len(data) == len(batch_bytes(1))
        await compaction.run(PARTITION)
        segment = await broker.parts.index.locate(log, 0)
        assert segment.object_key is not None
        assert segment.object_key.startswith("segments/")
        with pytest.raises(OffsetOutOfRange):
            await broker.parts.index.locate(log, 3 * DEFAULT_LIMITS.pending_entries_max + 1)
