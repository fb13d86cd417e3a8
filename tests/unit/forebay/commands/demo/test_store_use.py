from typing import get_args

import pytest

from forebay.commands.demo.run import PRICES, PRICES_OF, SHOWN_AS, StoreUse, store_use
from storage.objects.requests import RequestKind


def requests(request: str, cause: str, answer: str, value: float) -> dict[str, object]:
    labels = {"request": request, "cause": cause, "key": "wal", "attempt": "first", "answer": answer}
    return {"name": "forebay_s3_requests_total", "labels": labels, "value": value}


def moved(direction: str, cause: str, value: float) -> dict[str, object]:
    return {"name": "forebay_s3_bytes_total", "labels": {"direction": direction, "cause": cause}, "value": value}


def test_billed_requests_are_counted_by_kind_and_records_apart_from_probes() -> None:
    series = [
        requests("put", "flush", "2xx", 58.0),
        requests("put", "probe", "2xx", 2.0),
        requests("put", "start", "4xx", 1.0),
        requests("put", "flush", "5xx", 9.0),
        requests("ranged_get", "fetch", "2xx", 12.0),
        moved("in", "flush", 1024.0),
        moved("in", "probe", 7.0),
        moved("out", "fetch", 7.0),
        {"name": "forebay_ready", "labels": {}, "value": 1.0},
    ]

    use = store_use(series)

    assert use == StoreUse({"put": 61, "list": 0, "get": 12, "head": 0, "delete": 0}, objects_written=58, bytes_written=1024)


def test_a_million_puts_cost_five_dollars_and_a_million_gets_forty_cents() -> None:
    assert StoreUse({"put": 1_000_000}, 0, 0).dollars() == pytest.approx(5.0)
    assert StoreUse({"get": 1_000_000, "delete": 5_000_000}, 0, 0).dollars() == pytest.approx(0.4)
    assert PRICES_OF == "November 2026"


@pytest.mark.parametrize("kind", get_args(RequestKind))
def test_every_kind_of_request_is_shown_as_one_of_its_price(kind: str) -> None:
    assert PRICES.of_request(SHOWN_AS[kind]) == PRICES.of_request(kind)


def test_a_run_that_wrote_nothing_says_nothing_about_a_gib() -> None:
    assert StoreUse({"put": 3}, 0, 0).dollars_per_gib(beside={}) == 0
