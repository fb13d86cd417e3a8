"""Quantiles: of samples, and of what a Prometheus histogram counted between two readings."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

P50: Final = 0.5
P99: Final = 0.99


def of_samples(samples: Sequence[float], quantile: float) -> float:
    """The least sample that is not exceeded by `quantile` of them (nearest rank). There must be one."""
    assert samples, "no samples"
    return sorted(samples)[max(0, math.ceil(quantile * len(samples)) - 1)]


def of_histogram(after: Mapping[str, float], before: Mapping[str, float], name: str, labels: str, quantile: float) -> float | None:
    """As Prometheus' histogram_quantile: linear within a bucket, so no finer than the buckets are. None if nothing was observed.

    `labels` as in the series' name, sorted: "op=put".
    """
    cumulated = sorted(
        (math.inf if edge == "+Inf" else float(edge), count - before.get(series, 0.0))
        for series, count in after.items()
        if (edge := _edge(series, name, labels)) is not None
    )
    if not cumulated or not cumulated[-1][1]:
        return None
    wanted = quantile * cumulated[-1][1]
    lower_edge = lower_count = 0.0
    for upper_edge, count in cumulated:
        if count >= wanted:
            if upper_edge == math.inf:
                break
            return lower_edge + (upper_edge - lower_edge) * (wanted - lower_count) / (count - lower_count)
        lower_edge, lower_count = upper_edge, count
    return lower_edge


def mean(after: Mapping[str, float], before: Mapping[str, float], name: str, labels: str) -> float | None:
    """What a histogram's sum and count say, exactly."""
    total, count = (after.get(series, 0.0) - before.get(series, 0.0) for series in (f"{name}_sum{{{labels}}}", f"{name}_count{{{labels}}}"))
    return total / count if count else None


def _edge(series: str, name: str, labels: str) -> str | None:
    """The `le` of a bucket of the histogram with these other labels."""
    head, _, rest = series.partition("{")
    if head != f"{name}_bucket":
        return None
    pairs = rest.removesuffix("}").split(",")
    edges = [pair.removeprefix("le=") for pair in pairs if pair.startswith("le=")]
    others = ",".join(pair for pair in pairs if not pair.startswith("le="))
    return edges[0] if edges and others == labels else None
