"""The identity of a cluster: its record, the marker of its object store, and the secret that its brokers share.

The first broker writes the record, and with it the level of the formats. Both stores hold the cluster's id: the metadata store first, then
the object store, before anything else of the cluster (docs/internals/adr/0020-whose-a-store-is.md). So objects without an id are those of a
release that put no marker, or not Forebay's. An id without metadata is another cluster's.
"""

import base64
import binascii
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from runtime.version import forebay_version
from storage.catalog.records import ATTEMPTS_MAX, decode, encode, given_up, pause, write_one
from storage.catalog.topic import decode_topic
from storage.errors import AlreadyExists, Corrupt, EndsEarly, IncompatibleFormat, NotFound, OutcomeUnknown
from storage.formats.levels import LEVEL_FIRST, LEVEL_MAX, UNDECODABLE, problem_with, problem_with_announced
from storage.formats.manifest import Entry, Manifest, decode_chunk, decode_manifest
from storage.formats.segment import segment_key
from storage.formats.wal import object_key, read_header
from storage.metadata import keys
from storage.metadata.keys import CLUSTER, ZONE_SECRET
from storage.metadata.port import ABSENT, Key, MetadataStore, NotApplied, Put, Record, Unknown
from storage.objects.port import MARKER, ObjectStore
from storage.vocabulary import PartitionId

CLUSTER_FMT: Final = 1
MARKER_FMT: Final = 1
MARKER_KEY: Final = MARKER
MARKER_BYTES_MAX: Final = 4_096
NAMED_MAX: Final = 8
"""Objects that are looked for in the store, of as many partitions: one that is damaged says nothing of the others."""
LISTED_MAX: Final = 8
SLICES_MAX: Final = 100
_READ_KEYS_MAX: Final = 256
_WAL: Final = "wal/"
SECRET_FMT: Final = 1
SECRET_BYTES: Final = 32


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cluster_id` is 22 characters of base64url, as Kafka writes a UUID.

    `level`: which formats may be written (storage/formats/levels.py). `raising_to`: the level about to hold; brokers that do not know it
    may not register any more. Every release reads `level`, whatever else a later one puts here.
    """

    fmt: int = CLUSTER_FMT
    cluster_id: str
    created_at_ms: int
    level: int = LEVEL_FIRST
    raising_to: int | None = None


class _Level(msgspec.Struct):
    level: int


_cluster_decoder = msgspec.json.Decoder(ClusterRecord)
_level_decoder = msgspec.json.Decoder(_Level)


def decode_cluster(record: Record, *, level_max: int = LEVEL_MAX) -> ClusterRecord:
    """Raise `IncompatibleFormat`, with words for the operator, if a newer release wrote it or the level is above `level_max`; `Corrupt` for
    what is no such record.
    """
    release = forebay_version()
    with contextlib.suppress(*UNDECODABLE):
        problem = problem_with(_level_decoder.decode(record.value).level, level_max=level_max, release=release)
        if problem is not None:
            raise IncompatibleFormat(f"{problem}: key={record.path!r}")
    try:
        return decode(_cluster_decoder, record.value, known=CLUSTER_FMT, path=record.path)
    except IncompatibleFormat as error:
        raise IncompatibleFormat(
            f"this cluster was written by a newer forebay than this one ({release}). Use a newer forebay, or another metadata.url. "
            f"Nothing was changed: {error}"
        ) from error


async def read_cluster(metadata: MetadataStore) -> ClusterRecord | None:
    """The cluster's record, or None if there is none. Raises as `decode_cluster` does, and `Unavailable`."""
    (record,) = await metadata.get_many([CLUSTER])
    return None if record is None else decode_cluster(record)


async def open_cluster(
    metadata: MetadataStore, ids: IdSource, clock: Clock, *, entropy: Entropy = os.urandom, level_max: int = LEVEL_MAX
) -> ClusterRecord:
    """The cluster's record, created at `level_max` if there is none: all brokers of one metadata store get the same one.

    Raises `IncompatibleFormat` as `decode_cluster` does, and for a level that is about to be; `Unavailable` if the store does not answer.
    """
    proposal = ClusterRecord(cluster_id=_random_cluster_id(ids), created_at_ms=clock.now_ms(), level=level_max)
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        # Whatever became of the put, the record that is there decides; a lost reply is read back like a lost race.
        outcome = await write_one(metadata, Put(CLUSTER, encode(proposal), ABSENT))
        (record,) = await metadata.get_many([CLUSTER])
        if record is not None:
            found = decode_cluster(record, level_max=level_max)
            problem = problem_with_announced(found.level, found.raising_to, level_max=level_max)
            if problem is not None:
                raise IncompatibleFormat(problem)
            return found
        if isinstance(outcome, Unknown):
            unknown = outcome
        reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "the record vanished"
        await pause(attempt, entropy)
    raise given_up("create the cluster record", unknown=unknown, reason=reason)


class StoreMarker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`created_at_ms` is the cluster's: all brokers of a cluster put the same bytes."""

    fmt: int = MARKER_FMT
    cluster_id: str
    created_at_ms: int


_marker_decoder = msgspec.json.Decoder(StoreMarker)


def decode_marker(data: bytes, *, path: str) -> StoreMarker:
    """Raise `IncompatibleFormat`, or `Corrupt` for what is no marker."""
    return decode(_marker_decoder, data, known=MARKER_FMT, path=path)


async def read_marker(objects: ObjectStore) -> StoreMarker | None:
    """None if there is none. Raises `Unavailable`, `IncompatibleFormat`, and `Corrupt` for an object of that name that is none of ours."""
    try:
        size_bytes = (await objects.stat(MARKER_KEY)).size_bytes
        if not 0 < size_bytes <= MARKER_BYTES_MAX:
            raise Corrupt(f"not the marker of a cluster: key={MARKER_KEY!r} size_bytes={size_bytes}")
        return decode_marker(bytes(await objects.get_range(MARKER_KEY, 0, size_bytes)), path=MARKER_KEY)
    except NotFound:
        return None


async def bears_marker(objects: ObjectStore, cluster: ClusterRecord) -> bool:
    """Whether the bytes that a broker of `cluster` puts begin what is there: one request. Raises `Unavailable`."""
    expected = encode(_marker_of(cluster))
    try:
        return await objects.get_range(MARKER_KEY, 0, len(expected)) == expected
    except (NotFound, EndsEarly):
        return False


async def write_marker(objects: ObjectStore, cluster: ClusterRecord) -> StoreMarker:
    """Put the marker of `cluster` if there is none, and return the one that is there, which may be another's.

    Raises `OutcomeUnknown` if it may be there and cannot be seen: ask again.
    """
    marker = _marker_of(cluster)
    unknown: OutcomeUnknown | None = None
    try:
        await objects.put_if_absent(MARKER_KEY, [encode(marker)])
    except AlreadyExists:
        pass
    except OutcomeUnknown as error:
        unknown = error
    else:
        return marker
    found = await read_marker(objects)
    if found is None:
        raise unknown or OutcomeUnknown(f"the marker of a cluster vanished while it was looked at: key={MARKER_KEY!r}")
    return found


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
        known = await metadata.get_many([keys.PartitionKeys(partition).manifest for partition in partitions])
        if any(record is not None for record in known):
            return StoreContents(cluster, None, named=first_named, objects=Objects.OURS)
        strange = strange or key
    return StoreContents(cluster, None, named=first_named, objects=Objects.STRANGE if strange else Objects.NOTHING, strange=strange)


class ZoneSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`secret` is SECRET_BYTES random bytes in base64. To replace it, remove the key and restart the brokers."""

    fmt: int = SECRET_FMT
    secret: str


_secret_decoder = msgspec.json.Decoder(ZoneSecret)


def decode_zone_secret(record: Record) -> bytes:
    """Raise `IncompatibleFormat`, or `Corrupt`."""
    found = decode(_secret_decoder, record.value, known=SECRET_FMT, path=record.path)
    try:
        secret = base64.b64decode(found.secret, validate=True)
    except binascii.Error as error:
        raise Corrupt(f"not base64: key={record.path!r}") from error
    if len(secret) != SECRET_BYTES:
        raise Corrupt(f"a secret has {SECRET_BYTES} bytes: key={record.path!r} bytes={len(secret)}")
    return secret


async def open_zone_secret(metadata: MetadataStore, *, entropy: Entropy = os.urandom) -> bytes:
    """The cluster's secret, made if there is none: all brokers of one metadata store get the same one.

    Raises `IncompatibleFormat`, `Corrupt`, `Unavailable`, and `OutcomeUnknown` if it may have been made.
    """
    (record,) = await metadata.get_many([ZONE_SECRET])
    if record is not None:
        return decode_zone_secret(record)
    proposal = ZoneSecret(secret=base64.b64encode(entropy(SECRET_BYTES)).decode())
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        # Whatever became of the put, the record that is there decides; a lost reply is read back like a lost race.
        outcome = await write_one(metadata, Put(ZONE_SECRET, encode(proposal), ABSENT))
        (record,) = await metadata.get_many([ZONE_SECRET])
        if record is not None:
            return decode_zone_secret(record)
        if isinstance(outcome, Unknown):
            unknown = outcome
        reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "the record vanished"
        await pause(attempt, entropy)
    raise given_up("make the secret of the zone caches", unknown=unknown, reason=reason)


def _random_cluster_id(ids: IdSource) -> str:
    text = base64.urlsafe_b64encode(uuid.UUID(ids.random_uuid()).bytes).rstrip(b"=").decode()
    # As Kafka's Uuid: an id that begins with a dash would look like an option on a command line.
    return "A" + text[1:] if text.startswith("-") else text


def _marker_of(cluster: ClusterRecord) -> StoreMarker:
    return StoreMarker(cluster_id=cluster.cluster_id, created_at_ms=cluster.created_at_ms)


async def _named(metadata: MetadataStore) -> list[str]:
    """Up to NAMED_MAX objects that partitions name. Where none of them does, all are read: once in the life of a cluster."""
    found: list[str] = []
    has_carried = False
    async for partition, manifest in _manifests(metadata):
        key = await _named_by(metadata, partition, manifest)
        if key == MARKER_KEY:
            has_carried = True  # which says less than an object that may be there
        elif key is not None:
            found.append(key)
            if len(found) == NAMED_MAX:
                break
    return found or ([MARKER_KEY] if has_carried else [])


async def _named_by(metadata: MetadataStore, partition: PartitionId, manifest: Manifest) -> str | None:
    """An object that a log names, as near to its end as can be seen at once; None if it names none, or none that near.

    An entry that carries its batches names the marker: releases that write such entries put it before anything else. So does an early one,
    whose object is stored later, or never.
    """
    entries: Sequence[Entry] = ()
    live_from = max(manifest.compaction_cursor, manifest.log_start)
    if live_from < manifest.sequence_counter:
        entries = manifest.pending
        if not entries:
            at = keys.PartitionKeys(partition)  # the ring was drained when nobody appended
            record = await metadata.get_ceiling(at.index(manifest.sequence_counter - 1), within=at.index_prefix)
            entries = () if record is None else decode_chunk(record.value, path=record.path).entries
    # The objects of entries that end below it may be gone.
    live = [entry for entry in entries if entry.last >= live_from]
    for entry in reversed(live):
        if not (entry.is_inline or entry.is_early):
            return object_key(entry.object_id)
    newest = manifest.segment
    if newest is not None and newest.last >= manifest.log_start:
        return segment_key(partition, newest.object_id)
    return MARKER_KEY if live else None


async def _manifests(metadata: MetadataStore) -> AsyncIterator[tuple[PartitionId, Manifest]]:
    start, end = keys.topics()
    paths = iter(await metadata.list(start, end))
    while topics := [Key(path, start.partition_key) for path in islice(paths, _READ_KEYS_MAX)]:
        records = [decode_topic(record) for record in await metadata.get_many(topics) if record is not None]
        partitions = (topic.partition(number) for topic in records for number in range(topic.logs_max))
        while asked := list(islice(partitions, _READ_KEYS_MAX)):
            for partition, record in zip(asked, await metadata.get_many([keys.PartitionKeys(one).manifest for one in asked]), strict=True):
                if record is not None:
                    yield partition, decode_manifest(record.value, path=record.path)


async def _listed(objects: ObjectStore) -> AsyncIterator[tuple[str, list[PartitionId]]]:
    """The first LISTED_MAX objects and partitions of theirs; none of an object whose header cannot be read."""
    count = 0
    async for stat in objects.list(_WAL):
        if count == LISTED_MAX:
            return
        count += 1
        try:
            header = await read_header(partial(objects.get_range, stat.key), key=stat.key, size_bytes=stat.size_bytes)
            slices = header.slices[:SLICES_MAX]
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
