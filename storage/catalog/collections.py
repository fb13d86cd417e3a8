"""Metadata that are older than what the object store has seen (docs/internals/design/upkeep.md#metadata-that-went-back).

Metadata that were put back to an older copy name objects that were deleted since, and do not name what was written since. Both stores
hold a count of deletions, which the metadata get first; what the metadata lack of it shows that they are older:

    nothing refers to the objects  →  [CAS llog/collections: n + 1, by whom]  →  put forebay-collections/{n + 1} if absent
      →  look for newer counts  →  nothing refers to the objects  →  delete them

A copy with n + 1 was made after the first look, so it does not name the objects; one without finds n + 1 in the object store. The second
look is for metadata that are put back under a process that goes on: its CAS may land in the older ones (model F-restore-looked-once).

Marks tell the same of commits. An object forebay-marks/{ulid} names the last commit of each shard that its broker knows to be applied, so
metadata without one of these are older than the mark. Objects that nothing names tell nothing: every kill leaves some.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from runtime.ulid import encode_ulid, ulid_ms
from storage.catalog.records import ATTEMPTS_MAX, decode, decode_checked, encode, encode_checked, given_up, pause, write_one
from storage.catalog.topic import decode_topic_id
from storage.errors import AlreadyExists, Conflict, Corrupt, IncompatibleFormat, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.keys import COLLECTIONS, PartitionKeys, partition_of_manifest
from storage.metadata.port import ABSENT, MetadataStore, NotApplied, OpResult, Put, Record, Unknown
from storage.metadata.version_watch import CertainRead, PutManifest, read_certainly
from storage.objects.port import MARKERS, ObjectStore
from storage.objects.requests import caused_by
from storage.vocabulary import ObjectId, PartitionId, TopicId

MARK_FMT: Final = 1
MARKS_PREFIX: Final = f"{MARKERS}marks/"
MARK_EVERY_S: Final = 600.0
LOOK_EVERY_S: Final = 5.0
COMMITS_MAX: Final = 64
"""Shards that one mark names: a store that was put back was so in all of them."""
PUT_TIMEOUT_S: Final = 10.0
MARK_BYTES_MAX: Final = 16_384
FMT: Final = 1
COUNTS_PREFIX: Final = f"{MARKERS}collections/"
"""What the names of the counts and the marks begin with, in this order: one list shows both."""
COUNTS_KEPT: Final = 1_000
"""Objects that count deletions: with each, the one this far behind it goes."""
MARKS_READ_MAX: Final = 16
MARKS_KEPT: Final = 64
MARKS_LISTED_MAX: Final = 1_000
KEPT_RANGES_MAX: Final = 100
MISSING_MAX: Final = 100
LOST_MAX: Final = 1_000
COUNT_BYTES_MAX: Final = 4_096

_log = structlog.get_logger("stores")


class MarkedCommit(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A manifest that was put, and the version that the put got."""

    topic_id: TopicId
    partition: int
    version: int


class CommitMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fmt: int = MARK_FMT
    broker_id: int
    at_ms: int
    commits: tuple[MarkedCommit, ...]


_mark_decoder = msgspec.json.Decoder(CommitMark)


async def read_mark(objects: ObjectStore, key: str) -> CommitMark:
    """Raise `NotFound`, `Unavailable`, `IncompatibleFormat`, or `Corrupt` for what is no mark."""
    size_bytes = (await objects.stat(key)).size_bytes
    return decode_checked(_mark_decoder, bytes(await objects.get_range(key, 0, min(size_bytes, MARK_BYTES_MAX))), known=MARK_FMT, path=key)


class CommitMarks:
    """`run` until cancelled, `put` once more when the last commit has its outcome. One call at a time.

    A broker has one mark at a time. It puts the next one when it has committed since, every MARK_EVERY_S at most, and when it stops. So an
    idle broker puts none; the commits of the last minutes before a kill are in no mark.
    """

    def __init__(
        self, objects: ObjectStore, *, commits: Mapping[int, PutManifest], broker_id: Callable[[], int], ids: IdSource, clock: Clock
    ) -> None:
        """`commits`: the last of each shard, which others write."""
        self._objects = objects
        self._commits = commits
        self._broker_id = broker_id
        self._ids = ids
        self._clock = clock
        self._marked: tuple[PutManifest, ...] = ()
        self._key: str | None = None
        self._next_s = clock.monotonic_s() + MARK_EVERY_S

    async def run(self) -> None:
        """Mark what was committed, when it is time."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._clock.monotonic_s() >= self._next_s:
                await self.put()

    async def put(self) -> None:
        """Put a mark if there was a commit since the last one. A store that fails says so elsewhere: the next call tries again."""
        newest = tuple(sorted(self._commits.values(), key=lambda one: one.version)[-COMMITS_MAX:])
        if newest == self._marked:
            return
        named = [(partition_of_manifest(one.key.path), one.version) for one in newest]
        commits = tuple([MarkedCommit(*partition, version) for partition, version in named if partition is not None])
        mark = CommitMark(broker_id=self._broker_id(), at_ms=self._clock.now_ms(), commits=commits)
        key = f"{MARKS_PREFIX}{self._ids.next_ulid()}"
        with caused_by("marker"):
            try:
                async with asyncio.timeout(PUT_TIMEOUT_S):
                    await self._objects.put_if_absent(key, [encode_checked(mark)])
            except (StorageError, TimeoutError) as error:
                _log.debug("commits_not_marked", cause=repr(error))
                return
            former, self._key, self._marked = self._key, key, newest
            self._next_s = self._clock.monotonic_s() + MARK_EVERY_S
            if former is not None:
                with contextlib.suppress(StorageError, TimeoutError):
                    async with asyncio.timeout(PUT_TIMEOUT_S):
                        await self._objects.delete_many([former])


class KeptRange(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Objects with ids from `first` to `last` that nothing names stay: the metadata may have named them before they went back."""

    first: ObjectId
    last: ObjectId
    accepted_ms: int


class MissingObject(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An object that a live entry of the partition names, and that is not in the store."""

    key: str
    topic_id: str
    partition: int


class CollectionsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of llog/collections. `number`: how often objects were deleted; `at_ms`: when that began last; `by`: a name for it that
    nobody else has given.

    `missing`: while there are any nothing is deleted. `lost`: names of those that an operator has accepted as lost.
    """

    fmt: int = FMT
    number: int = 0
    at_ms: int = 0
    by: str = ""
    kept: tuple[KeptRange, ...] = ()
    missing: tuple[MissingObject, ...] = ()
    lost: tuple[str, ...] = ()

    def keeps(self, object_id: ObjectId) -> bool:
        """Whether an object that nothing names stays."""
        return any(one.first <= object_id <= one.last for one in self.kept)


class CollectionCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object forebay-collections/{number}. `by` is that of the record with this number."""

    fmt: int = FMT
    number: int
    at_ms: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack:
    """The metadata are older than what the object store has seen. `evidence`: how that shows.

    `metadata_ms`: the last deletion that the metadata know of, 0 for none; `store_ms`: when the object store got what shows it.
    """

    evidence: str
    metadata_ms: int
    store_ms: int


class MetadataWentBack(Unavailable):
    """Nothing may be deleted, and nothing was."""

    def __init__(self, found: WentBack) -> None:
        super().__init__(f"the metadata are older than the object store: {found.evidence}")
        self.found = found


_decoder = msgspec.json.Decoder(CollectionsRecord)
_count_decoder = msgspec.json.Decoder(CollectionCount)


def count_key(number: int) -> str:
    return f"{COUNTS_PREFIX}{number:020}"


def decode_collections(record: Record) -> CollectionsRecord:
    """Raise `IncompatibleFormat`, or `Corrupt` for what is no such record."""
    return decode(_decoder, record.value, known=FMT, path=record.path)


async def read_collections(metadata: MetadataStore) -> CollectionsRecord:
    """An empty one if there is none. Raises as `decode_collections` does, and `Unavailable`."""
    (record,) = await metadata.get_many([COLLECTIONS])
    return _of(record)


class NewerStore:
    """Looks for what the object store has seen that the metadata do not know. One call at a time."""

    def __init__(self, metadata: MetadataStore, objects: ObjectStore, ids: IdSource) -> None:
        self._metadata = metadata
        self._objects = objects
        self._ids = ids
        self._read: dict[str, CommitMark] = {}
        """Marks by name: none ever changes."""
        self._old_marks: Sequence[str] = ()
        self._last_count: CollectionCount | None = None
        """As it was read: no count ever changes."""

    async def look(self) -> WentBack | None:
        """None if there is nothing. A list, and a GET of each mark that is new.

        What the metadata do not know is asked for twice, the second time for certain. A mark that cannot be read is passed over. Raises
        `Unavailable`, and of the counts `Corrupt` and `IncompatibleFormat`.
        """
        known = await read_collections(self._metadata)
        greatest, marks = await _seen_by(self._objects, known.number - 1)
        if await self._is_ahead(greatest, known):
            # Others may have counted since, and a deposed leader may have answered.
            known = _of((await read_certainly(self._metadata, [COLLECTIONS], name=self._ids.next_ulid())).records[0])
            if await self._is_ahead(greatest, known):
                count = await self._count(greatest)
                others = ", the last of them another" if greatest == known.number else ""
                evidence = f"objects were deleted {greatest} times{others}, and the metadata know of {known.number}"
                return WentBack(evidence=evidence, metadata_ms=known.at_ms, store_ms=count.at_ms)
        for key in marks[-MARKS_READ_MAX:]:
            try:
                mark = self._read.get(key) or await read_mark(self._objects, key)
            except NotFound:
                continue  # its broker has put another
            except (Corrupt, IncompatibleFormat) as error:
                _log.warning("commit_mark_unreadable", key=key, cause=str(error), effect="what it says of commits is not compared")
                continue
            self._read[key] = mark
            if (unknown := await _unknown_commit(self._metadata, mark, self._ids)) is not None:
                return WentBack(evidence=unknown, metadata_ms=known.at_ms, store_ms=mark.at_ms)
        self._read = {key: mark for key, mark in self._read.items() if key in marks}
        self._old_marks = marks[:-MARKS_KEPT]
        return None

    async def _is_ahead(self, greatest: int, known: CollectionsRecord) -> bool:
        """Whether the count `greatest` of the object store, or 0, is in no past of `known`."""
        if greatest != known.number or not greatest:
            return greatest > known.number
        return (await self._count(greatest)).by != known.by

    async def _count(self, number: int) -> CollectionCount:
        if self._last_count is None or self._last_count.number != number:
            key = count_key(number)
            self._last_count = decode_checked(_count_decoder, await _get(self._objects, key), known=FMT, path=key)
        return self._last_count

    async def remove_old_marks(self) -> None:
        """Delete marks that the last look has found, but for the newest: brokers that are gone left them. Raises as deleting does."""
        if self._old_marks:
            await self._objects.delete_many(self._old_marks)
            self._old_marks = ()


class Deletions:
    """What deletes objects of one cluster, by one process. One call at a time."""

    def __init__(
        self,
        metadata: MetadataStore,
        objects: ObjectStore,
        *,
        ids: IdSource,
        clock: Clock,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.newer = NewerStore(metadata, objects, ids)
        self._metadata = metadata
        self._objects = objects
        self._ids = ids
        self._clock = clock
        self._entropy = entropy

    async def count(self, *, newest_epoch: int = -1) -> CollectionsRecord:
        """Count one deletion in both stores, and return what says which objects stay. Objects may be deleted after it to which nothing
        referred before the call, and nothing does for certain when looked for once more.

        `newest_epoch`: the greatest epoch of a broker that the objects name. Raises `MetadataWentBack` if the metadata gave no such epoch,
        or if the object store has seen newer ones; `Unavailable` or `OutcomeUnknown` if the count is not certain to be in both.
        """
        record, version = await self._raise()
        if newest_epoch >= version:
            evidence = f"an object was put by the broker of epoch {newest_epoch}, and the metadata give version {version} now"
            raise MetadataWentBack(WentBack(evidence=evidence, metadata_ms=record.at_ms, store_ms=self._clock.now_ms()))
        count = CollectionCount(number=record.number, at_ms=record.at_ms, by=record.by)
        key = count_key(record.number)
        try:
            await self._objects.put_if_absent(key, [encode_checked(count)])
        except (AlreadyExists, OutcomeUnknown) as error:
            try:
                found = decode_checked(_count_decoder, await _get(self._objects, key), known=FMT, path=key)
            except NotFound:
                raise Unavailable(f"a deletion was not counted: key={key!r} cause={error}") from error
            if found.by != count.by:
                evidence = f"{key} was put before, at the same count of the metadata"
                raise MetadataWentBack(WentBack(evidence=evidence, metadata_ms=record.at_ms, store_ms=found.at_ms)) from error
        if (found_newer := await self.newer.look()) is not None:
            raise MetadataWentBack(found_newer)
        if record.number > COUNTS_KEPT:
            await self._objects.delete_many([count_key(record.number - COUNTS_KEPT)])
        return record

    def new_name(self) -> str:
        """One that nobody has used."""
        return self._ids.next_ulid()

    async def read(self) -> CollectionsRecord:
        """As `read_collections`."""
        return await read_collections(self._metadata)

    async def change(self, change: Callable[[CollectionsRecord], CollectionsRecord], *, action: str) -> CollectionsRecord:
        """As `change_collections`."""
        return (await change_collections(self._metadata, change, action=action, entropy=self._entropy))[0]

    async def _raise(self) -> tuple[CollectionsRecord, int]:
        """The record with a number that nobody else has got, and its version."""

        def change(known: CollectionsRecord) -> CollectionsRecord:
            at_ms = max(known.at_ms, self._clock.now_ms())
            return msgspec.structs.replace(known, number=known.number + 1, at_ms=at_ms, by=self._ids.next_ulid())

        return await change_collections(self._metadata, change, action="count a deletion", entropy=self._entropy)


async def change_collections(
    metadata: MetadataStore, change: Callable[[CollectionsRecord], CollectionsRecord], *, action: str, entropy: Entropy = os.urandom
) -> tuple[CollectionsRecord, int]:
    """CAS the record to what `change` makes of it; asked again whenever others were first. Return what was put, and its version.

    After a lost answer the change is made once more: a number that is raised twice does no harm. Raises `Unavailable`, `OutcomeUnknown`.
    """
    unknown: Unknown | None = None
    reason = "others changed it each time"
    for attempt in range(ATTEMPTS_MAX):
        (record,) = await metadata.get_many([COLLECTIONS])
        changed = change(_of(record))
        outcome = await write_one(metadata, Put(COLLECTIONS, encode(changed), ABSENT if record is None else record.version))
        if isinstance(outcome, OpResult) and outcome.version is not None:
            return changed, outcome.version
        if isinstance(outcome, Unknown):
            unknown = outcome
        elif isinstance(outcome, NotApplied):
            reason = outcome.reason
        await pause(attempt, entropy)
    raise given_up(action, unknown=unknown, reason=reason)


async def accept_older(metadata: MetadataStore, objects: ObjectStore, ids: IdSource, clock: Clock) -> KeptRange:
    """Go on with metadata that went back: objects that are there, and that they do not name, stay from now on.

    All of them, whatever their age: clocks of brokers and collectors differ, so no id tells what is newer than the metadata. This costs a
    list of the whole object store.

    The count becomes that of the object store, and marks of commits that nobody knows any more are removed. Killed on the way, the next
    start is refused as before, and accepting again does the rest. No process of before may go on: what it has begun to delete is not kept.
    """
    greatest, _ = await _seen_by(objects, 0)
    count = (
        decode_checked(_count_decoder, await _get(objects, count_key(greatest)), known=FMT, path=count_key(greatest)) if greatest else None
    )
    marks = [stat.key async for stat in objects.list(MARKS_PREFIX)]
    last = ids.next_ulid()
    async for stat in objects.list(""):
        name = stat.key.rpartition("/")[2]
        with contextlib.suppress(ValueError):
            ulid_ms(name)
            last = max(last, name)
    kept = KeptRange(ObjectId(encode_ulid(0)), ObjectId(last), clock.now_ms())

    def change(known: CollectionsRecord) -> CollectionsRecord:
        ranges = (*known.kept, kept)
        if len(ranges) > KEPT_RANGES_MAX:
            ranges = (KeptRange(ranges[0].first, max(ranges[0].last, ranges[1].last), ranges[1].accepted_ms), *ranges[2:])
        if count is not None and count.number >= known.number:
            known = msgspec.structs.replace(known, number=count.number, by=count.by)
        return msgspec.structs.replace(known, at_ms=clock.now_ms(), kept=ranges)

    await change_collections(metadata, change, action="accept older metadata")
    await objects.delete_many(marks)
    return kept


def with_missing(known: CollectionsRecord, found: Sequence[MissingObject]) -> CollectionsRecord:
    """PURE: as many as have room; one is enough to keep everything."""
    both = dict.fromkeys([*known.missing, *(one for one in found if one.key not in known.lost)])
    return msgspec.structs.replace(known, missing=tuple(both)[:MISSING_MAX])


def without_missing(known: CollectionsRecord, over: Sequence[MissingObject]) -> CollectionsRecord:
    """PURE."""
    return msgspec.structs.replace(known, missing=tuple([one for one in known.missing if one not in over]))


def with_lost(known: CollectionsRecord, key: str) -> CollectionsRecord:
    """PURE: `key` is missing for good, and an operator says so. Raise `Conflict` if LOST_MAX others are."""
    if key in known.lost:
        return known
    if len(known.lost) >= LOST_MAX:
        raise Conflict(f"as many objects as may be are accepted as lost already: {LOST_MAX}")
    missing = tuple([one for one in known.missing if one.key != key])
    return msgspec.structs.replace(known, lost=(*known.lost, key), missing=missing)


async def _seen_by(objects: ObjectStore, number: int) -> tuple[int, Sequence[str]]:
    """The greatest count above `number`, or 0, and the newest marks, oldest first."""
    marks: deque[str] = deque(maxlen=MARKS_LISTED_MAX)
    greatest = 0
    async for stat in objects.list(MARKERS, start_after=count_key(number) if number > 0 else COUNTS_PREFIX):
        name = stat.key.removeprefix(COUNTS_PREFIX)
        if name.isdecimal() and name != stat.key:
            greatest = max(greatest, int(name))
        elif stat.key.startswith(MARKS_PREFIX):
            marks.append(stat.key)
    return greatest, tuple(marks)


async def _unknown_commit(metadata: MetadataStore, mark: CommitMark, ids: IdSource) -> str | None:
    """A commit of the mark that the metadata certainly do not know."""
    named = [PartitionKeys(PartitionId(one.topic_id, one.partition)) for one in mark.commits]
    records = await metadata.get_many([one.manifest for one in named])
    for one, commit, record in zip(named, mark.commits, records, strict=True):
        if record is not None and record.version >= commit.version:
            continue
        found = await read_certainly(metadata, [one.manifest], name=ids.next_ulid())
        if (unknown := _unknown(found, commit.version)) is None:
            continue
        if found.records[0] is None:
            topic = await read_certainly(metadata, [keys.topic_id(commit.topic_id)], name=ids.next_ulid())
            if topic.records[0] is not None and decode_topic_id(topic.records[0]).is_deleted:
                continue  # its record goes with the topic
        return f"broker {mark.broker_id} committed to partition {commit.partition} of topic id {commit.topic_id}: {unknown}"
    return None


def _unknown(found: CertainRead, version: int) -> str | None:
    """Why the commit that got `version` is not in the metadata; None if it is."""
    (record,) = found.records
    if record is not None and record.version >= version:
        return None
    has = "no record" if record is None else f"version {record.version}"
    return f"that was version {version}, and the metadata have {has} and give version {found.version} next"


def _of(record: Record | None) -> CollectionsRecord:
    return CollectionsRecord() if record is None else decode_collections(record)


async def _get(objects: ObjectStore, key: str) -> bytes:
    size_bytes = (await objects.stat(key)).size_bytes
    return bytes(await objects.get_range(key, 0, min(size_bytes, COUNT_BYTES_MAX)))
