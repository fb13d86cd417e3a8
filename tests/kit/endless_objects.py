"""An object store of any number of WAL objects that takes no memory for them: listing, headers and sizes are made up when asked for."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, NoReturn

from runtime.ulid import ULID_LENGTH, decode_ulid, encode_ulid
from storage.errors import EndsEarly, NotFound
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.objects.port import ObjectStat, UnfinishedUpload, check_key, no_uploads
from storage.vocabulary import Buffer, ObjectId, PartitionId

LIST_PAGE: Final = 1_000
"""Objects in one answer to a listing, as S3 gives them."""
SLICE_BYTES: Final = 100
_PAIRS: Final = [encode_ulid(value)[-2:] for value in range(1 << 10)]
_NUMBER_MAX: Final = 1 << 30


class EndlessObjects:
    """An `ObjectStore` of the objects 0 to `count` - 1, one every `every_ms`, each with a slice of every partition in `partitions_of` its
    number. A deleted one takes a bit. Nothing can be put.
    """

    def __init__(self, count: int, *, first_ms: int, every_ms: int, partitions_of: Callable[[int], Sequence[PartitionId]]) -> None:
        assert count < _NUMBER_MAX
        self._count = count
        self._first_ms = first_ms
        self._every_ms = every_ms
        self._partitions_of = partitions_of
        self._gone = bytearray(count // 8 + 1)
        self.deleted = 0
        self.pages = self.gets = self.deletes = 0
        """Requests, as S3 would count them."""

    def object_id(self, number: int) -> ObjectId:
        """That of `encode_ulid`, ten times as fast."""
        pairs = _PAIRS
        ms = self._first_ms + number * self._every_ms
        time = f"{pairs[ms >> 40]}{pairs[ms >> 30 & 1023]}{pairs[ms >> 20 & 1023]}{pairs[ms >> 10 & 1023]}{pairs[ms & 1023]}"
        return ObjectId(f"{time}0000000000{pairs[number >> 20]}{pairs[number >> 10 & 1023]}{pairs[number & 1023]}")

    def is_deleted(self, number: int) -> bool:
        return bool(self._gone[number >> 3] >> (number & 7) & 1)

    def remaining(self) -> Iterator[int]:
        """The numbers of the objects that are there."""
        return (number for number in range(self._count) if not self.is_deleted(number))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> NoReturn:
        raise NotImplementedError("nothing can be put")

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.gets += 1
        number = self._number_of(key)
        partitions = self._partitions_of(number)
        size_bytes = self._size_bytes(partitions)
        if end > size_bytes:
            raise EndsEarly(f"object ends before the range: key={key!r} start={start} end={end} size_bytes={size_bytes}")
        begin = header_bytes(len(partitions))
        slices = [Slice(partition, begin + SLICE_BYTES * place, SLICE_BYTES) for place, partition in enumerate(partitions)]
        return (encode_header(self.object_id(number), 1, slices) + bytes(size_bytes - begin))[start:end]

    async def stat(self, key: str) -> ObjectStat:
        self.gets += 1
        return self._stat(self._number_of(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        numbers = range(self._count)
        first = max(bisect_left(numbers, prefix, key=self._key), bisect_right(numbers, start_after, key=self._key))
        listed = 0
        for number in range(first, self._count):
            if self.is_deleted(number):
                continue
            found = self._stat(number)
            if not found.key.startswith(prefix):
                break
            if listed % LIST_PAGE == 0:
                self.pages += 1
                await asyncio.sleep(0)
            listed += 1
            yield found

    async def delete_many(self, keys: Sequence[str]) -> None:
        assert len(keys) <= LIST_PAGE, "more than S3 takes in one request"
        self.deletes += 1
        for key in keys:
            check_key(key)
            try:
                number = self._number_of(key)
            except NotFound:
                continue
            self._gone[number >> 3] |= 1 << (number & 7)
            self.deleted += 1

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return no_uploads()

    async def abort_upload(self, key: str, upload_id: str) -> NoReturn:
        raise NotImplementedError("there are none")

    async def probe(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def _key(self, number: int) -> str:
        return object_key(self.object_id(number))

    def _stat(self, number: int) -> ObjectStat:
        return ObjectStat(self._key(number), self._size_bytes(self._partitions_of(number)), self._first_ms + number * self._every_ms)

    def _size_bytes(self, partitions: Sequence[PartitionId]) -> int:
        return header_bytes(len(partitions)) + SLICE_BYTES * len(partitions)

    def _number_of(self, key: str) -> int:
        """Raise `NotFound`."""
        check_key(key)
        name = key.rpartition("/")[2]
        number = decode_ulid(name) % _NUMBER_MAX if len(name) == ULID_LENGTH and name.isalnum() else self._count
        if number >= self._count or key != self._key(number) or self.is_deleted(number):
            raise NotFound(f"no such object: key={key!r}")
        return number
