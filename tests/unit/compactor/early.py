"""Early slices as a broker writes them, step by step: a page and the entries that name it, the object later, then the pages go.

The broker of a rig need not write any: what upkeep meets is made here, in whatever state a broker can leave it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from storage.formats.early_page import encode_page
from storage.formats.manifest import Early, Entry, Manifest, decode_manifest, encode
from storage.formats.wal import HEAD_BYTES, Slice, encode_early, object_key, packed
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, Put, WriteOp
from storage.recordbatch import parse_header
from storage.vocabulary import ObjectId, PartitionId


def new_object_id(clock: Clock | None = None) -> ObjectId:
    return ObjectId(IdSource(clock=clock or SystemClock()).next_ulid(above=""))


class EarlyObject:
    """One early object of one broker: `commit` any number of times, `store`, `delete_pages`. A broker that dies does not get that far."""

    def __init__(self, metadata: Any, blobs: Any, *, object_id: ObjectId | None = None, epoch: int = 0) -> None:
        self._metadata: MetadataStore = metadata
        self._blobs = blobs
        self._epoch = epoch
        self.object_id = object_id or new_object_id()
        self._bytes = bytearray()
        self._slices: list[Slice] = []
        self.pages: list[Key] = []

    @property
    def key(self) -> str:
        return object_key(self.object_id)

    async def commit(self, batches: Mapping[PartitionId, Sequence[bytes | bytearray]]) -> None:
        """One write for all partitions, which are on one shard: their slices lie side by side, and share pages."""
        start, entries, data = self._take_places(batches)
        await self._write(self._pages(list(batches), start, data), start, entries)

    async def put_page(self, batches: Mapping[PartitionId, Sequence[bytes | bytearray]]) -> Callable[[], Awaitable[None]]:
        """The page of a commit whose CAS was refused. What is returned commits it all the same, page and entries, as a later attempt."""
        start, entries, data = self._take_places(batches)
        pages = self._pages(list(batches), start, data)
        await self._metadata.write(pages)
        return partial(self._write, pages, start, entries)

    async def _write(self, pages: Sequence[Put], start: int, entries: Mapping[PartitionId, tuple[list[tuple[int, int]], int]]) -> None:
        ops: list[WriteOp] = list(pages)
        for partition, (spans, records) in entries.items():
            keys = PartitionKeys(partition)
            (record,) = await self._metadata.get_many([keys.manifest])
            manifest = Manifest() if record is None else decode_manifest(record.value, path=record.path)
            assert manifest.revoked_floor < self.object_id, "a commit heeds the floor (E5)"
            base = manifest.sequence_counter
            entry = Entry(base, base + records - 1, self.object_id, Early(start, tuple(spans)), 0, 0)
            changed = msgspec.structs.replace(
                manifest,
                pending=(*manifest.pending, entry),
                sequence_counter=base + records,
                bytes_total=manifest.bytes_total + entry.size_bytes,
            )
            ops.append(Put(keys.manifest, encode(changed), ABSENT if record is None else record.version))
        outcome = await self._metadata.write(ops)
        assert isinstance(outcome, Applied)
        assert all(result.version is not None for result in outcome.results[len(pages) :])

    async def store(self) -> None:
        directory = b"".join([packed(one) for one in self._slices])
        head, directory = encode_early(self.object_id, self._epoch, directory, end=HEAD_BYTES + len(self._bytes))
        await self._blobs.put_if_absent(self.key, [head, bytes(self._bytes), directory])

    async def delete_pages(self) -> None:
        await self._metadata.write([Delete(key) for key in self.pages])

    async def left(self) -> list[str]:
        """The pages that are there."""
        return [record.path for record in await self._metadata.get_many(self.pages) if record is not None]

    def _take_places(
        self, batches: Mapping[PartitionId, Sequence[bytes | bytearray]]
    ) -> tuple[int, dict[PartitionId, tuple[list[tuple[int, int]], int]], bytes]:
        start = HEAD_BYTES + len(self._bytes)
        entries: dict[PartitionId, tuple[list[tuple[int, int]], int]] = {}
        for partition, of_partition in batches.items():
            position = HEAD_BYTES + len(self._bytes)
            data = b"".join(of_partition)
            self._bytes += data
            self._slices.append(Slice(partition, position, len(data)))
            entries[partition] = [(position, len(data))], sum(parse_header(memoryview(one)).last_offset_delta + 1 for one in of_partition)
        return start, entries, bytes(self._bytes[start - HEAD_BYTES :])

    def _pages(self, partitions: Sequence[PartitionId], start: int, data: bytes) -> list[Put]:
        puts = []
        for begin in range(0, len(data), EARLY_PAGE_BYTES_MAX):
            key = metadata_keys.early_page(self.object_id, start + begin, PartitionKeys(partitions[0]).partition_key)
            puts.append(Put(key, encode_page(partitions, data[begin : begin + EARLY_PAGE_BYTES_MAX]), ABSENT))
            self.pages.append(key)
        return puts
