"""`python -m sim`: seeds of the simulation, or one of them with its trace."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from sim.worlds import Run, RunOutcome, run_all, simulate

VIOLATIONS_SHOWN_MAX: Final = 10
WORLDS: Final = ("log", "groups")
ALL: Final = "all"
FAULTS: Final = ("none", "usual", "harsh")
THEMES: Final = ("usual", "sharing", "passing", "spilling", "churning", "stubborn", "trimming")


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return 0 if no seed found anything wrong, else 1."""
    given = _parse(arguments)
    match given.command:
        case "replay":
            return _replay(given)
        case _:
            return _run(given)


def _replay(given: argparse.Namespace) -> int:
    outcome = simulate(Run(given.world, given.seed, given.faults, given.brokers, given.theme), show=print)
    if outcome.violations:
        _tell(outcome)
        return 1
    _say(f"seed {given.seed}: nothing wrong, digest={outcome.digest} {_counted(outcome.did)}")
    return 0


def _run(given: argparse.Namespace) -> int:
    first, last = given.seeds
    has_failed = False
    for world in WORLDS if given.world == ALL else (given.world,):
        runs = [Run(world, seed, given.faults, given.brokers, given.theme) for seed in range(first, last + 1)]
        began_s = os.times().elapsed
        failed, cpu_s, did = 0, 0.0, Counter[str]()
        for outcome in run_all(runs, jobs=given.jobs):
            cpu_s += outcome.cpu_s
            did.update(outcome.did)
            if outcome.violations:
                failed += 1
                _tell(outcome)
        elapsed_s = max(os.times().elapsed - began_s, 0.01)
        has_failed = has_failed or bool(failed)
        _say(
            f"world={world} seeds={len(runs)} failed={failed} faults={given.faults} jobs={given.jobs} "
            f"seeds_per_s={len(runs) / elapsed_s:.1f} cpu_s_per_seed={cpu_s / len(runs):.3f} {_counted(did)}"
        )
    return 1 if has_failed else 0


def _counted(did: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in did.items())


def _tell(outcome: RunOutcome) -> None:
    _say(f"seed {outcome.run.seed}: {len(outcome.violations)} violations; {outcome.run.command}")
    for text in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
        _say(f"  {text}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        seeds = int(first), int(last or first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds: give two numbers, such as 1-200, or one") from None
    if seeds[0] > seeds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return seeds


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Seeds of the simulation (docs/internals/simulation.md).")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="a range of seeds; the exit code says whether all were clean")
    replay = commands.add_parser("replay", help="one seed, with its trace on standard output")
    run.add_argument("--seeds", type=_seeds, default=(1, 200), metavar="A-B")
    run.add_argument("--jobs", type=_count, default=len(os.sched_getaffinity(0)), help="processes; by default one per processor")
    run.add_argument("--world", choices=(*WORLDS, ALL), default=ALL)
    replay.add_argument("--world", choices=WORLDS, default=WORLDS[0])
    replay.add_argument("--seed", type=int, required=True)
    for command in (run, replay):
        command.add_argument("--faults", choices=FAULTS, default="usual")
        command.add_argument("--brokers", type=_count, default=None, help="default: 2 to 4, by the seed")
        command.add_argument("--theme", choices=THEMES, default=None, help="of the log world; default: by the seed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
