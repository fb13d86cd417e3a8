"""The composition root of a compactor: settings and stores → upkeep, its health, its loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

from compactor.collector import CollectorPolicy, Footprint
from compactor.compaction import RoundPolicy
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.measures import SEGMENT_AGE_SECONDS, Measures
from compactor.pace import Pace, PacedObjects
from compactor.plan import CompactionPolicy, TidyPolicy
from compactor.upkeep import Upkeep
from process.cost.meter import CostMeter
from process.http.health import DRAINING, METADATA, Check, Health
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import Settings
from runtime.blocking import ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry, run_token
from storage.errors import IncompatibleFormat, StorageError, Unavailable
from storage.limits import KIB
from storage.opening import Stores, open_shared_blocks, open_stores

ENTRY_BYTES_MANY: Final = 8 * KIB
"""The average entry, with which compactor.segment_entries of them are worth a segment: 4 MiB by default."""
LITTLE_BYTES: Final = 64 * KIB
SUCCESS_AGE_MAX_S: Final = 120.0
"""Beside the interval between two cycles: one without a round or a merge that ended for so long is not healthy."""


class CompactorHealth:
    """Ready while cycles end: the stores answer. What is wrong with single partitions is in metrics and log."""

    def __init__(self, measures: Measures, *, interval_s: float, clock: Clock) -> None:
        self._measures = measures
        self._interval_s = interval_s
        self._clock = clock
        self._began_ms = clock.now_ms()
        self.error: str | None = None
        self.is_draining = False

    def sum_up(self) -> Health:
        age_s = self._measures.standstill_s()
        late = age_s > self._interval_s + SUCCESS_AGE_MAX_S
        error = self.error or (f"nothing was done for {age_s:.0f} s" if late else None)
        never = self._measures.succeeded_at_s is None
        since_ms = self._began_ms if never else self._clock.now_ms() - round(age_s * 1_000)
        checks = {
            METADATA: Check(error is None and not never, error or ("not tried yet" if never else None), since_ms),
            DRAINING: Check(not self.is_draining, "shutting down" if self.is_draining else None, self._began_ms),
        }
        if self.is_draining:
            return Health("draining", checks)
        return Health("ready" if all(check.ok for check in checks.values()) else "degraded", checks)


class Compactor:
    """`run` until cancelled."""

    def __init__(
        self,
        upkeep: Upkeep,
        measures: Measures,
        telemetry: Telemetry,
        *,
        cost: CostMeter,
        pace: Pace,
        interval_s: float,
        clock: Clock,
    ) -> None:
        self.upkeep = upkeep
        self.cost = cost
        self._pace = pace
        self.telemetry = telemetry
        self.health = CompactorHealth(measures, interval_s=interval_s, clock=clock)
        self.address = ""
        self._measures = measures
        self._interval_s = interval_s

    async def run(self) -> None:
        """Cycle after cycle. Raises `IncompatibleFormat` if the cluster is ahead of this release."""
        while True:
            self._pace.begin_cycle()
            try:
                await self.upkeep.cycle()
                self.health.error = None
            except IncompatibleFormat:
                raise
            except StorageError as error:
                self.health.error = str(error)
                self._measures.note_failed_cycle(error)
            await asyncio.sleep(self._interval_s)


def policy_of(settings: Settings) -> CompactionPolicy:
    return CompactionPolicy(
        segment_bytes=settings.compactor.segment_bytes,
        entries_due=settings.compactor.segment_entries,
        entries_due_bytes=settings.compactor.segment_entries * ENTRY_BYTES_MANY,
        little_bytes=LITTLE_BYTES,
        age_due_ms=settings.compactor.segment_age // timedelta(milliseconds=1),
    )


@contextlib.asynccontextmanager
async def open_compactor(
    settings: Settings,
    *,
    stores: Callable[[Telemetry], contextlib.AbstractAsyncContextManager[Stores]] | None = None,
    policy: CompactionPolicy | None = None,
    is_paced: bool = True,
    limits: CompactorLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Compactor]:
    """A compactor over the stores of the settings, or over those that `stores` opens. Raises `StartError` for what the operator must fix.

    `policy`: another than the settings'. Unless `is_paced` it is as fast as it can be: somebody waits for it.
    """
    clock = SystemClock()
    ids = IdSource(clock=clock)
    telemetry = Telemetry(run=run_token())
    footprint = Footprint(telemetry, clock=clock)
    cost = CostMeter(telemetry, settings, clock=clock, stored_bytes=lambda: footprint.size_bytes)
    async with contextlib.AsyncExitStack() as closing:
        opening = (
            stores(telemetry)
            if stores is not None
            else open_stores(
                storage_url=settings.storage.url,
                s3_client=settings.storage.s3_client,
                metadata_url=settings.metadata.url,
                clock=clock,
                ids=ids,
                telemetry=telemetry,
            )
        )
        try:
            opened = await closing.enter_async_context(opening)
        except IncompatibleFormat as error:
            raise StartError(str(error), exit_code=EXIT_USAGE) from error
        except Unavailable as error:
            raise StartError(str(error), exit_code=EXIT_UNREACHABLE) from error
        blocking = ThreadBlocking(threads=1, name="spool")
        closing.callback(blocking.close)
        measures = Measures(telemetry, clock, limits=limits)
        telemetry.gauge(SEGMENT_AGE_SECONDS).set(settings.compactor.segment_age.total_seconds())
        pace = Pace(settings.compactor.io_bytes_per_s if is_paced else 0, clock=clock, telemetry=telemetry)
        folder = settings.compactor.spool_dir
        objects = PacedObjects(opened.objects, pace)
        shared = await closing.enter_async_context(
            open_shared_blocks(
                objects,
                settings.storage.cache_dir,
                bytes_max=settings.storage.cache_dir_bytes,
                cluster=lambda: upkeep.cluster_id,
                ids=ids,
                clock=clock,
                telemetry=telemetry,
                fills=False,  # what was compacted is not read again
            )
        )
        compactor: Compactor
        upkeep = Upkeep(
            metadata=opened.metadata,
            objects=objects,
            shared=shared,
            blocking=blocking,
            ids=ids,
            clock=clock,
            policy=policy or policy_of(settings),
            rounds=RoundPolicy(
                slice_bytes_max=settings.compactor.spool_bytes,
                segment_bytes_max=settings.compactor.memory_bytes,
                spool_folder=None if folder is None else Path(folder),
            ),
            measures=measures,
            collecting=CollectorPolicy(grace_ms=settings.compactor.delete_grace // timedelta(milliseconds=1)),
            collect_every_s=settings.compactor.delete_interval.total_seconds(),
            tidying=TidyPolicy(producer_expiration_ms=settings.kafka.producer_id_expiration // timedelta(milliseconds=1)),
            http=lambda: compactor.address,
            footprint=footprint,
            limits=limits,
        )
        closing.push_async_callback(upkeep.close)
        interval_s = settings.compactor.interval.total_seconds()
        compactor = Compactor(upkeep, measures, telemetry, cost=cost, pace=pace, interval_s=interval_s, clock=clock)
        yield compactor
