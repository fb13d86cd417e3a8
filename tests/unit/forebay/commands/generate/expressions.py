"""Reads PromQL as far as the generated expressions go: which series they select, by which labels, and how gauges are aggregated.

It knows nothing of the code that makes them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from runtime.telemetry import Metric

OF_TARGETS: Final = {"cluster", "job", "instance"}
_TOKENS: Final = re.compile(
    r"""(?P<space>\s+)|(?P<text>"[^"]*")|(?P<range>\[[^\]]*\])|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<sign>=~|!=|==|[-+*/<>(),{}=])"""
)
_FUNCTIONS: Final = frozenset(
    "sum max rate increase delta deriv topk histogram_quantile min_over_time clamp_min vector or".split()  # noqa: SIM905
)
_GROUPING: Final = {"by", "without"}


def faults_of(expression: str, table: Mapping[str, Metric]) -> list[str]:
    """What is wrong with it: unknown tokens, names and labels, and gauges that are not aggregated as their metrics say."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(expression):
        found = _TOKENS.match(expression, at)
        if found is None:
            return [f"cannot be read from {expression[at:]!r} on"]
        at = found.end()
        if found.lastgroup != "space":
            tokens.append((str(found.lastgroup), found.group()))
    words = [text for _, text in tokens]
    faults = [] if words.count("(") == words.count(")") else ["unequal parentheses"]
    return [*faults, *_faults(tokens, table)]


def _faults(tokens: list[tuple[str, str]], table: Mapping[str, Metric]) -> Iterator[str]:
    allowed: list[set[str]] = [set()]
    """Labels of the groupings that are open, by depth."""
    calls = [""]
    heads: dict[int, set[str]] = {}
    index, pending = 0, ""
    while index < len(tokens):
        kind, text = tokens[index]
        if text in _FUNCTIONS:
            pending = text
        elif text in _GROUPING:
            end = tokens.index(("sign", ")"), index)
            heads[len(calls)] = {word for named, word in tokens[index:end] if named == "name"} - _GROUPING
            index = end
        elif text == "(":
            allowed.append(heads.pop(len(calls), set()) | allowed[-1])
            calls.append(pending)
            pending = ""
        elif text == ")":
            allowed.pop()
            calls.pop()
        elif kind == "name":
            used, index = _matchers(tokens, index)
            yield from _faults_of_series(text, used | allowed[-1], [call for call in calls if call], table)
        index += 1


def _matchers(tokens: list[tuple[str, str]], index: int) -> tuple[set[str], int]:
    """The labels between the braces that follow, and where they end."""
    if tokens[index + 1 : index + 2] != [("sign", "{")]:
        return set(), index
    end = tokens.index(("sign", "}"), index)
    return {text for kind, text in tokens[index + 1 : end] if kind == "name"}, end


def _faults_of_series(name: str, labels: set[str], calls: list[str], table: Mapping[str, Metric]) -> Iterator[str]:
    if name == "up":
        known = OF_TARGETS
    elif name.endswith(("_bucket", "_count")) and name.rpartition("_")[0] in table:
        metric = table[name.rpartition("_")[0]]
        known = {*metric.labels, *OF_TARGETS, "le"}
        if metric.aggregation is not None or metric.name.endswith("_total"):
            yield f"{name} is no histogram"
    elif name in table:
        metric = table[name]
        known = {*metric.labels, *OF_TARGETS}
        aggregators = {call for call in calls if call in ("sum", "max")}
        if metric.aggregation is None and not metric.name.endswith("_total"):
            yield f"{name} is a histogram without _bucket"
        elif metric.aggregation is None and not {"rate", "increase", "delta"} & set(calls):
            yield f"{name} is a counter whose value is used"
        elif metric.aggregation is not None and ({"rate", "increase"} & set(calls) or aggregators - {metric.aggregation}):
            yield f"{name} is a gauge of which several make a {metric.aggregation}"
    else:
        known = labels
        yield f"{name} is not in the table"
    if strange := labels - known:
        yield f"{name} has no {', '.join(sorted(strange))}"
