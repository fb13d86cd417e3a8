"""`python -m sim`: seeds of the simulation, one after the other, or one of them with its trace."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from sim.faults import PROFILES
from sim.world import Plan, Report, run_seed

VIOLATIONS_SHOWN_MAX: Final = 10


def main(arguments: Sequence[str]) -> int:
    """Run as told. 0 when no seed found anything wrong, else 1."""
    given = _parse(arguments)
    if given.command == "replay":
        report = run_seed(Plan(given.seed, given.faults, given.brokers), show=print)
        _tell(report, given.faults, given.brokers)
        return 1 if report.violations else 0
    first, last = given.seeds
    began = os.times().elapsed
    failed: list[int] = []
    turns = appends = reads = 0
    virtual_s = 0.0
    for seed in range(first, last + 1):
        report = run_seed(Plan(seed, given.faults, given.brokers))
        turns, appends, reads, virtual_s = (
            turns + report.turns,
            appends + report.appends,
            reads + report.reads,
            virtual_s + report.virtual_s,
        )
        if report.violations:
            failed.append(seed)
            _tell(report, given.faults, given.brokers)
    count = last + 1 - first
    elapsed_s = max(os.times().elapsed - began, 0.01)
    _say(
        f"seeds={count} failed={len(failed)} faults={given.faults} seeds_per_s={count / elapsed_s:.1f} virtual_s={virtual_s:.0f} "
        f"turns={turns} acked={appends} read={reads}"
    )
    return 1 if failed else 0


def replay_command(seed: int, faults: str, brokers: int | None) -> str:
    chosen = "" if brokers is None else f" --brokers {brokers}"
    return f"python -m sim replay --seed {seed} --faults {faults}{chosen}"


def _tell(report: Report, faults: str, brokers: int | None) -> None:
    if not report.violations:
        _say(f"seed {report.seed}: nothing wrong, digest={report.digest} virtual_s={report.virtual_s:.1f} turns={report.turns}")
        return
    _say(f"seed {report.seed}: {len(report.violations)} violations; {replay_command(report.seed, faults, brokers)}")
    for text in report.violations[:VIOLATIONS_SHOWN_MAX]:
        _say(f"  {text}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="a range of seeds; the exit code says whether all were clean")
    run.add_argument("--seeds", type=_seeds, default=(1, 200), metavar="A-B")
    replay = commands.add_parser("replay", help="one seed, with its trace on standard output")
    replay.add_argument("--seed", type=int, required=True)
    for command in (run, replay):
        command.add_argument("--faults", choices=sorted(PROFILES), default="usual")
        command.add_argument("--brokers", type=int, default=None, help="default: 2 to 4, by the seed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
