"""Where reads of the object store ended: a reader that goes on from there skips what comes before it in its entry."""

from collections import OrderedDict
from typing import Final, NamedTuple

from storage.vocabulary import PartitionId

PLACES_KEPT_MAX: Final = 16_384
"""Over all partitions; one takes 400 bytes of memory."""


class ReadPlace(NamedTuple):
    """`position`, in the object, is in the span of that number of the entry that begins at `entry_base`."""

    entry_base: int
    span: int
    position: int


class ReadPlaces:
    """By the offset that comes next. The one that was noted longest ago is forgotten first."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[PartitionId, int], ReadPlace] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, partition: PartitionId, offset: int) -> ReadPlace | None:
        return self._places.get((partition, offset))

    def add(self, partition: PartitionId, offset: int, place: ReadPlace) -> None:
        self._places[partition, offset] = place
        self._places.move_to_end((partition, offset))
        while len(self._places) > PLACES_KEPT_MAX:
            self._places.popitem(last=False)

    def drop(self, partition: PartitionId, offset: int) -> None:
        self._places.pop((partition, offset), None)
