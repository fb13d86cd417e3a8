"""`python -m bench`: run the cases, print a table, write JSON."""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import results
from bench.cases import compaction, fetch, library, produce, requests
from bench.cases.case import Plan
from bench.processes import KAFKA, STORES
from bench.results import CaseResult

CASES: Final = (*produce.CASES, *fetch.CASES, *requests.CASES, *compaction.CASES, *library.CASES)
RESULTS_FOLDER: Final = Path(__file__).resolve().parent / "results" / "local"
REPEATS: Final = 3


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    chosen = [case for case in CASES if not given.only or case.name in given.only]
    plan = Plan(scale=given.scale, repeats=given.repeats, folder=given.folder)
    command = shlex.join(["python", "-m", "bench", *arguments])
    head = {"command": command, **results.describe(), "scale": plan.scale, "repeats": plan.repeats}
    measured: list[CaseResult] = []
    out: Path = given.out or RESULTS_FOLDER / f"{head['started_at'].replace(':', '')}.json"
    try:
        for case in chosen:
            for store in [store for store in case.stores if store in given.stores]:
                sys.stderr.write(f"{case.name} on {store} …\n")
                measured.append(case.run(plan, store))
    finally:
        # A case that fails takes nothing from those before it.
        results.write(out, head, measured)
    print(results.table(measured))
    if goals := results.goals_table(measured):
        print(f"\n{goals}")
    print(f"\n{out}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what a broker spends. See bench/README.md.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], help="these cases alone")
    parser.add_argument(
        "--stores",
        nargs="+",
        metavar="STORE",
        choices=(*STORES, KAFKA),
        default=STORES,
        help=f"these alone of {', '.join(STORES)}; or {KAFKA}",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="times the work of a repetition (default 1: five minutes in all)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"repetitions of each case (default {REPEATS})")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where disk stores go, which should be a disk")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default bench/results/local/DATE.json)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
