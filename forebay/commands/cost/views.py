"""What `forebay cost` shows: tables for people, and documents whose names stay."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from forebay.kafka_client.text import align
from process.cost.estimate import CostItem, Estimated, ExpectedLoad
from process.cost.prices import GIB, PriceTable, StorePrices


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
    if found.objects_per_s:
        lines.append(f"{found.objects_per_s:,.1f} objects a second of {found.object_bytes / 2**20:,.2f} MiB")
    elif load.bytes_per_s:
        lines.append("batches are small enough to travel in their commit: no object is written for them before compaction")
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
