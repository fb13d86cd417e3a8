"""`python -m model [NAME-PATTERN ...]`: check variants of the protocol. 0 if every one ends as expected."""

import argparse
import sys
from fnmatch import fnmatchcase
from typing import Final

from model.variants import ALL

STATES_MAX: Final = 5_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m model", description="Every interleaving of the protocol's variants.")
    parser.add_argument("names", nargs="*", default=["*"], help="names or patterns of variants")
    parser.add_argument("--states-max", type=int, default=STATES_MAX, help="states per variant (a million takes about 2 GB)")
    given = parser.parse_args()
    chosen = [v for v in ALL.values() if any(fnmatchcase(v.name, pattern) for pattern in given.names)]
    if not chosen:
        parser.error("no such variant")
    unexpected = 0
    for v in chosen:
        result = v.explore(states_max=given.states_max)
        is_unexpected = result.verdict != v.expect
        unexpected += is_unexpected
        lines = [f"{v.name:21} {result.verdict:10} {result.states:9,} states  {v.about}{'  <-- UNEXPECTED' if is_unexpected else ''}"]
        lines += [f"{'':21} {number:2}. {label}" for number, label in enumerate(result.trace, 1)]
        lines += [f"{'':25}{result.why}"] if result.why else []
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{unexpected} unexpected\n" if unexpected else "all as expected\n")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
