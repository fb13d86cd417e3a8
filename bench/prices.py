"""What a broker asked of the object store, and what S3 takes for it."""

from collections.abc import Mapping
from typing import Final

from process.cost.prices import BUILT_IN, DEFAULT_STORE
from storage.objects.metered import REQUESTS

KINDS: Final = {"put": "put", "list": "list", "get": "ranged_get", "stat": "head", "delete": "delete"}
"""The kind of request that each call is at least one of."""


def requests(counters: Mapping[str, float]) -> dict[str, float]:
    """The calls by operation that the counters of a broker or a compactor have; failed ones, too."""
    return {op: sum(count for series, count in counters.items() if series.startswith(f"{REQUESTS.name}{{op={op},")) for op in KINDS}


def dollars(requested: Mapping[str, float]) -> float:
    """At list prices of S3 Standard, by operation."""
    return sum(BUILT_IN[DEFAULT_STORE].of_request(KINDS[op]) * count for op, count in requested.items())
