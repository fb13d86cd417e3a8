"""Answers of `forebay cost …`: bills of running processes over HTTP, the report that a Prometheus keeps, and both as tables and as data.

Processes that registered an address are asked, and those that are named.
"""

import http.client
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from forebay.commands.generate.rules import BROKERS
from forebay.kafka_client.failures import EXIT_UNREACHABLE, ClientFailed
from forebay.kafka_client.text import align
from process.cost.estimate import CostItem, Estimated, ExpectedLoad
from process.cost.prices import GIB, MONTH_S, PriceTable, StorePrices
from process.settings.model import Settings
from process.settings.notation import HttpAddress, is_memory, parse_address

ASKED_AT_A_TIME: Final = 16
SELDOM_PER_S: Final = 0.5
"""Fewer objects are said by the minute."""
ANSWER_BYTES_MAX: Final = 4 * 2**20
PATH: Final = "/api/v1/cost"
STORAGE_STEP_S: Final = 300
"""Between the values whose mean storage costs; in a short time there are ten."""


class Bill(NamedTuple):
    """The facts of a process, or why there are none."""

    address: HttpAddress
    facts: Mapping[str, object] | None
    cause: str = ""


async def registered(settings: Settings) -> Sequence[HttpAddress]:
    """Where the live processes of a cluster can be asked. Brokers that register no address are at http.listen, or have to be named.

    Raises as `open_for_reading` does.
    """
    from forebay.opening import open_for_reading
    from storage.catalog.brokers import HTTP_LISTENER, decode_broker, live_compactors
    from storage.metadata import keys

    found = [settings.http.listen]
    if not is_memory(settings.metadata.url):
        async with open_for_reading(settings) as stores:
            found += [parse_address(one.http) for one in await live_compactors(stores.metadata) if one.http]
            brokers = [decode_broker(record) async for record in stores.metadata.range_scan(*keys.brokers())]
            endpoints = [one.endpoint(HTTP_LISTENER) for one in brokers]
            found += [HttpAddress(one.host, one.port) for one in endpoints if one is not None]
    return list(dict.fromkeys(found))


def ask_processes(addresses: Iterable[HttpAddress], *, within_s: float) -> Sequence[Bill]:
    """In the order given. Every one is asked once, a few at a time; a process that is asked at two addresses counts once."""
    with ThreadPoolExecutor(max_workers=ASKED_AT_A_TIME) as pool:
        bills = list(pool.map(lambda address: _ask(address, within_s), addresses))
    runs: set[object] = set()
    kept = []
    for bill in bills:
        run = None if bill.facts is None else bill.facts.get("run")
        if run is None or run not in runs:
            kept.append(bill)
        runs.add(run)
    return kept


def _ask(address: HttpAddress, within_s: float) -> Bill:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=within_s)
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
        if answer.status != http.client.OK:
            return Bill(address, None, f"answers {PATH} with {answer.status}, as an older release does, or another program")
        return Bill(address, msgspec.json.decode(body, type=dict[str, object]))
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
        return Bill(address, None, "what listens there is not the HTTP side of Forebay")
    except OSError as error:
        return Bill(address, None, (error.strerror or str(error) or "no answer").lower())
    finally:
        connection.close()


class _Result(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Found(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Result]


class _Answer(msgspec.Struct):
    status: str
    data: _Found | None = None
    error: str = ""


_decoder: Final = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class CostReport:
    """Dollars and counts of `since_s`. `storage_dollars` is None where no compactor has said what is stored."""

    since_s: float
    dollars_by_cause: Mapping[str, float]
    requests: Mapping[str, float]
    bytes_in: float
    bytes_out: float
    storage_dollars: float | None

    @property
    def request_dollars(self) -> float:
        return sum(self.dollars_by_cause.values())

    @property
    def dollars(self) -> float:
        return self.request_dollars + (self.storage_dollars or 0.0)


def ask_prometheus(url: str, *, since_s: float, cluster: str | None, within_s: float) -> CostReport:
    """The report of the time up to now. `cluster`: of the series with this label alone. Raise `ClientFailed` if it cannot be had."""
    of = "" if cluster is None else f'cluster="{cluster}"'
    window = f"[{since_s:.0f}s]"

    def ask(query: str, label: str = "") -> dict[str, float]:
        return {one.metric.get(label, ""): float(one.value[1]) for one in _ask_prometheus(url, query, within_s).result}

    def moved(direction: str) -> float:
        labels = ",".join(part for part in (of, f'direction="{direction}"') if part)
        return ask(f"sum(increase(forebay_topic_bytes_total{{{labels}}}{window}))").get("", 0.0)

    causes = ask(f"sum by (cause) (increase(forebay_cost_dollars_total{{{of}}}{window}))", "cause")
    if not causes:
        raise ClientFailed(
            f"{url} has no series forebay_cost_dollars_total of the last {since_s:.0f} s. Scrape brokers and compactors (job {BROKERS}: "
            "forebay generate prometheus), or name a --cluster that it has.",
            exit_code=EXIT_UNREACHABLE,
        )
    step_s = max(1, min(STORAGE_STEP_S, int(since_s) // 10))
    stored = ask(f"avg_over_time(max(forebay_cost_storage_dollars_per_month{{{of}}})[{since_s:.0f}s:{step_s}s])").get("")
    return CostReport(
        since_s=since_s,
        dollars_by_cause=dict(sorted(causes.items(), key=lambda item: -item[1])),
        requests=ask(f"sum by (request) (increase(forebay_s3_requests_total{{{of}}}{window}))", "request"),
        bytes_in=moved("in"),
        bytes_out=moved("out"),
        storage_dollars=None if stored is None else stored * since_s / MONTH_S,
    )


def report_data(report: CostReport) -> Mapping[str, object]:
    """All figures, unrounded."""
    gib = report.bytes_in / GIB
    return {
        "since_s": report.since_s,
        "dollars": report.dollars,
        "request_dollars": report.request_dollars,
        "storage_dollars": report.storage_dollars,
        "dollars_by_cause": dict(report.dollars_by_cause),
        "requests": dict(report.requests),
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
        "request_dollars_per_gib_written": report.request_dollars / gib if gib else None,
        "dollars_per_month": report.dollars * MONTH_S / report.since_s,
    }


def report_table(report: CostReport) -> str:
    """Dollars by cause, and what they make a month."""
    rows = [(cause, f"{dollars:,.4f}") for cause, dollars in report.dollars_by_cause.items()]
    if report.storage_dollars is not None:
        rows.append(("storage", f"{report.storage_dollars:,.4f}"))
    rows.append(("together", f"{report.dollars:,.4f}"))
    requests = ", ".join(f"{count:,.0f} {name}" for name, count in sorted(report.requests.items()) if round(count)) or "none"
    lines = [align(("CAUSE", "DOLLARS"), rows), "", f"requests: {requests}"]
    if gib := report.bytes_in / GIB:
        per_gib = report.request_dollars / gib
        lines.append(f"{gib:,.3f} GiB written, {report.bytes_out / GIB:,.3f} read; a GiB written costs ${per_gib:,.4f} of requests")
    lines.append(f"at this rate ${report.dollars * MONTH_S / report.since_s:,.2f} a month")
    if report.storage_dollars is None:
        lines.append("without storage: no compactor has told what is stored")
    return "\n".join(lines)


def _ask_prometheus(url: str, query: str, within_s: float) -> _Found:
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=within_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/query?{urlencode({'query': query})}")
        response = connection.getresponse()
        answer = _decoder.decode(response.read(ANSWER_BYTES_MAX))
    except (http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ClientFailed(
            f"What answers at {url} is no Prometheus. Give its address as --prometheus.", exit_code=EXIT_UNREACHABLE
        ) from error
    except OSError as error:
        cause = (error.strerror or str(error) or "no answer").lower()
        raise ClientFailed(
            f"No Prometheus answers at {url}: {cause}. Give its address as --prometheus.", exit_code=EXIT_UNREACHABLE
        ) from error
    finally:
        connection.close()
    if answer.data is None:
        raise ClientFailed(f"Prometheus at {url} refuses the query: {answer.error[:300]}", exit_code=EXIT_UNREACHABLE)
    return answer.data


def estimate_data(
    load: ExpectedLoad, found: Estimated, prices: StorePrices, table: PriceTable, budget: float | None
) -> Mapping[str, object]:
    """All figures, unrounded."""
    return {
        "load": asdict(load),
        "objects_per_s": found.objects_per_s,
        "object_bytes": found.object_bytes,
        "gib_per_month": found.gib_per_month,
        "forebay": {"items": _items(found.forebay), "dollars_per_month": total(found.forebay)},
        "kafka": {"items": _items(found.kafka), "dollars_per_month": total(found.kafka)},
        "budget_per_month": budget,
        "prices": prices_data(prices, table),
    }


def estimate_table(load: ExpectedLoad, found: Estimated, prices: StorePrices, table: PriceTable, budget: float | None) -> str:
    """Two systems, their parts, and how sure the prices are."""
    rows = [*_rows("forebay", found.forebay), *_rows("kafka, 3 zones", found.kafka)]
    lines = [align(("", "A MONTH OF", "QUANTITY", "UNIT", "DOLLARS"), rows)]
    sums = total(found.forebay)
    if budget is not None:
        lines.append(f"cost.budget_per_month is ${budget:,.2f}: {'within it' if sums <= budget else f'${sums - budget:,.2f} above it'}")
    if found.objects_per_s < SELDOM_PER_S and load.bytes_per_s:
        lines.append(f"{found.objects_per_s * 60:,.1f} objects a minute: batches are committed before their object is stored")
    elif found.objects_per_s:
        lines.append(f"{found.objects_per_s:,.1f} objects a second of {found.object_bytes / 2**20:,.2f} MiB")
    lines.append(f"a GiB written costs ${sums / found.gib_per_month:,.4f} with its storage")
    return "\n".join([*lines, prices_line(prices, table)])


def now_data(sums: Mapping[str, object], processes: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """The sums, and the facts of each process."""
    return {**sums, "budget_per_month": _budget(processes), "each": list(processes)}


def now_table(sums: Mapping[str, object], processes: Sequence[Mapping[str, object]]) -> str:
    """Dollars by cause, the rate, and a GiB."""
    by_cause, requests = sums["dollars_by_cause"], sums["requests"]
    assert isinstance(by_cause, Mapping)
    assert isinstance(requests, Mapping)
    rows = [(cause, f"{dollars:,.6f}") for cause, dollars in by_cause.items()]
    lines = [align(("CAUSE", "DOLLARS"), [*rows, ("together", f"{sums['dollars']:,.6f}")]), ""]
    lines.append(f"requests: {', '.join(f'{count:,} {request}' for request, count in sorted(requests.items())) or 'none'}")
    for name, key in (("written", "dollars_per_gib_written"), ("read", "dollars_per_gib_read")):
        if (dollars := sums[key]) is not None:
            lines.append(f"a GiB {name} costs ${dollars:,.4f} of requests")
    lines.append(
        f"at the rate of the last ten minutes: ${sums['dollars_per_hour']:,.4f} an hour, ${sums['dollars_per_day']:,.2f} a day, "
        f"${sums['dollars_per_month']:,.2f} a month, without storage"
    )
    stored_bytes = sums["stored_bytes"]
    assert isinstance(stored_bytes, int)
    if stored_bytes:
        lines.append(f"storage: {stored_bytes / GIB:,.3f} GiB, ${sums['storage_dollars_per_month']:,.2f} a month, as a compactor listed it")
    if (budget := _budget(processes)) is not None:
        lines.append(f"cost.budget_per_month is ${budget:,.2f}")
    first = processes[0]
    trust = "" if first.get("prices_verified") else ", not verified where the provider publishes them"
    lines.append(f"{sums['processes']} processes; prices: {first.get('store')} {first.get('region')}, {first.get('prices_date')}{trust}")
    return "\n".join(lines)


def _budget(processes: Sequence[Mapping[str, object]]) -> float | None:
    """All processes of a cluster should have the same: the least is the one to keep to."""
    found = [one["budget_per_month"] for one in processes if isinstance(one.get("budget_per_month"), int | float)]
    return min((float(str(one)) for one in found), default=None)


def prices_data(prices: StorePrices, table: PriceTable) -> Mapping[str, object]:
    return {"store": prices.name, "region": prices.region, "date": table.date, "source": prices.source, "verified": prices.verified}


def prices_line(prices: StorePrices, table: PriceTable) -> str:
    """Whose prices these are, and how far to trust them."""
    where = f"{prices.name} {prices.region}".strip()
    trust = "" if prices.verified else ", not verified where the provider publishes them"
    return f"prices: {where}, {table.date}{trust}" + (f" ({prices.source})" if prices.source else "")


def total(items: Sequence[CostItem]) -> float:
    return sum(item.dollars for item in items)


def _items(items: Sequence[CostItem]) -> list[Mapping[str, object]]:
    return [item._asdict() for item in items]


def _rows(system: str, items: Sequence[CostItem]) -> list[tuple[str, ...]]:
    rows = [(item.name, f"{item.quantity:,.0f}", item.unit, f"{item.dollars:,.2f}") for item in items]
    rows.append(("together", "", "", f"{total(items):,.2f}"))
    return [(system if n == 0 else "", *row) for n, row in enumerate(rows)]
