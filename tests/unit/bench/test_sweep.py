"""The sweep of loads, but for its processes."""

import itertools

from bench.sweep.report import LEAST_MB_PER_S, MOST_MB_PER_S, STEP, SweepCurve, SweepPoint, jumps, loads_mb_per_s, table


def points(*p50_ms: float) -> list[SweepPoint]:
    return [SweepPoint(mb_per_s=float(n), reached_mb_per_s=float(n), p50_ms=p50, p99_ms=2 * p50) for n, p50 in enumerate(p50_ms, 1)]


def test_each_load_is_half_as_large_again_as_the_one_before_up_to_the_largest() -> None:
    loads = list(loads_mb_per_s())

    assert loads[0] == LEAST_MB_PER_S
    assert loads[-1] <= MOST_MB_PER_S < loads[-1] * STEP
    assert all(abs(after / before - STEP) < 0.02 for before, after in itertools.pairwise(loads))


def test_a_latency_that_more_than_doubles_from_load_to_load_is_a_step() -> None:
    assert jumps(points(1.0, 1.9, 4.0, 3.0, 100.0), "p50_ms") == [3.0, 5.0]
    assert jumps(points(1.0, 2.0, 4.0), "p99_ms") == []
    assert jumps([], "p50_ms") == []


def test_the_table_has_a_line_for_each_point_of_each_curve() -> None:
    curves = [SweepCurve(target="files", partitions=1, points=points(1.0, 2.0)), SweepCurve(target="s3", partitions=12, points=points(3.0))]

    lines = table(curves).splitlines()

    assert len(lines) == 4
    assert lines[1].startswith("files, 1 partition ")
    assert lines[3].startswith("S3, 12 partitions")
