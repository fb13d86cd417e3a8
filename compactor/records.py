"""The metadata store as upkeep calls it: a deadline on every call, and one way to change a control record."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, given_up, pause
from storage.errors import Unavailable
from storage.formats.control import Control, decode_control, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import (
    Applied,
    Delete,
    DeleteRange,
    Key,
    MetadataStore,
    NotApplied,
    Put,
    Record,
    Status,
    Unknown,
    WriteOp,
    WriteOutcome,
)

T = TypeVar("T")


class Records:
    """Calls raise `Unavailable` after `call_timeout_s`; a write without an answer by then is `Unknown`."""

    def __init__(self, metadata: MetadataStore, *, entropy: Entropy = os.urandom, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self.metadata = metadata
        self._entropy = entropy
        self._call_timeout_s = limits.call_timeout_s
        self._keys_per_delete = limits.keys_per_delete

    async def get(self, *keys: Key) -> list[Record | None]:
        return await self._within(self.metadata.get_many(keys))

    async def list(self, start: Key, end: str) -> Sequence[str]:
        """Paths from that of `start` up to `end`."""
        return await self._within(self.metadata.list(start, end))

    async def scan(self, start: Key, end: str) -> AsyncGenerator[Record, None]:
        """Records from `start` up to `end`, each within the deadline. Close it."""
        async with contextlib.aclosing(self.metadata.range_scan(start, end)) as records:  # type: ignore[type-var]
            while True:
                record = await self._within(anext(records, None))
                if record is None:
                    return
                yield record

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await self.metadata.write(ops)
        except TimeoutError:
            return Unknown(f"no answer after {self._call_timeout_s} s")

    async def change_control(
        self,
        keys: PartitionKeys,
        decide: Callable[[Control], Awaitable[tuple[Control, Sequence[WriteOp]] | T]],
        *,
        action: str,
    ) -> Control | T | None:
        """CAS the control record to what `decide` makes of it, with writes that travel beside the CAS; ask again whenever it has changed.

        Return the record that was put; or what `decide` returns instead of one, which ends it; or None if the partition does not exist.
        A CAS may have been applied though its answer was lost, by this call: `decide` is then asked about its own result.
        Raises `Unavailable` or `OutcomeUnknown` when the attempts are used up.
        """
        unknown: Unknown | None = None
        reason = ""
        for number in range(ATTEMPTS_MAX):
            (record,) = await self.get(keys.control)
            if record is None:
                return None
            decided = await decide(decode_control(record.value, path=record.path))
            if not isinstance(decided, tuple):
                return decided
            control, beside = decided
            match await self.write([*beside, Put(keys.control, encode(control), record.version)]):
                case Applied(results) if results[-1].status is Status.OK:
                    return control
                case Applied():
                    reason = "others committed each time"
                case Unknown() as outcome:
                    unknown = outcome
                case NotApplied() as outcome:
                    reason = outcome.reason
            await pause(number, self._entropy)
        raise given_up(f"{action}: partition={keys.partition_key}", unknown=unknown, reason=reason)

    async def delete_range(self, first: Key, end: str) -> int:
        """Delete the keys from `first` up to `end` that are there now, in bounded steps. Return how many."""
        paths = await self.list(first, end)
        step = self._keys_per_delete
        for begin in range(0, len(paths), step):
            stop = paths[begin + step] if begin + step < len(paths) else end
            await self.delete_few(Key(paths[begin], first.partition_key), stop)
        return len(paths)

    async def delete_few(self, first: Key, end: str) -> None:
        """Delete the keys from `first` up to `end` in one step: the caller knows that they are about `keys_per_delete` at most."""
        outcome = await self.write([DeleteRange(first, end)])
        if not isinstance(outcome, Applied):
            raise Unavailable(f"keys were not deleted: from={first.path!r} cause={outcome.reason!r}")

    async def delete(self, key: Key, version: int) -> bool:
        """Whether the record of that version certainly went."""
        outcome = await self.write([Delete(key, version)])
        return isinstance(outcome, Applied) and outcome.results[0].status is Status.OK

    async def _within(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await call
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: after_s={self._call_timeout_s}") from None
