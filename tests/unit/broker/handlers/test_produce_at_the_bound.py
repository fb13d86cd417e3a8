"""A request for more partitions than a broker keeps logs of."""

import asyncio
from typing import cast

import pytest

from broker.handlers.log import produce as handler
from broker.handlers.log.produce import Produce
from broker.handling.validation import Recompression
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest
from runtime.clock import SystemClock
from storage.catalog.topics import Topic, Topics, TopicState
from storage.formats.manifest import Manifest, encode
from storage.log.batch import Appended
from storage.log.limits import LogLimits
from storage.metadata import keys
from storage.metadata.port import ABSENT, Put
from storage.recordbatch import BatchHeader, parse_header
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.rig import TOPIC, rig


class NoLines:
    lines = 0


async def test_no_partition_of_a_request_is_forgotten_before_its_batch_has_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the batch is in a log that nobody knows any more, the next one in another, and a lost reply is an append too many (I6)."""

    def check(records: memoryview, *_: object, **__: object) -> BatchHeader:
        return parse_header(records)  # there are no records in these batches

    monkeypatch.setattr(handler, "check", check)
    topic = Topic(name="t", topic_id=TOPIC, partition_count=10, replication_factor=1, configs={}, state=TopicState.ACTIVE, created_at_ms=0)
    async with rig(limits=LogLimits(partitions_kept_max=4)) as broker:
        partitions = broker.parts.partitions
        await broker.shared.write([Put(keys.PartitionKeys(PartitionId(TOPIC, 9)).manifest, encode(Manifest()), ABSENT)])
        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        for number in range(4):
            partitions.get(PartitionId(TOPIC, number))
        produce = Produce(
            topics=cast("Topics", None),
            partitions=partitions,
            appender=broker.parts.appender,
            recompression=cast("Recompression", NoLines()),
            clock=SystemClock(),
        )

        def start(*numbers: int) -> "asyncio.Future[list[PartitionResult]]":
            done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()
            records = [PartitionRecords("t", number, memoryview(record_batch())) for number in numbers]
            request = ProduceRequest(None, -1, 1_000, records)
            produce.start(request, {"t": topic}, version=9, source=broker, done=done.set_result)
            return done

        second: list[asyncio.Future[list[PartitionResult]]] = []

        async def send_another() -> None:
            """The CAS of the first has applied, and its reply is on its way."""
            second.append(start(0))
            await asyncio.sleep(0.05)

        broker.metadata.on_seen_first = send_another
        broker.metadata.faults.append("seen first, reply lost")
        first = await start(0, 9)

        assert [(result.partition, result.base_offset, result.error_code) for result in first] == [(0, 1, 0), (9, 0, 0)]
        assert [result.base_offset for result in await second[0]] == [2]
        assert (await broker.manifest()).sequence_counter == 3
