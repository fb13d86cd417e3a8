"""A compactor on the machine of a broker that shares a folder: it reads slices there, and from the store what is wrong there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactor.compaction import CompactionEnd, Round, only
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.errors import Corrupt
from storage.metadata.memory import MemoryMetadataStore
from storage.objects.block_folder import BlockFolder
from storage.objects.memory import MemoryObjectStore
from storage.opening import open_shared_blocks
from storage.vocabulary import Buffer
from tests.kit.batches import batch_bytes
from tests.unit.compactor.compacting import opened
from tests.unit.storage.log.rig import PARTITION, rig
from tests.unit.storage.log.test_shared_cache import names, until_put


class CountedGets(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.gets = 0

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        self.gets += 1
        return await super().get_parts(key, start, end, part_bytes=part_bytes)


async def test_slices_come_from_the_folder_and_after_damage_from_the_store(tmp_path: Path) -> None:
    clock, ids = SystemClock(), IdSource(clock=SystemClock())
    shared, objects = MemoryMetadataStore(clock=clock, shards=1), CountedGets()
    async with (
        rig(shared=shared, objects=objects, cache_dir=tmp_path) as broker,
        open_shared_blocks(
            objects,
            str(tmp_path),
            bytes_max=1 << 30,
            cluster=lambda: "cluster",
            ids=ids,
            clock=clock,
            telemetry=Telemetry(),
            fills=False,
        ) as blocks,
        opened(shared, objects) as compaction,
    ):
        assert blocks is not None
        given: Any = {"objects": blocks, "blocking": InlineBlocking(), "clock": clock, "on_damaged": blocks.distrust}

        await broker.send(batch_bytes(1, payload=b"first" * 100))
        await until_put(tmp_path)
        done = await Round(compaction, **given).run([PARTITION])
        assert only(done, PARTITION).ended is CompactionEnd.COMPACTED
        assert objects.gets == 0

        # A file that is whole, of bytes that are not what was written: the store gave them wrong once.
        await broker.send(batch_bytes(1, payload=b"second" * 100))
        await until_put(tmp_path, 2)
        path = tmp_path / names(tmp_path)[-1]
        name, size_bytes = "/".join(path.parts[-3:-1]), int(path.name.rpartition("-")[2])
        body = bytearray(path.read_bytes()[:size_bytes])
        body[-1] ^= 1
        path.unlink()
        BlockFolder(str(tmp_path), bytes_max=1 << 30, owner="1", now_s=float).put(name, 0, [body])
        done = await Round(compaction, **given).run([PARTITION])
        assert isinstance(done.ended[PARTITION], Corrupt)
        done = await Round(compaction, **given).run([PARTITION])
        assert only(done, PARTITION).ended is CompactionEnd.COMPACTED
        assert objects.gets == 1
        assert await broker.read_all() != b""
