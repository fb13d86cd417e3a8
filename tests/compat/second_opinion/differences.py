"""Where two brokers' answers to one probe are not the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """`probe` is `API VERSION: title`; `where` the path in the answer, list positions as `*`."""

    probe: str
    where: str
    kafka: Any
    forebay: Any

    @property
    def api(self) -> str:
        return self.probe.partition(" ")[0]

    @property
    def version(self) -> int:
        return int(self.probe.partition(":")[0].rpartition(" ")[2])

    @property
    def title(self) -> str:
        return self.probe.partition(": ")[2]


def differences(kafka: Mapping[str, Any], forebay: Mapping[str, Any]) -> Iterator[Difference]:
    """Both by probe, in the order in which Forebay was asked, which answers that were kept in a file do not have any more.

    A probe only one was asked is an AssertionError: the two played different scripts.
    """
    assert kafka.keys() == forebay.keys(), sorted(kafka.keys() ^ forebay.keys())
    for probe in forebay:
        for where, one, other in dict.fromkeys(
            (where, repr(one), repr(other)) for where, one, other in _unequal("", kafka[probe], forebay[probe])
        ):
            yield Difference(probe, where, one, other)


def _unequal(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _unequal(f"{path}.{key}" if path else key, one.get(key), other.get(key))
    elif _is_list(one) and _is_list(other) and len(one) == len(other):
        for left, right in zip(one, other, strict=True):
            yield from _unequal(f"{path}.*", left, right)
    elif one != other and not (other == "text" and one is None):
        # More words than Apache Kafka has are no difference.
        yield path, one, other


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
