"""Whether an object store is that of the cluster in the metadata store (docs/adr/0020-whose-a-store-is.md).

Both hold the cluster's id. It is put into the metadata store first and into the object store then, before anything else of the cluster
is: so objects without an id are those of a release that did not know this, or not Forebay's, and an id without metadata is another's.
"""

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from storage.catalog.cluster import ClusterRecord, open_cluster, read_cluster
from storage.catalog.store_marker import KEY as MARKER_KEY
from storage.catalog.store_marker import StoreMarker, read_marker, write_marker
from storage.catalog.topic import decode_topic
from storage.errors import Corrupt, IncompatibleFormat, NotFound
from storage.formats.control import Control, Entry, decode_chunk, decode_control
from storage.formats.segment import segment_key
from storage.formats.wal import decode_header, header_bytes, object_key
from storage.limits import WAL_OBJECT_SLICES_MAX
from storage.metadata import keys
from storage.metadata.port import Key, MetadataStore
from storage.objects.port import ObjectStore
from storage.vocabulary import PartitionId

NAMED_MAX: Final = 8
"""Objects that are looked for in the store, of as many partitions: one that is damaged says nothing of the others."""
LISTED_MAX: Final = 8
SLICES_MAX: Final = 100
_READ_KEYS_MAX: Final = 256
_WAL: Final = "wal/"


class Objects(Enum):
    """What an object store without a marker holds."""

    NOTHING = "no WAL object"
    OURS = "a WAL object that the metadata name, or of a partition that they know"
    STRANGE = "WAL objects, none of them of a partition that the metadata know"


@dataclass(frozen=True, slots=True)
class StoreContents:
    """`named`: an object that the metadata name; `strange`: one of `Objects.STRANGE`. What is behind a marker is not looked for."""

    cluster: ClusterRecord | None
    marker: StoreMarker | None
    named: str | None = None
    objects: Objects = Objects.NOTHING
    strange: str | None = None


class StoreOwnership(Enum):
    SAME = "both have the same id"
    MARK = "the store is new, or was used by a release that put no marker: put one"
    ACCEPTED = "as GONE or STRANGE, and the operator means it: put a marker"
    ANOTHERS = "the store has the marker of another cluster"
    LOST_METADATA = "the store has a marker, and the metadata no cluster"
    GONE = "the metadata name objects, and the store has none"
    STRANGE = "the store has objects of unknown origin"

    @property
    def is_refusal(self) -> bool:
        return self in (StoreOwnership.ANOTHERS, StoreOwnership.LOST_METADATA, StoreOwnership.GONE, StoreOwnership.STRANGE)


def judge(found: StoreContents, *, accept_new_store: bool) -> StoreOwnership:
    """PURE. A store with the marker of another cluster is refused whatever is accepted: that cluster may be alive."""
    if found.marker is not None:
        if found.cluster is None:
            return StoreOwnership.LOST_METADATA
        return StoreOwnership.SAME if found.cluster.cluster_id == found.marker.cluster_id else StoreOwnership.ANOTHERS
    match found.objects:
        case Objects.OURS:
            return StoreOwnership.MARK
        case Objects.STRANGE:
            refusal = StoreOwnership.STRANGE
        case Objects.NOTHING:
            if found.named is None:
                return StoreOwnership.MARK
            refusal = StoreOwnership.GONE
    return StoreOwnership.ACCEPTED if accept_new_store else refusal


@dataclass(frozen=True, slots=True)
class Identity:
    """`cluster` is None if the verdict is a refusal: then nothing was written, but perhaps a cluster's record in metadata that had none."""

    cluster: ClusterRecord | None
    verdict: StoreOwnership
    found: StoreContents


async def identify(
    metadata: MetadataStore,
    objects: ObjectStore,
    ids: IdSource,
    clock: Clock,
    *,
    accept_new_store: bool = False,
    entropy: Entropy = os.urandom,
) -> Identity:
    """The cluster of both stores, begun if they are new. Brokers that start together agree, and may be killed anywhere.

    Raises `IncompatibleFormat`, `Unavailable`, `OutcomeUnknown` and `Corrupt`.
    """
    found = await look(metadata, objects)
    verdict = judge(found, accept_new_store=accept_new_store)
    if verdict.is_refusal:
        return Identity(None, verdict, found)
    cluster = await open_cluster(metadata, ids, clock, entropy=entropy)
    marker = found.marker or await write_marker(objects, cluster)
    if marker.cluster_id != cluster.cluster_id:
        # Two clusters began at the same time: the store is that of the first marker.
        return Identity(None, StoreOwnership.ANOTHERS, StoreContents(cluster, marker))
    return Identity(cluster, verdict, found)


async def look(metadata: MetadataStore, objects: ObjectStore) -> StoreContents:
    """What both stores hold, as far as `judge` asks. Two reads of each where there is a marker."""
    cluster = await read_cluster(metadata)
    marker = await read_marker(objects)
    if marker is not None:
        return StoreContents(cluster, marker)
    named = await _named(metadata)
    for key in named:
        if await _is_there(objects, key):
            return StoreContents(cluster, None, named=named[0], objects=Objects.OURS)
    first_named, strange = next(iter(named), None), None
    async for key, partitions in _listed(objects):
        known = await metadata.get_many([keys.PartitionKeys(partition).control for partition in partitions])
        if any(record is not None for record in known):
            return StoreContents(cluster, None, named=first_named, objects=Objects.OURS)
        strange = strange or key
    return StoreContents(cluster, None, named=first_named, objects=Objects.STRANGE if strange else Objects.NOTHING, strange=strange)


async def _named(metadata: MetadataStore) -> list[str]:
    """Up to NAMED_MAX objects that partitions name. Where none of them does, all are read: once in the life of a cluster."""
    found: list[str] = []
    has_carried = False
    async for partition, control in _controls(metadata):
        key = await _named_by(metadata, partition, control)
        if key == MARKER_KEY:
            has_carried = True  # which says less than an object that may be there
        elif key is not None:
            found.append(key)
            if len(found) == NAMED_MAX:
                break
    return found or ([MARKER_KEY] if has_carried else [])


async def _named_by(metadata: MetadataStore, partition: PartitionId, control: Control) -> str | None:
    """An object that a log names, as near to its end as can be seen at once; None if it names none, or none that near.

    An entry that carries its batches names the marker: releases that write such entries put it before anything else.
    """
    entries: Sequence[Entry] = ()
    live_from = max(control.compaction_cursor, control.log_start)
    if live_from < control.sequence_counter:
        entries = control.pending
        if not entries:
            at = keys.PartitionKeys(partition)  # the ring was drained when nobody appended
            record = await metadata.get_ceiling(at.index(control.sequence_counter - 1), within=at.index_prefix)
            entries = () if record is None else decode_chunk(record.value, path=record.path).entries
    # The objects of entries that end below it may be gone.
    live = [entry for entry in entries if entry.last >= live_from]
    for entry in reversed(live):
        if not entry.is_inline:
            return object_key(entry.object_id)
    newest = control.segment
    if newest is not None and newest.last >= control.log_start:
        return segment_key(partition, newest.object_id)
    return MARKER_KEY if live else None


async def _controls(metadata: MetadataStore) -> AsyncIterator[tuple[PartitionId, Control]]:
    start, end = keys.topics()
    paths = iter(await metadata.list(start, end))
    while topics := [Key(path, start.partition_key) for path in islice(paths, _READ_KEYS_MAX)]:
        records = [decode_topic(record) for record in await metadata.get_many(topics) if record is not None]
        partitions = (topic.partition(number) for topic in records for number in range(topic.logs_max))
        while asked := list(islice(partitions, _READ_KEYS_MAX)):
            for partition, record in zip(asked, await metadata.get_many([keys.PartitionKeys(one).control for one in asked]), strict=True):
                if record is not None:
                    yield partition, decode_control(record.value, path=record.path)


async def _listed(objects: ObjectStore) -> AsyncIterator[tuple[str, list[PartitionId]]]:
    """The first LISTED_MAX objects and partitions of theirs; none of an object whose header cannot be read."""
    count = 0
    async for stat in objects.list(_WAL):
        if count == LISTED_MAX:
            return
        count += 1
        try:
            head = await objects.get_range(stat.key, 0, min(stat.size_bytes, header_bytes(WAL_OBJECT_SLICES_MAX)))
            slices = decode_header(head, key=stat.key).slices[:SLICES_MAX]
        except NotFound:
            continue
        except (Corrupt, IncompatibleFormat):
            slices = ()
        yield stat.key, [one.partition for one in slices]


async def _is_there(objects: ObjectStore, key: str) -> bool:
    try:
        await objects.stat(key)
    except NotFound:
        return False
    return True
