"""`python -m bench.scale`: run clusters in virtual time, check laws, extrapolate, name walls; print a table, write JSON and a page."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import results
from bench.results import count
from bench.scale import costs, documents, memory
from bench.scale.cluster import COLLIDING, Plan, observe, plans
from bench.scale.laws import LAW_OF_CONFLICTS, LAWS, MISS_MAX, Fitted, LawMissed, Observed, check, fit
from bench.scale.loads import LEADERS, LOADS, SETTINGS, ScaleLoad, Shape
from bench.scale.report import SCHEMA, CaseReport, CostsReport, ScaleReport, case_report, table

BROKERS: Final = (10, 100, 1_000)
PARTITIONS: Final = 100_000
MEMORY_PARTITIONS: Final = (3_000, 10_000)
MEMORY_CHECKED_AT: Final = 30_000
RESULTS_FOLDER: Final = Path(__file__).resolve().parents[1] / "results" / "local"


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    described = results.describe()
    try:
        measured = measure_costs(given.brokers)
        colliding = _collisions()
        cases = [_case(load, leader, given, measured, colliding) for leader in given.leader for load in LOADS if load.name in given.load]
    except LawMissed as error:
        print(error, file=sys.stderr)
        return 1
    report = _report(arguments, described, given.partitions, measured, cases)
    out = given.out / f"scale-{report.started_at.replace(':', '')}.json"
    documents.write_report(report, out)
    print(f"{table(cases)}\n\n{out}")
    if given.docs:
        if len(cases) < len(LOADS) * len(LEADERS):
            print("The page is left as it is: it shows every load under every strategy.", file=sys.stderr)
        else:
            documents.write_report(report, documents.REPORT)
            documents.renew()
            print(f"{documents.REPORT}\n{documents.PAGE}")
    return 0


def measure_costs(brokers: Sequence[int]) -> CostsReport:
    """Raise `LawMissed` if the memory of a broker does not grow with its partitions."""
    known = [memory.measured_apart(partitions) for partitions in MEMORY_PARTITIONS]
    partition_bytes = sum([one.rss_bytes / one.kept for one in known]) / len(known)
    largest = memory.measured_apart(MEMORY_CHECKED_AT)
    miss = partition_bytes * largest.kept / largest.rss_bytes - 1
    if abs(miss) > MISS_MAX:
        raise LawMissed(f"memory misses {largest.kept} partitions by {miss:.0%}")
    return CostsReport(
        message_cpu_s=costs.message_cpu_s(),
        hint_cpu_s=costs.hint_cpu_s(),
        placement_cpu_s={str(number): costs.placement_cpu_s(number) for number in brokers},
        partition_bytes=partition_bytes,
        memory_miss=miss,
        memory_partitions_max=largest.kept,
        writers_max=costs.writers_max(),
    )


def _collisions() -> Fitted:
    """The law of conflicts, for all loads. Raise `LawMissed`."""
    runs = [(_observed(plan), plan.is_fit) for plan in COLLIDING]
    fitted = fit(LAW_OF_CONFLICTS, [run for run, is_fit in runs if is_fit], [run for run, is_fit in runs if not is_fit], SETTINGS)
    check([fitted])
    return fitted


def _observed(plan: Plan) -> Observed:
    shape = plan.shape
    print(
        f"{shape.load.name} {shape.leader}: {shape.brokers} brokers, {shape.partitions} partitions, {plan.seconds:g} s",
        file=sys.stderr,
        flush=True,
    )
    return observe(plan)


def _case(load: ScaleLoad, leader: str, given: argparse.Namespace, measured: CostsReport, colliding: Fitted) -> CaseReport:
    """Raise `LawMissed`."""
    runs = [(_observed(plan), plan.is_fit) for plan in plans(load, leader)]
    fitting, checking = [run for run, is_fit in runs if is_fit], [run for run, is_fit in runs if not is_fit]
    fitted = [colliding if law is LAW_OF_CONFLICTS else fit(law, fitting, checking, SETTINGS) for law in LAWS]
    check(fitted)
    shapes = {number: Shape(load, leader, number, given.partitions) for number in given.brokers}
    return case_report(shapes, runs, fitted, measured, SETTINGS)


def _report(
    arguments: Sequence[str], described: dict[str, Any], partitions: int, measured: CostsReport, cases: list[CaseReport]
) -> ScaleReport:
    return ScaleReport(
        schema=SCHEMA,
        command=shlex.join(["python", "-m", "bench.scale", *arguments]),
        started_at=described["started_at"],
        commit=described["commit"],
        machine={name: value for name, value in described.items() if name not in ("started_at", "commit")},
        settings={name: float(value) for name, value in dataclasses.asdict(SETTINGS).items()},
        partitions=partitions,
        costs=measured,
        cases=cases,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [load.name for load in LOADS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description="How a cluster's costs grow with brokers and partitions, by simulation. See bench/README.md.",
    )
    parser.add_argument("--brokers", nargs="+", type=count, default=BROKERS, help="extrapolate to these numbers (default 10 100 1000)")
    parser.add_argument("--partitions", type=count, default=PARTITIONS, help="of the cluster that is extrapolated to (default 100000)")
    parser.add_argument("--load", nargs="+", choices=names, default=names, help=f"put these loads on it alone: {', '.join(names)}")
    parser.add_argument("--leader", nargs="+", choices=LEADERS, default=LEADERS, help="with kafka.leader as this alone")
    parser.add_argument(
        "--out", type=Path, default=RESULTS_FOLDER, metavar="FOLDER", help="write the JSON here (default bench/results/local)"
    )
    parser.add_argument("--docs", action="store_true", help="renew docs/reference/benchmarks.md and bench/results/scale.json, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
