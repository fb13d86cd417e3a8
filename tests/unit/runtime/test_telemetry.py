import os

import pytest
from prometheus_client import generate_latest

from runtime.telemetry import SERIES_MAX, Children, Metric, Telemetry, run_token


def test_counters_and_histograms_say_nothing_of_when_they_were_made() -> None:
    telemetry = Telemetry()
    telemetry.counter(Metric("things_total", "Things", ("kind",))).labels("a").inc()
    telemetry.histogram(Metric("seconds", "Seconds")).observe(1)
    names = {sample.name for family in telemetry.registry.collect() for sample in family.samples} - {"forebay_metrics_series"}

    assert names == {"things_total", "seconds_bucket", "seconds_count", "seconds_sum"}


def test_a_metric_that_is_declared_twice_is_one_and_of_one_kind() -> None:
    telemetry = Telemetry()
    metric = Metric("things_total", "Things", aggregation="sum")

    assert telemetry.counter(metric) is telemetry.counter(metric)
    with pytest.raises(AssertionError, match="things_total"):
        telemetry.gauge(metric)


def test_a_gauge_says_whether_processes_are_summed_or_the_greatest_counts() -> None:
    with pytest.raises(AssertionError, match="things"):
        Telemetry().gauge(Metric("things", "Things"))


def test_a_child_that_is_made_at_its_first_use_is_a_series_from_then_on() -> None:
    telemetry = Telemetry()
    counter = telemetry.counter(Metric("things_total", "Things", ("kind",)))
    children = Children(counter.labels)
    before = telemetry.registry.get_sample_value("forebay_metrics_series")

    children["a"].inc()
    children["a"].inc()

    assert telemetry.registry.get_sample_value("things_total", {"kind": "a"}) == 2
    assert (before, telemetry.registry.get_sample_value("forebay_metrics_series")) == (1, 2)


def test_a_table_is_asked_for_its_rows_when_the_page_is_made_and_has_no_family_without_any() -> None:
    telemetry = Telemetry()
    rows: list[tuple[tuple[str, ...], float]] = []
    telemetry.table(Metric("held", "Held", ("kind",), aggregation="sum"), lambda: rows)
    telemetry.table(Metric("things_total", "Things", ("kind",)), lambda: rows)
    assert b"held" not in generate_latest(telemetry.registry)

    rows.append((("a",), 3.0))
    page = generate_latest(telemetry.registry)

    assert b'# TYPE held gauge\nheld{kind="a"} 3.0\n' in page
    assert b'# TYPE things_total counter\nthings_total{kind="a"} 3.0\n' in page


def test_a_page_ends_after_so_many_series_and_says_how_many_there_would_be() -> None:
    telemetry = Telemetry()
    for name in ("first", "second"):
        metric = Metric(name, "Much", ("number",), aggregation="sum")
        telemetry.table(metric, lambda: [((str(number),), 1.0) for number in range(SERIES_MAX - 10)])
    lines = [line for line in generate_latest(telemetry.registry).decode().splitlines() if not line.startswith("#")]

    assert len(lines) == SERIES_MAX
    assert sum(line.startswith("second") for line in lines) == 9
    assert lines[-1] == f"forebay_metrics_series {float(2 * (SERIES_MAX - 10) + 1)}"


def test_a_metric_that_has_no_series_yet_is_on_the_page_with_its_type() -> None:
    telemetry = Telemetry()
    telemetry.counter(Metric("things_total", "Things", ("kind",)))

    assert b"# TYPE things_total counter\n" in generate_latest(telemetry.registry)


def test_a_renamed_metric_is_on_the_page_under_its_former_name_too() -> None:
    telemetry = Telemetry()
    telemetry.counter(Metric("new_total", "New", ("kind",), former_name="old_total")).labels("a").inc()
    telemetry.gauge(Metric("entries", "Entries", aggregation="sum", former_name="kept")).set(7)
    telemetry.histogram(Metric("blocked_seconds", "Blocked", buckets=(1.0,), former_name="held_seconds")).observe(3)
    telemetry.table(Metric("rows_total", "Rows", former_name="lines_total"), lambda: [((), 5.0)])
    page = generate_latest(telemetry.registry).decode()

    assert {'new_total{kind="a"} 1.0', 'old_total{kind="a"} 1.0', "entries 7.0", "kept 7.0", "rows_total 5.0", "lines_total 5.0"} <= {
        *page.splitlines()
    }
    assert "held_seconds_count 1.0" in page
    assert "# TYPE old_total counter\n" in page
    assert "# HELP kept Former name of entries\n" in page
    assert "# TYPE held_seconds histogram\n" in page


def test_a_process_has_one_random_token_and_a_fork_has_another() -> None:
    ours = run_token()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, run_token().encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert run_token() == ours
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == len(ours) == 12
    assert theirs != ours
