"""Guards of early slices that show only when something goes wrong at one moment."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from storage.errors import Unavailable
from storage.formats.manifest import encode
from storage.log.batch import Appended
from storage.log.limits import LogLimits
from storage.metadata import keys
from storage.metadata.port import Delete, Put, WriteOp, WriteOutcome
from storage.vocabulary import ObjectId
from tests.unit.storage.log.rig import PARTITION, rig
from tests.unit.storage.log.test_early import EARLY, SLOW, SOON, counted, of_size, pages, until_no_page

MANIFEST = keys.PartitionKeys(PARTITION).manifest


async def test_an_object_with_as_many_slices_as_it_may_have_is_stored() -> None:
    async with rig(early=EARLY, flush=SLOW, limits=LogLimits(early_slices_max=2)) as broker:
        for _ in range(5):
            await broker.send(of_size(100))

        ids = [entry.object_id for entry in (await broker.manifest()).pending]
        assert [ids.count(one) for one in dict.fromkeys(ids)] == [2, 2, 1]


async def test_pages_go_although_the_first_request_to_delete_them_is_refused() -> None:
    async with rig(early=EARLY, flush=SLOW, limits=SOON) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults.append("refused")
        await until_no_page(broker)

        assert not broker.metadata.faults


async def test_no_attempt_carries_a_page_once_the_object_is_known_to_be_stored() -> None:
    limits = replace(SOON, early_delete_after_s=60.0)
    async with rig(early=EARLY, flush=SLOW, limits=limits) as broker:
        assert await broker.send(of_size(100)) == [Appended(0, 0)]
        broker.metadata.faults += ["request lost"] * 10_000
        sent = broker.send(of_size(100))
        async with asyncio.timeout(25):
            while not counted(broker, "early_objects_total", trigger="time") or counted(broker, "early_waiting_bytes"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        before = len(broker.metadata.writes)
        broker.metadata.faults.clear()
        assert await sent == [Appended(1, 0)]

        behind = [op.key.path for ops in broker.metadata.writes[before:] for op in ops if isinstance(op, Put)]
        assert behind
        assert not [path for path in behind if path.startswith(keys.EARLY_PREFIX)]


async def test_an_entry_that_a_deposed_leader_alone_still_names_is_no_damage() -> None:
    async with rig(early=EARLY, flush=SLOW) as broker, rig(shared=broker.shared, epoch=8) as reader:
        await broker.send(of_size(300))
        (path,) = await pages(broker)
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])
        get_many, write = broker.shared.get_many, broker.shared.write
        (old,) = await get_many([MANIFEST])
        manifest = await broker.manifest()
        (entry,) = manifest.pending
        moved = msgspec.structs.replace(entry, object_id=ObjectId("7" + entry.object_id[1:]))
        await write([Put(MANIFEST, encode(msgspec.structs.replace(manifest, pending=(moved,))), None)])
        await write([Delete(keys.Key(path, MANIFEST.partition_key))])

        async def from_the_past(wanted: Sequence[keys.Key]) -> list[object]:
            return [old if key == MANIFEST else None for key in wanted]

        async def finds_the_leader(ops: Sequence[WriteOp]) -> WriteOutcome:
            broker.shared.get_many = get_many  # type: ignore[method-assign]
            return await write(ops)

        broker.shared.get_many = from_the_past  # type: ignore[method-assign,assignment]
        broker.shared.write = finds_the_leader  # type: ignore[method-assign]

        with pytest.raises(Unavailable, match="replaced meanwhile"):
            await reader.parts.reader.stored(log, 0, bytes_max=1_000)
