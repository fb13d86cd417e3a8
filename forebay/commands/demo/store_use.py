"""What a run asked of the object store, from the brokers' own meters, and what the same requests would cost on S3."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from process.cost.meter import WRITING
from process.cost.prices import BUILT_IN, DEFAULT_STORE, GIB, TABLE_DATE
from process.settings.sections import StorageSettings
from storage.objects.requests import S3_BYTES, S3_REQUESTS

PRICES: Final = BUILT_IN[DEFAULT_STORE]
"""Storage and transfer are extra."""
PRICES_OF: Final = f"{date.fromisoformat(TABLE_DATE):%B %Y}"
SHOWN_AS: Final = {
    **dict.fromkeys(("put", "upload_begin", "upload_part", "upload_finish"), "put"),
    **dict.fromkeys(("get", "ranged_get"), "get"),
    "list": "list",
    "head": "head",
    **dict.fromkeys(("delete", "abort"), "delete"),
}
"""Kinds of requests as people know them, and as they are priced."""
FULL_OBJECTS_DOLLARS_PER_GIB: Final = PRICES.of_request("put") * GIB / StorageSettings().flush_bytes
"""The PUTs of a GiB in objects that are as large as they get. README has what was measured: a few more."""


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Billed requests by kind. `objects_written` and `bytes_written` are those of records, without probes and markers."""

    requests: Mapping[str, int]
    objects_written: int
    bytes_written: int

    def dollars(self) -> float:
        return sum(PRICES.of_request(kind) * count for kind, count in self.requests.items())

    def dollars_per_gib(self, *, beside: Mapping[str, int]) -> float:
        """What a GiB costs that is written like this, with the requests `beside` those of the brokers; 0 if nothing was written."""
        dollars = self.dollars() + sum(PRICES.of_request(kind) * count for kind, count in beside.items())
        return dollars * GIB / self.bytes_written if self.bytes_written else 0.0


def store_use(series: Iterable[Mapping[str, Any]]) -> StoreUse:
    """From the `series` of /metrics.json, of one broker or of several one after the other."""
    requests = dict.fromkeys(("put", "list", "get", "head", "delete"), 0)
    objects_written = bytes_written = 0
    for one in series:
        labels, value = one["labels"], one["value"]
        if one["name"] == S3_REQUESTS.name and labels["answer"] in PRICES.billed:
            requests[SHOWN_AS[labels["request"]]] += int(value)
            is_whole = labels["request"] in ("put", "upload_finish") and labels["answer"] == "2xx"
            objects_written += int(value) if is_whole and labels["cause"] in WRITING else 0
        elif one["name"] == S3_BYTES.name and labels["direction"] == "in" and labels["cause"] in WRITING:
            bytes_written += int(value)
    return StoreUse(requests, objects_written, bytes_written)
