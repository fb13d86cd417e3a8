"""Tests that start processes and failed among others run once more, alone and one after the other, at the end of `make test`.

A process that starts late on a busy machine throws away no run, and hides nothing: a test that passes now is printed as `flaky: NAME`, with
its first failure. A test that fails again stays failed, with both reports. All other tests never run again: they wait for nobody.

Each test runs in a pytest of its own (`-n0`), which writes its reports to a file. Nothing runs again when a run was stopped before its end
(`-x`, Ctrl-C, workers that crash and crash), or when so many tests failed that something is wrong.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import SystemClock
from tests.kit.workers import starts_processes

TESTS_MAX: Final = 25
"""When more of them failed, none runs again: it is no matter of a late process."""
OUTPUT_MAX: Final = 8_000
"""Characters from the end of what a pytest said that gave no verdict."""
_PHASES: Final = {"setup", "call", "teardown"}


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--once-more",
        type=float,
        metavar="SECONDS",
        help="run tests that start processes and failed once more, alone; SECONDS is what all of them together may take",
    )
    parser.addoption("--reports-to", type=Path, metavar="FILE", help="where a test that runs once more writes its reports, one JSON a line")


def register(config: pytest.Config) -> None:
    """In the process that prints the results, and in the one that runs a test once more."""
    if hasattr(config, "workerinput"):
        return
    if config.option.once_more is not None:
        config.pluginmanager.register(OnceMore(config, config.option.once_more))
    if config.option.reports_to is not None:
        config.pluginmanager.register(_ReportsTo(config, config.option.reports_to))


class OnceMore:
    """A plugin of the process that prints the results. `within_s` bounds all second runs of a session together."""

    def __init__(self, config: pytest.Config, within_s: float) -> None:
        self._config = config
        self._within_s = within_s
        self._environ = dict(os.environ)  # before a session changes it
        self._heard_of: set[str] = set()
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._flaky: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._heard_of.add(report.nodeid)
        if report.failed and starts_processes(report.nodeid):
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        finished = yield  # raises if the run was stopped
        failed, terminal = dict(self._failed), self._config.pluginmanager.getplugin("terminalreporter")
        if not failed or terminal is None:
            return finished
        terminal.ensure_newline()
        if len(self._heard_of) < session.testscollected:
            terminal.write_line(f"{session.testscollected - len(self._heard_of)} tests did not run: none runs once more")
        elif len(failed) > TESTS_MAX:
            terminal.write_line(f"{len(failed)} tests that start processes failed, more than {TESTS_MAX}: none runs once more")
        else:
            self._run(session, failed, terminal)
        return finished

    def _run(self, session: pytest.Session, failed: dict[str, list[pytest.TestReport]], terminal: Any) -> None:
        clock = SystemClock()
        give_up_s = clock.monotonic_s() + self._within_s
        for number, (nodeid, first) in enumerate(failed.items()):
            terminal.ensure_newline()
            terminal.write(f"once more, alone: {nodeid} ", flush=True)
            folder = self._config._tmp_path_factory.getbasetemp() / f"once-more-{number}"
            folder.mkdir()
            code, said = self._run_alone(nodeid, folder, max(0.0, give_up_s - clock.monotonic_s()))
            second = list(_reports_in(self._config, folder))
            if code == 0 and {report.when for report in second} == _PHASES and all(report.passed for report in second):
                self._flaky[nodeid] = first
                _forget(terminal, nodeid)
                session.testsfailed -= len(first)
                for report in second:
                    self._config.hook.pytest_runtest_logreport(report=report)
            else:
                again = [report for report in second if report.failed]
                text = "\n".join(_text_of(report) for report in again) or f"no verdict: {said}"
                first[-1].sections.append((f"{nodeid}, run once more, alone", text))
                terminal.write("failed again" if again else "no verdict")
        terminal.ensure_newline()

    def _run_alone(self, nodeid: str, folder: Path, within_s: float) -> tuple[int | None, str]:
        """Its exit code, None if it had to be killed; how it ended, and the end of what it said. What it started ends with it."""
        config, output = self._config, folder / "output"
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", f"--rootdir={config.rootpath}"]
        command += [f"--basetemp={folder / 'tmp'}", f"--reports-to={folder / 'reports'}", f"--against={config.option.against}"]
        if config.inipath is not None:
            command += ["-c", str(config.inipath)]
        if config.option.timeout is not None:
            command.append(f"--timeout={config.option.timeout}")
        with (
            output.open("wb") as file,
            subprocess.Popen(
                [*command, nodeid],
                cwd=config.rootpath,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            ) as child,
        ):
            code = None
            try:
                code = child.wait(within_s)
                ended = f"it ended with {code}"
            except subprocess.TimeoutExpired:
                ended = f"it did not end within {within_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        return code, f"{ended}\n{output.read_text(encoding='utf-8', errors='replace')[-OUTPUT_MAX:]}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own: these are the last lines before its closing one
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, None, None]:
        yield
        if self._flaky:
            terminalreporter.write_sep("=", "failed among others, passed alone")
        for nodeid, reports in self._flaky.items():
            terminalreporter.write_sep("_", nodeid)
            for report in reports:
                terminalreporter.write_line(_text_of(report))
        for nodeid in self._flaky:
            terminalreporter.write_line(f"flaky: {nodeid}", yellow=True)


class _ReportsTo:
    """Writes each report to a file as soon as it is there."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config = config
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


def _reports_in(config: pytest.Config, folder: Path) -> Iterator[pytest.TestReport]:
    file = folder / "reports"
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else ():
        if line.endswith("\n"):  # else it was killed while it wrote
            yield config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))


def _text_of(report: pytest.TestReport) -> str:
    sections = [f"--- {name} ---\n{content}" for name, content in report.sections]
    return "\n".join([f"{report.when} of {report.nodeid}", report.longreprtext, *sections])


def _forget(terminal: Any, nodeid: str) -> None:
    """All reports of this test: what is counted is its second run."""
    for category, reports in [*terminal.stats.items()]:
        kept = [report for report in reports if not (isinstance(report, pytest.TestReport) and report.nodeid == nodeid)]
        if kept:
            terminal.stats[category] = kept
        else:
            del terminal.stats[category]
