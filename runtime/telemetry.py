"""Metrics: one private registry per process part, handed to whoever counts.

A module declares its metrics as constants of `Metric` and binds them once: the bound child is what a hot path holds. A child that many
processes never need is bound at its first use (`Children`), so that its series exists from then on. Counted per request, batch or flush,
never per record. Values that live elsewhere are asked for when the page is made (`Telemetry.table`).
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

# Else each counter and histogram has a second series, of when it was made, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FEWER_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FEW_SECONDS_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""For something rare, where only the order of magnitude says something."""

SERIES_MAX: Final = 10_000
"""On a page. Whoever has a series for each of something that clients name has a bound of its own, so that all of them fit."""
SERIES_IN_A_STEP: Final = 250
PAUSE_S: Final = 50e-6
"""Long enough for a thread that waits for the interpreter to get it; `sleep(0)` mostly takes it back at once."""

Aggregation = Literal["sum", "max"]
SeriesRow = tuple[Sequence[str], float]
"""The values of the labels, and the value."""

K = TypeVar("K")
V = TypeVar("V")

_run_tokens: Final[dict[int, str]] = {}


def run_token() -> str:
    """A random token of this process, the same for as long as it lives: tells its series and its requests from those of any other. A fork
    has one of its own.
    """
    return _run_tokens.setdefault(os.getpid(), secrets.token_hex(6))


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name (with its unit), what it says, and its labels. docs/reference/metrics.md lists all of them; a test compares.

    `aggregation`: what several processes have of it together. A gauge says it; counters and histograms are summed.
    `former_name`: the name before the last release, under which a page shows the same series once more until the next one.
    """

    name: str
    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = SECONDS_BUCKETS
    aggregation: Aggregation | None = None
    former_name: str = ""

    def family(self, labels: Sequence[str] | None = None) -> CounterMetricFamily | GaugeMetricFamily:
        """No series yet, of a gauge if it has an aggregation, else of a counter. `labels`: others than its own."""
        kind = CounterMetricFamily if self.aggregation is None else GaugeMetricFamily
        return kind(self.name, self.documentation, labels=self.labels if labels is None else labels)


METRICS_SERIES: Final = Metric(
    "forebay_metrics_series",
    "Series of this page, this one included; the page ends after 10,000, and the others are counted alone",
    aggregation="sum",
)


def pause() -> None:
    """Let the event loop run, which waits while another thread of this process computes."""
    time.sleep(PAUSE_S)


class Children(dict[K, V]):
    """Bound children by key, each made when it is asked for first."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        made = self[key] = self._make(key)
        return made


class Registry(CollectorRegistry):
    """Also says how many series there are, ends after SERIES_MAX of them, and repeats those of a metric with a former name under it."""

    def __init__(self) -> None:
        super().__init__()
        self.renamed: dict[str, tuple[str, str]] = {}
        """By the name of a family: its name as it was declared, and the former one."""

    def _families(self) -> Iterator[Family]:
        for family in super().collect():
            yield family
            if names := self.renamed.get(family.name):
                yield _under_former_name(family, *names)

    def collect(self) -> Iterator[Family]:
        series = 1
        for family in self._families():
            room = max(0, SERIES_MAX - series)
            series += len(family.samples)
            if family.samples and not room:
                continue
            family.samples = family.samples[:room]
            # One without series, as yet, is named with its type.
            yield family
        own = METRICS_SERIES.family()
        own.add_metric((), series)
        yield own


def _under_former_name(family: Family, name: str, former: str) -> Family:
    ending = name.removeprefix(family.name)
    before = former.removesuffix(ending)
    copy = Family(before, f"Former name of {name}", family.type)
    copy.samples = [sample._replace(name=before + sample.name.removeprefix(family.name)) for sample in family.samples]
    return copy


class Telemetry:
    """Creates each metric once and hands out the same object to everyone who declares it."""

    def __init__(self, *, run: str = "") -> None:
        """`run` names this process while it lives, also to those that it asks; empty for a command."""
        self.run = run
        self.registry = Registry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, metric: Metric) -> Counter:
        made = self._made.get(metric.name)
        if made is None:
            self._note_former_name(metric, metric.name.removesuffix("_total"))
            made = self._made[metric.name] = Counter(metric.name, metric.documentation, metric.labels, registry=self.registry)
        assert isinstance(made, Counter), f"declared twice with different kinds: {metric.name}"
        return made

    def gauge(self, metric: Metric) -> Gauge:
        made = self._made.get(metric.name)
        if made is None:
            assert metric.aggregation is not None, f"a gauge without an aggregation: {metric.name}"
            self._note_former_name(metric, metric.name)
            made = self._made[metric.name] = Gauge(metric.name, metric.documentation, metric.labels, registry=self.registry)
        assert isinstance(made, Gauge), f"declared twice with different kinds: {metric.name}"
        return made

    def histogram(self, metric: Metric) -> Histogram:
        made = self._made.get(metric.name)
        if made is None:
            self._note_former_name(metric, metric.name)
            made = self._made[metric.name] = Histogram(
                metric.name, metric.documentation, metric.labels, registry=self.registry, buckets=metric.buckets
            )
        assert isinstance(made, Histogram), f"declared twice with different kinds: {metric.name}"
        return made

    def table(self, metric: Metric, rows: Callable[[], Iterable[SeriesRow]], *, labels: Sequence[str] | None = None) -> None:
        """Show the series that `rows` gives. It is asked when the page is made, by the thread that makes it: a gauge if the metric has an
        aggregation, else a counter. `labels`: others than the metric's.
        """
        assert metric.name not in self._made, f"declared twice: {metric.name}"
        self._note_former_name(metric, metric.family().name)
        self.registry.register(_Table(metric, rows, labels))

    def _note_former_name(self, metric: Metric, family_name: str) -> None:
        if metric.former_name:
            self.registry.renamed[family_name] = metric.name, metric.former_name


class _Table:
    def __init__(self, metric: Metric, rows: Callable[[], Iterable[SeriesRow]], labels: Sequence[str] | None) -> None:
        self._metric = metric
        self._rows = rows
        self._labels = labels

    def describe(self) -> list[Family]:
        """The name, for the registry, which would ask for the rows otherwise."""
        return [self._metric.family()]

    def collect(self) -> Iterator[Family]:
        family = self._metric.family(self._labels)
        for number, (labels, value) in enumerate(self._rows(), 1):
            family.add_metric(labels, value)
            if number % SERIES_IN_A_STEP == 0:
                pause()
        if family.samples:
            yield family
