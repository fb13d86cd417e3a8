"""How tests share a machine: tests/kit."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from xdist.remote import WorkerInteractor

from tests.kit.alone import Room
from tests.kit.serving import ROOT
from tests.kit.workers import (
    ALONE,
    NICENESS,
    ROW,
    SOON_S,
    WORKERS_MAX,
    computes,
    count,
    is_alone,
    next_of,
    say_less,
    shares_a_fixture,
)

A_MOMENT_S = 0.2
WITHIN_S = 30.0


def test_every_folder_of_tests_has_its_turn() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}

    assert sorted(ROW) == sorted(folders)


def test_there_are_more_workers_than_processors_within_a_bound() -> None:
    assert [count(processors, of_small_tests=False) for processors in (1, 2, 64)] == [3, 6, WORKERS_MAX]
    assert [count(processors, of_small_tests=True) for processors in (1, 2, 64)] == [2, 4, WORKERS_MAX]


def test_workers_take_from_both_ends_of_the_row_and_what_is_alone_when_all_else_gives_way() -> None:
    row = dict.fromkeys(["waits", "small", "computes", ALONE, "tests/model/m.py::t", "tests/simulation/s.py::t"])
    taken = []
    for worker, may_be_alone in enumerate([True, False, True, False, True, True]):
        taken.append(next_of(row, computes=computes(worker), may_be_alone=may_be_alone))
        del row[taken[-1]]

    assert taken == ["waits", "computes", "small", "tests/model/m.py::t", ALONE, "tests/simulation/s.py::t"]
    assert next_of({ALONE: None}, computes=False, may_be_alone=False) == ALONE


def test_the_priority_is_lowered_once() -> None:
    said = "import os; from tests.kit.workers import lower_priority as lower; lower(); lower(); print(os.nice(0))"
    before = os.nice(0)

    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, check=True, cwd=ROOT, text=True, timeout=WITHIN_S)

    assert int(ended.stdout) == max(before, NICENESS)


class Sending:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def sendevent(self, name: str, **of: Any) -> None:
        self.sent.append((name, of["data"]["when"] + " " + of["data"]["outcome"] if "data" in of else ""))


def test_a_worker_passes_over_what_a_run_does_not_print() -> None:
    worker = Sending()
    say_less(cast("WorkerInteractor", worker))
    worker.sendevent("logstart", nodeid="t")
    for when in ("setup", "call", "teardown"):
        for outcome, duration in (("passed", SOON_S / 2), ("passed", SOON_S), ("failed", 0.0), ("skipped", 0.0)):
            worker.sendevent("testreport", data={"when": when, "outcome": outcome, "duration": duration})
    worker.sendevent("logfinish", nodeid="t")
    worker.sendevent("runtest_protocol_complete", item_index=1)

    of_setup, of_call = (["passed", "failed", "skipped"], ["passed", "passed", "failed", "skipped"])
    said = [f"{when} {one}" for when, outcomes in (("setup", of_setup), ("call", of_call), ("teardown", of_setup)) for one in outcomes]
    assert worker.sent == [*(("testreport", one) for one in said), ("runtest_protocol_complete", "")]


def test_a_worker_of_this_run_passes_them_over(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    sending = [plugin.sendevent for plugin in plugins if hasattr(plugin, "sendevent")]

    assert len(sending) == hasattr(request.config, "workerinput")
    assert all(send.__qualname__.startswith(say_less.__name__) for send in sending)


def test_a_test_that_is_marked_alone_is_known_by_its_name(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert is_alone(item.nodeid) == (item.get_closest_marker("alone") is not None), item.nodeid

    assert is_alone("tests/chaos/test_silent_shard.py::test_what_lives_on_other_shards_does_not_notice_a_silent_one[produce]")
    assert not is_alone(
        "tests/chaos/test_outage_memory.py::test_memory_stays_within_its_bound_in_an_outage_and_traffic_goes_on_after_it[s3]"
    )


def test_tests_share_the_room_and_one_that_is_alone_waits_until_the_others_have_left(tmp_path: Path) -> None:
    said: list[str] = []

    def lone() -> None:
        with Room(tmp_path).entered(alone=True):
            said.append("alone")

    thread = threading.Thread(target=lone, daemon=True)
    with Room(tmp_path).entered(alone=False), Room(tmp_path).entered(alone=False):
        thread.start()
        thread.join(A_MOMENT_S)
        said.append("together")
    thread.join(WITHIN_S)

    assert said == ["together", "alone"]


def test_tests_that_share_a_fixture_stay_on_one_worker() -> None:
    together = {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if shares_a_fixture(str(path.relative_to(ROOT)))
    }

    assert "tests/integration/test_cli_group.py" in together
    assert "tests/integration/test_groups.py" not in together
