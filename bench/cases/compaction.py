"""Compaction of what many brokers left: a gibibyte of 1 KiB records in 10,000 slices of 500 partitions, and reading it afterwards."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Final

from bench import clients, meter, processes
from bench.cases.case import Case, Plan, answered, grown, metered
from bench.clients import Load
from bench.old_log import OldLog, write_old_log
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import DISK, NATIVE, Place, fresh
from bench.units import GIB, KIB
from runtime.clock import SystemClock

TOPIC: Final = "old"
GETS: Final = "forebay_object_store_requests_total{op=get,outcome=ok}"
_clock = SystemClock()


def _compact(plan: Plan, store: str) -> CaseResult:
    shape = OldLog(slices=plan.scaled(10_000))
    runs: list[Run] = []
    for _ in range(plan.repeats):
        with fresh(store, plan.folder) as place:
            objects = asyncio.run(write_old_log(place.storage_url, place.metadata_url, shape, topic=TOPIC))
            idle, _, _ = _run_once(place)
            work, found, peak_bytes = _run_once(place, "--now")
            assert found["entries"] == shape.slices, f"not all was compacted: {found}"
            value_bytes = shape.records * KIB
            facts: dict[str, Fact] = {
                "gets_per_object": found["gets"] / objects,
                "segments": found["segments"],
                "cpu_s_of_a_start": idle.cpu_s,
                "cpu_s_per_gib_without_start": (work.cpu_s - idle.cpu_s) * GIB / value_bytes,
            }
            spent = Work(shape.records, value_bytes, found["entries"], work.seconds, work.user_s, work.system_s, work.loop_s)
            runs.append(Run(spent, None, peak_bytes, facts))
    what = "forebay compactor run-once --now over a log that nobody has compacted; a request is an entry"
    settings: dict[str, Fact] = {"slices": shape.slices, "partitions": shape.partitions, "records": shape.records}
    goals = {"cpu_s_per_gib": 6.0, "peak_rss_mib": 256.0, "gets_per_object": 1.2}
    return CaseResult("compact", store, what, settings, runs, goals)


def _run_once(place: Place, *options: str) -> tuple[Work, dict[str, int], int]:
    command = [sys.executable, "-m", "forebay", "compactor", "run-once", "-o", "json", "--config", os.devnull, *options]
    for key, value in place.settings.items():
        command += ["--set", f"{key}={value}"]
    began_s = _clock.monotonic_s()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, meter.PeakMemory(process.pid) as peak:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"forebay compactor run-once failed: {process.returncode}"
    work = Work(0, 0, 0, _clock.monotonic_s() - began_s, used.ru_utime, used.ru_stime, 0.0)
    return work, json.loads(said), peak.rss_bytes


def _read(plan: Plan, store: str) -> CaseResult:
    """The whole log by brokers that have just started, in order, one partition after the other as a consumer of twelve does."""
    shape = OldLog(partitions=12, slices=plan.scaled(10_000))
    runs: list[Run] = []
    with fresh(store, plan.folder) as place:
        asyncio.run(write_old_log(place.storage_url, place.metadata_url, shape, topic=TOPIC))
        compact_now(place)
        for number in range(plan.repeats):
            with processes.broker(place, {}) as target:
                _serve_once(target.bootstrap, f"first-{number}")
                before = target.counters()

                def read(bootstrap: str = target.bootstrap) -> None:
                    with clients.consumer(bootstrap, TOPIC, shape.partitions) as reader:
                        clients.consume(reader, shape.records)

                work = metered(target, read, records=shape.records, value_bytes=shape.records * KIB)
                after = target.counters()
                gets = grown(after, before, GETS)
                facts: dict[str, Fact] = {"gets": gets, "mib_per_get": work.value_bytes / gets / 2**20 if gets else 0.0}
                counted = Work(
                    work.records, work.value_bytes, answered(after, before, "Fetch"), work.seconds, work.user_s, work.system_s, work.loop_s
                )
                runs.append(Run(counted, None, meter.peak_rss_bytes(target.pid), facts))
    settings: dict[str, Fact] = {"records": shape.records, "partitions": shape.partitions}
    what = "the whole log from segments, by a broker that has just started and served another topic once"
    return CaseResult("fetch-segments", store, what, settings, runs, {"cpu_s_per_gib": 0.7}, {"mib_per_get": 4.0})


def compact_now(place: Place) -> None:
    """All there is."""
    _run_once(place, "--now")


def _serve_once(bootstrap: str, topic: str) -> None:
    """The code of each API is loaded with its first request (ADR 18), which is no cost of reading."""
    load = Load(records=1, record_bytes=KIB, partitions=1, turn_records=1)
    clients.create_topic(bootstrap, topic, load.partitions)
    with clients.producer(bootstrap, load) as made:
        clients.produce(made, topic, load)
    with clients.consumer(bootstrap, topic, load.partitions) as reader:
        clients.consume(reader, load.records)


CASES: Final = (
    Case("compact", (DISK, NATIVE), _compact),
    Case("fetch-segments", (DISK, NATIVE), _read),
)
