"""Compares this machine's clock with those of the stores; reports when they differ, and when they agree again.

A store tells its time by what it notes of something that was just put: when the object was modified, or the record. What lies between the
moments before the put and after it is no difference, nor is the fraction of a second, which S3 leaves out.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NoReturn, Protocol

import structlog

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.metadata import keys
from storage.metadata.port import Applied, Delete, MetadataStore, Put, TellsTime
from storage.objects.port import ObjectStore
from storage.objects.requests import CAUSE

FIRST_AFTER_S: Final = 30.0
LOOK_EVERY_S: Final = 300.0
DEADLINE_S: Final = 30.0
DIFFERS_MS: Final = 5_000
AGREES_MS: Final = 2_500
"""A difference that goes up and down around DIFFERS_MS is reported once."""
WHOLE_SECOND_MS: Final = 1_000

DIFFERENCE: Final = Metric(
    "forebay_clock_difference_seconds",
    "How far this machine's clock is ahead of that of the store (object_store, metadata); negative: behind. 0 below what can be measured.",
    ("store",),
    aggregation="max",
)

_log = structlog.get_logger("stores")


def difference_ms(*, before_ms: int, after_ms: int, stamp_ms: int, resolution_ms: int) -> int:
    """PURE. By how much our clock is ahead of the one that wrote `stamp_ms` between `before_ms` and `after_ms`: of all that is possible
    the least. `resolution_ms`: the stamp is of a moment less than this later.
    """
    least, most = before_ms - stamp_ms - resolution_ms + 1, after_ms - stamp_ms
    if least <= 0 <= most:
        return 0
    return min(least, most, key=abs)


class ReportedClocks(Enum):
    DIFFERS = auto()
    AGREES = auto()


class Agreement:
    """Decides what to report of one store's clock. Plain state."""

    def __init__(self) -> None:
        self._differs = False

    def look(self, ahead_ms: int) -> ReportedClocks | None:
        if not self._differs and abs(ahead_ms) >= DIFFERS_MS:
            self._differs = True
            return ReportedClocks.DIFFERS
        if self._differs and abs(ahead_ms) < AGREES_MS:
            self._differs = False
            return ReportedClocks.AGREES
        return None


class Timed(Protocol):
    """A store whose clock can be asked."""

    async def ahead_ms(self) -> int | None:
        """How far our clock is ahead of it; None if it cannot be measured this time. Raise a `StorageError`."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectClock:
    """One object, put, looked at and removed."""

    objects: ObjectStore
    broker_id: Callable[[], int]
    clock: Clock

    async def ahead_ms(self) -> int | None:
        key = f".probe/clock-{self.broker_id():010}"
        # Left by a broker that was killed here.
        await self.objects.delete_many([key])
        before_ms = self.clock.now_ms()
        await self.objects.put_if_absent(key, [b"x"])
        after_ms = self.clock.now_ms()
        try:
            stamp_ms = (await self.objects.stat(key)).modified_ms
        finally:
            # What cannot be removed is left to the next look.
            with contextlib.suppress(StorageError):
                await self.objects.delete_many([key])
        return difference_ms(before_ms=before_ms, after_ms=after_ms, stamp_ms=stamp_ms, resolution_ms=WHOLE_SECOND_MS)


@dataclass(frozen=True, slots=True)
class MetadataClock:
    """One record, put, read and removed."""

    metadata: MetadataStore
    times: TellsTime
    broker_id: Callable[[], int]
    clock: Clock

    async def ahead_ms(self) -> int | None:
        key = keys.probe(self.broker_id())
        before_ms = self.clock.now_ms()
        outcome = await self.metadata.write([Put(key, b"", None)])
        after_ms = self.clock.now_ms()
        # None: a probe has removed it meanwhile.
        stamp_ms = await self.times.put_ms(key) if isinstance(outcome, Applied) else None
        await self.metadata.write([Delete(key)])
        if stamp_ms is None:
            return None
        return difference_ms(before_ms=before_ms, after_ms=after_ms, stamp_ms=stamp_ms, resolution_ms=1)


class StoreClocks:
    """Looks at the clocks of `stores`, by their names in the metric, now and then."""

    def __init__(self, stores: Mapping[str, Timed], *, telemetry: Telemetry) -> None:
        gauge = telemetry.gauge(DIFFERENCE)
        self._stores = [(name, store, Agreement(), gauge.labels(name)) for name, store in stores.items()]

    async def run(self) -> NoReturn:
        """Until cancelled."""
        CAUSE.set("clock")
        # A timer is meant: a clock tells nobody that it goes wrong.
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """A store that fails is reported by other means, and keeps the last report of its clock."""
        for name, store, agreement, gauge in self._stores:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    ahead_ms = await store.ahead_ms()
            except (StorageError, TimeoutError):
                continue
            if ahead_ms is None:
                continue
            gauge.set(ahead_ms / 1_000)
            told = agreement.look(ahead_ms)
            if told is ReportedClocks.DIFFERS:
                _log.warning(
                    "clock_differs",
                    store=name,
                    seconds=round(ahead_ms / 1_000, 1),
                    this_machine="ahead" if ahead_ms > 0 else "behind",
                    meaning="times that this broker notes (LogAppendTime, ages of committed offsets) may be off by that much; "
                    "S3 refuses requests from 15 minutes on",
                    fix="set the clock of whichever machine is wrong, e.g. by NTP",
                )
            elif told is ReportedClocks.AGREES:
                _log.info("clock_agrees", store=name, seconds=round(ahead_ms / 1_000, 1))
