"""Many seeds, on several processes: they share nothing, and a seed takes the same turns wherever it runs."""

import multiprocessing
from collections.abc import Iterator, Sequence

from sim.worlds import Run, RunOutcome, simulate


def run_all(runs: Sequence[Run], *, jobs: int) -> Iterator[RunOutcome]:
    """Their outcomes, in the order of `runs`."""
    if jobs == 1 or len(runs) < 2:
        yield from map(simulate, runs)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(simulate, runs, chunksize=max(1, min(20, len(runs) // (4 * jobs))))
