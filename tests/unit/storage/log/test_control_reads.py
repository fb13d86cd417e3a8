"""Fresh reads that are shared."""

import asyncio
from collections.abc import Sequence

import pytest

from runtime.supervision import Nursery
from storage.errors import NotFound, Unavailable
from storage.formats.control import Control, encode
from storage.log import control_reads
from storage.log.bounds import LogBounds
from storage.log.control_reads import ControlReads
from storage.log.partition import Partitions
from storage.metadata.port import Key, Record
from tests.unit.storage.log.rig import PARTITION


class Slow:
    """Answers a read with what stands at the moment it is let go."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.let_go = asyncio.Event()
        self.control = Control()
        self.version = 1

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self.reads.append([key.path for key in keys])
        await self.let_go.wait()
        return [Record(key.path, encode(self.control), self.version) for key in keys]


async def test_callers_of_one_moment_share_a_read_and_later_ones_get_a_later_one() -> None:
    store, partitions = Slow(), Partitions()
    log = partitions.get(PARTITION)
    async with Nursery() as nursery:
        reads = ControlReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for _ in range(5):
                group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            store.let_go.set()

    assert len(store.reads) == 2, "one under way, one for all who asked meanwhile"


async def test_nothing_is_read_for_nobody() -> None:
    store = Slow()
    async with Nursery() as nursery, asyncio.timeout(5):
        reads = ControlReads(metadata=store, partitions=Partitions(), nursery=nursery)  # type: ignore[arg-type]
        await reads.refresh([])

    assert store.reads == []


async def test_a_read_that_is_not_answered_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_reads, "READ_TIMEOUT_S", 0.01)
    store, partitions = Slow(), Partitions()
    async with Nursery() as nursery:
        reads = ControlReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]

        with pytest.raises(Unavailable, match="did not answer"):
            await reads.refresh([partitions.get(PARTITION)])


async def test_one_caller_that_gives_up_does_not_take_the_read_from_others() -> None:
    store, partitions = Slow(), Partitions()
    log = partitions.get(PARTITION)
    async with Nursery() as nursery:
        reads = ControlReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            impatient = group.create_task(reads.refresh([log]))
            patient = group.create_task(reads.refresh([log]))
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.sleep(0)
            store.let_go.set()
        assert impatient.cancelled()
        assert patient.done()
    assert log.high_watermark == 0


async def test_bounds_are_those_of_the_record() -> None:
    store, partitions = Slow(), Partitions()
    store.control = Control(sequence_counter=9, log_start=4, bytes_total=77)
    store.let_go.set()
    async with Nursery() as nursery:
        reads = ControlReads(metadata=store, partitions=partitions, nursery=nursery)  # type: ignore[arg-type]

        assert await reads.read([PARTITION]) == [LogBounds(4, 9, 77)]


def test_idle_partitions_are_forgotten_when_there_are_too_many() -> None:
    partitions = Partitions(kept_max=10)
    busy = partitions.get(PARTITION)
    busy.lane_busy = True
    for n in range(1, 100):
        partitions.get(PARTITION._replace(partition=n))

    assert len(partitions) <= 10
    assert partitions.get(PARTITION) is busy
    assert partitions.by_control_path(busy.keys.control.path) is busy
    assert isinstance(control_reads.bounds_of(busy), NotFound)
