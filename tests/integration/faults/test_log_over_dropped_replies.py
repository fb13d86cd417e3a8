"""Two brokers' logs over real stores that lose replies: every batch is there once, in its producer's order, at dense offsets."""

import asyncio
import contextlib
import random
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from services.faults.plan import Fault, Rule
from services.faults.s3_proxy import S3Proxy, s3_proxy
from services.oxia import OxiaServer, running_oxia
from services.versitygw import CREDENTIALS, S3Server
from storage.cache.blocks import BlockCache
from storage.errors import StorageError
from storage.formats.manifest import Manifest, encode
from storage.log.batch import Append, Appended, batch_of
from storage.log.flush import FlushSettings
from storage.log.partition import BrokerEpoch
from storage.log.parts import LogParts, open_log
from storage.metadata import keys
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import ABSENT, Applied, Put
from storage.objects.s3.location import parse_s3_url
from storage.objects.s3.store import open_s3
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId, TopicId
from tests.kit.batches import batch_bytes
from tests.kit.faults.oxia_proxy import OxiaProxy, oxia_proxy

EPOCHS: Final = (7, 8)
PARTITIONS: Final = 8
PRODUCERS: Final = 3
BATCHES: Final = 30
RECORDS: Final = 3
STRIKES_MIN: Final = 5
"""A producer waits for each acknowledgement: there are at least as many writes, and PUTs, as it has batches. A fifth is struck."""
TRIES_MAX: Final = 40
PAUSE_S: Final = 0.02
APPEND_WITHIN_S: Final = 60.0
SETTLE_WITHIN_S: Final = 90.0

EVERY_THIRD_WRITE: Final = Rule(Fault.DROP_REPLY, methods={"Write"}, every=3)
EVERY_FIFTH_WRITE: Final = Rule(Fault.DROP_REPLY, methods={"Write"}, every=5)
EVERY_THIRD_PUT: Final = Rule(Fault.DROP_REPLY, methods={"PUT"}, every=3)
EVERY_THIRD_WRITE_LATE: Final = Rule(Fault.LATE, methods={"Write"}, every=3, delay_s=0.05)
EVERY_THIRD_PUT_LATE: Final = Rule(Fault.LATE, methods={"PUT"}, every=3, delay_s=0.05)


@pytest.fixture(scope="module")
def lone_oxia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    """Oxia 0.14 gives a write its place in the log of a shard before it appends it: of two at once the second may come first, and the shard
    takes no more. Running its threads one at a time keeps them from it, for as long as a test lasts.
    """
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("GOMAXPROCS", "1")
        with running_oxia(tmp_path_factory.mktemp("oxia")) as server:
            yield server


@contextlib.asynccontextmanager
async def broker(
    epoch: int, oxia: OxiaProxy, s3: S3Proxy, server: S3Server, prefix: str
) -> AsyncIterator[tuple[LogParts, OxiaMetadataStore]]:
    """The log of one broker, with clients of its own."""
    clock, telemetry, chance = SystemClock(), Telemetry(), random.Random(epoch)

    async def live() -> frozenset[int]:
        return frozenset(EPOCHS)

    async with Nursery() as nursery:
        metadata = await OxiaMetadataStore.open(
            parse_oxia_url(f"oxia://{oxia.address}/default"), clock=clock, chance=chance, nursery=nursery
        )
        url = f"s3://{server.bucket}/{prefix}?endpoint={s3.endpoint}&region={server.region}&path_style=true"
        objects = await open_s3(parse_s3_url(url), client="obstore", clock=clock, chance=chance, telemetry=telemetry)
        try:
            async with Nursery() as tasks:
                parts = open_log(
                    metadata=metadata,
                    objects=objects,
                    blocks=BlockCache(objects, bytes_max=1 << 24, clock=clock, telemetry=telemetry),
                    tail_bytes_max=1 << 20,
                    flush=FlushSettings(interval_s=0.02, gather_s=0.005),
                    epoch=BrokerEpoch(epoch, registered_epoch=lambda: epoch, live=live),
                    ids=IdSource(clock=clock),
                    clock=clock,
                    chance=chance,
                    nursery=tasks,
                    telemetry=telemetry,
                )
                yield parts, metadata
        finally:
            await objects.close()
            await metadata.close()


async def append(parts: LogParts, partition: PartitionId, data: bytearray) -> Appended | StorageError:
    done: asyncio.Future[Appended | StorageError] = asyncio.get_running_loop().create_future()

    def finish(finished: Append) -> None:
        (result,) = finished.results
        assert result is not None
        done.set_result(result)

    request = Append(object(), finish, [None], 1)
    view = memoryview(data)
    parts.appender.submit(parts.partitions.get(partition), batch_of(view, parse_header(view), request, 0))
    async with asyncio.timeout(APPEND_WITHIN_S):
        return await done


async def produce(brokers: list[LogParts], partition: PartitionId, producer: int) -> dict[int, int]:
    """Batches with sequences, one after the other, each sent to the one broker and the other until it is acknowledged. Base offsets."""
    acked = {}
    for n in range(BATCHES):
        first_seq = n * RECORDS
        for turn in range(TRIES_MAX):
            data = batch_bytes(RECORDS, producer_id=producer, producer_epoch=0, first_seq=first_seq, payload=b"%d/%d" % (producer, n))
            result = await append(brokers[(producer + n + turn) % len(brokers)], partition, data)
            if isinstance(result, Appended):
                acked[first_seq] = result.base_offset
                break
            await asyncio.sleep(PAUSE_S)
        else:
            raise AssertionError(f"never acknowledged: producer={producer} first_seq={first_seq} last={result!r}")
    return acked


async def read_all(parts: LogParts, partition: PartitionId) -> Iterator[tuple[int, int, int]]:
    """(base offset, producer, first sequence) of every batch."""
    log = parts.partitions.get(partition)
    await parts.manifest_reads.refresh([log])
    offset, found = 0, bytearray()
    while offset < log.seen.high_watermark:
        run = await parts.reader.stored(log, offset, bytes_max=1 << 20)
        assert run.base == offset
        found += run.buffer
        offset = run.last + 1
    return _batches(bytes(found))


def _batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    position = 0
    while position < len(data):
        base, length = struct.unpack_from(">qi", data, position)
        header = parse_header(memoryview(data)[position : position + 12 + length])
        yield base, header.producer_id, header.base_sequence
        position += 12 + length


@pytest.mark.parametrize(
    ("of_oxia", "of_s3"),
    [
        pytest.param(EVERY_THIRD_WRITE, None, marks=pytest.mark.slow),
        pytest.param(EVERY_FIFTH_WRITE, None, marks=pytest.mark.slow),
        pytest.param(None, EVERY_THIRD_PUT, marks=pytest.mark.slow),
        (EVERY_THIRD_WRITE, EVERY_THIRD_PUT),
        (EVERY_THIRD_WRITE_LATE, EVERY_THIRD_PUT_LATE),
    ],
    ids=["every third write of Oxia", "every fifth write of Oxia", "every third put of S3", "both", "both, and applied late"],
)
async def test_lost_replies_neither_double_nor_lose_a_batch(
    lone_oxia: OxiaServer, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_oxia: Rule | None, of_s3: Rule | None
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(SETTLE_WITHIN_S):
        oxia = await stack.enter_async_context(oxia_proxy(lone_oxia.address))
        s3 = await stack.enter_async_context(s3_proxy(s3_server.endpoint))
        opened = [await stack.enter_async_context(broker(epoch, oxia, s3, s3_server, tmp_path.name)) for epoch in EPOCHS]
        brokers, metadata = [parts for parts, _ in opened], opened[0][1]
        topic = TopicId(IdSource(clock=SystemClock()).random_uuid())
        partitions = [PartitionId(topic, n) for n in range(PARTITIONS)]
        for partition in partitions:
            assert isinstance(await metadata.write([Put(keys.PartitionKeys(partition).manifest, encode(Manifest()), ABSENT)]), Applied)
        for plan, rule in ((oxia.plan, of_oxia), (s3.plan, of_s3)):
            if rule is not None:
                plan.add(rule)

        async with asyncio.TaskGroup() as producing:
            acks = {
                (partition, producer): producing.create_task(produce(brokers, partition, producer))
                for partition in partitions
                for producer in range(PRODUCERS)
            }

        for counts, rule in ((oxia.counts, of_oxia), (s3.counts, of_s3)):
            assert rule is None or counts.struck(rule.fault) >= STRIKES_MIN
        oxia.plan.clear()
        s3.plan.clear()
        for partition in partitions:
            for parts in brokers:
                found = list(await read_all(parts, partition))
                assert [base for base, _, _ in found] == list(range(0, PRODUCERS * BATCHES * RECORDS, RECORDS))
                of_producer: defaultdict[int, dict[int, int]] = defaultdict(dict)
                for base, producer, first_seq in found:
                    of_producer[producer][first_seq] = base
                for producer in range(PRODUCERS):
                    assert list(of_producer[producer]) == [n * RECORDS for n in range(BATCHES)]
                    assert of_producer[producer] == acks[partition, producer].result()
