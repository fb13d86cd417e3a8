import pytest

from runtime.telemetry import Metric, Telemetry


def test_counters_and_histograms_say_nothing_of_when_they_were_made() -> None:
    telemetry = Telemetry()
    telemetry.counter(Metric("things_total", "Things", ("kind",))).labels("a").inc()
    telemetry.histogram(Metric("seconds", "Seconds")).observe(1)
    names = {sample.name for family in telemetry.registry.collect() for sample in family.samples}

    assert names == {"things_total", "seconds_bucket", "seconds_count", "seconds_sum"}


def test_a_metric_that_is_declared_twice_is_one_and_of_one_kind() -> None:
    telemetry = Telemetry()
    metric = Metric("things_total", "Things")

    assert telemetry.counter(metric) is telemetry.counter(metric)
    with pytest.raises(AssertionError, match="things_total"):
        telemetry.gauge(metric)
