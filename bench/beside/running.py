"""All loads on all targets, in turns: a warm-up of each target, then the rounds. What was measured before a failure is kept."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.beside import measuring
from bench.beside.loads import BesideLoad, LoadKind
from bench.beside.measuring import LoadFailed
from bench.beside.report import RATES, UNITS, FailureReport, LoadReport, RunReport, figures, load_report, number
from bench.beside.targets import OpenTarget, opened
from bench.beside.turns import turns
from bench.meter import WrongProcess
from bench.processes import NotReady
from bench.stores import KAFKA
from services.build import BuildError
from services.process import ServerError

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
            measuring.warm(load, target, plan.scale)
        for round_index in range(plan.repeats):
            for name in (KAFKA, *turns(plan.targets, round_index)):
                under_way.target = name
                run = measuring.measure(load, targets[name], plan.scale, round_index)
                measured.add(load, name, run)
                _say(f"{load.name} {round_index + 1}/{plan.repeats} {name}: {_in_short(load, run)}")


def _in_short(load: BesideLoad, run: RunReport) -> str:
    found = figures(load.kind, run)
    names = ("p50_ms", "p99_ms") if load.kind is LoadKind.LATENCY else (RATES[load.kind],)
    return ", ".join(f"{number(found[name])} {UNITS[name]}" for name in names)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
