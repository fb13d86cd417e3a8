"""A collector of segments that knows the stores as they are: what nothing names is revoked, counted, looked for once more, and deleted.

It does in order what docs/design/upkeep.md asks of a collector, and nothing goes wrong for it; what compactors do wrong shows by it.
"""

import asyncio
import random
from typing import Final

import msgspec

from runtime.ids import IdSource
from sim.broker import Ground
from sim.loop import VirtualClock
from storage.catalog.collections import Deletions
from storage.formats.control import Control, SegmentEntry, decode_control, decode_segment, encode
from storage.formats.segment import parse_segment_key, segment_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Put, Status, children_of
from storage.vocabulary import ObjectId, PartitionId

GRACE_S: Final = (0.0, 3.0)


class SegmentCollector:
    def __init__(self, ground: Ground, chance: random.Random, *, name: str) -> None:
        """`name`: nobody else has it in this world."""
        self._ground = ground
        self._chance = chance
        clock, entropy = VirtualClock(asyncio.get_running_loop()), random.Random(name).randbytes
        ids = IdSource(clock=clock, entropy=entropy)
        self._deletions = Deletions(ground.metadata, ground.objects, ids=ids, clock=clock, entropy=entropy)

    async def run(self, partition: PartitionId) -> None:
        keys = PartitionKeys(partition)
        garbage = await self._unnamed(partition)
        (record,) = await self._ground.metadata.get_many([keys.control])
        if not garbage or record is None:
            return
        chosen = self._chance.choice(garbage)
        object_id = parse_segment_key(chosen)[1]  # type: ignore[index]
        control = decode_control(record.value, path=record.path)
        if control.revoked_floor < object_id:
            revoked = msgspec.structs.replace(control, revoked_floor=object_id)
            outcome = await self._ground.metadata.write([Put(keys.control, encode(revoked), record.version)])
            if not isinstance(outcome, Applied) or outcome.results[0].status is not Status.OK:
                return
        self._ground.history.trace("garbage", "revoked", chosen)
        await asyncio.sleep(self._chance.uniform(*GRACE_S))
        await self._deletions.count()
        if chosen in await self._unnamed(partition):
            self._ground.history.trace("garbage", "deleted", chosen)
            await self._ground.objects.delete_many([chosen])

    async def _unnamed(self, partition: PartitionId) -> list[str]:
        """Objects that nothing names at this moment."""
        keys = PartitionKeys(partition)
        (record,) = await self._ground.metadata.get_many([keys.control])
        control = Control() if record is None else decode_control(record.value, path=record.path)
        start, end = children_of(keys.segments_prefix.removesuffix("/"))
        named: list[SegmentEntry | None] = [control.segment, control.rewritten]
        first = keys.segment(0)._replace(path=start)
        named += [
            decode_segment(one.value, path=one.path) async for one in self._ground.metadata.range_scan(first, end) if "!" not in one.path
        ]
        kept = {segment_key(partition, one.object_id) for one in named if one is not None}
        prefix = segment_key(partition, ObjectId(""))
        return [stat.key async for stat in self._ground.objects.list(prefix) if stat.key not in kept]
