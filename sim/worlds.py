"""The worlds there are to simulate, by name, and what one seed of any of them comes to.

`run_all` runs many seeds on several processes: they share nothing, and a seed takes the same turns wherever it runs.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sim.groups.world import run_seed as run_groups_seed
from sim.world import Plan
from sim.world import run_seed as run_log_seed

LOG: Final = "log"
GROUPS: Final = "groups"
GUESSES: Final = (0.0, 0.1, 0.5)
"""How likely brokers of the world of groups take each other for dead without any reason, by the seed."""

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one world. `theme`: of sim/themes.py, in the world of logs; by the seed if not given."""

    world: str
    seed: int
    faults: str
    brokers: int | None = None
    theme: str | None = None

    @property
    def command(self) -> str:
        """What replays it."""
        chosen = "" if self.brokers is None else f" --brokers {self.brokers}"
        chosen += "" if self.theme is None else f" --theme {self.theme}"
        world = "" if self.world == LOG else f" --world {self.world}"
        return f"python -m sim replay --seed {self.seed} --faults {self.faults}{world}{chosen}"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """`did` counts what was done, so that a run that did nothing is not taken for one that found nothing."""

    run: Run
    violations: list[str]
    digest: str
    did: Mapping[str, int]
    cpu_s: float


def simulate(run: Run, *, show: Show | None = None) -> RunOutcome:
    """Must not be called from a running loop. `show` is given every line of the trace."""
    began_s = time.process_time()
    violations, digest, did = _WORLDS[run.world](run, show)
    return RunOutcome(run, violations, digest, did, time.process_time() - began_s)


def _log(run: Run, show: Show | None) -> tuple[list[str], str, dict[str, int]]:
    report = run_log_seed(Plan(run.seed, run.faults, run.brokers, run.theme), show=show)
    did = {"acked": report.appends, "read": report.reads, "turns": report.turns, "virtual_s": round(report.virtual_s)}
    return report.violations, report.digest, did


def _groups(run: Run, show: Show | None) -> tuple[list[str], str, dict[str, int]]:
    report = run_groups_seed(run.seed, run.faults, guesses=GUESSES[run.seed % len(GUESSES)], show=show)
    return report.violations, report.digest, {"commits": report.commits, "generations": report.generations, "looks": report.looks}


_WORLDS: Final = {LOG: _log, GROUPS: _groups}


def run_all(runs: Sequence[Run], *, jobs: int) -> Iterator[RunOutcome]:
    """Their outcomes, in the order of `runs`."""
    if jobs == 1 or len(runs) < 2:
        yield from map(simulate, runs)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(simulate, runs, chunksize=max(1, min(20, len(runs) // (4 * jobs))))
