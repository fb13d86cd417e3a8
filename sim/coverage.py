"""How often seeds take each branch of commit, decide, pages, lane, read and compaction, and which they never take."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from sim.branches import Branches
from sim.unreachable import SELDOM, UNREACHABLE

MODULES: Final = (
    "broker.fetching.gathering",
    "compactor.claim",
    "compactor.collector",
    "compactor.compaction",
    "compactor.cursor",
    "compactor.gone_brokers",
    "compactor.merge",
    "compactor.merge_plan",
    "compactor.plan",
    "compactor.purge",
    "compactor.records",
    "compactor.references",
    "compactor.retention",
    "compactor.retention_plan",
    "compactor.round",
    "compactor.slices",
    "compactor.tidy_plan",
    "storage.log.append",
    "storage.log.batch",
    "storage.log.batcher",
    "storage.log.commit",
    "storage.log.control_reads",
    "storage.log.decide",
    "storage.log.inline",
    "storage.log.entry_scan",
    "storage.log.flights",
    "storage.log.index",
    "storage.log.kept_chunks",
    "storage.log.kept_segments",
    "storage.log.lane",
    "storage.log.lost",
    "storage.log.page_store",
    "storage.log.partition",
    "storage.log.producer_memory",
    "storage.log.producer_pages",
    "storage.log.proofs",
    "storage.log.read",
    "storage.log.refusals",
    "storage.log.seen",
    "storage.log.segments",
    "storage.log.stamping",
    "storage.log.strangers",
    "storage.log.tail",
    "storage.log.trim",
    "storage.log.unknown",
    "storage.log.upload",
    "storage.log.upload_places",
    "storage.log.writers",
)
RARE: Final = 20
"""A branch that is taken so seldom is named in the report."""


def count_branches(seeds: tuple[int, int], *, faults: str, jobs: int) -> dict[str, int]:
    """By name, how often each branch was taken. In processes of their own: theirs are the modules with counters."""
    first, last = seeds
    shares = [(first + place, last, jobs) for place in range(min(jobs, last + 1 - first))]
    commands = [[sys.executable, "-m", "sim.coverage", faults, *map(str, share)] for share in shares]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]  # noqa: S603 - our own interpreter
    found: Counter[str] = Counter()
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process that counts ended with {process.returncode}")
        found.update(json.loads(output))
    return dict(found)


def never_taken(counts: dict[str, int]) -> list[str]:
    """The branches that should have been taken."""
    return [name for name, count in counts.items() if not count and name not in UNREACHABLE and name not in SELDOM]


def outdated(counts: dict[str, int]) -> list[str]:
    """Names that are said to be out of reach, and are not there any more or were reached; of those seldom taken, what is not there."""
    return [name for name in UNREACHABLE if counts.get(name, 1)] + [name for name in SELDOM if name not in counts]


def report(seeds: tuple[int, int], *, faults: str, jobs: int, is_short: bool, tell: Callable[[str], None]) -> int:
    """1 if a branch was never taken that should have been, or one was that is said to be out of reach."""
    counts = count_branches(seeds, faults=faults, jobs=jobs)
    never, wrong = never_taken(counts), outdated(counts)
    for name, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        if not is_short or (0 < count <= RARE):
            tell(f"{count:10} {name}")
    for name in never:
        tell(f"     never {name}")
    for name in wrong:
        tell(f"  outdated {name}: mend sim/unreachable.py")
    taken = sum(count > 0 for count in counts.values())
    tell(
        f"seeds={seeds[1] + 1 - seeds[0]} faults={faults} branches={len(counts)} taken={taken} never={len(never)} "
        f"out_of_reach={len(UNREACHABLE)} outdated={len(wrong)}"
    )
    return 1 if never or wrong else 0


def _count(arguments: Sequence[str]) -> dict[str, int]:
    """In a process of its own: every `step`th seed."""
    faults, first, last, step = arguments[0], *map(int, arguments[1:])
    branches = Branches(MODULES)
    branches.install()
    from sim.world import Plan, run_seed

    for seed in range(first, last + 1, step):
        run_seed(Plan(seed, faults))
    return branches.counts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_count(sys.argv[1:])))
