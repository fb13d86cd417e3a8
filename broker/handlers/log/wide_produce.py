"""A Produce request that names more partitions than are begun in one turn of the loop: read, begun, gathered and written in turns.

It is answered alone: what its connection sends behind it waits. Its slices are begun in their order, each when there is room for its
batches, and go into the log like requests of their own.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from broker.handlers.log.produce import NOTHING_UNREAD, Produce
from broker.handling.batch_room import BatchRoom
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol.produce import (
    PARTITIONS_PER_STEP,
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    read_in_steps,
    write_in_steps,
)
from runtime.turns import Turns, in_turns
from storage.catalog.topics import Topic
from storage.errors import StorageError, Unavailable


async def read_wide(version: int, frame: memoryview, position: int) -> ProduceRequest:
    """Raises `ProtocolViolation`."""
    return await in_turns(read_in_steps(version, frame, position))


class WideProduce:
    """`handle` as often as there are such requests, side by side."""

    def __init__(self, produce: Produce, room: BatchRoom, *, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> None:
        self._produce = produce
        self._room = room
        self._begin_s_max = limits.wide_produce_begin_s_max

    async def handle(self, request: ProduceRequest, *, version: int, source: object) -> list[PartitionResult]:
        """One result per partition, in order. Cancelled: what was begun goes on, and nobody hears of it."""
        return await (await self.begin(request, version=version, source=source)).results()

    async def begin(self, request: ProduceRequest, *, version: int, source: object) -> "BegunProduce":
        """Return when all of it is in line for the log: what its source begins afterwards comes behind it."""
        arrived = self._produce.losses
        topics, unread = await self._look_up(request)
        partitions = request.partitions
        slices = [partitions[begin : begin + PARTITIONS_PER_STEP] for begin in range(0, len(partitions), PARTITIONS_PER_STEP)]
        answered: list[asyncio.Future[list[PartitionResult]]] = []
        try:
            async with asyncio.timeout(self._begin_s_max):
                for part in slices:
                    await self._room.take(len(part))
                    answered.append(self._begin(request, part, topics, unread, version=version, source=source, arrived=arrived))
                    await asyncio.sleep(0)
        except TimeoutError:
            pass  # the slices that are left are answered as late ones
        return BegunProduce(slices, answered, self._begin_s_max)

    def _begin(
        self,
        request: ProduceRequest,
        part: list[PartitionRecords],
        topics: Mapping[str, Topic],
        unread: Mapping[str, StorageError],
        *,
        version: int,
        source: object,
        arrived: int,
    ) -> asyncio.Future[list[PartitionResult]]:
        answered: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()

        def done(results: list[PartitionResult]) -> None:
            self._room.give_back(len(part))
            if not answered.done():
                answered.set_result(results)

        asked = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, part)
        try:
            self._produce.start(asked, topics, version=version, source=source, done=done, unread=unread, arrived=arrived)
        except BaseException:
            if not answered.done():
                self._room.give_back(len(part))
            raise
        return answered

    async def _look_up(self, request: ProduceRequest) -> tuple[dict[str, Topic], Mapping[str, StorageError]]:
        highest: dict[str, int] = {}
        turns = Turns()
        for topic, partition, _ in request.partitions:
            highest[topic] = max(partition, highest.get(topic, partition))
            await turns.spent()
        topics, unread = await self._produce.lookup_topics(highest)
        return topics, unread or NOTHING_UNREAD


class BegunProduce(NamedTuple):
    """A request whose first slices were begun, as many as there are in `answered`."""

    slices: list[list[PartitionRecords]]
    answered: list[asyncio.Future[list[PartitionResult]]]
    within_s: float
    """For how long it was begun, slice by slice."""

    async def results(self) -> list[PartitionResult]:
        """One per partition, in order. For one caller."""
        results: list[PartitionResult] = []
        for number, part in enumerate(self.slices):
            results += (
                await self.answered[number] if number < len(self.answered) else [_late(named, within_s=self.within_s) for named in part]
            )
            await asyncio.sleep(0)
        return results


async def refuse_all(request: ProduceRequest, code: ErrorCode, message: str) -> list[PartitionResult]:
    """The same answer for every partition."""
    return await Turns().each(partial(_refused, code=code, message=message), request.partitions)


async def write_wide(version: int, correlation_id: int, response: ProduceResponse) -> bytearray:
    """As `write_response` of broker/protocol/produce.py."""
    out = bytearray()
    await in_turns(write_in_steps(version, correlation_id, response, out))
    return out


def _refused(named: PartitionRecords, *, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(named.topic, named.partition, code, error_message=message)


def _late(named: PartitionRecords, *, within_s: float) -> PartitionResult:
    error = Unavailable(f"not begun within {within_s:.0f} s, since other batches of this request took as long; nothing was appended")
    return _refused(named, code=ErrorCode.kafka_storage_error, message=str(error))
