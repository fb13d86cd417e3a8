"""Writes made to see that writes succeed, when real ones do not show it: when there were none for a while, and when the last one failed.

Each is that of a broker alone, under names that nothing lists or reads, and leaves nothing behind.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from runtime.clock import Clock
from storage.errors import AlreadyExists, StorageError, Unavailable
from storage.limits import KIB, MIB
from storage.metadata import keys
from storage.metadata.port import Applied, Delete, MetadataStore, Put
from storage.objects.port import PROBES, ObjectStore
from storage.objects.requests import caused_by
from storage.outcomes import Outcomes, StoreOutcomes

METADATA_IDLE_S: Final = 10.0
OBJECT_STORE_IDLE_S: Final = 30.0
METADATA_DEADLINE_S: Final = 8.0
"""Longer than the stores' own, which say more."""
OBJECT_STORE_DEADLINE_S: Final = 15.0
LOOK_EVERY_S: Final = 2.0
"""Whether one is due. While requests fail it always is."""
PROBE_BYTES_MAX: Final = 8 * MIB

# Bytes that no file system makes smaller, shared by all probes.
_BLOCK: Final = random.Random(0).randbytes(64 * KIB)  # noqa: S311 - nobody has to be unable to guess them


class Probed(Protocol):
    """A store, as far as its probes are concerned."""

    async def probe(self) -> None:
        """Write to it. Raise a `StorageError` with the cause in the message."""
        ...


class MetadataProbe:
    """A read, by which a store notices what is wrong with it as a whole, then a record that is put and removed in one write."""

    def __init__(self, metadata: MetadataStore, *, broker_id: Callable[[], int]) -> None:
        self._metadata = metadata
        self._broker_id = broker_id

    async def probe(self) -> None:
        await self._metadata.probe()
        key = keys.probe(self._broker_id())
        outcome = await self._metadata.write([Put(key, b"", None), Delete(key)])
        if not isinstance(outcome, Applied):
            raise Unavailable(outcome.reason)


class ObjectProbe:
    """An object of one key, put and removed. After a put that failed it is as large as that: a full disk has room for a small one.

    While gets fail it is read as well: nobody may ask for anything any more that would show that they succeed.
    """

    def __init__(self, objects: ObjectStore, *, outcomes: StoreOutcomes, broker_id: Callable[[], int]) -> None:
        self._objects = objects
        self._outcomes = outcomes
        self._broker_id = broker_id

    async def probe(self) -> None:
        key = f"{PROBES}broker-{self._broker_id():010}"
        size_bytes = min(max(self._outcomes.puts.failed_bytes, 1), PROBE_BYTES_MAX)
        whole, rest = divmod(size_bytes, len(_BLOCK))
        parts = [_BLOCK] * whole + ([_BLOCK[:rest]] if rest else [])
        try:
            await self._objects.put_if_absent(key, parts)
        except AlreadyExists:
            # Left by a broker that was killed here, or by a put that was given up and happened after all.
            if not await self._remove(key):
                return
            await self._objects.put_if_absent(key, parts)
        if self._outcomes.gets.failing_since_s is not None:
            # The counter of gets records its outcome.
            with contextlib.suppress(StorageError):
                await self._objects.get_range(key, 0, 1)
        await self._remove(key)

    async def _remove(self, key: str) -> bool:
        """What cannot be removed is left to the next probe: it says nothing of puts."""
        try:
            await self._objects.delete_many([key])
        except StorageError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Watched:
    name: str
    store: Probed
    outcomes: Outcomes
    """The outcomes of its writes."""
    shown: Sequence[Outcomes]
    """The outcomes of everything that a probe can show to succeed again."""
    idle_s: float
    deadline_s: float


class Probes:
    """Sees to it that the outcome of the last write to each store is never old."""

    def __init__(
        self,
        *,
        metadata: Probed,
        objects: Probed,
        outcomes: StoreOutcomes,
        clock: Clock,
        metadata_deadline_s: float = METADATA_DEADLINE_S,
    ) -> None:
        self._clock = clock
        self._metadata = _Watched("metadata", metadata, outcomes.writes, (outcomes.writes,), METADATA_IDLE_S, metadata_deadline_s)
        self._objects = _Watched(
            "object_store", objects, outcomes.puts, (outcomes.puts, outcomes.gets), OBJECT_STORE_IDLE_S, OBJECT_STORE_DEADLINE_S
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as loops:
            for watched in (self._metadata, self._objects):
                loops.create_task(self._repeat(watched), name=f"probe {watched.name}")

    async def look_at_metadata(self) -> None:
        """Probe it if that is due."""
        await self._look(self._metadata)

    async def look_at_objects(self) -> None:
        """The same for the object store."""
        await self._look(self._objects)

    async def _repeat(self, watched: _Watched) -> NoReturn:
        # A timer is meant: there is no event to wait for, stores do not tell that they stopped working.
        while True:
            await self._look(watched)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, watched: _Watched) -> None:
        outcomes, began_s = watched.outcomes, self._clock.monotonic_s()
        is_fresh = outcomes.last_ok_s is not None and began_s - outcomes.last_ok_s < watched.idle_s
        if is_fresh and all(one.failing_since_s is None for one in watched.shown):
            return
        told = outcomes.failures
        try:
            with caused_by("probe"):
                async with asyncio.timeout(watched.deadline_s):
                    await watched.store.probe()
        except TimeoutError:
            cause = f"no answer within {watched.deadline_s:g} s"
        except StorageError as error:
            cause = str(error)
        else:
            outcomes.probed(self._clock.monotonic_s())
            return
        # Where the write itself failed, the counter of requests has reported it; and one that succeeded meanwhile says more.
        if outcomes.failures == told and (outcomes.last_ok_s is None or outcomes.last_ok_s < began_s):
            outcomes.failed(cause, began_s=began_s, now_s=self._clock.monotonic_s(), is_probe=True)
