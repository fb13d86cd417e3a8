"""The object store as one broker reaches it: latency, and faults on both sides of every call. The store is the real one in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from runtime.clock import Clock
from runtime.frames import Frame
from sim.accounts import Accounts
from sim.faults import Fault, ObjectFaults, Wire
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStat, UnfinishedUpload
from storage.recordbatch import in_parts
from storage.vocabulary import Buffer


class KeptObjects(MemoryObjectStore):
    """What is deleted is kept where the history looks: a deleted topic had its records, too."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.deleted = MemoryObjectStore(clock=clock)

    async def copy(self) -> "KeptObjects":
        """Another store with the same objects. What was deleted is not in it."""
        copied = KeptObjects(clock=self._clock)
        async for stat in self.list(""):
            await copied.put_if_absent(stat.key, [await self.get_range(stat.key, 0, stat.size_bytes)])
        return copied

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(NotFound, AlreadyExists):  # one whose put came late is deleted twice
                size_bytes = (await self.stat(key)).size_bytes
                await self.deleted.put_if_absent(key, [await self.get_range(key, 0, size_bytes)])
        await super().delete_many(keys)


class SimObjects:
    """An `ObjectStore`."""

    def __init__(self, inner: MemoryObjectStore, wire: Wire, plan: ObjectFaults, accounts: Accounts) -> None:
        """`plan` is also that of `wire`."""
        self._inner = inner
        self._wire = wire
        self._plan = plan
        self._accounts = accounts

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        frames = [part.obj for part in parts if isinstance(part, memoryview)]
        cost_bytes = sum(frame.cost_bytes for frame in frames if isinstance(frame, Frame))
        del frames
        self._accounts.begin_put(cost_bytes)
        try:
            await self._put(key, parts)
        finally:
            self._accounts.end_put(cost_bytes)

    async def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        body = b"".join(parts)
        fault = self._wire.plan.of_write()
        self._wire.note("put", fault)
        try:
            await self._wire.travel(fault)
        except asyncio.CancelledError:
            if fault is not Fault.REQUEST_LOST and self._wire.plan.coin():
                self._put_later(key, body)
            raise
        match fault:
            case Fault.NONE | Fault.SLOW:
                await self._inner.put_if_absent(key, (body,))
            case Fault.REPLY_LOST:
                with contextlib.suppress(AlreadyExists):
                    await self._inner.put_if_absent(key, (body,))
            case Fault.LATE:
                self._put_later(key, body)
            case Fault.REQUEST_LOST | Fault.REFUSED:
                pass
        await self._wire.travel()
        if fault is Fault.REFUSED:
            raise Unavailable(f"refused: op=put key={key!r}")
        if fault not in (Fault.NONE, Fault.SLOW):
            raise OutcomeUnknown(f"{fault.value}: op=put key={key!r}")

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """What is damaged, or missing, is so in this answer alone."""
        fault = self._plan.of_get()
        if fault in (Fault.DAMAGED, Fault.MISSING):
            self._plan.lied_about.add(key)
        await self._ask("get_range", fault)
        if fault is Fault.MISSING:
            raise NotFound(f"missing: op=get_range key={key!r}")
        found = await self._inner.get_range(key, start, end)
        await self._wire.travel()
        if fault is Fault.DAMAGED and found:
            damaged = bytearray(found)
            damaged[self._plan.place(len(damaged))] ^= 1 << self._plan.place(8)
            return bytes(damaged)
        return found

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> list[Buffer]:
        return in_parts(await self.get_range(key, start, end), start, part_bytes)

    async def stat(self, key: str) -> ObjectStat:
        await self._ask("stat", self._plan.of_read())
        found = await self._inner.stat(key)
        await self._wire.travel()
        return found

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        await self._ask("list", self._plan.of_read())
        async for found in self._inner.list(prefix, start_after=start_after):
            yield found

    async def delete_many(self, keys: Sequence[str]) -> None:
        fault = self._wire.plan.of_write()
        self._wire.note("delete", fault)
        await self._wire.travel(fault)
        if fault is Fault.LATE:
            self._wire.deliver_later(lambda: self._inner.delete_many(keys))
        elif fault not in (Fault.REQUEST_LOST, Fault.REFUSED):
            await self._inner.delete_many(keys)
        await self._wire.travel()
        if fault is Fault.REFUSED:
            raise Unavailable("refused: op=delete")
        if fault not in (Fault.NONE, Fault.SLOW):
            raise OutcomeUnknown(f"{fault.value}: op=delete")

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return self._inner.unfinished_uploads(prefix, start_after=start_after)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._inner.abort_upload(key, upload_id)

    async def probe(self) -> None:
        await self._ask("probe", self._plan.of_read())

    async def close(self) -> None:
        return None

    def _put_later(self, key: str, body: bytes) -> None:
        async def put() -> None:
            with contextlib.suppress(AlreadyExists):
                await self._inner.put_if_absent(key, (body,))

        self._wire.deliver_later(put)

    async def _ask(self, call: str, fault: Fault) -> None:
        self._wire.note(call, fault)
        await self._wire.travel(fault)
        if fault is Fault.REFUSED:
            raise Unavailable(f"refused: op={call}")
