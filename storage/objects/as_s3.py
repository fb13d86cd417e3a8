"""A disk or memory, with the requests counted that S3 would be sent in its place: a trial shows what a load would cost there."""

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from storage.errors import AlreadyExists, EndsEarly, NotFound, Unavailable
from storage.objects.port import PROBES, ObjectStat, ObjectStore, UnfinishedUpload
from storage.objects.requests import KEYS_PER_REQUEST, UPLOAD_PART_BYTES, RequestAnswer, RequestKind, RequestMeter
from storage.vocabulary import Buffer

T = TypeVar("T")

_PROBE: Final[tuple[tuple[RequestKind, RequestAnswer], ...]] = (
    ("put", "2xx"),
    ("put", "4xx"),
    ("ranged_get", "2xx"),
    ("delete", "2xx"),
    ("ranged_get", "4xx"),
)


class CountedAsS3:
    """An `ObjectStore` that adds nothing but counts. Each call is what S3 would be sent if it answered at once."""

    def __init__(self, inner: ObjectStore, meter: RequestMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        size_bytes = sum(map(len, parts))
        pieces = math.ceil(size_bytes / UPLOAD_PART_BYTES)
        if pieces > 1:
            self._meter.count("upload_begin", key, "2xx")
            self._meter.count("upload_part", key, "2xx", times=pieces)
        with self._counted("upload_finish" if pieces > 1 else "put", key):
            await self._inner.put_if_absent(key, parts)
        self._meter.stored(size_bytes)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        with self._counted("ranged_get" if start < end else "head", key):
            found = await self._inner.get_range(key, start, end)
        self._meter.read(len(found))
        return found

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        with self._counted("ranged_get" if start < end else "head", key):
            found = await self._inner.get_parts(key, start, end, part_bytes=part_bytes)
        self._meter.read(sum(map(len, found)))
        return found

    async def stat(self, key: str) -> ObjectStat:
        try:
            with self._counted("head", key):
                return await self._inner.stat(key)
        except NotFound:
            # S3 answers a HEAD alike where the bucket is gone: a GET tells the two apart.
            self._meter.count("ranged_get", key, "4xx")
            raise

    async def delete_many(self, keys: Sequence[str]) -> None:
        if len(keys) > KEYS_PER_REQUEST:
            self._meter.count("delete", "", "2xx", times=math.ceil(len(keys) / KEYS_PER_REQUEST) - 1)
        if keys:
            with self._counted("delete", ""):
                await self._inner.delete_many(keys)

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        return self._listed(self._inner.list(prefix, start_after=start_after))

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return self._listed(self._inner.unfinished_uploads(prefix, start_after=start_after))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with self._counted("abort", key):
            await self._inner.abort_upload(key, upload_id)

    async def probe(self) -> None:
        """As the inner store, and as S3's does: put, put again, read, delete, and miss it."""
        await self._inner.probe()
        for request, answer in _PROBE:
            self._meter.count(request, PROBES, answer)

    async def close(self) -> None:
        await self._inner.close()

    async def _listed(self, found: AsyncIterator[T]) -> AsyncIterator[T]:
        count = 0
        with self._counted("list", ""):
            first = await anext(found, None)
        if first is None:
            return
        yield first
        async for one in found:
            count += 1
            if not count % KEYS_PER_REQUEST:
                self._meter.count("list", "", "2xx")
            yield one

    @contextmanager
    def _counted(self, request: RequestKind, key: str) -> Iterator[None]:
        answer: RequestAnswer = "none"
        try:
            yield
            answer = "2xx"
        except (AlreadyExists, NotFound):
            answer = "4xx"
            raise
        except EndsEarly:
            answer = "2xx"  # S3 gives what there is of the range
            raise
        except Unavailable:
            answer = "5xx"
            raise
        finally:
            self._meter.count(request, key, answer)
