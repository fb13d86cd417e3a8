"""Entries whose object is stored later, made of a log whose objects are stored: with or without early pages, with or without the object."""

from collections.abc import Sequence

import msgspec

from storage.formats.early_page import encode_page
from storage.formats.manifest import Early, Entry, Manifest, decode_manifest, encode
from storage.formats.wal import HEAD_BYTES, Slice, encode_early, object_key, packed
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata.keys import PartitionKeys, early_page
from storage.metadata.port import Delete, Key, MetadataStore, Put
from storage.objects.port import ObjectStore
from storage.vocabulary import ObjectId, PartitionId


def around(object_id: ObjectId, broker_epoch: int, slices: Sequence[Slice]) -> tuple[bytes, bytes]:
    """What comes before and behind the slices of an object of format 2."""
    return encode_early(object_id, broker_epoch, b"".join([packed(one) for one in slices]), end=sum(slices[-1][1:]))


class EarlyEntry:
    """An entry whose object may be stored, and may have early pages. `data` are its batches."""

    def __init__(self, metadata: MetadataStore, objects: ObjectStore, partition: PartitionId, entry: Entry, data: bytes) -> None:
        self._metadata, self._objects, self._partition = metadata, objects, partition
        self.data = data
        self.entry = msgspec.structs.replace(entry, batches=Early(HEAD_BYTES, ((HEAD_BYTES, len(data)),)))
        self.object_key = object_key(entry.object_id)
        self.pages = [self._page(begin) for begin in range(0, len(data), EARLY_PAGE_BYTES_MAX)]

    def _page(self, begin: int) -> Key:
        return early_page(self.entry.object_id, HEAD_BYTES + begin, PartitionKeys(self._partition).partition_key)

    async def put_pages(self, data: bytes | None = None) -> None:
        data = self.data if data is None else data
        for begin in range(0, len(data), EARLY_PAGE_BYTES_MAX):
            page = encode_page([self._partition], data[begin : begin + EARLY_PAGE_BYTES_MAX])
            await self._metadata.write([Put(self._page(begin), page, None)])

    async def drop_pages(self) -> None:
        for key in self.pages:
            await self._metadata.write([Delete(key)])

    async def put_object(self, slices: Sequence[Slice] | None = None) -> None:
        slices = slices or [Slice(self._partition, HEAD_BYTES, len(self.data))]
        head, directory = around(self.entry.object_id, 7, slices)
        await self._objects.put_if_absent(self.object_key, [head, self.data, directory])


async def made_early(metadata: MetadataStore, objects: ObjectStore, partition: PartitionId) -> list[EarlyEntry]:
    """Make the pending entries of a partition early ones, without an object and without a page."""
    key = PartitionKeys(partition).manifest
    (record,) = await metadata.get_many([key])
    manifest = Manifest() if record is None else decode_manifest(record.value, path=record.path)
    found = []
    for entry in manifest.pending:
        name = object_key(entry.object_id)
        data = b"".join([await objects.get_range(name, begin, begin + length) for begin, length in entry.spans])
        found.append(EarlyEntry(metadata, objects, partition, entry, data))
    await objects.delete_many([one.object_key for one in found])
    await metadata.write([Put(key, encode(msgspec.structs.replace(manifest, pending=tuple([one.entry for one in found]))), None)])
    return found
