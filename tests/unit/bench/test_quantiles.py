"""Quantiles of samples and of histograms."""

import pytest

from bench import readings

COUNTED = {
    "put_seconds_bucket{le=0.01,op=put}": 50.0,
    "put_seconds_bucket{le=0.02,op=put}": 90.0,
    "put_seconds_bucket{le=+Inf,op=put}": 100.0,
    "put_seconds_bucket{le=+Inf,op=get}": 7.0,
    "put_seconds_sum{op=put}": 2.0,
    "put_seconds_count{op=put}": 100.0,
}


@pytest.mark.parametrize(("quantile", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_a_quantile_of_samples_is_one_of_them(quantile: float, expected: float) -> None:
    assert readings.of_samples([4.0, 2.0, 1.0, 3.0], quantile) == expected


@pytest.mark.parametrize(("quantile", "expected_s"), [(0.25, 0.005), (0.5, 0.01), (0.7, 0.015), (0.9, 0.02)])
def test_a_quantile_of_a_histogram_is_linear_within_its_bucket(quantile: float, expected_s: float) -> None:
    assert readings.quantile_of(COUNTED, {}, "put_seconds", "op=put", quantile) == pytest.approx(expected_s)


def test_beyond_the_last_edge_a_quantile_is_that_edge() -> None:
    assert readings.quantile_of(COUNTED, {}, "put_seconds", "op=put", 0.99) == 0.02


def test_what_was_counted_before_does_not_count() -> None:
    before = {
        "put_seconds_bucket{le=0.01,op=put}": 50.0,
        "put_seconds_bucket{le=0.02,op=put}": 50.0,
        "put_seconds_bucket{le=+Inf,op=put}": 50.0,
    }

    assert readings.quantile_of(COUNTED, before, "put_seconds", "op=put", 0.5) == pytest.approx(0.01 + 0.01 * 25 / 40)


def test_a_histogram_without_observations_has_no_quantile_and_no_mean() -> None:
    assert readings.quantile_of(COUNTED, COUNTED, "put_seconds", "op=put", 0.5) is None
    assert readings.quantile_of(COUNTED, {}, "put_seconds", "op=stat", 0.5) is None
    assert readings.mean_of(COUNTED, COUNTED, "put_seconds", "op=put") is None


def test_the_mean_is_what_sum_and_count_say() -> None:
    assert readings.mean_of(COUNTED, {}, "put_seconds", "op=put") == pytest.approx(0.02)
