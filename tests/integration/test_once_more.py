"""`--once-more`: a test that starts processes and failed among others runs once more, alone; all others keep their verdict.

Each test plays a tree of tests with this repository's own conftest, workers and settings. Each costs up to six processes: most are `slow`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.kit.once_more import TESTS_MAX
from tests.kit.serving import ROOT
from tests.kit.workers import ROW, starts_processes

WITHIN_S: Final = 280.0
OF_THE_PRODUCT: Final = ("broker", "compactor", "forebay", "model", "process", "pyproject.toml", "runtime", "services", "sim", "storage")
OF_THE_TESTS: Final = ("conftest.py", "kit", *(f"compat/{path.name}" for path in (ROOT / "tests" / "compat").glob("[!t]*.py")))
pytestmark = pytest.mark.timeout(300)  # six processes that each import what all tests share

NEVER_AGAIN: Final = [folder for folder in ROW if not starts_processes(f"tests/{folder}/test_it.py")]

HEAD: Final = """
import os, signal, time, pytest
from tests.kit.workers import ROOT
MARKS = ROOT / "marks"
def first_time(name):
    with (MARKS / name).open("a") as file: file.write("x")
    return (MARKS / name).read_text() == "x"
"""
ONCE: Final = """
def test_once(): assert not first_time(f"once in {__file__.split('/')[-2]}"), "late the first time"
"""
ALWAYS: Final = """
def test_always():
    assert first_time("always"), "wrong the second time"
    assert False, "wrong the first time"
"""
PASSES: Final = """
@pytest.mark.parametrize("number", range(4))
def test_passes(number): first_time(f"passes {number}")
"""
AROUND: Final = """
@pytest.fixture
def late(): assert not first_time("before")
@pytest.fixture
def leaves():
    yield
    assert not first_time("behind")
def test_before(late): pass
def test_behind(leaves): pass
"""
ONE_BY_ONE: Final = """
@pytest.mark.parametrize("number", range(2))
def test_starts(number):
    if first_time(f"starts {number}"): assert False
    assert len([*MARKS.glob("passes*")]) == 4  # all others had their turn
    with (MARKS / "inside").open("x"): time.sleep(0.05)
    (MARKS / "inside").unlink()
"""
DIES_ONCE: Final = """
def test_dies_once():
    if first_time(f"dies once in {__file__.split('/')[-2]}"): os.kill(os.getpid(), signal.SIGKILL)
"""
NO_VERDICT: Final = """
def test_dies_again():
    if not first_time("dies again"): os.write(2, b"the last words"); os.kill(os.getpid(), signal.SIGKILL)
    assert False
def test_skips():
    assert not first_time("skips")
    pytest.skip("it has no wish")
"""
HANGS: Final = """
def test_hangs():
    if not first_time("hangs"): time.sleep(3_600)
    assert False
"""
MANY: Final = f"""
@pytest.mark.parametrize("number", range({TESTS_MAX + 1}))
def test_one_of_many(number): assert not first_time(f"many {{number}}")
"""


@dataclass
class Ran:
    code: int
    output: str
    runs: dict[str, int]
    """How often a test that leaves a mark ran."""

    @property
    def counts(self) -> dict[str, int]:
        """From pytest's closing line, which is the last."""
        closing = self.output.splitlines()[-1]
        assert re.fullmatch(r"=+ (\d+ \w+, )*\d+ \w+ in .* =+", closing), self.output
        return {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)(?=,| in )", closing)}

    @property
    def flaky(self) -> set[str]:
        """What the last lines before it name."""
        said = re.search(r"((?:^flaky: .*\n)*).*\Z", self.output, re.MULTILINE)
        return {name.rpartition("::")[2] for name in said[1].splitlines()} if said else set()


Play = Callable[..., Ran]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    (tmp_path / "marks").mkdir()
    (tmp_path / "tests" / "compat").mkdir(parents=True)
    for name in (*OF_THE_PRODUCT, *(f"tests/{name}" for name in OF_THE_TESTS)):
        (tmp_path / name).symlink_to(ROOT / name)

    def played(tests: dict[str, str], *options: str) -> Ran:
        for folder, bodies in tests.items():
            (tmp_path / "tests" / folder).mkdir(exist_ok=True)
            (tmp_path / "tests" / folder / "test_it.py").write_text(HEAD + bodies)
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "--once-more=240", *options],
            check=False,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
        )
        return Ran(ended.returncode, ended.stdout.rstrip(), {path.name: len(path.read_text()) for path in (tmp_path / "marks").iterdir()})

    return played


def test_make_test_and_make_test_more_ask_for_it() -> None:
    recipes = re.findall(r"^([a-z-]+):.*\n\t.* -m pytest (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert {target for target, options in recipes if "--once-more=" in options} == {"test", "test-more"}


@pytest.mark.parametrize("workers", [pytest.param("-n0", marks=pytest.mark.slow), "-n2"])
def test_those_that_passed_alone_are_printed_and_the_run_is_green(play: Play, workers: str) -> None:
    ran = play({"integration": ONCE + AROUND + PASSES, "compat": ONE_BY_ONE}, workers)

    assert (ran.code, ran.counts) == (0, {"passed": 9})
    assert ran.flaky == {"test_once", "test_before", "test_behind", *(f"test_starts[{number}]" for number in range(2))}
    assert ran.runs == {
        "once in integration": 2,
        "before": 2,
        "behind": 2,
        **{f"starts {number}": 2 for number in range(2)},
        **{f"passes {number}": 1 for number in range(4)},
    }
    assert "late the first time" in ran.output


@pytest.mark.parametrize("workers", [pytest.param("-n0", marks=pytest.mark.slow), "-n2"])
def test_one_that_fails_again_stays_red_with_both_reports_and_one_that_starts_nothing_never_runs_again(play: Play, workers: str) -> None:
    ran = play({"chaos": ALWAYS, "spark": ONCE, **dict.fromkeys(NEVER_AGAIN, ONCE)}, workers)

    assert set(NEVER_AGAIN) == {"unit", "property", "contract", "architecture", "model", "simulation"}
    assert (ran.code, ran.counts, ran.flaky) == (1, {"failed": 1 + len(NEVER_AGAIN), "passed": 1}, {"test_once"})
    assert ran.runs == {"always": 2, "once in spark": 2, **{f"once in {folder}": 1 for folder in NEVER_AGAIN}}
    assert "wrong the first time" in ran.output
    assert "wrong the second time" in ran.output


@pytest.mark.slow
def test_one_that_its_worker_dies_of_is_told_and_runs_nowhere_else_meanwhile(play: Play) -> None:
    ran = play({"integration": DIES_ONCE + PASSES, "unit": DIES_ONCE}, "-n2")

    assert (ran.code, ran.counts, ran.flaky) == (1, {"failed": 1, "passed": 5}, {"test_dies_once"})
    assert ran.runs["dies once in integration"] == 2
    assert ran.runs["dies once in unit"] == 1
    assert "FAILED tests/unit/test_it.py::test_dies_once" in ran.output


@pytest.mark.slow
def test_one_that_dies_or_is_skipped_alone_has_no_verdict_and_stays_red(play: Play) -> None:
    ran = play({"integration": NO_VERDICT}, "-n2")

    assert (ran.code, ran.counts, ran.flaky) == (1, {"failed": 2}, set())
    assert "no verdict: it ended with -9" in ran.output
    assert "the last words" in ran.output
    assert "it has no wish" in ran.output


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "told"), [("--timeout=2", "Timeout"), ("--once-more=4", "it did not end within")])
def test_one_that_hangs_alone_is_given_up(play: Play, bound: str, told: str) -> None:
    ran = play({"integration": HANGS}, "-n0", bound)

    assert (ran.code, ran.counts, ran.flaky) == (1, {"failed": 1}, set())
    assert told in ran.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bodies", "options"),
    [(ONCE + PASSES, ("-n2", "-x")), (ONCE + PASSES, ("-n0", "-x")), (MANY, ("-n2",))],
    ids=["stopped together", "stopped alone", "too many"],
)
def test_none_runs_again_when_the_run_was_stopped_or_too_many_failed(play: Play, bodies: str, options: tuple[str, ...]) -> None:
    ran = play({"integration": bodies}, *options)

    assert ran.code != 0
    assert max(ran.runs.values()) == 1
    assert ran.flaky == set()
