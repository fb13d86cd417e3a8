"""A page that expires in the commit that has to move producers into pages."""

from runtime.clock import SystemClock
from storage.formats.manifest import Manifest, PageRef, ProducerBatch, ProducerPage, ProducerState, encode
from storage.log.batch import Appended
from storage.metadata import keys
from storage.metadata.port import ABSENT, Put
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, rig

HOUR_MS = 3_600_000
OLD, NEW = "1-7-1-1-0", "1-7-1-1-1"


def state(at_ms: int) -> ProducerState:
    return ProducerState(0, (ProducerBatch(0, 0, 0, at_ms),))


async def test_producers_in_the_range_of_a_page_that_expires_leave_by_way_of_that_page() -> None:
    """They fell to the neighbour, which nobody had read, and a KeyError ended every broker that took the batch."""
    now_ms = SystemClock().now_ms()
    old_ms, new_ms = now_ms - 49 * HOUR_MS, now_ms - HOUR_MS
    paths = keys.PartitionKeys(PARTITION)
    hot = range(1_001, 1_098)
    manifest = Manifest(
        sequence_counter=1_000,
        log_start=1_000,
        producers={pid: state(new_ms) for pid in hot},
        pages=(PageRef(OLD, 1_000, 1_100, old_ms), PageRef(NEW, 2_000, 2_100, new_ms)),
    )
    async with rig() as broker:
        (record,) = await broker.shared.get_many([paths.manifest])
        assert record is not None
        await broker.shared.write(
            [
                Put(paths.producer_page(OLD), encode(ProducerPage(producers={1_000: state(old_ms)})), ABSENT),
                Put(paths.producer_page(NEW), encode(ProducerPage(producers={2_000: state(new_ms)})), ABSENT),
                Put(paths.manifest, encode(manifest), record.version),
            ]
        )

        assert await broker.send(batch_bytes(producer_id=1_099, producer_epoch=0, first_seq=0)) == [Appended(1_000, 1_000)]

        manifest = await broker.manifest()
        assert OLD not in {ref.name for ref in manifest.pages}
        assert [ref.first_pid for ref in manifest.pages] == [1_000, 2_000]
        for pid in (*hot, 2_000):
            repeated = await broker.send(batch_bytes(producer_id=pid, producer_epoch=0, first_seq=0))
            assert repeated == [Appended(0, 1_000)], "the state has come along"
        assert (await broker.manifest()).sequence_counter == 1_001
