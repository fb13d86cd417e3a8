"""List prices of object stores, in US dollars, and the file that changes them (docs/reference/cost.md). Nothing here asks anybody.

A file's store that has a built-in name begins with the built-in prices, and any other name begins with nothing.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from process.settings.errors import SettingsError
from process.settings.loading import Given, from_file
from process.settings.notation import FLAG
from process.settings.reference import nearest
from process.settings.sections import CostSettings
from storage.objects.s3.location import parse_s3_url

GIB: Final = 1024**3
MONTH_S: Final = 730 * 3_600
"""Twelve of these are a year."""
PRICE_MAX: Final = 1_000.0
"""Dollars; the dearest price of the table is a thousandth of it. More is a slip: cents, or a price per million."""
STORES_MAX: Final = 100
ANSWERS: Final = ("2xx", "4xx", "4xx_free", "5xx", "none")
VERSION: Final = "1"
DEFAULT_STORE: Final = "s3-standard"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_AMOUNT: Final = re.compile(r"\d{1,4}(\.\d{1,12})?([eE]-\d{1,2})?")
_TEXT_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrices:
    """What one store charges. Requests are priced by the thousand, and bytes by the GiB (2³⁰)."""

    name: str
    region: str = ""
    speaks_s3: bool = True
    put_per_1000: float
    """PUT, and each request of an upload in parts."""
    list_per_1000: float
    get_per_1000: float
    """GET and HEAD."""
    delete_per_1000: float = 0.0
    storage_per_gib_month: float
    upload_per_gib: float = 0.0
    retrieval_per_gib: float = 0.0
    internet_per_gib: float = 0.0
    """Out of the provider's network; brokers of the same region do not pay it."""
    billed: tuple[str, ...] = ("2xx", "4xx")
    """Answers that are charged for."""
    source: str = ""
    verified: bool = False
    """Read where the provider publishes it, and not in somebody's copy."""

    def of_request(self, request: str) -> float:
        """Dollars for one request that is answered."""
        return float(getattr(self, _PRICED_AS[request])) / 1_000

    def of_gib(self, direction: str) -> float:
        """Dollars for a GiB that goes `in`, or comes `out`, inside the store's region."""
        return self.upload_per_gib if direction == "in" else self.retrieval_per_gib

    def by_item(self) -> Mapping[str, float]:
        """Every price by its name in a file."""
        return {field.name: getattr(self, field.name) for field in fields(self) if "_per_" in field.name}


_PRICED_AS: Final = {
    **dict.fromkeys(("put", "upload_begin", "upload_part", "upload_finish"), "put_per_1000"),
    "list": "list_per_1000",
    **dict.fromkeys(("get", "ranged_get", "head"), "get_per_1000"),
    **dict.fromkeys(("delete", "abort"), "delete_per_1000"),
}

TABLE_DATE: Final = "2026-11-28"
BUILT_IN: Final[Mapping[str, StorePrices]] = MappingProxyType(
    {
        one.name: one
        for one in (
            StorePrices(
                name="s3-standard",
                region="us-east-1",
                put_per_1000=0.005,
                list_per_1000=0.005,
                get_per_1000=0.0004,
                storage_per_gib_month=0.023,
                internet_per_gib=0.09,
                source="several who quote aws.amazon.com/s3/pricing",
            ),
            StorePrices(
                name="s3-express",
                region="us-east-1",
                put_per_1000=0.00113,
                list_per_1000=0.00113,
                get_per_1000=0.00003,
                storage_per_gib_month=0.11,
                upload_per_gib=0.0032,
                retrieval_per_gib=0.0006,
                source="a copy of AWS's FAQ; the price of LIST is second-hand",
            ),
            StorePrices(
                name="gcs-standard",
                region="us-central1",
                put_per_1000=0.005,
                list_per_1000=0.005,
                get_per_1000=0.0004,
                storage_per_gib_month=0.020,
                internet_per_gib=0.12,
                source="second-hand, of 2026-09-20",
            ),
            StorePrices(
                name="azure-hot-lrs",
                region="West US 2",
                speaks_s3=False,
                put_per_1000=0.005,
                list_per_1000=0.005,
                get_per_1000=0.0004,
                storage_per_gib_month=0.0184,
                internet_per_gib=0.087,
                source="second-hand, of 2026-04-30",
            ),
            StorePrices(
                name="r2",
                put_per_1000=0.0045,
                list_per_1000=0.0045,
                get_per_1000=0.00036,
                storage_per_gib_month=0.0161,
                source="Cloudflare's documentation; a bill rounds requests up to whole millions",
                verified=True,
            ),
        )
    }
)
"""Prices of the store's own region, at which a DELETE costs nothing."""

_REQUIRED: Final = ("put_per_1000", "list_per_1000", "get_per_1000", "storage_per_gib_month")
_KEYS: Final = tuple(field.name for field in fields(StorePrices) if field.name != "name")


@dataclass(frozen=True, slots=True)
class PriceTable:
    """`origin` is the file, or None for the built-in table alone; `date` is when its prices held."""

    stores: Mapping[str, StorePrices]
    date: str
    origin: str | None = None


BUILT_IN_TABLE: Final = PriceTable(BUILT_IN, TABLE_DATE)


def prices_of(cost: CostSettings, *, storage_url: str) -> tuple[StorePrices, PriceTable]:
    """The prices that count for a process with these settings. Raise `SettingsError` with everything that is wrong."""
    table = BUILT_IN_TABLE if cost.prices_file is None else read_prices(Path(cost.prices_file))
    found = store_named(cost.store or store_of(storage_url), table, named="cost.store")
    if not found.speaks_s3:
        raise SettingsError(
            [f'cost.store "{found.name}": does not speak S3, so no broker can use it. It is for `forebay cost estimate` alone.']
        )
    return found, table


def store_named(name: str, table: PriceTable, *, named: str) -> StorePrices:
    """Raise `SettingsError` if the table has none of this name; `named` is where it was written."""
    found = table.stores.get(name)
    if found is None:
        near = nearest(name, list(table.stores))
        meant = f" Did you mean {near}?" if near else ""
        where = table.origin or "the built-in prices"
        raise SettingsError([f'{named} "{name}": is not in {where}, which have {", ".join(table.stores)}.{meant}'])
    return found


def store_of(storage_url: str) -> str:
    """Whose prices a store has by its URL. A disk, memory and servers of nobody's cloud have those of S3 Standard: what S3 would ask."""
    if not storage_url.startswith("s3://"):
        return DEFAULT_STORE
    location = parse_s3_url(storage_url)
    host = (location.endpoint or "").partition("://")[2].partition(":")[0]
    if host.endswith(".r2.cloudflarestorage.com"):
        return "r2"
    if host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com"):
        return "gcs-standard"
    return "s3-express" if location.bucket.endswith("--x-s3") else DEFAULT_STORE


def read_prices(path: Path) -> PriceTable:
    """The built-in prices with those of a YAML file. Raise `SettingsError` with all problems, each with file, line, key and fix."""
    layer = from_file(path, chosen="cost.prices_file")
    problems = list(layer.problems)
    top: dict[str, Given] = {}
    stores: dict[str, dict[str, Given]] = {}
    for one in layer.given:
        section, _, rest = one.key.partition(".")
        if section != "stores" or not rest:
            top[one.key] = one
            continue
        name, _, key = rest.partition(".")
        stores.setdefault(name, {})[key] = one
    problems += _wrong_top(top, str(path), has_stores=bool(stores))
    if len(stores) > STORES_MAX:
        problems.append(f"{path}: has {len(stores)} stores, more than {STORES_MAX}. Leave only those that you use.")
        stores = {}
    made: dict[str, StorePrices] = {}
    for name, given in stores.items():
        store, wrong = _store(name, given, str(path))
        problems += wrong
        if store is not None:
            made[name] = store
    if problems:
        raise SettingsError(problems)
    return PriceTable({**BUILT_IN, **made}, str(top["date"].value), str(path))


def _wrong_top(top: Mapping[str, Given], path: str, *, has_stores: bool) -> Iterator[str]:
    for key, one in top.items():
        if key == "version" and str(one.value) != VERSION:
            yield f"{one.quoted}: is a version that this Forebay does not know. Write version: {VERSION}."
        elif key == "date" and not _DATE.fullmatch(str(one.value)):
            yield f"{one.quoted}: is not a date. Write the day of the prices, for example date: {TABLE_DATE}."
        elif key == "stores":
            yield f"{one.quoted}: has no prices. Write the store's name and its prices below it."
        elif key not in ("version", "date"):
            meant = nearest(key, ("version", "date", "stores"))
            yield f"{one.named} is no key of a price file. " + (f"Did you mean {meant}?" if meant else "It has version, date and stores.")
    for key, example in (("version", VERSION), ("date", TABLE_DATE)):
        if key not in top:
            yield f"{path}: has no {key}. Write {key}: {example} on a line of its own."
    if not has_stores and "stores" not in top:
        yield f"{path}: has no stores. Write stores: and below it a name and its prices."


def _store(name: str, given: Mapping[str, Given], path: str) -> tuple[StorePrices | None, list[str]]:
    problems: list[str] = []
    first = next(iter(given.values()))
    if not _NAME.fullmatch(name):
        return None, [f"{first.named} is below a name that is none: write a-z, 0-9, - and _, at most 63 of them, for example my-store."]
    values: dict[str, Any] = {}
    for key, one in given.items():
        if key not in _KEYS:
            meant = nearest(key, _KEYS)
            hint = f"Did you mean {meant}?" if meant else f"There are {', '.join(_KEYS)}."
            problems.append(f"{one.named} is no key of a store's prices. {hint}")
            continue
        try:
            values[key] = _value(key, one.value)
        except ValueError as error:
            problems.append(f"{one.quoted}: {error}.")
    known = BUILT_IN.get(name)
    missing = [key for key in _REQUIRED if key not in given] if known is None else []
    if missing:
        problems.append(
            f"{path}: stores.{name} lacks {', '.join(missing)}. Write each with its price in dollars, 0 for what costs nothing."
        )
    if problems:
        return None, problems
    return (StorePrices(name=name, **values) if known is None else dataclasses.replace(known, **values)), []


def _value(key: str, value: object) -> Any:
    match key:
        case "speaks_s3" | "verified":
            return FLAG.parse(value)
        case "billed":
            return _answers(value)
        case "region" | "source":
            if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX or not value.isprintable():
                raise ValueError(f"must be text of one line, at most {_TEXT_CHARS_MAX} characters")
            return value
        case _:
            return _amount(value)


def _amount(value: object) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not _AMOUNT.fullmatch(text):
        raise ValueError("is not a price: write dollars as a plain number, for example 0.005")
    if float(text) > PRICE_MAX:
        raise ValueError(f"is more than ${PRICE_MAX:,.0f}: write dollars, per 1,000 requests or per GiB")
    return float(text)


def _answers(value: object) -> tuple[str, ...]:
    words: Sequence[object] = value if isinstance(value, list) else str(value).split(",")
    found = tuple(str(word).strip() for word in words)
    if not found or not set(found) <= set(ANSWERS):
        raise ValueError(f"must name answers that are charged for, of {', '.join(ANSWERS)}: for example [2xx, 4xx]")
    return found
