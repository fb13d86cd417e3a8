"""Entries gone through as of a manifest that is older than the keys: what is gone by now is told, never passed over."""

import pytest

from runtime.clock import SystemClock
from storage.formats.manifest import Manifest
from storage.log.index import EntriesMoved, entry_pages
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.vocabulary import PartitionId, TopicId

KEYS = PartitionKeys(PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0))


@pytest.mark.parametrize(
    "manifest",
    [Manifest(sequence_counter=20, compaction_cursor=10), Manifest(sequence_counter=20)],
    ids=["below the cursor", "from the cursor on"],
)
async def test_entries_whose_keys_are_gone_have_moved(manifest: Manifest) -> None:
    metadata = MemoryMetadataStore(clock=SystemClock(), shards=1)
    with pytest.raises(EntriesMoved) as moved:
        [page async for page in entry_pages(metadata, KEYS, manifest, 3)]
    assert moved.value.offset == 3
