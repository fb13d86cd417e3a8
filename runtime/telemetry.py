"""Metrics: one private registry per process part, handed to whoever counts.

A module declares its metrics as constants of `Metric` and binds them once, at construction; the bound child is what a hot path holds.
Counted per request, batch or flush, never per record.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# Else each counter and histogram has a second series, of when it was made, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name (with its unit), what it says, and its labels. docs/operations.md lists all of them; a test compares."""

    name: str
    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = SECONDS_BUCKETS


class Telemetry:
    """Creates each metric once and hands out the same object to everyone who declares it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, metric: Metric) -> Counter:
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = Counter(metric.name, metric.documentation, metric.labels, registry=self.registry)
        assert isinstance(made, Counter), f"declared twice with different kinds: {metric.name}"
        return made

    def gauge(self, metric: Metric) -> Gauge:
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = Gauge(metric.name, metric.documentation, metric.labels, registry=self.registry)
        assert isinstance(made, Gauge), f"declared twice with different kinds: {metric.name}"
        return made

    def histogram(self, metric: Metric) -> Histogram:
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = Histogram(
                metric.name, metric.documentation, metric.labels, registry=self.registry, buckets=metric.buckets
            )
        assert isinstance(made, Histogram), f"declared twice with different kinds: {metric.name}"
        return made
