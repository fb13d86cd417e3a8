"""The results of a run: JSON for machines, a table for people, and the machine and programs it ran on. The schema is in bench/README.md."""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from process.cost.prices import BUILT_IN, DEFAULT_STORE
from storage.objects.metered import REQUESTS

SCHEMA: Final = 1

Fact = int | float | str | bool
KINDS: Final = {"put": "put", "list": "list", "get": "ranged_get", "stat": "head", "delete": "delete"}
"""The kind of request that each call is at least one of."""
_ROOT: Final = Path(__file__).resolve().parent.parent
_DISTRIBUTIONS: Final = ("uvloop", "msgspec", "crc32c", "prometheus-client", "kio")


KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Work:
    """What one metered stretch did. `requests`: of the API the case is about, as the broker (or the raw client) counted them."""

    records: int
    value_bytes: int
    requests: int
    seconds: float
    user_s: float
    system_s: float
    loop_s: float

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition. `null`: the same work given to the null broker right before; None where it cannot do it."""

    broker: Work
    null: Work | None
    peak_rss_bytes: int
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaseResult:
    name: str
    store: str
    what: str
    settings: Mapping[str, Fact]
    runs: Sequence[Run]
    goals: Mapping[str, float] = field(default_factory=dict)
    """The most a figure of the summary, or a fact, should be. Shown beside it; nothing fails by it."""
    least: Mapping[str, float] = field(default_factory=dict)
    """As `goals`, the least it should be."""

    def summary(self) -> dict[str, dict[str, float] | None]:
        """Median, least and greatest of each figure over the runs; None where it has no meaning."""
        return {
            "cpu_s_per_gib": self._of(lambda run: _ratio(run.broker.cpu_s, run.broker.value_bytes / GIB)),
            "cpu_s_per_1000_requests": self._of(lambda run: _ratio(run.broker.cpu_s * 1_000, run.broker.requests)),
            "cpu_us_per_record": self._of(lambda run: _ratio(run.broker.cpu_s * 1e6, run.broker.records)),
            "system_share": self._of(lambda run: _ratio(run.broker.system_s, run.broker.cpu_s)),
            "loop_share": self._of(lambda run: _ratio(run.broker.loop_s, run.broker.cpu_s)),
            "times_null_cpu": self._of(_times_null),
            "peak_rss_mib": self._of(lambda run: run.peak_rss_bytes / 2**20),
            "client_records_per_s": self._of(lambda run: _ratio(run.broker.records, run.broker.seconds)),
            "client_mb_per_s": self._of(lambda run: _ratio(run.broker.value_bytes / 1e6, run.broker.seconds)),
            "client_requests_per_s": self._of(lambda run: _ratio(run.broker.requests, run.broker.seconds)),
        }

    def facts(self) -> dict[str, dict[str, float]]:
        """The same of each fact that is a number and that every run has."""
        names = [name for name, fact in self.runs[0].facts.items() if isinstance(fact, int | float)] if self.runs else []
        spreads = {name: self._of(lambda run, name=name: run.facts.get(name)) for name in names}  # type: ignore[misc]
        return {name: spread for name, spread in spreads.items() if spread is not None}

    def against_goals(self) -> dict[str, dict[str, Any]]:
        """Each goal with the figure it is about, which is met by its median."""
        figures = {**self.summary(), **self.facts()}
        bounds = [("most", name, bound) for name, bound in self.goals.items()] + [
            ("least", name, bound) for name, bound in self.least.items()
        ]
        return {
            name: {which: bound, **spread, "is_met": spread["median"] <= bound if which == "most" else spread["median"] >= bound}
            for which, name, bound in bounds
            if (spread := figures.get(name)) is not None
        }

    def _of(self, figure: Callable[[Run], Any]) -> dict[str, float] | None:
        values = [value for run in self.runs if (value := figure(run)) is not None]
        if len(values) < len(self.runs) or not values:
            return None
        return {"median": statistics.median(values), "min": min(values), "max": max(values)}

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "store": self.store,
            "what": self.what,
            "settings": dict(self.settings),
            "summary": self.summary(),
            "facts": self.facts(),
            "goals": self.against_goals(),
            "runs": [asdict(run) for run in self.runs],
        }


def write(path: Path, head: Mapping[str, Any], cases: Sequence[CaseResult]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"schema": SCHEMA, **head, "cases": [case.as_json() for case in cases]}
    path.write_text(json.dumps(body, indent=2) + "\n")


def table(cases: Sequence[CaseResult]) -> str:
    """Medians, with the least and the greatest where it is about CPU."""
    head = (
        "case",
        "store",
        "CPU s/GiB",
        "CPU s/1,000 req",
        "µs/record",
        "x null",
        "sys",
        "loop",
        "peak MiB",
        "MB/s",
        "requests/s",
    )
    return lined_up([head, *(_row(case) for case in cases)])


def goals_table(cases: Sequence[CaseResult]) -> str:
    """A line for each goal; empty if no case has one."""
    rows = [
        (case.name, case.store, name, _spread(found, 2), _bound(found), "yes" if found["is_met"] else "NO")
        for case in cases
        for name, found in case.against_goals().items()
    ]
    return lined_up([("case", "store", "figure", "measured", "goal", "met"), *rows]) if rows else ""


def lined_up(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of equally many cells below each other. The first two columns are texts, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_aligned(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _row(case: CaseResult) -> tuple[str, ...]:
    summary = case.summary()
    return (
        case.name,
        case.store,
        _spread(summary["cpu_s_per_gib"], 2),
        _spread(summary["cpu_s_per_1000_requests"], 3),
        _median(summary["cpu_us_per_record"], 2),
        _median(summary["times_null_cpu"], 1),
        _median(summary["system_share"], 2),
        _median(summary["loop_share"], 2),
        _median(summary["peak_rss_mib"], 0),
        _median(summary["client_mb_per_s"], 0),
        _median(summary["client_requests_per_s"], 0),
    )


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


def _median(figure: Mapping[str, float] | None, digits: int) -> str:
    return "-" if figure is None else f"{figure['median']:,.{digits}f}"


def _spread(figure: Mapping[str, float] | None, digits: int) -> str:
    if figure is None:
        return "-"
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f}-{figure['max']:.{digits}f})"


def _bound(found: Mapping[str, float]) -> str:
    return f"<= {found['most']:g}" if "most" in found else f">= {found['least']:g}"


def _ratio(amount: float, per: float) -> float | None:
    return amount / per if per else None


def _times_null(run: Run) -> float | None:
    if run.null is None or not run.null.cpu_s:
        return None
    own, null = run.broker.value_bytes or run.broker.requests, run.null.value_bytes or run.null.requests
    return (run.broker.cpu_s / own) / (run.null.cpu_s / null)


def requests(counters: Mapping[str, float]) -> dict[str, float]:
    """The calls by operation that the counters of a broker or a compactor have; failed ones, too."""
    return {op: sum(count for series, count in counters.items() if series.startswith(f"{REQUESTS.name}{{op={op},")) for op in KINDS}


def dollars(requested: Mapping[str, float]) -> float:
    """At list prices of S3 Standard, by operation."""
    return sum(BUILT_IN[DEFAULT_STORE].of_request(KINDS[op]) * count for op, count in requested.items())


def positive(text: str) -> float:
    """Raise `ArgumentTypeError` for what is not more than 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def count(text: str) -> int:
    """Raise `ArgumentTypeError` for less than 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def describe() -> dict[str, Any]:
    return {
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "has_local_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "load_average_1m": os.getloadavg()[0],
        "libraries": {
            **{name: importlib.metadata.version(name) for name in _DISTRIBUTIONS},
            "confluent-kafka": confluent_kafka.version(),
            "librdkafka": confluent_kafka.libversion()[0],
        },
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        ended = subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()
