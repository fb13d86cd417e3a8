"""The stores themselves, in the end: control record against index chunks against objects, read without the code under test."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.batches import value_of
from sim.check import Log, Stored
from sim.history import BatchIdentity
from storage.errors import StorageError
from storage.formats.control import Control, Entry, decode_chunk
from storage.formats.wal import object_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header, verify
from storage.vocabulary import PartitionId


class Floor(NamedTuple):
    """From offset `since` on no entry of `partition` may name an object at or below `object_id`."""

    partition: PartitionId
    since: int
    object_id: str


async def fsck(
    metadata: MemoryMetadataStore,
    objects: MemoryObjectStore,
    partition: PartitionId,
    control: Control,
    *,
    place: str,
    floors: Sequence[Floor] = (),
) -> tuple[Log, list[str]]:
    """The log as the stores have it, and what is wrong with it."""
    wrong: list[str] = []
    entries: dict[int, Entry] = {}
    found: list[Entry] = []
    partition_keys = PartitionKeys(partition)
    start = Key(partition_keys.index_prefix, partition_keys.partition_key)
    async for record in metadata.range_scan(start, f"{partition_keys.index_prefix}~"):
        chunk = decode_chunk(record.value, path=record.path)
        if record.path != partition_keys.index(chunk.entries[-1].last).path:
            wrong.append(f"fsck: a chunk under the key of another: {record.path}")
        found += chunk.entries
    # Racing drains may leave overlapping chunks; they must say the same.
    wrong += [
        f"fsck: two entries for one offset: {partition} {entry} {entries[entry.base]}"
        for entry in (*found, *control.pending)
        if entries.setdefault(entry.base, entry) != entry
    ]
    following = 0
    running_max = -1
    batches: list[Stored] = []
    for base in sorted(entries):
        entry = entries[base]
        if base != following:
            wrong.append(f"fsck: entries are not contiguous: {partition} expected={following} found={base}")
        wrong += [
            f"fsck: a revoked object was committed: {entry} {floor}"
            for floor in floors
            if floor.partition == partition and base >= floor.since and entry.object_id <= floor.object_id
        ]
        running_max = max(running_max, entry.max_timestamp)
        if entry.running_max_timestamp != running_max:
            wrong.append(f"fsck: running maximum of timestamps: {partition} {entry} expected={running_max}")
        following = entry.last + 1
        try:
            batches += await _batches(objects, entry)
        except (StorageError, ValueError) as error:
            wrong.append(f"fsck: {partition} {entry}: {error!r}")
    if following != control.sequence_counter:
        wrong.append(f"fsck: entries end elsewhere than the log: {partition} end={following} sequence_counter={control.sequence_counter}")
    return Log(place, partition.topic_id, batches), wrong


async def _batches(objects: MemoryObjectStore, entry: Entry) -> list[Stored]:
    """Raises what is wrong with them."""
    found: list[Stored] = []
    offset = entry.base
    for position, length in entry.spans:
        body = memoryview(await objects.get_range(object_key(entry.object_id), position, position + length))
        while len(body):
            header = parse_header(body)
            batch = body[: header.size_bytes]
            verify(batch, header, where=f"offset={offset}")
            identity = BatchIdentity(header.producer_id, header.producer_epoch, header.base_sequence)
            found.append(Stored(offset, header.record_count, value_of(batch), identity))
            offset += header.record_count
            body = body[header.size_bytes :]
    if offset != entry.last + 1:
        raise ValueError(f"an entry holds other records than it says: end={offset}")
    return found
