"""`python -m bench.against`: what the brokers of another checkout spend on a case, and those of this one in the same minutes.

Each round runs a case on both, in turns that change place, and compares what they spent in that round: on a shared machine a ratio of one
round says more than two figures of different hours. The clients, and what is counted, are those of this checkout.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import processes
from bench.__main__ import CASES
from bench.cases.case import Case, Plan
from bench.processes import STORES
from bench.results import GIB, Run, count, lined_up, positive

ROUNDS: Final = 3
PYTHON: Final = Path(".venv") / "bin" / "python"
_HERE: Final = Path(__file__).resolve().parents[1]


class TooLittleWork(Exception):
    """The work took less CPU than the system counts, a hundredth of a second."""


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    head = ("case", "store", "unit", str(given.checkout), "here", "ratio")
    rows = []
    for case in [case for case in CASES if case.name in given.cases]:
        for store in [store for store in case.stores if store in given.stores]:
            theirs: list[Run] = []
            ours: list[Run] = []
            for number in range(given.rounds):
                sys.stderr.write(f"{case.name} on {store}, round {number + 1} of {given.rounds} …\n")
                for root, runs in ((given.checkout, theirs), (_HERE, ours))[:: 1 if number % 2 == 0 else -1]:
                    runs.append(_run(case, store, root, given.scale))
            try:
                rows.append((case.name, store, *compared(theirs, ours)))
            except TooLittleWork as error:
                print(f"{case.name} on {store}: {error}", file=sys.stderr)
                return 1
    print(lined_up([head, *rows]))
    return 0


def compared(theirs: Sequence[Run], ours: Sequence[Run]) -> tuple[str, str, str, str]:
    """The unit, the medians of both, and the median of the ratios by round with the least and the greatest.

    Bytes are what counts where many records share a request, else requests. Raise `TooLittleWork`.
    """
    unit, scale = ("s/GiB", 1.0) if _is_volume(ours[0]) else ("µs/request", 1e6)
    of_theirs, of_ours = ([_spent_s(run) * scale for run in runs] for runs in (theirs, ours))
    ratios = sorted(mine / other for other, mine in zip(of_theirs, of_ours, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return unit, f"{statistics.median(of_theirs):.3g}", f"{statistics.median(of_ours):.3g}", spread


def _is_volume(run: Run) -> bool:
    return run.broker.records > run.broker.requests


def _spent_s(run: Run) -> float:
    """CPU seconds for each GiB, or for each request."""
    work = run.broker
    if not work.cpu_s:
        raise TooLittleWork("the broker used no CPU that the system counts: raise --scale")
    return work.cpu_s / (work.value_bytes / GIB if _is_volume(run) else work.requests)


def _run(case: Case, store: str, root: Path, scale: float) -> Run:
    start = processes.Start() if root == _HERE else processes.Start(root, str(root / PYTHON))
    with tempfile.TemporaryDirectory() as made, processes.starting(start):
        (run,) = case.run(Plan(scale, 1, Path(made)), store).runs
    return run


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Compare CPU with another checkout. See bench/README.md.")
    parser.add_argument("checkout", type=checkout, metavar="CHECKOUT", help="with a .venv of its own")
    parser.add_argument("cases", nargs="+", choices=[case.name for case in CASES], metavar="CASE", help="see python -m bench --help")
    parser.add_argument("--stores", nargs="+", metavar="STORE", choices=STORES, default=STORES, help=f"these alone of {', '.join(STORES)}")
    parser.add_argument("--scale", type=positive, default=1.0, help="times the work of a case (default 1)")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"each on both checkouts (default {ROUNDS})")
    return parser.parse_args(arguments)


def checkout(text: str) -> Path:
    """Return the argument as a folder to start brokers in. Raise `ArgumentTypeError` if nothing is installed there."""
    root = Path(text).resolve()
    if not (root / PYTHON).exists():
        raise argparse.ArgumentTypeError(f"{root} has no {PYTHON}: run `make setup` there")
    return root


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
