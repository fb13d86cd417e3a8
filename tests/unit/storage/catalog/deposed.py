"""A metadata store whose reads can be answered by a deposed leader: from the state of a moment in the past. Writes never are."""

from collections.abc import AsyncIterator, Sequence

from storage.errors import Unavailable
from storage.metadata.port import Key, Record
from tests.kit.faulty_metadata import FaultyMetadata


class DeposedMetadata(FaultyMetadata):
    """From `depose` until `elect`, reads see what there was at `depose`."""

    _past: dict[str, Record] | None = None

    def depose(self) -> None:
        self._past = {path: record for shard in self.store._shards for path, record in shard.records.items()}

    def elect(self) -> None:
        self._past = None

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        if self._past is None:
            return await super().get_many(keys)
        if self.reads_fail:
            raise Unavailable("reads fail")
        return [self._past.get(key.path) for key in keys]

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        if self._past is None:
            async for record in super().range_scan(start, end):
                yield record
            return
        for path in await self.list(start, end):
            yield self._past[path]

    async def list(self, start: Key, end: str) -> list[str]:
        if self._past is None:
            return await super().list(start, end)
        parent = start.path.rpartition("/")[0]
        return sorted(path for path in self._past if path.rpartition("/")[0] == parent and start.path <= path < end)
