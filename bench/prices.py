"""What a broker asked of the object store, and what S3 takes for it."""

from collections.abc import Mapping

from forebay.commands.demo.store_use import DOLLARS_PER_REQUEST, REQUESTS


def requests(counters: Mapping[str, float]) -> dict[str, float]:
    """The requests by operation that the counters of a broker or a compactor have; failed ones, too, since they are billed."""
    return {
        op: sum(count for series, count in counters.items() if series.startswith(f"{REQUESTS}{{op={op},")) for op in DOLLARS_PER_REQUEST
    }


def dollars(requested: Mapping[str, float]) -> float:
    """At list prices, by operation."""
    return sum(DOLLARS_PER_REQUEST[op] * count for op, count in requested.items())
