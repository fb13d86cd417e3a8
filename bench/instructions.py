"""`python -m bench.instructions`: what a case costs a broker in machine instructions of user space, as valgrind counts them.

On a shared machine times differ by a quarter from one run to the next; these counts differ by less than a hundredth. They know nothing of
caches, of the kernel, or of waiting. What a start costs falls out: a case is run at two scales, and the difference counts.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import processes
from bench.__main__ import CASES
from bench.cases.case import Case, Plan
from bench.results import Work
from bench.stores import DISK, MEMORY

SCALES: Final = (0.05, 0.25)
READY_WITHIN_S: Final = 300.0
PYTHON: Final = Path(".venv") / "bin" / "python"
_COUNTED: Final = re.compile(r"I\s+refs:\s+([\d,]+)")


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    (case,) = [case for case in CASES if case.name == given.case]
    costs = [_cost(case, given.store, root, given.scales) for root in given.roots]
    for root, (instructions, work) in zip(given.roots, costs, strict=True):
        ratio = instructions / costs[0][0]
        sys.stdout.write(f"{case.name} {given.store} {root}: instructions={instructions} requests={work.requests} ratio={ratio:.3f}\n")
    return 0


def _cost(case: Case, store: str, root: Path, scales: Sequence[float]) -> tuple[int, Work]:
    """Between the smaller and the larger of `scales`; and the work of the larger."""
    counts: list[int] = []
    for scale in sorted(scales):
        with tempfile.TemporaryDirectory() as made:
            log = Path(made) / "valgrind"
            under = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={log}")
            with processes.starting(processes.Start(root, str(root / PYTHON), under, READY_WITHIN_S)):
                result = case.run(Plan(scale, 1, Path(made)), store)
            counted = _COUNTED.search(log.read_text())
            if counted is None:
                raise processes.NotReady(f"valgrind counted nothing: {log.read_text()[-1_000:]}")
            counts.append(int(counted[1].replace(",", "")))
    return counts[-1] - counts[0], result.runs[-1].broker


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description="Needs valgrind. A case takes some minutes.")
    parser.add_argument("case", choices=[case.name for case in CASES])
    parser.add_argument("roots", nargs="+", type=checkout, metavar="CHECKOUT", help="with a .venv of its own; ratios are to the first")
    parser.add_argument("--store", choices=(MEMORY, DISK), default=MEMORY)
    parser.add_argument("--scales", nargs=2, type=float, default=SCALES, metavar=("SMALL", "LARGE"))
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not on the PATH: install it, or compare times with python -m bench")
    return parser.parse_args(arguments)


def checkout(text: str) -> Path:
    """The argument as a folder to start brokers in. Raise `ArgumentTypeError` if nothing is installed there."""
    root = Path(text).resolve()  # a broker starts in it
    if not (root / PYTHON).exists():
        raise argparse.ArgumentTypeError(f"{root} has no {PYTHON}: run `make setup` there")
    return root


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
