"""Brokers that are wrong on purpose about slices which are committed before their object is stored."""

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

from storage.formats.manifest import Entry, Manifest
from storage.log import commit, writer
from storage.log.batch import Batch
from storage.log.early_objects import EarlyObject, EarlyObjects
from storage.log.early_pages import EarlyPages, EarlyPlace, EarlySlice
from storage.log.limits import LogLimits
from storage.log.partition import Commit, CommitQueue, PartitionLog
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Put

JOIN: Final = writer.join
TAKE: Final = EarlyObjects.take
STORE: Final = EarlyObjects._store
PUTS: Final = EarlyPlace.puts
FETCH: Final = EarlyPages.fetch_certainly


@contextlib.contextmanager
def joins_a_commit_that_has_begun() -> Iterator[None]:
    """The attempt that is on its way does not have the batch."""

    def joined(queue: CommitQueue, batch: Batch, limits: LogLimits) -> Commit | None:
        last = queue.commits[-1] if queue.commits else None
        return last if last is not None and last.is_early and not last.is_given_up else None

    def join(commit: Commit, batch: Batch) -> None:
        begun, commit.commit_seq = commit.commit_seq, -1
        JOIN(commit, batch)
        commit.commit_seq = begun

    with mock.patch.object(writer, "joined", joined), mock.patch.object(writer, "join", join):
        yield


@contextlib.contextmanager
def deletes_pages_before_the_object_is_stored() -> Iterator[None]:
    """Model: F-early-first."""

    async def store(self: EarlyObjects, sealed: EarlyObject, trigger: str) -> None:
        for shard, pages in sealed.pages.items():
            await self._delete(sealed.object_id, shard, pages)
        await STORE(self, sealed, trigger)

    with mock.patch.object(EarlyObjects, "_store", store):
        yield


@contextlib.contextmanager
def gives_a_place_again_after_a_cut() -> Iterator[None]:
    """Model: F-early-place."""
    last: dict[int, EarlyPlace] = {}

    def take(self: EarlyObjects, log: PartitionLog, data: bytes, *, floor: str) -> EarlyPlace:
        before = last.get(id(self))
        if before is not None and before.partition == log.partition and before.object_id > floor and len(before.data) > len(data):
            return before._replace(data=data)
        place = last[id(self)] = TAKE(self, log, data, floor=floor)
        return place

    with mock.patch.object(EarlyObjects, "take", take):
        yield


@contextlib.contextmanager
def sends_a_page_with_the_first_attempt_only() -> Iterator[None]:
    """Model: F-early-once."""
    sent: set[tuple[str, int]] = set()

    def puts(self: EarlyPlace, partition_key: str) -> Iterator[Put]:
        if (self.object_id, self.start) not in sent:
            sent.add((self.object_id, self.start))
            yield from PUTS(self, partition_key)

    with mock.patch.object(EarlyPlace, "puts", puts):
        yield


@contextlib.contextmanager
def heeds_no_floor() -> Iterator[None]:
    """Model: F-early-floor."""

    def take(self: EarlyObjects, log: PartitionLog, data: bytes, *, floor: str) -> EarlyPlace:
        return TAKE(self, log, data, floor="")

    def is_below(commit: Commit, manifest: Manifest) -> bool:
        return commit.is_early and commit.place is None

    with mock.patch.object(EarlyObjects, "take", take), mock.patch.object(commit, "needs_place", is_below):
        yield


@contextlib.contextmanager
def takes_one_absence_for_damage() -> Iterator[None]:
    """Model: F-early-absent. It asks for the object first, whatever its age: else absence is rare, of what dead brokers left."""

    def is_object_first(self: EarlyPages, entry: Entry) -> bool:
        return True

    async def fetch(self: EarlyPages, keys: PartitionKeys, entry: Entry, *, known_version: int) -> EarlySlice | None:
        return None

    with mock.patch.object(EarlyPages, "is_object_first", is_object_first), mock.patch.object(EarlyPages, "fetch_certainly", fetch):
        yield
