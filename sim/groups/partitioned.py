"""The metadata of a broker that is cut off from what happens: it hears nothing of its lost session, or gets no answers at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from storage.metadata.port import Key, MetadataStore, OnChange, Record, Session, Subscription, WriteOp, WriteOutcome


class PartitionedClient:
    """`hears` clear: sessions that end seem to go on. `passes` clear: requests wait, and are carried out when it is set, however late."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.hears = asyncio.Event()
        self.passes = asyncio.Event()
        self.return_to_the_world()

    def return_to_the_world(self) -> None:
        self.hears.set()
        self.passes.set()

    def shard_of(self, partition_key: str) -> int:
        return self.store.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        await self.passes.wait()
        return await self.store.write(ops)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        await self.passes.wait()
        return await self.store.get_many(keys)

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        await self.passes.wait()
        return await self.store.get_ceiling(key, within=within)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        await self.passes.wait()
        async for record in self.store.range_scan(start, end):
            yield record

    async def list(self, start: Key, end: str) -> list[str]:
        await self.passes.wait()
        return await self.store.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        await self.passes.wait()
        return _Unheard(await self.store.open_session(timeout_ms=timeout_ms), self.hears)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        return self.store.subscribe(callback, prefix=prefix)

    async def probe(self) -> None:
        await self.passes.wait()
        await self.store.probe()

    async def close(self) -> None:
        self.return_to_the_world()
        await self.store.close()


class _Unheard:
    def __init__(self, session: Session, hears: asyncio.Event) -> None:
        self._session = session
        self._hears = hears

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_lost(self) -> bool:
        return self._hears.is_set() and self._session.is_lost

    async def wait_lost(self) -> None:
        await self._session.wait_lost()
        await self._hears.wait()

    async def close(self) -> None:
        await self._session.close()
