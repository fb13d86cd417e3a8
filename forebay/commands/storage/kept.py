"""Objects that stay though nothing names them, and those that are missing though something does: what an operator says of them by name.

Metadata that went back to an older copy, and were accepted, do not name what was written since
(docs/design/upkeep.md#metadata-that-went-back).
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from forebay.commands.storage.running import NotThere, over_stores
from forebay.kafka_client.options import Terminal
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import Deletions, change_collections, read_collections, with_lost
from storage.errors import NotFound
from storage.formats.control import SegmentEntry
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.objects.port import is_key
from storage.opening import Stores
from storage.verify.inventory import kind_of_object, objects_under
from storage.verify.partitions import ActivePartition, PartitionWalk, active_partitions, side_by_side
from storage.verify.reading import StoreReading

READS_AT_ONCE: Final = 16


async def kept_objects(stores: Stores) -> frozenset[str]:
    """The names of objects that nothing names and that stay. Reads all metadata if any may. Raises `Unavailable`.

    An object of a partition whose entries cannot be read counts as named.
    """
    reading = StoreReading(stores.metadata, stores.objects, concurrency=READS_AT_ONCE)
    known = await read_collections(stores.metadata)
    if not known.kept:
        return frozenset()
    found: set[str] = set()
    async for stat in objects_under(reading, ""):
        _, object_id = kind_of_object(stat.key)
        if object_id is not None and known.keeps(object_id):
            found.add(stat.key)
    unreadable: list[str] = []

    async def unmark(one: ActivePartition) -> None:
        walk = PartitionWalk(reading, one.partition, lambda problem: unreadable.append(problem.kind.name))
        if await walk.start() is None:
            return
        async for page in walk.pages():
            for source, _ in page:
                is_segment = isinstance(source, SegmentEntry)
                found.discard(segment_key(one.partition, source.object_id) if is_segment else object_key(source.object_id))

    await side_by_side(active_partitions(reading, (), lambda _: None), unmark)
    return frozenset() if unreadable else frozenset(found)


def accept_as_lost(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, key: str) -> int:
    """The exit code."""

    async def work(stores: Stores) -> None:
        if not is_key(key):
            raise NotThere(f"{key!r} is not the name of an object. Missing ones are named by: forebay storage verify")
        try:
            await stores.objects.stat(key)
        except NotFound:
            await change_collections(stores.metadata, partial(with_lost, key=key), action="accept an object as lost")
        else:
            raise NotThere(f"The object {key} is there, so nothing waits for it. Missing ones are named by: forebay storage verify")

    over_stores(file, assignments, work)
    terminal.show(
        {"key": key, "accepted_as_lost": True}, f"{key} is accepted as lost: objects are deleted again, its records stay unreadable."
    )
    return 0


def delete_kept_objects(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, keys: Sequence[str]) -> int:
    """The exit code."""

    async def work(stores: Stores) -> None:
        kept = await kept_objects(stores)
        for key in keys:
            if key not in kept:
                raise NotThere(f"{key} is not kept, so nothing was deleted. Which are: forebay storage objects --kept")
        clock = SystemClock()
        await Deletions(stores.metadata, stores.objects, ids=IdSource(clock=clock, entropy=os.urandom), clock=clock).count()
        await stores.objects.delete_many(keys)

    over_stores(file, assignments, work)
    terminal.show({"deleted": list(keys)}, f"{len(keys)} objects were deleted.")
    return 0
