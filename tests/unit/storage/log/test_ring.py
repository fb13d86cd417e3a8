"""A ring leaves as a whole, and all chunks of one ring, whoever makes them, agree with each other."""

import pytest

from storage.formats.manifest import Entry, IndexChunk, Manifest, decode_chunk
from storage.log.commit import put_chunk
from storage.log.decide import drained
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Put
from storage.vocabulary import ObjectId
from tests.unit.storage.log.rig import PARTITION

KEYS = PartitionKeys(PARTITION)


def entries(count: int) -> tuple[Entry, ...]:
    return tuple(Entry(2 * number, 2 * number + 1, ObjectId(f"{number}"), ((0, 1),), 0, 0) for number in range(count))


def test_a_chunk_has_all_that_is_pending_and_lies_under_its_last_offset_if_that_is_free() -> None:
    chunk = drained(Manifest(pending=entries(3), sequence_counter=6, compaction_cursor=2))
    put = put_chunk(KEYS, chunk)

    assert chunk == IndexChunk(entries=entries(3))
    assert put == Put(KEYS.index(5), put.value, ABSENT)
    assert decode_chunk(put.value, path=put.key.path) == chunk


def test_the_lowest_chunk_at_or_above_an_offset_holds_it_whichever_chunks_of_a_ring_there_are() -> None:
    last = 5
    chunks = {2 * count - 1: drained(Manifest(pending=entries(count), sequence_counter=2 * count)) for count in range(1, last + 1)}
    for chosen in range(1 << (last - 1)):
        # The one of the CAS that emptied the ring is there in any case.
        there = [end for place, end in enumerate(chunks) if end == 2 * last - 1 or chosen >> place & 1]
        for offset in range(2 * last):
            found = chunks[min(end for end in there if end >= offset)]
            assert any(entry.base <= offset <= entry.last for entry in found.entries)


def test_an_empty_ring_leaves_no_chunk() -> None:
    with pytest.raises(AssertionError):
        drained(Manifest())
