from typing import get_args

import pytest

from forebay.commands.demo.store_use import BYTES, REQUESTS, StoreUse, store_use
from storage.objects import metered


def request_series(op: str, outcome: str, value: float) -> dict[str, object]:
    return {"name": REQUESTS, "labels": {"op": op, "outcome": outcome}, "value": value}


def test_requests_are_counted_by_operation_failed_ones_included() -> None:
    series = [
        request_series("put", "ok", 60.0),
        request_series("put", "unavailable", 1.0),
        request_series("get", "ok", 12.0),
        {"name": BYTES, "labels": {"op": "put"}, "value": 1024.0},
        {"name": BYTES, "labels": {"op": "get"}, "value": 7.0},
        {"name": "forebay_ready", "labels": {}, "value": 1.0},
    ]

    use = store_use(series)

    assert use == StoreUse({"put": 61, "list": 0, "get": 12, "stat": 0, "delete": 0}, objects_written=60, bytes_written=1024)


def test_a_million_puts_cost_five_dollars_and_a_million_gets_forty_cents() -> None:
    assert StoreUse({"put": 1_000_000}, 0, 0).dollars() == pytest.approx(5.0)
    assert StoreUse({"get": 1_000_000, "delete": 5_000_000}, 0, 0).dollars() == pytest.approx(0.4)


def test_the_metrics_it_reads_are_those_the_store_counts() -> None:
    assert (metered.REQUESTS.name, metered.BYTES.name) == (REQUESTS, BYTES)
    assert set(get_args(metered.Op)) == set(store_use([]).requests)


def test_a_run_that_wrote_nothing_says_nothing_about_a_gib() -> None:
    assert StoreUse({"put": 3}, 0, 0).dollars_per_gib(beside={}) == 0
