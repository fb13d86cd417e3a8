"""Index chunks on their way into the metadata store."""

from storage.formats.control import IndexChunk, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Put


def put_chunk(keys: PartitionKeys, chunk: IndexChunk) -> Put:
    """The put of `chunk` under its last offset, if absent. It travels before the CAS that takes its entries out of the control record, in
    the same request: a collector that does not find them in the record finds them here (model `F-collect-stale`).
    """
    return Put(keys.index(chunk.entries[-1].last), encode(chunk), ABSENT)
