"""Early batches, as both stores show them: whether the objects that hold them come within the time that they should."""

from typing import Final, NamedTuple

from forebay.commands.doctor.finding import Finding, ok, warning
from runtime.ulid import ulid_ms
from storage.errors import NotFound
from storage.formats.wal import object_key
from storage.log.early_objects import LATE_AFTER_S
from storage.metadata import keys
from storage.metadata.port import Key, MetadataStore
from storage.objects.port import ObjectStore
from storage.vocabulary import ObjectId

CHECK: Final = "early batches"
LOOKED_AT_MAX: Final = 16
"""Objects, and records that are no page, that are looked at on each metadata shard, the oldest first."""
_BEHIND_PAGES: Final = "~"


class Unstored(NamedTuple):
    """Objects with early pages that are not stored, from the oldest on; `is_all`: there are no others that are as late."""

    object_ids: list[ObjectId]
    is_all: bool


async def find_unstored(metadata: MetadataStore, objects: ObjectStore, *, before_ms: int) -> Unstored:
    """Look for those that were begun before `before_ms`, by the clocks of their brokers. Raises `StorageError`."""
    found: dict[ObjectId, bool] = {}
    is_all = True
    for partition_key in keys.shard_keys(metadata.shard_of):
        start = keys.early_pages(partition_key)[0]
        count = 0
        while (record := await metadata.get_ceiling(start, within=keys.EARLY_PREFIX)) is not None:
            place = keys.place_of_page(record.path)
            if place is not None and ulid_ms(place[0]) >= before_ms:
                break
            if count == LOOKED_AT_MAX:
                is_all = False
                break
            count += 1
            if place is None:
                start = Key(f"{record.path}!", partition_key)
                continue
            if place[0] not in found:
                found[place[0]] = await _is_stored(objects, place[0])
            start = Key(f"{keys.EARLY_PREFIX}{place[0]}-{_BEHIND_PAGES}", partition_key)
    return Unstored(sorted(object_id for object_id, is_stored in found.items() if not is_stored), is_all)


async def _is_stored(objects: ObjectStore, object_id: ObjectId) -> bool:
    try:
        await objects.stat(object_key(object_id))
    except NotFound:
        return False
    return True


def of_unstored(found: Unstored, *, now_ms: int) -> Finding:
    """PURE."""
    if not found.object_ids:
        return ok(CHECK, f"none waits longer than {LATE_AFTER_S / 60:.0f} min for its object to be stored")
    oldest = found.object_ids[0]
    count = f"{'' if found.is_all else 'at least '}{len(found.object_ids)}"
    late_min = (now_ms - ulid_ms(oldest)) / 60_000
    return warning(
        CHECK,
        f"{count} object(s) that hold them are not stored, the oldest, {object_key(oldest)}, for {late_min:.0f} min: their broker cannot "
        "reach the object store, or was killed. They are read from early pages in the metadata store meanwhile. A broker that runs logs "
        "early_object_not_stored with the cause; what a killed one left goes when it is compacted: run forebay compactor",
    )
