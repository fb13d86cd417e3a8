"""The object store of tests and the simulation: a dictionary. Nothing outlives the process."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from runtime.clock import Clock
from storage.errors import AlreadyExists, EndsEarly, NotFound
from storage.objects.port import ObjectStat, UnfinishedUpload, check_key, no_uploads
from storage.recordbatch import in_parts
from storage.vocabulary import Buffer


class _Object(NamedTuple):
    body: bytes
    modified_ms: int


class MemoryObjectStore:
    """An `ObjectStore` that never waits: every call takes effect before its first suspension, or not at all."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, _Object] = {}
        self._keys: list[str] = []  # sorted; keys are ASCII, so the order of strings is that of bytes

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        check_key(key)
        if key in self._objects:
            raise AlreadyExists(f"object exists: key={key!r}")
        self._check_nesting(key)
        self._objects[key] = _Object(b"".join(parts), self._clock.now_ms())
        insort(self._keys, key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start <= end, f"not a range: start={start} end={end}"
        body = self._find(key).body
        size_bytes = len(body)
        if end > size_bytes:
            raise EndsEarly(f"object ends before the range: key={key!r} start={start} end={end} size_bytes={size_bytes}")
        return body[start:end]

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> list[Buffer]:
        return in_parts(await self.get_range(key, start, end), start, part_bytes)

    async def stat(self, key: str) -> ObjectStat:
        found = self._find(key)
        return ObjectStat(key, len(found.body), found.modified_ms)

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:  # noqa: ARG002
        return no_uploads()

    async def abort_upload(self, key: str, upload_id: str) -> None:  # noqa: ARG002 - there are none
        check_key(key)

    async def probe(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        position = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        while position < len(self._keys) and self._keys[position].startswith(prefix):
            key = self._keys[position]
            yield await self.stat(key)
            # Keys may have come and gone while the caller held the last one.
            position = bisect_right(self._keys, key)

    def _find(self, key: str) -> _Object:
        check_key(key)
        found = self._objects.get(key)
        if found is None:
            raise NotFound(f"no such object: key={key!r}")
        return found

    def _check_nesting(self, key: str) -> None:
        """Raise ValueError where a store of files would have to make one name a file and a folder."""
        below = bisect_left(self._keys, f"{key}/")
        if below < len(self._keys) and self._keys[below].startswith(f"{key}/"):
            raise ValueError(f"key is the folder of an object: key={key!r} object={self._keys[below]!r}")
        end = key.find("/")
        while end >= 0:
            if key[:end] in self._objects:
                raise ValueError(f"key is below an object: key={key!r} object={key[:end]!r}")
            end = key.find("/", end + 1)
