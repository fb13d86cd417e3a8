"""What a case is, and what all of them are made with: a broker over the store asked for, and metered stretches of work."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import meter, processes
from bench.processes import Target
from bench.results import CaseResult, Fact, Work
from runtime.clock import SystemClock

DISK: Final = "disk+sqlite"
MEMORY: Final = "memory"

_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Plan:
    """`scale` multiplies the work of a repetition, `folder` is where disk stores go."""

    scale: float
    repeats: int
    folder: Path

    def scaled(self, count: int) -> int:
        return max(1, int(count * self.scale))


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    stores: tuple[str, ...]
    run: Callable[[Plan, str], CaseResult]


@contextlib.contextmanager
def fresh_folder(plan: Plan, store: str) -> Iterator[Path | None]:
    """Where a broker over `store` keeps its data; None over memory."""
    if store == MEMORY:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=plan.folder) as folder:
        yield Path(folder).resolve()


@contextlib.contextmanager
def fresh_broker(plan: Plan, store: str, settings: Mapping[str, Fact]) -> Iterator[Target]:
    with fresh_folder(plan, store) as folder, processes.broker(folder, {key: str(value) for key, value in settings.items()}) as target:
        yield target


def metered(target: Target, work: Callable[[], None], *, records: int, value_bytes: int = 0, requests: int = 0) -> Work:
    """Do the work and say what the target spent meanwhile."""
    before, began_s = meter.used(target.pid), _clock.monotonic_s()
    work()
    seconds = _clock.monotonic_s() - began_s
    spent = meter.used(target.pid) - before
    return Work(records, value_bytes, requests, seconds, spent.user_s, spent.system_s, spent.loop_s)


def answered(after: Mapping[str, float], before: Mapping[str, float], api: str) -> int:
    """Requests of an API between two readings of the broker's counters. Raise ValueError if one of them was refused."""
    prefix = f"forebay_kafka_requests_total{{api={api},error="
    growth = {series: count - before.get(series, 0.0) for series, count in after.items() if series.startswith(prefix)}
    refused = {series: count for series, count in growth.items() if count and not series.endswith("=NONE}")}
    if refused:
        raise ValueError(f"refused requests: {refused}")
    return int(sum(growth.values()))


def grown(after: Mapping[str, float], before: Mapping[str, float], series: str) -> float:
    return after.get(series, 0.0) - before.get(series, 0.0)
