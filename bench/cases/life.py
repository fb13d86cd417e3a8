"""What the requests of a GiB cost through its life: written, compacted, read once by a broker that has just started, deleted, collected."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from bench import clients, meter, prices, processes
from bench.cases.case import Case, Plan, metered
from bench.clients import Load
from bench.processes import Target
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import NATIVE, Place, fresh
from bench.units import GIB, KIB
from runtime.clock import SystemClock
from storage.objects.s3.multipart import PART_BYTES
from storage.objects.s3.object_store import MULTIPART_ABOVE_BYTES

TOPIC: Final = "life"
PHASES: Final = ("written", "compacted", "read", "deleted")
COMPACTING: Final = {"compactor.segment_age": "0ms", "compactor.interval": "1s", "compactor.delete_interval": "1h"}
COLLECTING: Final = {"compactor.interval": "1s", "compactor.delete_grace": "0ms", "compactor.delete_interval": "2s"}
WITHIN_S: Final = 300.0
LOOK_EVERY_S: Final = 1.0
"""Each look starts a process."""
_clock = SystemClock()


class NotDone(Exception):
    """Upkeep did not get to its end in time."""


def _run(plan: Plan, store: str) -> CaseResult:
    load = Load(records=plan.scaled(1_024 * KIB), record_bytes=KIB, partitions=12, turn_records=1_000)
    runs: list[Run] = []
    for _ in range(plan.repeats):
        with fresh(store, plan.folder) as place:
            runs.append(_live(place, load))
    settings: dict[str, Fact] = {"records": load.records, "partitions": load.partitions, **COMPACTING}
    what = "written at full speed, compacted, read once, deleted, collected: requests to the object store at list prices of S3 Standard"
    return CaseResult("life", store, what, settings, runs)


def _live(place: Place, load: Load) -> Run:
    requests: dict[str, dict[str, float]] = {}
    with processes.broker(place, {}) as target:
        work = _written(target, load)
        requests["written"] = _requests(target)
        peak_bytes = meter.peak_rss_bytes(target.pid)
    wal = _objects(place, "wal/")
    with processes.compactor(place, COMPACTING) as compactor:
        _until(lambda: _storage(place, "summary", "--topic", TOPIC), lambda found: not any(one["wal_objects"] for one in found))
        requests["compacted"] = _requests(compactor)
    segments = _objects(place, "segments/")
    # A part of an upload is a request, and so are its beginning and its end.
    parts = sum(-(-one["size_bytes"] // PART_BYTES) + 1 for one in segments if one["size_bytes"] > MULTIPART_ABOVE_BYTES)
    requests["compacted"]["put"] += parts
    with processes.broker(place, {}) as target:
        _read(target, load)
        requests["read"] = _requests(target)
        _delete_topic(target.bootstrap)
    with processes.compactor(place, COLLECTING) as compactor:
        _until(lambda: _objects(place, "wal/") + _objects(place, "segments/"), lambda found: not found)
        requests["deleted"] = _requests(compactor)
    gib = load.value_bytes / GIB
    dollars = {phase: prices.dollars(requests[phase]) / gib for phase in PHASES}
    facts: dict[str, Fact] = {f"dollars_per_gib_{phase}": dollars[phase] for phase in PHASES}
    facts["dollars_per_gib_life"] = sum(dollars.values())
    facts |= {"wal_objects": len(wal), "segments": len(segments)}
    facts |= {f"{op}s_per_gib_{phase}": count / gib for phase in PHASES for op, count in requests[phase].items() if count}
    return Run(work, None, peak_bytes, facts)


def _written(target: Target, load: Load) -> Work:
    clients.create_topic(target.bootstrap, TOPIC, load.partitions)
    with clients.producer(target.bootstrap, load) as made:
        work = metered(target, lambda: clients.produce(made, TOPIC, load), records=load.records, value_bytes=load.value_bytes)
    clients.check_produced(target.bootstrap, TOPIC, load.partitions, records=load.records)
    return work


def _read(target: Target, load: Load) -> None:
    with clients.consumer(target.bootstrap, TOPIC, load.partitions) as reader:
        clients.consume(reader, load.records)


def _requests(target: Target) -> dict[str, float]:
    """What the process asked of the object store since its start, by operation."""
    return prices.requests(target.counters())


def _objects(place: Place, prefix: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _storage(place, "objects", "--prefix", prefix, "--limit", "100000")
    return found


def _storage(place: Place, *words: str) -> Any:
    """What `forebay storage` says. It is a process of its own, whose requests do not count."""
    command = [sys.executable, "-m", "forebay", "storage", *words, "-o", "json", "-q", "--config", os.devnull]
    command += [word for key, value in place.settings.items() for word in ("--set", f"{key}={value}")]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=WITHIN_S).stdout)


def _delete_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # what it asked for fails when nobody holds it
    admin.delete_topics([TOPIC], operation_timeout=WITHIN_S)[TOPIC].result(WITHIN_S)


def _until(look: Callable[[], Any], is_done: Callable[[Any], bool]) -> None:
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while not is_done(look()):
        if _clock.monotonic_s() > give_up_s:
            raise NotDone(f"after {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)


CASES: Final = (Case("life", (NATIVE,), _run),)
