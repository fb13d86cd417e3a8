"""Expressions are made over the table of metrics, and nothing else can be asked for."""

import pytest

from forebay.commands.generate.dashboards import Expressions
from runtime.telemetry import Metric

TABLE = {
    "held_bytes": Metric("held_bytes", "", ("kind",), aggregation="sum"),
    "late_seconds": Metric("late_seconds", "", aggregation="max"),
    "asked_total": Metric("asked_total", "", ("api", "error")),
    "took_seconds": Metric("took_seconds", "", ("stage",)),
}
E = Expressions(TABLE)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (E.now("held_bytes", "kind"), "sum by (kind) (held_bytes)"),
        (E.now("late_seconds"), "max(late_seconds)"),
        (E.rate("asked_total", "api", error="!NONE"), 'sum by (api) (rate(asked_total{error!="NONE"}[5m]))'),
        (E.rate("asked_total", window="1h", error="~A|B"), 'sum(rate(asked_total{error=~"A|B"}[1h]))'),
        (E.increase("asked_total", window="10m"), "sum(increase(asked_total[10m]))"),
        (E.observed("took_seconds", "stage"), "sum by (stage) (rate(took_seconds_count[5m]))"),
        (
            E.quantile(0.99, "took_seconds", "instance", stage="put"),
            'histogram_quantile(0.99, sum by (le, instance) (rate(took_seconds_bucket{stage="put"}[5m])))',
        ),
        (Expressions(TABLE, ('job="x"',), "9s").rate("asked_total", api="P"), 'sum(rate(asked_total{job="x",api="P"}[9s]))'),
    ],
)
def test_an_expression_aggregates_as_the_metric_says(made: str, expected: str) -> None:
    assert made == expected


def test_what_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric gone_total"):
        E.rate("gone_total")
    with pytest.raises(ValueError, match="asked_total has no label topic"):
        E.rate("asked_total", "topic")
    with pytest.raises(ValueError, match="held_bytes has no label api"):
        E.selector("held_bytes", api="P")


def test_a_metric_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="held_bytes is a gauge, no counter"):
        E.rate("held_bytes")
    with pytest.raises(ValueError, match="asked_total is a counter, no gauge"):
        E.now("asked_total")
    with pytest.raises(ValueError, match="took_seconds is a histogram"):
        E.selector("took_seconds")
