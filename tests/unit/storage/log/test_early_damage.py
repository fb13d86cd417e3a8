"""An early slice whose object or page is not what was written: the other one is read, nothing is deleted for it, and it is said."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from runtime.clock import SystemClock
from sim.loop import VirtualClock, VirtualLoop
from storage.errors import Corrupt
from storage.formats.early_page import encode_page
from storage.formats.manifest import Early
from storage.formats.wal import HEAD_BYTES, Slice, encode_early, object_key, packed
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.log.early_objects import LATE_AFTER_S
from storage.log.limits import LogLimits
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put, Record
from storage.vocabulary import ObjectId
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.log.test_early import EARLY, SLOW, Later, counted, of_size, pages

SIZE = 300
AT_ONCE = LogLimits(early_delete_after_s=0.0, early_delete_pause_s=0.0, early_pause_s=0.01, early_pause_s_max=0.01)
OF_ANOTHER_SIZE, OF_THE_SAME_SIZE, OF_ANOTHER_BROKER = "of another size", "of the same size", "of another broker that drew its name"


def foreign(kind: str, object_id: ObjectId) -> list[bytes]:
    """What lies under the name of an object with one slice of SIZE bytes."""
    directory = packed(Slice(PARTITION, HEAD_BYTES, SIZE))
    head, directory = encode_early(object_id, 99, directory, end=HEAD_BYTES + SIZE)
    match kind:
        case "of another broker that drew its name":
            return [head, bytes(of_size(SIZE, b"f")), directory]
        case "of the same size":
            return [bytes(len(head) + SIZE + len(directory))]
        case _:
            return [b"foreign"]


async def send_and_be_forestalled(broker: Rig, kind: str) -> str:
    """One batch is acknowledged, and before its object is stored another lies under its name. Return that."""
    await broker.send(of_size(SIZE))
    (entry,) = (await broker.manifest()).pending
    assert isinstance(entry.batches, Early)
    key = object_key(entry.object_id)
    await broker.objects.inner.put_if_absent(key, foreign(kind, entry.object_id))
    return key


@pytest.mark.parametrize("kind", [OF_ANOTHER_SIZE, OF_THE_SAME_SIZE, OF_ANOTHER_BROKER])
def test_pages_stay_and_are_read_while_another_object_lies_under_the_name_of_theirs_and_it_is_said(kind: str) -> None:
    async def scenario() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        async with rig(early=EARLY, flush=SLOW, clock=clock, limits=LogLimits()) as broker:
            with capture_logs() as events:
                key = await send_and_be_forestalled(broker, kind)
                await asyncio.sleep(3 * LATE_AFTER_S)
            if kind != OF_ANOTHER_BROKER:  # its bytes are batches: nothing in them says whose they are
                async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8, clock=clock) as reader:
                    assert await reader.read_all() == await broker.read_all()
                    assert counted(reader, "corrupt_reads_total", cause="missing") == 0

            assert len(await pages(broker)) == 1
            assert counted(broker, "early_waiting_objects") == 1
            (said,) = [event for event in events if event["event"] == "early_object_not_stored"]
            assert said["object"] == key
            assert "another object has the name" in said["cause"]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


async def test_an_object_that_has_our_bytes_already_is_stored() -> None:
    async with rig(early=EARLY, flush=SLOW, limits=AT_ONCE) as broker:
        broker.objects.gate = asyncio.Event()
        await broker.send(of_size(SIZE))
        (entry,) = (await broker.manifest()).pending
        directory = packed(Slice(PARTITION, HEAD_BYTES, SIZE))
        head, directory = encode_early(entry.object_id, 7, directory, end=HEAD_BYTES + SIZE)
        await broker.objects.inner.put_if_absent(object_key(entry.object_id), [head, bytes(of_size(SIZE)), directory])
        broker.objects.gate.set()
        await broker.parts.appender.store_early()

        assert await pages(broker) == []
        assert len(broker.objects.put_keys) == 1
        assert len(await broker.read_all()) == SIZE


# Damage of one of the two


async def damage_object(broker: Rig, *, how: str) -> str:
    """Put something else in place of the object of the first entry. Return its key."""
    (entry, *_) = (await broker.manifest()).pending
    key, blobs = object_key(entry.object_id), broker.objects.inner
    body = bytearray(await blobs.get_range(key, 0, (await blobs.stat(key)).size_bytes))
    body[entry.spans[0][0] + SIZE - 1] ^= 1
    await blobs.delete_many([key])
    await blobs.put_if_absent(key, [bytes(body[: HEAD_BYTES + 10] if how == "cut short" else body)])
    return key


@pytest.mark.parametrize("how", ["other bytes", "cut short"])
@pytest.mark.parametrize("are_pages_there", [True, False])
async def test_a_damaged_object_is_read_from_its_pages_while_they_are_there_and_is_damage_after_that(
    how: str, *, are_pages_there: bool
) -> None:
    limits = LogLimits(early_delete_after_s=60.0 if are_pages_there else 0.0)
    async with (
        rig(early=EARLY, flush=SLOW, limits=limits) as broker,
        rig(shared=broker.shared, objects=broker.objects.inner, epoch=8, clock=Later()) as reader,
    ):
        await broker.send(of_size(SIZE))
        expected = await broker.read_all()
        if are_pages_there:
            async with asyncio.timeout(25), asyncio.TaskGroup() as group:
                storing = group.create_task(broker.parts.appender.store_early())
                while not counted(broker, "early_objects_total", trigger="drain"):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                storing.cancel()
        else:
            await broker.parts.appender.store_early()
        key = await damage_object(broker, how=how)
        with capture_logs() as events:
            if are_pages_there:
                assert await reader.read_all() == expected
            else:
                with pytest.raises(Corrupt, match=key):
                    await reader.read_all()

        said = {event["event"]: event["object"] for event in events}
        assert said == ({"read_recovered": key} if are_pages_there else {"data_damaged": key})


@pytest.mark.parametrize("is_stored", [True, False], ids=["its object is stored", "it is not"])
async def test_a_page_that_is_cut_short_is_read_from_the_object_or_is_damage_that_names_the_entry(*, is_stored: bool) -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader:
        await broker.send(of_size(EARLY_PAGE_BYTES_MAX + SIZE))
        expected = await broker.read_all()
        paths = await pages(broker)
        if is_stored:
            await broker.parts.appender.store_early()
        partition_key = PartitionKeys(PARTITION).partition_key
        for path, length in zip(paths, (EARLY_PAGE_BYTES_MAX, SIZE - 1), strict=True):
            page = encode_page([PARTITION], expected[-length:])
            await broker.shared.write([Put(Key(path, partition_key), page, None)])

        if is_stored:
            assert await reader.read_all() == expected
        else:
            with pytest.raises(Corrupt, match=r"early pages are shorter than their entry says: object=\w+ entry=0\.\.0"):
                await reader.read_all()


# Deposed leaders of the shard


class AskedOfThePast:
    """A metadata store whose pages, and what is asked for with them, are answered as `past` knows them."""

    def __init__(self, inner: MemoryMetadataStore, past: MemoryMetadataStore) -> None:
        self._inner = inner
        self._past = past

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        is_of_pages = any(key.path.startswith(keys.EARLY_PREFIX) for key in wanted)
        return await (self._past if is_of_pages else self._inner).get_many(wanted)


def as_it_is(metadata: MemoryMetadataStore) -> MemoryMetadataStore:
    """The same at this moment: what comes later is not in it."""
    copy = MemoryMetadataStore(clock=SystemClock(), shards=1)
    copy.shared.put_back(metadata.shared.copy())
    return copy


@pytest.mark.parametrize("is_old", [False, True], ids=["young", "old"])
async def test_a_deposed_leader_that_has_the_record_of_an_entry_and_not_its_page_leads_to_the_object(*, is_old: bool) -> None:
    async with rig(early=EARLY, flush=SLOW, limits=AT_ONCE) as broker:
        await broker.send(of_size(SIZE))
        await broker.parts.appender.store_early()
        past = as_it_is(broker.shared)
        await broker.send(of_size(SIZE, b"y"))
        asked = AskedOfThePast(broker.shared, past)
        clock = Later() if is_old else SystemClock()
        async with rig(shared=asked, objects=broker.objects.inner, epoch=8, clock=clock) as reader:  # type: ignore[arg-type]
            log = reader.parts.partitions.get(PARTITION)
            await reader.parts.manifest_reads.refresh([log])
            run = await reader.parts.reader.stored(log, 0, bytes_max=100)

            assert bytes(run.buffer) == (await broker.read_all())[:SIZE]
            assert counted(reader, "corrupt_reads_total", cause="missing") == 0


async def test_a_deposed_leader_that_has_the_page_of_an_entry_and_not_its_record_is_believed() -> None:
    """The bytes of a place never change: a page is right wherever it is found."""
    async with rig(early=EARLY, flush=SLOW) as broker:
        before = as_it_is(broker.shared)
        await broker.send(of_size(SIZE))
        (path,) = await pages(broker)
        key = Key(path, PartitionKeys(PARTITION).partition_key)
        (page,) = await broker.shared.get_many([key])
        assert page is not None
        await before.write([Put(key, page.value, None)])
        asked = AskedOfThePast(broker.shared, before)
        async with rig(shared=asked, objects=broker.objects.inner, epoch=8) as reader:  # type: ignore[arg-type]
            assert await reader.read_all() == await broker.read_all()
