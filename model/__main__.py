"""`python -m model [NAME-PATTERN ...]`: check variants of the protocol. 0 if every one ends as expected."""

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from model.search import Result
from model.variants import ALL, Checked

STATES_MAX: Final = 5_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model", description="Every interleaving of the protocol's variants.")
    parser.add_argument("names", nargs="*", default=["*"], metavar="PATTERN", help="names of variants, or patterns such as 'Forebay*'")
    parser.add_argument("--states-max", type=int, default=STATES_MAX, metavar="N", help="per variant (a million takes about 2 GB)")
    given = parser.parse_args(arguments)
    for pattern in given.names:
        if not any(fnmatchcase(name, pattern) for name in ALL):
            parser.error(f"no variant is called {pattern}; there are {', '.join(ALL)}")
    if given.states_max < 1:
        parser.error(f"--states-max is {given.states_max}; it must be at least 1")
    unexpected = 0
    for v in ALL.values():
        if any(fnmatchcase(v.name, pattern) for pattern in given.names):
            result = v.explore(states_max=given.states_max)
            unexpected += result.verdict != v.expect
            sys.stdout.write(shown(v, result))
            sys.stdout.flush()
    sys.stdout.write(f"{unexpected} unexpected\n" if unexpected else "all as expected\n")
    return 1 if unexpected else 0


def shown(v: Checked, result: Result) -> str:
    mark = "" if result.verdict == v.expect else "  <-- UNEXPECTED"
    lines = [f"{v.name:21} {result.verdict:10} {result.states:9,} states  {v.about}{mark}"]
    lines += [f"{'':21} {number:2}. {label}" for number, label in enumerate(result.trace, 1)]
    lines += [f"{'':25}{result.why}"] if result.why else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
