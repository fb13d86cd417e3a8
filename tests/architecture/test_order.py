"""How tests share a machine: tests/kit."""

import threading
from pathlib import Path

from tests.integration.serving import ROOT
from tests.kit.alone import Room
from tests.kit.workers import LONGEST_FIRST, WORKERS_MAX, count, shares_a_fixture

A_MOMENT_S = 0.2
WITHIN_S = 30.0


def test_every_folder_of_tests_has_its_turn() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}

    assert sorted(LONGEST_FIRST) == sorted(folders)


def test_there_are_more_workers_than_processors_within_a_bound() -> None:
    assert [count(1), count(2), count(64)] == [2, 4, WORKERS_MAX]


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
