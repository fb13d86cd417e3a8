"""What a case is, and what all of them are made with: a broker over the store asked for, and metered stretches of work."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import meter, processes
from bench.processes import KAFKA, Place, Target, fresh
from bench.results import CaseResult, Fact, Work
from runtime.clock import SystemClock

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
def fresh_broker(plan: Plan, store: str, settings: Mapping[str, Fact]) -> Iterator[tuple[Place, Target]]:
    """A broker over empty stores."""
    if store == KAFKA:
        with processes.kafka(plan.folder) as target:
            yield Place(store, "", ""), target
        return
    with fresh(store, plan.folder) as place, processes.broker(place, as_texts(settings)) as target:
        yield place, target


def as_texts(settings: Mapping[str, Fact]) -> dict[str, str]:
    return {key: str(value) for key, value in settings.items()}


def metered(targets: Target | Sequence[Target], work: Callable[[], None], *, records: int, value_bytes: int = 0, requests: int = 0) -> Work:
    """Do the work and say what the target, or all of them together, spent meanwhile."""
    pids = [target.pid for target in ([targets] if isinstance(targets, Target) else targets)]
    before, began_s = [meter.used(pid) for pid in pids], _clock.monotonic_s()
    work()
    seconds = _clock.monotonic_s() - began_s
    spent = [meter.used(pid) - used for pid, used in zip(pids, before, strict=True)]
    return Work(
        records,
        value_bytes,
        requests,
        seconds,
        sum(used.user_s for used in spent),
        sum(used.system_s for used in spent),
        sum(used.loop_s for used in spent),
    )


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
