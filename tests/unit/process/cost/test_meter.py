import asyncio
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from process.cost.meter import CostMeter, sum_up
from process.settings.errors import SettingsError
from process.settings.model import Settings
from runtime.telemetry import Telemetry
from storage.objects.requests import ATTEMPT, RequestMeter, caused_by
from tests.unit.process.http.manual_clock import ManualClock

GIB = 2**30


class Metered:
    def __init__(self, **cost: object) -> None:
        self.telemetry = Telemetry(run="01RUN")
        self.clock = ManualClock()
        self.requests = RequestMeter(self.telemetry)
        settings = Settings(storage={"url": "memory://"}, metadata={"url": "memory://"}, cost=cost)
        self.meter = CostMeter(self.telemetry, settings, clock=self.clock)

    def value(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(name, labels)


def test_dollars_are_requests_times_prices_by_request_and_cause() -> None:
    it = Metered()

    with caused_by("flush"):
        it.requests.count("put", "wal/1", "2xx", times=3_000)
    with caused_by("collection"):
        it.requests.count("list", "", "2xx", times=1_000)
        it.requests.count("delete", "", "2xx", times=1_000)

    assert it.value("forebay_cost_dollars_total", request="put", cause="flush") == pytest.approx(0.015)
    assert it.value("forebay_cost_dollars_total", request="list", cause="collection") == pytest.approx(0.005)
    assert it.value("forebay_cost_dollars_total", request="delete", cause="collection") == 0
    assert b'forebay_cost_dollars_total{cause="flush",request="put"} 0.015' in generate_latest(it.telemetry.registry)


def test_what_a_provider_does_not_charge_for_costs_nothing() -> None:
    it = Metered()

    for answer in ("2xx", "4xx", "4xx_free", "5xx", "none"):
        it.requests.count("put", "wal/1", answer, times=1_000)  # type: ignore[arg-type]

    assert it.value("forebay_cost_dollars_total", request="put", cause="check") == pytest.approx(0.010)


def test_a_repetition_costs_as_much_as_a_first_request() -> None:
    it = Metered()
    it.requests.count("put", "wal/1", "2xx", times=1_000)
    token = ATTEMPT.set("retry")
    it.requests.count("put", "wal/1", "2xx", times=1_000)
    ATTEMPT.reset(token)

    assert it.value("forebay_cost_dollars_total", request="put", cause="check") == pytest.approx(0.010)


def test_bytes_cost_where_a_store_charges_for_them() -> None:
    it = Metered(store="s3-express")

    with caused_by("flush"):
        it.requests.stored(2 * GIB)
    with caused_by("fetch"):
        it.requests.read(GIB)

    assert it.value("forebay_cost_dollars_total", request="upload", cause="flush") == pytest.approx(0.0064)
    assert it.value("forebay_cost_dollars_total", request="retrieval", cause="fetch") == pytest.approx(0.0006)


def test_prices_and_budget_are_metrics() -> None:
    it = Metered(budget_per_month=250)

    assert it.value("forebay_cost_price_dollars", item="put_per_1000") == 0.005
    assert it.value("forebay_cost_price_dollars", item="storage_per_gib_month") == 0.023
    assert it.value("forebay_cost_budget_dollars") == 250
    assert b"forebay_cost_budget_dollars 0" not in generate_latest(Metered().telemetry.registry)


def test_the_rate_is_that_of_the_last_ten_minutes() -> None:
    it = Metered()
    it.requests.count("put", "wal/1", "2xx", times=1_000_000)
    for _ in range(61):
        it.clock.advance(10)
        it.meter.sample()
    for _ in range(60):
        it.requests.count("put", "wal/1", "2xx", times=1_000)
        it.clock.advance(10)
        it.meter.sample()

    facts = it.meter.facts()

    assert facts["dollars_per_hour"] == pytest.approx(60 * 0.005 * 6)
    assert facts["dollars"] == pytest.approx(5.3)
    assert facts["run"] == "01RUN"


async def test_the_meter_samples_until_it_is_cancelled() -> None:
    it = Metered()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(it.meter.run())
        await asyncio.sleep(0)
        running.cancel()


def test_processes_are_summed_up_as_one_cluster() -> None:
    broker, compactor = Metered(), Metered()
    with caused_by("flush"):
        broker.requests.count("put", "wal/1", "2xx", times=256)
        broker.requests.stored(2 * GIB)
    with caused_by("fetch"):
        broker.requests.count("ranged_get", "wal/1", "2xx", times=1_000)
        broker.requests.read(4 * GIB)
    with caused_by("compaction"):
        compactor.requests.count("ranged_get", "wal/1", "2xx", times=1_000)
        compactor.requests.read(2 * GIB)

    found = sum_up([broker.meter.facts(), compactor.meter.facts()])

    assert found["processes"] == 2
    assert found["requests"] == {"put": 256, "ranged_get": 2_000}
    assert found["dollars_by_cause"] == {
        "flush": pytest.approx(0.00128),
        "fetch": pytest.approx(0.0004),
        "compaction": pytest.approx(0.0004),
    }
    assert found["dollars_per_gib_written"] == pytest.approx((0.00128 + 0.0004) / 2)
    assert found["dollars_per_gib_read"] == pytest.approx(0.0001)


def test_nothing_written_has_no_price_per_gib_and_garbage_of_another_release_counts_nothing() -> None:
    found = sum_up([Metered().meter.facts(), {}, {"requests": "none", "dollars": "much", "dollars_by_cause": 3}])

    assert (found["dollars"], found["dollars_per_gib_written"], found["dollars_per_gib_read"]) == (0.0, None, None)


def test_prices_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Metered(prices_file=str(tmp_path / "absent.yaml"))


def test_what_is_stored_costs_by_the_month_once_it_is_known_and_counts_once_for_all_compactors() -> None:
    telemetry, stored_bytes = Telemetry(), [None, 100 * GIB]
    settings = Settings(storage={"url": "memory://"}, metadata={"url": "memory://"})
    meter = CostMeter(telemetry, settings, clock=ManualClock(), stored_bytes=lambda: stored_bytes[0])
    assert telemetry.registry.get_sample_value("forebay_cost_storage_dollars_per_month") is None
    assert meter.facts()["storage_dollars_per_month"] is None
    stored_bytes.pop(0)

    assert telemetry.registry.get_sample_value("forebay_cost_storage_dollars_per_month") == pytest.approx(2.30)
    sums = sum_up([meter.facts(), meter.facts(), Metered().meter.facts()])
    assert (sums["stored_bytes"], sums["storage_dollars_per_month"]) == (100 * GIB, pytest.approx(2.30))
