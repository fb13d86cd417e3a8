"""Sums what the object store holds from the lists that the collector makes anyway.

A list takes several cycles where there is much to list, so a figure is that of the last whole one. The collector looks at objects that are
old enough to be judged (`compactor.delete_grace`), so what was put since then is not in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runtime.clock import Clock
from runtime.telemetry import Metric, SeriesRow, Telemetry
from storage.objects.port import ObjectStat

FOOTPRINT_BYTES: Final = Metric(
    "forebay_footprint_bytes",
    "Bytes in the object store by kind (wal, segment), as the collector's last whole list of them showed: without the last minutes "
    "(compactor.delete_grace). kind=unreferenced: those of both that nothing referred to then",
    ("kind",),
    aggregation="max",
)
FOOTPRINT_OBJECTS: Final = Metric(
    "forebay_footprint_objects", "Objects in the object store, as forebay_footprint_bytes counts them", ("kind",), aggregation="max"
)
FOOTPRINT_AGE: Final = Metric(
    "forebay_footprint_age_seconds", "Time since the older of the lists that forebay_footprint_bytes rests on", aggregation="max"
)


@dataclass(slots=True)
class StoredObjects:
    """Objects and their bytes, and those of them that nothing refers to."""

    objects: int = 0
    size_bytes: int = 0
    unreferenced_objects: int = 0
    unreferenced_bytes: int = 0


class Footprint:
    """Written by the collector, one kind after the other; the thread that makes the page reads."""

    def __init__(self, telemetry: Telemetry, *, clock: Clock) -> None:
        self._clock = clock
        self._under_way: dict[str, StoredObjects] = {}
        self._whole: dict[str, tuple[StoredObjects, float]] = {}
        """By kind: what the last whole list showed, and when it began."""
        self._began_s: dict[str, float] = {}
        telemetry.table(FOOTPRINT_BYTES, lambda: self._rows(is_bytes=True))
        telemetry.table(FOOTPRINT_OBJECTS, lambda: self._rows(is_bytes=False))
        telemetry.table(FOOTPRINT_AGE, self._age)

    @property
    def size_bytes(self) -> int | None:
        """All that is stored; None until each kind was listed once."""
        whole = list(self._whole.values())
        return sum(held.size_bytes for held, _ in whole) if len(whole) > 1 else None

    def begin(self, kind: str) -> None:
        """A list begins at its first object."""
        self._under_way[kind], self._began_s[kind] = StoredObjects(), self._clock.monotonic_s()

    def add(self, kind: str, listed: Sequence[ObjectStat]) -> None:
        """A part of the list."""
        if (held := self._under_way.get(kind)) is not None:
            held.objects += len(listed)
            held.size_bytes += sum(stat.size_bytes for stat in listed)

    def add_unreferenced(self, kind: str, sizes: Sequence[int]) -> None:
        """Objects of the part that was added last to which nothing seems to refer, by their sizes."""
        if (held := self._under_way.get(kind)) is not None:
            held.unreferenced_objects += len(sizes)
            held.unreferenced_bytes += sum(sizes)

    def end(self, kind: str) -> None:
        """The list is whole, if it was begun here."""
        if (held := self._under_way.pop(kind, None)) is not None:
            self._whole[kind] = held, self._began_s[kind]

    def _rows(self, *, is_bytes: bool) -> Iterator[SeriesRow]:
        whole = {kind: held for kind, (held, _) in list(self._whole.items())}
        for kind, held in whole.items():
            yield (kind,), held.size_bytes if is_bytes else held.objects
        if whole:
            yield ("unreferenced",), sum(held.unreferenced_bytes if is_bytes else held.unreferenced_objects for held in whole.values())

    def _age(self) -> Iterator[SeriesRow]:
        began_s = [began_s for _, began_s in list(self._whole.values())]
        if began_s:
            yield (), round(self._clock.monotonic_s() - min(began_s), 3)
