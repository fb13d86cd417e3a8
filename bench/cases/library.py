"""Appending by the log as a library: records are encoded in the program's own process, and there is no socket."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from bench import meter
from bench.cases.case import Case, Plan, metered
from bench.cases.produce import WARM_UP
from bench.processes import DISK, NATIVE, NotReady, Place, Target, fresh
from bench.results import KIB, CaseResult, Fact, Run, Work

PARTITIONS: Final = 12
GROUP_RECORDS: Final = 1_000
ROUNDS: Final = 44
STOP_WITHIN_S: Final = 60.0

_names = itertools.count()


def _run(plan: Plan, store: str) -> CaseResult:
    rounds = plan.scaled(ROUNDS)
    with fresh(store, plan.folder) as place, _program(place) as program:
        target = Target(program.pid, 0, None)
        _append(program, max(1, rounds // WARM_UP))
        runs = [Run(_metered(program, target, rounds), None, meter.peak_rss_bytes(target.pid), {}) for _ in range(plan.repeats)]
    settings: dict[str, Fact] = {
        "client": "forebay.log",
        "mode": "write",
        "records": rounds * PARTITIONS * GROUP_RECORDS,
        "record_bytes": KIB,
        "partitions": PARTITIONS,
        "group_records": GROUP_RECORDS,
    }
    what = "1 KiB records by the log as a library, in groups of 1,000; CPU and memory are the program's, which encodes them"
    return CaseResult("library-append-1kib", store, what, settings, runs)


def _metered(program: "subprocess.Popen[str]", target: Target, rounds: int) -> Work:
    records = rounds * PARTITIONS * GROUP_RECORDS
    return metered(target, lambda: _append(program, rounds), records=records, value_bytes=records * KIB, requests=rounds)


def _append(program: "subprocess.Popen[str]", rounds: int) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{rounds}\n")
    program.stdin.flush()
    landed = _line(program)
    if landed != str(rounds * PARTITIONS * GROUP_RECORDS):
        raise ValueError(f"{landed} records landed of {rounds} rounds")


@contextlib.contextmanager
def _program(place: Place) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "bench.library_appends", place.metadata_url, place.storage_url, f"appended-{next(_names)}"]
    command += [str(PARTITIONS), str(GROUP_RECORDS), str(KIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            if (said := _line(program)) != "ready":
                raise NotReady(f"the program said {said!r}")
            yield program
            program.communicate(timeout=STOP_WITHIN_S)
        finally:
            program.kill()


def _line(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    if not (line := program.stdout.readline()):
        raise NotReady("the program that appends ended: its standard error says why")
    return line.strip()


CASES: Final = (Case("library-append-1kib", (DISK, NATIVE), _run),)
