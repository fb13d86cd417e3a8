"""Slices gathered for a round: what of an object could not be read fails for all that need it, and is asked for once."""

import pytest

from compactor.limits import DEFAULT_LIMITS
from compactor.slices import GETS_TOGETHER, GatheredSlices, PartitionEntries, open_spool
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.formats.manifest import Entry
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.vocabulary import ObjectId
from tests.unit.storage.log.rig import PARTITION

ONE = ObjectId("01M8ENPC0WP3R34E36D6181E6P")
READS = GETS_TOGETHER + 3


class NoObjects:
    def __init__(self) -> None:
        self.asked = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.asked += 1
        raise Unavailable(f"no answer: key={key}")


async def test_an_object_of_which_a_range_could_not_be_read_is_not_asked_for_another() -> None:
    objects = NoObjects()
    entries = [Entry(number, number, ONE, ((number * 2 * DEFAULT_LIMITS.gap_bytes_max, 100),), 0, 0) for number in range(READS)]
    async with open_spool(InlineBlocking(), bytes_max=1 << 20) as spool:
        metadata = MemoryMetadataStore(clock=SystemClock())
        slices = GatheredSlices(objects, spool, metadata=metadata)  # type: ignore[arg-type]
        await slices.gather([PartitionEntries(PartitionKeys(PARTITION), 1, entries)])

        for entry in entries:
            with pytest.raises(Unavailable, match="no answer"):
                await slices.read([entry])
    assert objects.asked == 1, "no answer takes a turn: the others were not begun"
