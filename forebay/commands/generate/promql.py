"""PromQL expressions over the table of metrics: a name, a label or a kind that the table does not have is an error where it is written.

A gauge is aggregated as its metric says (sum or max), a counter and a histogram by the sum of their rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from runtime.telemetry import Aggregation, Metric

TARGET_LABELS: Final = frozenset({"cluster", "job", "instance"})
"""Labels that a Prometheus adds: the scrape configuration gives `cluster`, if there are several."""
CLIENT_METRICS: Final[tuple[Metric, ...]] = (
    Metric("process_cpu_seconds_total", "CPU time of the process"),
    Metric("process_resident_memory_bytes", "Resident memory of the process", aggregation="sum"),
    Metric("process_open_fds", "Open files of the process", aggregation="sum"),
    Metric("process_max_fds", "Files that the process may open", aggregation="sum"),
    Metric("python_gc_collections_total", "Garbage collections", ("generation",)),
)
"""Metrics of the Prometheus client that dashboards show; every process has them."""

MetricKind = Literal["counter", "gauge", "histogram"]


def kind_of(metric: Metric) -> MetricKind:
    """Tell it by the aggregation, which gauges alone have, and by the ending of the name, which counters alone have."""
    if metric.aggregation is not None:
        return "gauge"
    return "counter" if metric.name.endswith("_total") else "histogram"


@dataclass(frozen=True, slots=True)
class Expressions:
    """Makes expressions. `everywhere` is written into each selector, and `window` is the time that a rate looks back.

    A value in `where` matches as a regular expression behind `~`, and other values match behind `!`. Raise ValueError for what is not in
    the table.
    """

    table: Mapping[str, Metric]
    everywhere: tuple[str, ...] = ()
    window: str = "5m"

    def selector(self, name: str, **where: str) -> str:
        """The series of a counter or a gauge as they are scraped."""
        metric = self._metric(name)
        if kind_of(metric) == "histogram":
            raise ValueError(f"{name} is a histogram: ask for a quantile, or for how often it was observed")
        return self._selector(metric, name, where)

    def now(self, name: str, *by: str, **where: str) -> str:
        """A gauge of all processes together."""
        metric = self._metric(name, "gauge", by)
        return _aggregated(metric.aggregation or "sum", by, self._selector(metric, name, where))

    def rate(self, name: str, *by: str, window: str = "", **where: str) -> str:
        """A counter's increase per second."""
        metric = self._metric(name, "counter", by)
        return _aggregated("sum", by, f"rate({self._selector(metric, name, where)}[{window or self.window}])")

    def increase(self, name: str, *by: str, window: str, **where: str) -> str:
        """A counter's increase."""
        metric = self._metric(name, "counter", by)
        return _aggregated("sum", by, f"increase({self._selector(metric, name, where)}[{window}])")

    def growth(self, name: str, *by: str, window: str, **where: str) -> str:
        """Return an expression of a gauge's growth per second, from all its values in the window."""
        metric = self._metric(name, "gauge", by)
        return _aggregated(metric.aggregation or "sum", by, f"deriv({self._selector(metric, name, where)}[{window}])")

    def observed(self, name: str, *by: str, **where: str) -> str:
        """How often per second a histogram was observed."""
        metric = self._metric(name, "histogram", by)
        return _aggregated("sum", by, f"rate({self._selector(metric, f'{name}_count', where)}[{self.window}])")

    def quantile(self, quantile: float, name: str, *by: str, **where: str) -> str:
        """A quantile of what a histogram observed, of all processes together unless `by` has `instance`."""
        metric = self._metric(name, "histogram", by)
        rates = f"rate({self._selector(metric, f'{name}_bucket', where)}[{self.window}])"
        return f"histogram_quantile({quantile}, {_aggregated('sum', ('le', *by), rates)})"

    def _metric(self, name: str, kind: MetricKind | None = None, by: tuple[str, ...] = ()) -> Metric:
        metric = self.table.get(name)
        if metric is None:
            raise ValueError(f"there is no metric {name}")
        if kind not in (None, kind_of(metric)):
            raise ValueError(f"{name} is a {kind_of(metric)}, no {kind}")
        _check_labels(metric, by)
        return metric

    def _selector(self, metric: Metric, name: str, where: Mapping[str, str]) -> str:
        _check_labels(metric, tuple(where))
        matchers = ",".join((*self.everywhere, *(f"{label}{_matcher(value)}" for label, value in where.items())))
        return f"{name}{{{matchers}}}" if matchers else name


def _check_labels(metric: Metric, labels: tuple[str, ...]) -> None:
    for label in labels:
        if label not in TARGET_LABELS and label not in metric.labels:
            raise ValueError(f"{metric.name} has no label {label}")


def _matcher(value: str) -> str:
    operator = {"~": "=~", "!": "!="}.get(value[:1], "=")
    return f'{operator}"{value if operator == "=" else value[1:]}"'


def _aggregated(how: Aggregation, by: tuple[str, ...], what: str) -> str:
    return f"{how} by ({', '.join(by)}) ({what})" if by else f"{how}({what})"
