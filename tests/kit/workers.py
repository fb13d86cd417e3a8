"""Which tests go to which worker of a parallel run (`make test`), and in which order.

Every worker has servers of its own, so that tests of two workers meet nowhere. The tests of a file that makes a fixture for all of them
stay together, since each worker would make that fixture again; any other test goes to the next worker that is free.

The tests lie in one row, from those that wait to those that compute, with small ones between. Most workers take from the end that waits,
one for each processor takes from the end that computes: so the processors have work at any time. Tests that only compute, in time of their
own, come at last and at a lower priority. The tests marked `alone` come when all but those are done, and nobody has to stop for them: who
computes gives way, most of the time that the processors would have nothing to do.

Of a test that passes, the controller hears two messages instead of six: the others took longer than the usual test does.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.remote import Producer, WorkerInteractor
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).parents[2]
WORKERS_PER_PROCESSOR: Final = 3
"""One computes; the tests of two wait, most of their time: for a lease to end, a process to start, an outage to be noticed."""
WORKERS_OF_SMALL_TESTS_PER_PROCESSOR: Final = 2
"""They wait a little, for milliseconds or a second."""
WORKERS_MAX: Final = 8
"""More of them only collect: each reads all the tests before it runs its share."""
ON_PORTS_OF_THE_DEFAULT: Final = frozenset({"test_demo.py", "test_demo_brokers.py"})
"""`forebay demo` takes 9092 or the next that is free: of two at once, one would find the other's broker where its own was killed."""
IN_ONE_GO: Final = ("tests/architecture/", "tests/spark/")
"""Folders whose tests one worker runs: all read the trees of the modules, which are parsed once; all share one session of Spark."""
ROW: Final = ("spark", "chaos", "integration", "compat", "contract", "unit", "architecture", "property", "model", "simulation")
"""Folders from those whose tests wait to those whose tests compute."""
GIVING_WAY: Final = ("tests/model/", "tests/simulation/")
"""Folders whose tests only compute."""
STARTING_PROCESSES: Final = ("tests/chaos/", "tests/compat/", "tests/integration/", "tests/spark/")
"""Folders whose tests start processes, which a busy machine lets begin late: tests/kit/once_more.py."""
GIVING_WAY_WITHIN_S: Final = 900.0
"""What they may take: they wait for nothing but the processors, which on a busy machine are others' for minutes."""
NICENESS: Final = 10
"""Of a worker from its first test that gives way: a tenth of the share of one that does not."""
ALONE: Final = "alone"
SOON_S: Final = 0.1
"""What lasts no longer is none of the slowest."""
_MARKED_ALONE: Final = re.compile(r"^@pytest\.mark\.alone\b.*\n(?:@.*\n)*(?:async )?def (\w+)", re.MULTILINE)


class Scheduling(LoadScopeScheduling):
    """What xdist calls a scope is what one worker runs: here a test, or a file whose tests stay together.

    (Its own `xdist_group` does nothing under pytest 9.2, which no longer lets a plugin rename a test.)
    """

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        config.option.loadscopereorder = False  # tests come in order
        super().__init__(config, log)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        # It looks through all that a worker was ever given after each test: with thousands of scopes, for seconds.
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def remove_node(self, node: WorkerController) -> str | None:
        """The test that this worker died of, which no other worker runs: xdist would, and one that died of it once would count twice."""
        workload = self.assigned_work.pop(node)
        died_of = next((nodeid for unit in workload.values() for nodeid, done in unit.items() if not done), None)
        if died_of is not None:
            for scope, unit in workload.items():
                unit.update({died_of: True} if died_of in unit else {})
                if not all(unit.values()):
                    self.workqueue[scope] = unit
            for other in self.assigned_work:
                self._reschedule(other)
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        # A worker that came for a dead one and still collects has its turn when it has told its tests.
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # Under way or about to be: a worker has some that it has not begun.
        given = (scope for work in self.assigned_work.values() for scope, done in work.items() if not all(done.values()))
        may_be_alone = all(gives_way(scope) for scope in given)
        self.workqueue.move_to_end(
            next_of(self.workqueue, computes=computes(self.nodes.index(node)), may_be_alone=may_be_alone), last=False
        )
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if is_alone(nodeid):
            return ALONE
        if path.startswith(IN_ONE_GO):
            return next(folder for folder in IN_ONE_GO if path.startswith(folder))
        if Path(path).name in ON_PORTS_OF_THE_DEFAULT:
            return "ports of the default"
        return path if shares_a_fixture(path) else nodeid


def computes(worker: int) -> bool:
    """Whether this one of the workers takes from the end that computes."""
    return worker % WORKERS_PER_PROCESSOR == 1


def next_of(row: Mapping[str, object], *, computes: bool, may_be_alone: bool) -> str:
    """The scope that a worker takes from a row that has some. `may_be_alone`: all that are under way give way.

    A worker that takes those that are alone any sooner makes all others wait at the door, with tests behind the one that waits there.
    """
    scopes = reversed(row.keys()) if computes else iter(row)
    chosen = next((scope for scope in scopes if scope != ALONE and not gives_way(scope)), None)
    if chosen is None and not (may_be_alone and ALONE in row):
        chosen = next((scope for scope in row if scope != ALONE), None)
    return chosen or ALONE


def gives_way(nodeid: str) -> bool:
    """Whether this test, or what is named like it, runs beside those that are alone, at a lower priority."""
    return nodeid.startswith(GIVING_WAY)


def starts_processes(nodeid: str) -> bool:
    """Whether this test is marked `starts_processes`: by its folder."""
    return nodeid.startswith(STARTING_PROCESSES)


def lower_priority() -> None:
    """This worker has nothing left but tests that give way."""
    os.nice(max(0, NICENESS - os.getpriority(os.PRIO_PROCESS, 0)))


def say_less(worker: WorkerInteractor) -> None:
    """This worker passes over what changes nothing of what a run prints: as xdist itself does of files whose collection passed."""
    send = worker.sendevent

    def sendevent(name: str, **of: Any) -> None:
        if name not in {"logstart", "logfinish"} and not (name == "testreport" and says_nothing(of["data"])):
            send(name, **of)

    worker.sendevent = sendevent  # type: ignore[method-assign]


def says_nothing(report: Mapping[str, Any]) -> bool:
    """Whether it is of a setup or teardown, as pytest puts it into a message, that passed and was soon over."""
    return report["when"] != "call" and report["outcome"] == "passed" and report["duration"] < SOON_S


def count(processors: int, *, of_small_tests: bool) -> int:
    per_processor = WORKERS_OF_SMALL_TESTS_PER_PROCESSOR if of_small_tests else WORKERS_PER_PROCESSOR
    return min(per_processor * processors, WORKERS_MAX)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Those that are alone at the end."""
    return sorted(items, key=lambda item: (is_alone(item.nodeid), _turn(item)))


def is_alone(nodeid: str) -> bool:
    """Whether this test is marked `alone`. (The one who distributes tests knows their names and not their marks.)"""
    path, _, name = nodeid.partition("[")[0].partition("::")
    return name in _marked_alone(path)


@cache
def _marked_alone(path: str) -> frozenset[str]:
    return frozenset(_MARKED_ALONE.findall((ROOT / path).read_text(encoding="utf-8")))


@cache
def shares_a_fixture(path: str) -> bool:
    """Whether the tests of this file, as pytest names it, stay together."""
    return 'scope="module"' in (ROOT / path).read_text(encoding="utf-8")


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    return ROW.index(folder) if folder in ROW else 0
