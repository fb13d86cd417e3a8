"""`python -m bench.sweep`: offer loads, each half as large again as the one before, and draw how late records are acknowledged."""

import argparse
import importlib.util
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import results
from bench.beside.loads import FILES, OURS, S3, OpenTarget, opened
from bench.beside.running import LoadFailed, run_bench
from bench.results import positive
from bench.sweep import documents
from bench.sweep.report import REACHED, RECORD_BYTES, SweepCurve, SweepPoint, SweepReport, jumps, loads_mb_per_s, table

RESULTS_FOLDER: Final = Path(__file__).resolve().parents[1] / "results" / "local"
PARTITIONS: Final = (1, 12)
SECONDS: Final = 5.0
MB: Final = 1_000_000


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    described = results.describe()
    curves = [curve for name in given.targets for curve in _curves(name, given)]
    report = SweepReport(
        command=shlex.join(["python", "-m", "bench.sweep", *arguments]),
        started_at=described["started_at"],
        commit=described["commit"],
        machine={name: value for name, value in described.items() if name not in ("started_at", "commit")},
        seconds=given.seconds,
        curves=curves,
    )
    out = given.out / f"sweep-{report.started_at.replace(':', '')}.json"
    documents.write_report(report, out)
    print(table(curves))
    for curve in curves:
        print(f"{curve.title}: p50 more than doubles at {jumps(curve.points, 'p50_ms')} MB/s, p99 at {jumps(curve.points, 'p99_ms')}")
    print(f"\n{out}")
    if given.docs:
        documents.write_report(report, documents.REPORT)
        documents.renew()
        print(f"{documents.REPORT}\n{documents.DRAWING}")
    return 0


def _curves(name: str, given: argparse.Namespace) -> Iterator[SweepCurve]:
    with opened(name, given.folder) as target:
        for partitions in PARTITIONS:
            yield SweepCurve(target=name, partitions=partitions, points=list(_points(target, partitions, given.seconds)))


def _points(target: OpenTarget, partitions: int, seconds: float) -> Iterator[SweepPoint]:
    for load in loads_mb_per_s():
        rate = load * MB / RECORD_BYTES
        words = ["produce", "--record-bytes", str(RECORD_BYTES), "--partitions", str(partitions), "--rate", f"{rate:.3f}"]
        words += ["--records", str(max(1, int(rate * seconds))), "--warm-up", str(int(rate))]
        try:
            found = run_bench(target, words)
        except LoadFailed as error:
            print(f"{target.name}, {partitions} partitions, {load} MB/s: {error}", file=sys.stderr)
            return
        point = SweepPoint(
            mb_per_s=load,
            reached_mb_per_s=found["mb_per_s"],
            p50_ms=found["latency_ms"]["p50"],
            p99_ms=found["latency_ms"]["p99"],
        )
        print(f"{target.name}, {partitions} partitions: {point}", file=sys.stderr)
        if point.reached_mb_per_s < REACHED * load:
            return
        yield point


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sweep", description="Sweep the load of one producer. See bench/README.md.")
    parser.add_argument("--targets", nargs="+", metavar="TARGET", choices=OURS, default=(FILES, S3), help="sweep these (default files s3)")
    parser.add_argument("--seconds", type=positive, default=SECONDS, help=f"offer each load for so long (default {SECONDS:g})")
    parser.add_argument("--out", type=Path, default=RESULTS_FOLDER, metavar="FOLDER", help="write the JSON here")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="keep the data of the targets here")
    parser.add_argument("--docs", action="store_true", help="renew docs/reference/load-sweep.svg and bench/results/sweep.json, too")
    given = parser.parse_args(arguments)
    if given.docs and importlib.util.find_spec("matplotlib") is None:
        parser.error("The drawing is made by matplotlib, which is not installed: install `forebay[pipeline]`.")
    return given


if __name__ == "__main__":
    for interrupting in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupting, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
