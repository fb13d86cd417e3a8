"""`python -m bench.beside`: put the same loads on Apache Kafka and on Forebay in turns, print a table, write JSON, a chart and a page."""

import argparse
import importlib.util
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import results
from bench.beside import documents
from bench.beside.loads import LOADS, OURS, SIZES, TARGETS, WORKERS
from bench.beside.report import SCHEMA, BesideReport, FailureReport, table
from bench.beside.running import BesidePlan, MeasuredRuns, run_loads
from bench.results import count, positive
from services.build import OXIA, VERSITYGW
from services.kafka import kafka_version

RESULTS_FOLDER: Final = Path(__file__).resolve().parents[1] / "results" / "local"
REPEATS: Final = 3


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    plan = BesidePlan(
        loads=[load for load in (*LOADS, *SIZES) if load.name in given.only] if given.only else list(LOADS),
        targets=[target for target in (*OURS, *WORKERS) if target in given.targets],
        scale=given.scale,
        repeats=given.repeats,
        folder=given.folder,
    )
    described = results.describe()
    servers = {"kafka": kafka_version(), "versitygw": VERSITYGW.version, "oxia": OXIA.version}
    measured = MeasuredRuns(plan)
    failure: FailureReport | None = FailureReport(load=None, target="python -m bench.beside", error="ended by an error of its own")
    try:
        failure = run_loads(plan, measured)
    finally:
        report = _report(arguments, described, servers, plan, measured, failure)
        out = given.out / f"beside-{report.started_at.replace(':', '')}.json"
        documents.write_report(report, out)
    print(table(report.loads))
    print(f"\n{out}")
    if failure is not None:
        print(failure, file=sys.stderr)
        return 1
    if given.docs:
        _renew_documents(report, plan)
    return 0


def _renew_documents(report: BesideReport, plan: BesidePlan) -> None:
    if plan.loads != list(LOADS) or set(plan.targets) != set(OURS):
        print("The page and the chart are left as they are: they show every load on every target of theirs.", file=sys.stderr)
        return
    documents.write_report(report, documents.REPORT)
    documents.renew()
    print(f"{documents.REPORT}\n{documents.PAGE}\n{documents.CHART}")


def _report(
    arguments: Sequence[str],
    described: dict[str, Any],
    servers: dict[str, str],
    plan: BesidePlan,
    measured: MeasuredRuns,
    failure: FailureReport | None,
) -> BesideReport:
    return BesideReport(
        schema=SCHEMA,
        command=shlex.join(["python", "-m", "bench.beside", *arguments]),
        started_at=described["started_at"],
        commit=described["commit"],
        machine={name: value for name, value in described.items() if name not in ("started_at", "commit")},
        servers=servers,
        scale=plan.scale,
        repeats=plan.repeats,
        failure=failure,
        loads=measured.reports(),
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [load.name for load in (*LOADS, *SIZES)]
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside", description="Put the same loads on Apache Kafka and on Forebay, in turns. See bench/README.md."
    )
    parser.add_argument("--only", nargs="+", metavar="LOAD", choices=names, help=f"run these loads alone: {', '.join(names)}")
    parser.add_argument(
        "--targets",
        nargs="+",
        metavar="TARGET",
        choices=(*TARGETS, *WORKERS),
        default=OURS,
        help=f"compare Kafka with these alone: {', '.join(OURS)}; or with several workers: {', '.join(WORKERS)}",
    )
    parser.add_argument("--scale", type=positive, default=1.0, help="multiply the records of each load by this (default 1)")
    parser.add_argument("--repeats", type=count, default=REPEATS, help=f"measure each load on each target this often (default {REPEATS})")
    parser.add_argument(
        "--out", type=Path, default=RESULTS_FOLDER, metavar="FOLDER", help="write the JSON here (default bench/results/local)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="keep the data of the targets here, which should be a disk"
    )
    parser.add_argument(
        "--docs", action="store_true", help="renew docs/reference/benchmarks.md, its chart and bench/results/beside.json, too"
    )
    given = parser.parse_args(arguments)
    if given.docs and importlib.util.find_spec("matplotlib") is None:
        parser.error("The chart is drawn by matplotlib, which is not installed: install `forebay[pipeline]`.")
    return given


if __name__ == "__main__":
    for interrupting in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupting, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
