import pytest

from runtime.clock import SystemClock
from storage.errors import Corrupt, NotFound, Unavailable
from storage.formats.manifest import Manifest, PageRef, ProducerBatch, ProducerPage, ProducerState, encode
from storage.log.decide import PRODUCER_EXPIRATION_MS
from storage.log.page_store import ActiveProducer
from storage.metadata import keys
from storage.metadata.port import Delete, Put
from storage.vocabulary import PartitionId
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig


def state(epoch: int, last_seq: int, at_ms: int) -> ProducerState:
    return ProducerState(epoch, (ProducerBatch(0, 1, 0, 1), ProducerBatch(2, last_seq, 2, at_ms)))


async def store(broker: Rig, hot: dict[int, ProducerState], spilled: dict[int, ProducerState]) -> None:
    names = keys.PartitionKeys(PARTITION)
    pages = {f"1-7-1-1-{number}": {number: held} for number, held in spilled.items()}
    puts = [Put(names.producer_page(name), encode(ProducerPage(producers=held)), None) for name, held in pages.items()]
    refs = tuple(PageRef(name, min(held), max(held), 0) for name, held in pages.items())
    await broker.shared.write([*puts, Put(names.manifest, encode(Manifest(producers=hot, pages=refs)), None)])


async def test_producers_of_control_and_of_pages_come_by_id_unless_they_have_expired() -> None:
    async with rig() as broker:
        now_ms = SystemClock().now_ms()
        long_ago_ms = now_ms - PRODUCER_EXPIRATION_MS - 1_000
        await store(
            broker,
            {7: state(2, 9, now_ms), 3: ProducerState(1, (), 17)},
            {7: state(1, 5, now_ms - 50), 900: state(0, 4, now_ms - 90), 901: state(0, 4, long_ago_ms)},
        )

        assert await broker.parts.producer_reads.of(PARTITION) == [
            ActiveProducer(3, 1, -1, -1, 17),
            ActiveProducer(7, 2, 9, now_ms, -1),
            ActiveProducer(900, 0, 4, now_ms - 90, -1),
        ]


async def test_a_partition_without_producers_has_none() -> None:
    async with rig() as broker:
        assert await broker.parts.producer_reads.of(PARTITION) == []


async def test_a_partition_that_does_not_exist_is_not_found() -> None:
    async with rig() as broker:
        with pytest.raises(NotFound):
            await broker.parts.producer_reads.of(PartitionId(TOPIC, 5))


async def test_a_page_that_is_none_is_corrupt() -> None:
    async with rig() as broker:
        await store(broker, {}, {5: state(0, 4, 10)})
        await broker.shared.write([Put(keys.PartitionKeys(PARTITION).producer_page("1-7-1-1-5"), b"{", None)])

        with pytest.raises(Corrupt):
            await broker.parts.producer_reads.of(PARTITION)


async def test_a_page_that_was_replaced_meanwhile_is_unavailable() -> None:
    async with rig() as broker:
        await store(broker, {}, {5: state(0, 4, 10)})
        await broker.shared.write([Delete(keys.PartitionKeys(PARTITION).producer_page("1-7-1-1-5"))])

        with pytest.raises(Unavailable):
            await broker.parts.producer_reads.of(PARTITION)


async def test_a_store_that_does_not_answer_is_unavailable() -> None:
    async with rig() as broker:
        broker.metadata.reads_fail = True

        with pytest.raises(Unavailable):
            await broker.parts.producer_reads.of(PARTITION)
