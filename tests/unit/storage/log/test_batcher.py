"""When a flush is due."""

from storage.log.batch import Append, Batch
from storage.log.flush import FlushSettings, LastFlush, OpenFlush, Trigger
from tests.kit.batches import batch_bytes

SETTINGS = FlushSettings(interval_s=0.25, bytes_max=300, partitions_max=2, gather_s=0.005)


def opened(*partitions: str, now_s: float = 100.0) -> OpenFlush[str]:
    flush: OpenFlush[str] = OpenFlush()
    for partition in partitions:
        data = batch_bytes()
        flush.add(partition, Batch(memoryview(data), Append(None, lambda _: None, [None], 1), 0, -1, -1, -1, 1, 0, len(data)), now_s=now_s)
    return flush


def test_after_a_pause_a_flush_is_due_as_soon_as_it_has_gathered() -> None:
    assert opened("a").due_s(SETTINGS, LastFlush()) == 100.005


def test_within_the_interval_a_flush_is_due_when_that_is_over() -> None:
    assert opened("a").due_s(SETTINGS, LastFlush(began_s=99.9)) == 100.15


def test_flushes_begin_at_least_an_interval_apart() -> None:
    began = 100.0
    for arrival in (100.0, 100.1, 100.2499, 100.25, 100.3):
        assert opened("a", now_s=arrival).due_s(SETTINGS, LastFlush(began_s=began)) >= began + SETTINGS.interval_s


def test_bytes_and_partitions_make_a_flush_full() -> None:
    assert opened("a").is_full(SETTINGS) is None
    assert opened("a", "a", "a", "a").is_full(SETTINGS) is Trigger.BYTES
    assert opened("a", "b").is_full(SETTINGS) is Trigger.PARTITIONS


def test_batches_of_a_partition_keep_their_order() -> None:
    flush = opened("a", "b", "a")

    assert [len(batches) for batches in flush.batches.values()] == [2, 1]
