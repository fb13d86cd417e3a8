"""The bill of one process as it runs up: its requests, which the clients of the store count, times their prices.

A provider charges for answers, so requests without one, and those that it refuses for its own reasons, cost nothing (`StorePrices.billed`).
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, NoReturn

from process.cost.prices import GIB, MONTH_S, prices_of
from process.settings.model import Settings
from runtime.clock import Clock
from runtime.telemetry import Metric, SeriesRow, Telemetry
from storage.objects.requests import S3_BYTES, S3_REQUESTS

COST_DOLLARS: Final = Metric(
    "forebay_cost_dollars_total",
    "Dollars for the requests of this process at the prices of cost.store; request=upload and retrieval: for bytes, where they are charged "
    "for. Storage is not in it.",
    ("request", "cause"),
)
COST_PRICE: Final = Metric(
    "forebay_cost_price_dollars",
    "The prices that count: for 1,000 requests, a GiB and month of storage, and a GiB moved",
    ("item",),
    aggregation="max",
)
COST_STORAGE: Final = Metric(
    "forebay_cost_storage_dollars_per_month",
    "Dollars a month for what the store holds (forebay_footprint_bytes, wal and segment) at the price of cost.store; told by compactors",
    aggregation="max",
)
COST_BUDGET: Final = Metric("forebay_cost_budget_dollars", "cost.budget_per_month; nothing if it is not set", aggregation="max")

SAMPLE_EVERY_S: Final = 10.0
WINDOW_S: Final = 600.0
"""The rate that is projected to a month is that of the last ten minutes."""

WRITING: Final = frozenset({"flush", "early", "recommit", "read_back"})
READING: Final = frozenset({"fetch", "read_ahead", "time_search", "repair"})
_BYTE_PRICES: Final = {"in": "upload", "out": "retrieval"}


class _Moment(NamedTuple):
    at_s: float
    dollars: float


class CostMeter:
    """Shows dollars among the metrics of `telemetry`, and as facts. It counts nothing itself and sends nothing."""

    def __init__(
        self, telemetry: Telemetry, settings: Settings, *, clock: Clock, stored_bytes: Callable[[], int | None] = lambda: None
    ) -> None:
        """`stored_bytes`: what the store holds, None while that is not known. Raise `SettingsError` if the prices that the settings name
        cannot be had.
        """
        self._stored_bytes = stored_bytes
        prices, table = prices_of(settings.cost, storage_url=settings.storage.url)
        self._run = telemetry.run
        self._prices = prices
        self._table = table
        self._budget = settings.cost.budget_per_month
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._requests, self._bytes = telemetry.counter(S3_REQUESTS), telemetry.counter(S3_BYTES)
        self._history = deque([_Moment(self._began_s, 0.0)], maxlen=int(WINDOW_S / SAMPLE_EVERY_S) + 1)
        telemetry.table(COST_DOLLARS, lambda: self._dollars().items())
        price = telemetry.gauge(COST_PRICE)
        for item, dollars in prices.by_item().items():
            price.labels(item).set(dollars)
        telemetry.table(COST_STORAGE, self._storage_rows)
        if self._budget is not None:
            telemetry.gauge(COST_BUDGET).set(self._budget)

    async def run(self) -> NoReturn:
        """Sample for the rate, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self.sample()

    def sample(self) -> None:
        self._history.append(_Moment(self._clock.monotonic_s(), sum(self._dollars().values())))

    def facts(self) -> dict[str, object]:
        """What `/api/v1/cost` tells of this process."""
        dollars = self._dollars()
        by_request, by_cause = defaultdict[str, float](float), defaultdict[str, float](float)
        for (request, cause), amount in dollars.items():
            by_request[request] += amount
            by_cause[cause] += amount
        requests = [{**labels, "count": int(value)} for labels, value in _series(self._requests.collect()) if value]
        moved = {(labels["direction"], labels["cause"]): value for labels, value in _series(self._bytes.collect())}
        total = sum(dollars.values())
        return {
            "run": self._run,
            "store": self._prices.name,
            "region": self._prices.region,
            "prices_date": self._table.date,
            "prices_verified": self._prices.verified,
            "prices_source": self._prices.source,
            "uptime_s": self._clock.monotonic_s() - self._began_s,
            "requests": requests,
            "bytes_in": int(sum(value for (direction, _), value in moved.items() if direction == "in")),
            "bytes_out": int(sum(value for (direction, _), value in moved.items() if direction == "out")),
            "written_bytes": int(sum(value for (direction, cause), value in moved.items() if direction == "in" and cause in WRITING)),
            "read_bytes": int(sum(value for (direction, cause), value in moved.items() if direction == "out" and cause in READING)),
            "dollars": total,
            "dollars_by_request": dict(by_request),
            "dollars_by_cause": dict(by_cause),
            "dollars_per_hour": self._dollars_per_s(total) * 3_600,
            "budget_per_month": self._budget,
            "stored_bytes": self._stored_bytes(),
            "storage_dollars_per_month": self._storage_dollars_per_month,
        }

    @property
    def _storage_dollars_per_month(self) -> float | None:
        stored_bytes = self._stored_bytes()
        return None if stored_bytes is None else stored_bytes / GIB * self._prices.storage_per_gib_month

    def _storage_rows(self) -> Iterator[SeriesRow]:
        if (dollars := self._storage_dollars_per_month) is not None:
            yield (), dollars

    def _dollars_per_s(self, total: float) -> float:
        first = self._history[0]
        passed_s = self._clock.monotonic_s() - first.at_s
        return (total - first.dollars) / passed_s if passed_s > 0 else 0.0

    def _dollars(self) -> dict[tuple[str, ...], float]:
        """By request and cause."""
        found: dict[tuple[str, ...], float] = {}
        for labels, value in _series(self._requests.collect()):
            if labels["answer"] in self._prices.billed:
                key = labels["request"], labels["cause"]
                found[key] = found.get(key, 0.0) + value * self._prices.of_request(labels["request"])
        for labels, value in _series(self._bytes.collect()):
            if per_gib := self._prices.of_gib(labels["direction"]):
                found[_BYTE_PRICES[labels["direction"]], labels["cause"]] = value / GIB * per_gib
        return found


def sum_up(processes: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The facts of several processes as one cluster's: PURE. Dollars per GiB are those of all requests for each GiB that was written, or
    that was read.
    """
    found = list(processes)

    def total(name: str) -> float:
        return sum(_number(one.get(name)) for one in found)

    def merged(name: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for one in found:
            parts = one.get(name)
            for key, value in parts.items() if isinstance(parts, Mapping) else ():
                sums[str(key)] = sums.get(str(key), 0.0) + _number(value)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    counts = Counter[str]()
    for one in found:
        for series in _rows(one.get("requests")):
            counts[str(series["request"])] += int(_number(series["count"]))
    by_cause, per_hour = merged("dollars_by_cause"), total("dollars_per_hour")
    written_gib, read_gib = total("written_bytes") / GIB, total("read_bytes") / GIB
    of_reading = sum(dollars for cause, dollars in by_cause.items() if cause in READING)
    return {
        "processes": len(found),
        "requests": dict(counts),
        "dollars": total("dollars"),
        "dollars_by_cause": by_cause,
        "dollars_by_request": merged("dollars_by_request"),
        "written_bytes": int(total("written_bytes")),
        "read_bytes": int(total("read_bytes")),
        "dollars_per_gib_written": (total("dollars") - of_reading) / written_gib if written_gib else None,
        "dollars_per_gib_read": of_reading / read_gib if read_gib else None,
        "dollars_per_hour": per_hour,
        "dollars_per_day": per_hour * 24,
        "dollars_per_month": per_hour * MONTH_S / 3_600,
        "storage_dollars_per_month": max((_number(one.get("storage_dollars_per_month")) for one in found), default=0.0),
        "stored_bytes": max((int(_number(one.get("stored_bytes"))) for one in found), default=0),
    }


def _series(families: Iterable[object]) -> Iterator[tuple[dict[str, str], float]]:
    for family in families:
        for sample in getattr(family, "samples", ()):
            yield sample.labels, sample.value


def _rows(value: object) -> Iterator[Mapping[str, object]]:
    for row in value if isinstance(value, list) else ():
        if isinstance(row, Mapping):
            yield row


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
