"""Producing at a steady rate while a compactor works through a backlog beside the broker, against the same without one."""

import asyncio
import os
import time
from typing import Final

from bench import meter, processes
from bench.cases.case import Case, Plan
from bench.cases.paced import BYTES_PER_S, INTERVAL_MS, SECONDS, measured
from bench.cases.produce import settings_of
from bench.clients import Load
from bench.old_log import OldLog, write_old_log
from bench.processes import Target
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import DISK, NATIVE, Place, fresh
from bench.units import KIB, MIB
from runtime.clock import SystemClock

SLICES: Final = 20_000
"""Two gibibytes."""
UPKEEP: Final = {"compactor.interval": "100ms", "compactor.segment_age": "0ms", "compactor.spool_bytes": "128MiB"}
BEGUN_BYTES: Final = 64 * MIB
BEGUN_WITHIN_S: Final = 60.0
BROKER: Final = {"storage.flush_interval": f"{INTERVAL_MS}ms"}
_clock = SystemClock()


class Idle(Exception):
    """The compactor was not at work while the load ran."""


def _run(plan: Plan, store: str) -> CaseResult:
    load = Load(records=plan.scaled(SECONDS * BYTES_PER_S // KIB), record_bytes=KIB, partitions=12, turn_records=10, linger_ms=5)
    runs: list[Run] = []
    with fresh(store, plan.folder) as place:
        asyncio.run(write_old_log(place.storage_url, place.metadata_url, OldLog(slices=plan.scaled(SLICES * (plan.repeats + 1) // 2))))
        # Else the kernel writes the backlog to the disk beside the first runs.
        os.sync()
        for _ in range(plan.repeats):
            with processes.broker(place, BROKER) as target:
                _warm_up(place, target, load)
                alone, facts_alone = measured(place, target, load)
                with processes.compactor(place, UPKEEP) as compactor:
                    _until_at_work(compactor)
                    before, began_s = _moved_bytes(compactor), _clock.monotonic_s()
                    _, facts = measured(place, target, load)
                    moved_per_s = (_moved_bytes(compactor) - before) / (_clock.monotonic_s() - began_s)
                if moved_per_s < MIB:
                    raise Idle(f"moved_bytes_per_s={moved_per_s:.0f}: a larger backlog, or less load")
                runs.append(Run(alone, None, meter.peak_rss_bytes(target.pid), _facts(facts_alone, facts, moved_per_s)))
    what = (
        f"1 KiB records at {BYTES_PER_S / 1e6:g} MB/s: how long an acknowledgement takes beside a compactor with a backlog, and without one"
    )
    settings: dict[str, Fact] = {**settings_of(load), **BROKER, **UPKEEP}
    return CaseResult("produce-beside-compaction", store, what, settings, runs, {"p99_beside_to_alone": 1.2})


def _warm_up(place: Place, target: Target, load: Load) -> tuple[Work, dict[str, Fact]]:
    return measured(
        place, target, Load(BYTES_PER_S // KIB, load.record_bytes, load.partitions, load.turn_records, linger_ms=load.linger_ms)
    )


def _facts(alone: dict[str, Fact], beside: dict[str, Fact], moved_per_s: float) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"compactor_mib_per_s": moved_per_s / MIB}
    for name in ("produce_p50_ms", "produce_p99_ms"):
        facts |= {f"{name}_alone": alone[name], f"{name}_beside": beside[name]}
    facts["p99_beside_to_alone"] = float(beside["produce_p99_ms"]) / float(alone["produce_p99_ms"])
    return facts


def _moved_bytes(compactor: Target) -> float:
    counters = compactor.counters()
    return sum(counters.get(f"forebay_object_store_bytes_total{{op={op}}}", 0.0) for op in ("get", "put"))


def _until_at_work(compactor: Target) -> None:
    give_up_s = _clock.monotonic_s() + BEGUN_WITHIN_S
    while _moved_bytes(compactor) < BEGUN_BYTES:
        if _clock.monotonic_s() > give_up_s:
            raise Idle(f"moved less than {BEGUN_BYTES} bytes within {BEGUN_WITHIN_S:g} s")
        time.sleep(processes.LOOK_EVERY_S)


CASES: Final = (Case("produce-beside-compaction", (DISK, NATIVE), _run),)
