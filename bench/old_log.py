"""A log as many brokers would have left it: WAL objects of a given shape, their entries in the index, nothing compacted."""

import random
import struct
from dataclasses import dataclass

from crc32c import crc32c

from bench.units import KIB, MIB
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.cluster import open_cluster
from storage.catalog.store_marker import write_marker
from storage.catalog.topics import Topics
from storage.formats.control import Control, Entry, IndexChunk, encode
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, MetadataStore, Put
from storage.opening import open_stores
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import ObjectId, PartitionId


@dataclass(frozen=True, slots=True)
class OldLog:
    """`slices` of one batch each, of `records_per_slice` records of 1 KiB, dealt out to the partitions in turn; `objects` hold them."""

    partitions: int = 500
    slices: int = 10_000
    records_per_slice: int = 105
    object_bytes: int = 8 * MIB

    @property
    def records(self) -> int:
        return self.slices * self.records_per_slice


def batch_of(records: int, timestamp_ms: int, *, seed: int) -> bytes:
    """A record batch of values of 1 KiB that no codec makes smaller."""
    chance = random.Random(seed)
    value = chance.randbytes(KIB)
    body = bytearray()
    for delta in range(records):
        record = b"\x00\x00" + _varint(delta) + b"\x01" + _varint(KIB) + value + b"\x00"
        body += _varint(len(record)) + record
    rest = struct.pack(">hiqqqhii", 0, records - 1, timestamp_ms, timestamp_ms, -1, -1, -1, records) + bytes(body)
    batch = struct.pack(">qiibI", 0, 9 + len(rest), 0, 2, crc32c(rest)) + rest
    assert len(batch) > HEADER_BYTES
    return batch


async def write_old_log(storage_url: str, metadata_url: str, shape: OldLog, *, topic: str = "old") -> int:
    """Fill empty stores. Return the number of WAL objects."""
    clock = SystemClock()
    ids = IdSource(clock=clock)
    telemetry = Telemetry()
    async with open_stores(storage_url=storage_url, metadata_url=metadata_url, clock=clock, ids=ids, telemetry=telemetry) as stores:
        await write_marker(stores.objects, await open_cluster(stores.metadata, ids, clock))
        topics = Topics(stores.metadata, clock=clock, ids=ids, telemetry=telemetry)
        made = await topics.create(topic, partition_count=shape.partitions, replication_factor=1, configs={})
        topics.close()
        now_ms = clock.now_ms()
        batch = batch_of(shape.records_per_slice, now_ms, seed=1)
        per_object = max(1, shape.object_bytes // len(batch))
        entries: dict[PartitionId, list[Entry]] = {}
        ends = dict.fromkeys(range(shape.partitions), 0)
        objects = 0
        for begin in range(0, shape.slices, per_object):
            numbers = range(begin, min(begin + per_object, shape.slices))
            object_id = ObjectId(ids.next_ulid(above=""))
            first = header_bytes(len(numbers))
            slices = [
                Slice(made.partition(number % shape.partitions), first + place * len(batch), len(batch))
                for place, number in enumerate(numbers)
            ]
            await stores.objects.put_if_absent(object_key(object_id), [encode_header(object_id, 1, slices), *[batch] * len(slices)])
            objects += 1
            for one in slices:
                base = ends[one.partition.partition]
                last = base + shape.records_per_slice - 1
                ends[one.partition.partition] = last + 1
                entries.setdefault(one.partition, []).append(
                    Entry(base, last, object_id, ((one.position, one.length),), max_timestamp=now_ms, running_max_timestamp=now_ms)
                )
        for partition, found in entries.items():
            await _write_entries(stores.metadata, partition, found)
    return objects


async def _write_entries(metadata: MetadataStore, partition: PartitionId, entries: list[Entry]) -> None:
    """Chunks of the index as drained rings leave them, and the rest in the control record."""
    keys = PartitionKeys(partition)
    (record,) = await metadata.get_many([keys.control])
    assert record is not None
    pending = tuple(entries[len(entries) // DEFAULT_LIMITS.pending_entries_max * DEFAULT_LIMITS.pending_entries_max :])
    indexed = entries[: len(entries) - len(pending)]
    ops = [
        Put(
            keys.index(indexed[begin + DEFAULT_LIMITS.pending_entries_max - 1].last),
            encode(IndexChunk(entries=tuple(indexed[begin : begin + DEFAULT_LIMITS.pending_entries_max]))),
            None,
        )
        for begin in range(0, len(indexed), DEFAULT_LIMITS.pending_entries_max)
    ]
    size_bytes = sum(entry.size_bytes for entry in entries)
    control = Control(
        sequence_counter=entries[-1].last + 1,
        pending=pending,
        bytes_total=size_bytes,
        max_timestamp=entries[-1].max_timestamp,
        max_timestamp_offset=entries[0].base,
        last_append_ms=entries[-1].max_timestamp,
    )
    for begin in range(0, len(ops), 500):
        assert isinstance(await metadata.write(ops[begin : begin + 500]), Applied)
    assert isinstance(await metadata.write([Put(keys.control, encode(control), record.version)]), Applied)


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
