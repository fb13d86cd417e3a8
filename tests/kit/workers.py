"""Which tests go to which worker of a parallel run (`make test`), and in which order.

Every worker has servers of its own, so that tests of two workers meet nowhere. The next worker that is free takes the next test; the tests
of a file that makes a fixture for all of them stay together, since each worker would make that fixture again.
"""

import os
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT: Final = Path(__file__).parents[2]
WORKERS_PER_PROCESSOR: Final = 2
"""Half of the tests' time is waiting: for a lease to end, a process to start, an outage to be noticed."""
WORKERS_MAX: Final = 8
"""More of them only collect: each reads all the tests before it runs its share."""
ON_PORTS_OF_THE_DEFAULT: Final = frozenset({"test_demo.py", "test_demo_brokers.py"})
"""`forebay demo` takes 9092 or the next that is free: of two at once, one would find the other's broker where its own was killed."""
LONGEST_FIRST: Final = ("chaos", "integration", "compat", "simulation", "model", "contract", "property", "unit", "architecture")
"""Folders in the order in which they begin: tests that wait, then tests that compute, and small ones when workers run out of work."""


class Scheduling(LoadScopeScheduling):
    """What xdist calls a scope is what one worker runs: here a test, or a file whose tests stay together.

    (Its own `xdist_group` does nothing under pytest 9.2, which no longer lets a plugin rename a test.)
    """

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        config.option.loadscopereorder = False  # tests come in order
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if Path(path).name in ON_PORTS_OF_THE_DEFAULT:
            return "ports of the default"
        return path if shares_a_fixture(path) else nodeid


def count(processors: int) -> int:
    return min(WORKERS_PER_PROCESSOR * processors, WORKERS_MAX)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    return sorted(items, key=_turn)


@cache
def shares_a_fixture(path: str) -> bool:
    """Whether the tests of this file, as pytest names it, stay together."""
    return 'scope="module"' in (ROOT / path).read_text(encoding="utf-8")


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else 0
