"""What a run did to the object store, from the broker's own metrics, and what the same requests would cost on S3."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from process.settings.sections import StorageSettings

REQUESTS: Final = "forebay_object_store_requests_total"
BYTES: Final = "forebay_object_store_bytes_total"

_GIB: Final = 1024**3
PRICES_OF: Final = "November 2026"
DOLLARS_PER_REQUEST: Final = {"put": 0.005 / 1000, "list": 0.005 / 1000, "get": 0.0004 / 1000, "stat": 0.0004 / 1000, "delete": 0.0}
"""S3 Standard, us-east-1, list prices. Storage and transfer are extra; a stat is a HEAD, billed as a GET."""
FULL_OBJECTS_DOLLARS_PER_GIB: Final = DOLLARS_PER_REQUEST["put"] * _GIB / StorageSettings().flush_bytes
"""The PUTs of a GiB in objects that are as large as they get. README has what was measured: a few more."""


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Requests by operation, failed ones included: they are billed, too. `objects_written` counts those that succeeded."""

    requests: Mapping[str, int]
    objects_written: int
    bytes_written: int

    def dollars(self) -> float:
        return sum(DOLLARS_PER_REQUEST[op] * count for op, count in self.requests.items())

    def dollars_per_gib(self, *, beside: Mapping[str, int]) -> float:
        """What a GiB costs that is written like this, with the requests `beside` those of the brokers; 0 if nothing was written."""
        dollars = self.dollars() + sum(DOLLARS_PER_REQUEST[op] * count for op, count in beside.items())
        return dollars * _GIB / self.bytes_written if self.bytes_written else 0.0


def store_use(series: Iterable[Mapping[str, Any]]) -> StoreUse:
    """From the `series` of /metrics.json, of one broker or of several one after the other."""
    requests = dict.fromkeys(DOLLARS_PER_REQUEST, 0)
    objects_written = bytes_written = 0
    for one in series:
        labels, value = one["labels"], one["value"]
        if one["name"] == REQUESTS:
            requests[labels["op"]] += int(value)
            if labels["op"] == "put" and labels["outcome"] == "ok":
                objects_written += int(value)
        elif one["name"] == BYTES and labels["op"] == "put":
            bytes_written += int(value)
    return StoreUse(requests, objects_written, bytes_written)
