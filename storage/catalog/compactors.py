"""Live compactors, at compactors/{name}, and which partitions each looks after.

Two that disagree about who is there look after a partition together for a while, or nobody does: claims keep them out of each other's way.
"""

from collections.abc import Collection
from typing import Final

import msgspec
import xxhash

from storage.catalog.records import decode, encode
from storage.metadata import keys
from storage.metadata.port import MetadataStore, Put, Record, Session, WriteOutcome
from storage.vocabulary import PartitionId

FMT: Final = 1


class CompactorRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` is a ULID of the process; `http`: where its health and metrics are served, host:port."""

    fmt: int = FMT
    name: str
    host: str
    pid: int
    http: str
    version: str
    started_at_ms: int


_decoder = msgspec.json.Decoder(CompactorRecord)


def decode_compactor(record: Record) -> CompactorRecord:
    return decode(_decoder, record.value, known=FMT, path=record.path)


async def register_compactor(metadata: MetadataStore, record: CompactorRecord, session: Session) -> WriteOutcome:
    """Its record goes with `session`."""
    return await metadata.write([Put(keys.compactor(record.name), encode(record), None, session=session.session_id)])


async def live_compactors(metadata: MetadataStore) -> list[CompactorRecord]:
    """By name. Raises `Unavailable`, `IncompatibleFormat`."""
    start, end = keys.compactors()
    return [decode_compactor(record) async for record in metadata.range_scan(start, end)]


def compactor_of(partition: PartitionId, names: Collection[str]) -> str:
    """PURE: which of `names`, at least one, looks after `partition`: by rendezvous hash, so that who comes or goes moves only its share."""
    key = f"{partition.topic_id}/{partition.partition}"
    return max(names, key=lambda name: (xxhash.xxh3_64_intdigest(f"{key}|{name}"), name))
