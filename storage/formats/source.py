"""What holds the batches of an entry, by the name that messages and commands use for it."""

from storage.formats.control import Entry, EntrySource
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.vocabulary import PartitionId

INLINE_PREFIX = "inline/"
"""Before the id of an entry that carries its batches: no object has such a name."""


def object_of(source: EntrySource, partition: PartitionId) -> str:
    """The key of the object, or `inline/{id}` where there is none."""
    if not isinstance(source, Entry):
        return segment_key(partition, source.object_id)
    return f"{INLINE_PREFIX}{source.object_id}" if source.is_inline else object_key(source.object_id)
