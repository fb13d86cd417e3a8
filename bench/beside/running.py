"""All loads on all targets, in turns: a warm-up of each target, then the rounds. What was measured before a failure is kept."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import results
from bench.beside.loads import BesideLoad, LoadKind, OpenTarget, filling_words, load_words, opened, warm_up_times
from bench.beside.report import RATES, UNITS, FailureReport, LoadReport, RunReport, figures, load_report, number
from bench.meter import WrongProcess
from bench.processes import KAFKA, NotReady
from bench.readings import CONFLICTS
from bench.results import MIB
from services.build import BuildError
from services.process import ServerError

LOAD_WITHIN_S: Final = 600.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_SAID_LINES: Final = 3

_names = itertools.count()


class LoadFailed(Exception):
    """A load came to no result. `str()` is what it said."""


def warm(load: BesideLoad, target: OpenTarget, scale: float) -> None:
    """Raise `LoadFailed`."""
    with _topic(load, target, scale * warm_up_times(target.name)) as words:
        run_bench(target, words)


def measure(load: BesideLoad, target: OpenTarget, scale: float, round_index: int) -> RunReport:
    """Raise `LoadFailed`."""
    with _topic(load, target, scale) as words:
        before = target.counters() if target.is_counted else {}
        used_s = target.cpu_s()
        raw = run_bench(target, words)
        cpu_s = target.cpu_s() - used_s
        dollars = conflicts = None
        if target.is_counted:
            after = target.counters()
            conflicts = after.get(CONFLICTS, 0.0) - before.get(CONFLICTS, 0.0)
            if target.is_billed:
                asked, now = results.requests(before), results.requests(after)
                dollars = results.dollars({op: now[op] - asked[op] for op in now})
    return RunReport(
        round=round_index,
        cpu_s=round(cpu_s, 3),
        dollars=dollars,
        raw=raw,
        conflicts=conflicts,
        peak_rss_mib=round(target.peak_rss_bytes() / MIB, 1),
    )


@contextlib.contextmanager
def _topic(load: BesideLoad, target: OpenTarget, scale: float) -> Iterator[list[str]]:
    """The words of the load, with a topic to read if it reads one."""
    words = load_words(load, target.name, scale)
    if not load.reads:
        yield words
        return
    topic = f"beside-{next(_names)}"
    run_bench(target, [*filling_words(load, target.name, scale), "--topic", topic])
    yield [*words, "--topic", topic]
    _forebay(target, ["topic", "delete", topic, "--yes"])


def run_bench(target: OpenTarget, words: Sequence[str]) -> dict[str, Any]:
    """Run `forebay bench` with these words, and return what it wrote. Raise `LoadFailed`."""
    said = _forebay(target, ["bench", *words, "--json"])
    try:
        found: dict[str, Any] = json.loads(said)
    except json.JSONDecodeError as error:
        raise LoadFailed(f"no JSON: {said[:200]!r}") from error
    return found


def _forebay(target: OpenTarget, words: Sequence[str]) -> str:
    command = [sys.executable, "-m", "forebay", *words, "--quiet", "--bootstrap", target.bootstrap]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    try:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOAD_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"not done within {LOAD_WITHIN_S:g} s") from error
    if ended.returncode != 0:
        said = " ".join(ended.stderr.strip().splitlines()[-_SAID_LINES:])
        raise LoadFailed(f"`forebay {words[0]} {words[1]}` ended with {ended.returncode}: {said or 'it said nothing'}")
    return ended.stdout


def turns(others: Sequence[str], round_index: int) -> list[str]:
    """The order of those beside Kafka, which comes first in every round.

    A row of a balanced Latin square (Williams): within as many rounds as there are others, each of an even number follows each other one
    at most once. Of an odd number every second cycle goes backwards.
    """
    count = len(others)
    if not count:
        return []
    row = [others[(round_index + step) % count] for step in _zigzag(count)]
    return row[::-1] if count % 2 and round_index // count % 2 else row


def _zigzag(count: int) -> list[int]:
    """0, 1, -1, 2, -2, …: so the distances between neighbours all differ."""
    return [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]


_FAILURES: Final = (NotReady, ServerError, BuildError, WrongProcess, LoadFailed, OSError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BesidePlan:
    """`targets` are those beside Kafka, which is always there. `folder` is where stores on disk go."""

    loads: Sequence[BesideLoad]
    targets: Sequence[str]
    scale: float
    repeats: int
    folder: Path


@dataclass(slots=True)
class MeasuredRuns:
    """Grows while the loads run."""

    plan: BesidePlan
    _runs: dict[str, dict[str, list[RunReport]]] = field(default_factory=dict)

    def add(self, load: BesideLoad, target: str, run: RunReport) -> None:
        self._runs.setdefault(load.name, {}).setdefault(target, []).append(run)

    def reports(self) -> list[LoadReport]:
        """The loads of which something was measured."""
        return [load_report(load, self._runs[load.name], self.plan.scale) for load in self.plan.loads if load.name in self._runs]


@dataclass(slots=True)
class _UnderWay:
    """What is being done. `load` is None while the target starts."""

    load: BesideLoad | None = None
    target: str = KAFKA

    def ended_by(self, error: BaseException) -> FailureReport:
        said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        return FailureReport(load=self.load.name if self.load else None, target=self.target, error=said)


def run_loads(plan: BesidePlan, measured: MeasuredRuns) -> FailureReport | None:
    """Return why it ended early, if it did. Every process has ended then."""
    under_way = _UnderWay()
    with contextlib.ExitStack() as stack:
        # A failure is caught inside: a process that ends in order keeps its log to itself.
        try:
            _run_all(plan, measured, under_way, stack)
        except (*_FAILURES, KeyboardInterrupt) as error:
            return under_way.ended_by(error)
    return None


def _run_all(plan: BesidePlan, measured: MeasuredRuns, under_way: _UnderWay, stack: contextlib.ExitStack) -> None:
    targets: dict[str, OpenTarget] = {}
    for name in (KAFKA, *plan.targets):
        under_way.target = name
        _say(f"starting {name}")
        targets[name] = stack.enter_context(opened(name, plan.folder))
    for load in plan.loads:
        under_way.load = load
        for name, target in targets.items():
            under_way.target = name
            _say(f"{load.name}: warming {name}")
            warm(load, target, plan.scale)
        for round_index in range(plan.repeats):
            for name in (KAFKA, *turns(plan.targets, round_index)):
                under_way.target = name
                run = measure(load, targets[name], plan.scale, round_index)
                measured.add(load, name, run)
                _say(f"{load.name} {round_index + 1}/{plan.repeats} {name}: {_in_short(load, run)}")


def _in_short(load: BesideLoad, run: RunReport) -> str:
    found = figures(load.kind, run)
    names = ("p50_ms", "p99_ms") if load.kind is LoadKind.LATENCY else (RATES[load.kind],)
    return ", ".join(f"{number(found[name])} {UNITS[name]}" for name in names)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
