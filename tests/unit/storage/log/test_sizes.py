"""What is counted for decoded records is what they take."""

import tracemalloc

import pytest

from storage.formats.manifest import (
    EARLY_BYTES,
    ENTRY_BYTES,
    MANIFEST_BYTES,
    SPAN_BYTES,
    Early,
    Entry,
    IndexChunk,
    Manifest,
    PageRef,
    ProducerBatch,
    ProducerState,
    WriterEntry,
    decode_manifest,
    encode,
    manifest_bytes,
)
from storage.log.index import KeptChunks
from storage.log.partition import COUNTED_EVERY, FEW, LOG_BYTES, Partitions
from storage.vocabulary import PartitionId, TopicId
from tests.kit.collector import no_collector

COUNT = 200


def record(
    *, entries: int = 0, early: int = 0, spans: int = 1, producers: int = 0, batches: int = 1, writers: int = 1, pages: int = 0
) -> Manifest:
    at_ms = 1_700_000_000_000
    return Manifest(
        sequence_counter=100_000,
        pending=tuple(
            Entry(10_000 + n, 10_009 + n, f"{n:026d}", batches if n >= early else Early(90_000 + n, batches), at_ms + n, at_ms + n)
            for n in range(entries)
            for batches in [tuple((100_000 + n + s, 1_000 + s) for s in range(spans))]
        ),
        writers={7_000 + n: WriterEntry(5_000 + n, 1) for n in range(writers)},
        producers={
            9_000 + n: ProducerState(3, tuple(ProducerBatch(1_000 + b, 1_009 + b, 50_000 + b, at_ms + b) for b in range(batches)))
            for n in range(producers)
        },
        pages=tuple(PageRef(f"1234-567-{n}-1", 10_000 + n, 10_500 + n, at_ms + n) for n in range(pages)),
        last_append_ms=at_ms,
        max_timestamp=at_ms,
        max_timestamp_offset=90_000,
    )


RECORDS = [
    record(),
    record(entries=1),
    record(entries=16),
    record(entries=16, spans=40),
    record(entries=16, early=16),
    record(entries=16, early=8, spans=3),
    record(entries=8, producers=5, batches=5),
    record(producers=97),
    record(entries=16, producers=27, batches=5, writers=16),
    record(producers=64, pages=48),
]


@pytest.mark.parametrize("manifest", RECORDS, ids=range(len(RECORDS)))
def test_a_manifest_takes_about_the_memory_that_is_counted_for_it(manifest: Manifest) -> None:
    value = encode(manifest)
    with no_collector():
        tracemalloc.start()
        kept = [decode_manifest(value, path="p") for _ in range(COUNT)]
        taken_bytes = tracemalloc.get_traced_memory()[0] / COUNT
        tracemalloc.stop()

    assert len(kept) == COUNT
    assert taken_bytes * 3 / 4 <= manifest_bytes(manifest) <= taken_bytes * 3 / 2


def test_a_log_that_knows_nothing_takes_no_more_than_is_counted_for_it() -> None:
    partitions = Partitions()
    with no_collector():
        tracemalloc.start()
        for number in range(1_000):
            partitions.get(PartitionId(TopicId(f"{number:036d}"), 0))
        taken_bytes = tracemalloc.get_traced_memory()[0] / 1_000
        tracemalloc.stop()

    assert LOG_BYTES * 3 / 4 <= taken_bytes <= LOG_BYTES
    assert partitions.size_bytes == 1_000 * LOG_BYTES


def test_a_chunk_counts_its_entries_and_what_finds_it() -> None:
    kept = KeptChunks()
    kept.add(PartitionId(TopicId("t"), 0), IndexChunk(entries=record(entries=16).pending))

    assert 6 * 1_024 < kept.size_bytes < 9 * 1_024


def counted_after(*records: Manifest) -> int:
    partitions = Partitions()
    log = partitions.get(PartitionId(TopicId("t"), 0))
    for version, manifest in enumerate(records):
        log.advance(manifest, version)
    return partitions.size_bytes - LOG_BYTES


def test_a_record_that_grows_by_entries_is_counted_but_for_the_last_three() -> None:
    records = [record(entries=entries, spans=FEW, producers=FEW) for entries in range(1, 17)]
    for entries in range(1, 17):
        behind_bytes = manifest_bytes(records[entries - 1]) - counted_after(*records[:entries])
        assert 0 <= behind_bytes <= (COUNTED_EVERY - 1) * (ENTRY_BYTES + FEW * SPAN_BYTES)
        assert (behind_bytes == 0) == (entries % COUNTED_EVERY == 1)


@pytest.mark.parametrize("grown", [record(entries=2, producers=FEW + 1), record(entries=2, spans=FEW + 1)], ids=["producers", "spans"])
def test_a_record_that_can_grow_much_is_counted_at_every_commit(grown: Manifest) -> None:
    assert counted_after(record(entries=1), grown) == manifest_bytes(grown)


def test_a_record_whose_entries_went_into_a_chunk_is_counted_at_the_next_commit() -> None:
    assert counted_after(*(record(entries=entries) for entries in (16, 17, 1))) == manifest_bytes(record(entries=1)) > MANIFEST_BYTES


@pytest.mark.parametrize("spans", [1, 8])
def test_an_early_entry_takes_what_is_counted_for_it_more_than_one_with_spans(spans: int) -> None:
    def taken_bytes(manifest: Manifest) -> float:
        value = encode(manifest)
        with no_collector():
            tracemalloc.start()
            kept = [decode_manifest(value, path="p") for _ in range(COUNT)]
            found = tracemalloc.get_traced_memory()[0] / COUNT
            tracemalloc.stop()
        assert len(kept) == COUNT
        return found

    with_spans, early = record(entries=16, spans=spans), record(entries=16, early=16, spans=spans)
    more_bytes = (taken_bytes(early) - taken_bytes(with_spans)) / 16

    assert manifest_bytes(early) - manifest_bytes(with_spans) == 16 * EARLY_BYTES
    assert more_bytes * 3 / 4 <= EARLY_BYTES <= more_bytes * 3 / 2
