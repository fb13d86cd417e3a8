"""The metadata store as upkeep calls it: a deadline on every call, and one way to change a manifest.

`Claims` are of partitions: of two compactors one does the work. They protect nothing: both may do it (docs/internals/design/upkeep.md).
`GoneBrokers` knows which brokers are gone for certain: only their entries may leave `writers`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from runtime.clock import Clock
from runtime.ids import Entropy
from storage.catalog.brokers import read_live
from storage.catalog.records import ATTEMPTS_MAX, given_up, pause
from storage.errors import Unavailable
from storage.formats.manifest import Manifest, decode_manifest, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import (
    ABSENT,
    Applied,
    Delete,
    DeleteRange,
    Key,
    MetadataStore,
    NotApplied,
    Put,
    Record,
    Session,
    Status,
    Unknown,
    WriteOp,
    WriteOutcome,
)
from storage.metadata.version_watch import read_certainly

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

    async def get_certainly(self, keys: Sequence[Key], *, name: str) -> Sequence[Record | None]:
        """As of a moment after the call, by no deposed leader. `keys` are of one partition key, `name` is one that nobody has used."""
        return (await self._within(read_certainly(self.metadata, keys, name=name))).records

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

    async def change_manifest(
        self,
        keys: PartitionKeys,
        decide: Callable[[Manifest], Awaitable[tuple[Manifest, Sequence[WriteOp]] | T]],
        *,
        action: str,
    ) -> Manifest | T | None:
        """CAS the manifest to what `decide` makes of it, with writes that travel beside the CAS; ask again whenever it has changed.

        Return the record that was put; or what `decide` returns instead of one, which ends it; or None if the partition does not exist.
        A CAS may have been applied though its answer was lost, by this call: `decide` is then asked about its own result.
        Raises `Unavailable` or `OutcomeUnknown` when the attempts are used up.
        """
        unknown: Unknown | None = None
        reason = ""
        for number in range(ATTEMPTS_MAX):
            (record,) = await self.get(keys.manifest)
            if record is None:
                return None
            decided = await decide(decode_manifest(record.value, path=record.path))
            if not isinstance(decided, tuple):
                return decided
            manifest, beside = decided
            match await self.write([*beside, Put(keys.manifest, encode(manifest), record.version)]):
                case Applied(results) if results[-1].status is Status.OK:
                    return manifest
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


class Claims:
    """Ephemeral records of `session` that say `name`, which no other process uses. Here nobody claims a partition twice at a time."""

    def __init__(self, records: Records, *, name: bytes, session: Session) -> None:
        self._records = records
        self._name = name
        self._session = session
        self.may_be_left = False
        """A claim that nobody holds may be there, and keep other compactors out until the session ends."""

    async def take(self, key: Key) -> int | None:
        """The version of the claim; None if another has it. Raises `Unavailable`."""
        outcome = await self._records.write([Put(key, self._name, ABSENT, session=self._session.session_id)])
        if not isinstance(outcome, Applied):
            self.may_be_left |= isinstance(outcome, Unknown)
            raise Unavailable(f"the partition was not claimed: key={key.path!r} cause={outcome.reason!r}")
        (result,) = outcome.results
        if result.status is Status.OK:
            return result.version
        if result.status is Status.SESSION_DOES_NOT_EXIST:
            raise Unavailable(f"the partition was not claimed, the session is over: key={key.path!r}")
        (record,) = await self._records.get(key)
        # It may be its own, put by a write whose answer was lost, or left when a release failed.
        return None if record is None or record.value != self._name else record.version

    async def release(self, key: Key, version: int, *, beside: Sequence[WriteOp] = ()) -> None:
        """`beside`: writes that travel with it, and may fail as it may."""
        if not isinstance(await self._records.write([*beside, Delete(key, version)]), Applied):
            self.may_be_left = True


class GoneBrokers:
    """The brokers that one process knows to be gone for certain (docs/internals/design/coordination.md#who-is-gone-for-certain).

    `note` epochs that were read in manifests, then `ask`. An epoch is the version of a registration record, and versions are never
    reused: one that is not registered any more stays gone. A list of brokers proves that of the epochs that were read before it was asked
    for, and of no others:

        list of brokers without 10 … broker 10 registers, commits … manifest with {10: …} is read        must not count 10 as dead

    So each list is asked for with the epochs that were noted until then, and what it shows holds for every record, also for one read later.
    """

    def __init__(self, metadata: MetadataStore, *, clock: Clock, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._metadata = metadata
        self._limits = limits
        self._clock = clock
        self._noted: dict[int, None] = {}
        self._gone: dict[int, None] = {}
        self._alive: frozenset[int] = frozenset()
        self._alive_until_s = float("-inf")
        self._asked = 0

    def among(self, epochs: Collection[int]) -> frozenset[int]:
        """Which of `epochs` are known to be gone."""
        return frozenset([epoch for epoch in epochs if epoch in self._gone])

    def note(self, epochs: Collection[int]) -> None:
        """`epochs` have been read. Those of which nothing is known are asked for next time."""
        alive = self._alive if self._clock.monotonic_s() < self._alive_until_s else frozenset()
        for epoch in epochs:
            if epoch not in self._gone and epoch not in alive and len(self._noted) < self._limits.noted_brokers_max:
                self._noted[epoch] = None

    @property
    def has_questions(self) -> bool:
        return bool(self._noted)

    async def ask(self, session: Session) -> None:
        """Find out which of the noted epochs are gone. Raises `Unavailable`, also if that cannot be shown: they stay noted.

        `session`: the caller's own. One call at a time.
        """
        named = frozenset(self._noted)
        self._asked += 1
        try:
            async with asyncio.timeout(self._limits.call_timeout_s):
                records = await read_live(self._metadata, session, number=self._asked)
        except TimeoutError:
            raise Unavailable(f"metadata did not say which brokers are live: after_s={self._limits.call_timeout_s}") from None
        live = frozenset([record.version for record in records])
        self._noted = {epoch: None for epoch in self._noted if epoch not in named}
        self._alive, self._alive_until_s = live, self._clock.monotonic_s() + self._limits.broker_alive_for_s
        self._gone.update(dict.fromkeys(sorted(named - live)))
        while len(self._gone) > self._limits.gone_brokers_kept_max:
            del self._gone[next(iter(self._gone))]


async def side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, together: int) -> None:
    """Do `work` on each item, on up to `together` of them at a time."""
    waiting = iter(items)

    async def go_on() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(together):
            tasks.create_task(go_on())
