"""More brokers that are wrong on purpose, in what the log remembers: producers, lost batches, its own numbers. Each is one small function,
since each reaches into names that are private to the log.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

import msgspec

from sim.themes import EXPIRATION_MS
from storage.errors import StorageError
from storage.formats.manifest import IndexChunk, Manifest, PageRef, encode
from storage.limits import SEQUENCE_MAX
from storage.log import batch, commit, decide, page_store, partition, producer_pages
from storage.log.limits import LogLimits
from storage.log.producers import PermittedStart
from storage.metadata.port import ABSENT, Applied, Put


@contextlib.contextmanager
def drops_producers_without_spilling_them() -> Iterator[None]:
    def make_room(
        refs: tuple[PageRef, ...], hot: dict[int, Any], _pages: object, *, claimed: Collection[int], limits: LogLimits, **_how: object
    ) -> producer_pages.PagedStates:
        for producer_id in list(hot):
            if len(hot) <= limits.producers_hot_max:
                break
            if producer_id not in claimed:
                del hot[producer_id]
        return producer_pages.PagedStates(hot, refs, ())

    with mock.patch.object(decide, "make_room", make_room):
        yield


@contextlib.contextmanager
def takes_the_page_it_knows_for_the_one_that_is_named() -> Iterator[None]:
    """What is known of producers is not read again though another broker has replaced their page."""
    known: dict[object, Any] = {}

    def missing(original: Callable[..., Any], self: object, attempt: partition.Commit) -> list[str]:
        names: list[str] = original(self, attempt)
        manifest = attempt.log.seen.manifest
        for ref in manifest.pages if manifest is not None else ():
            place = id(self), attempt.log.partition, ref.first_pid
            if place in known:
                attempt.pages = {**attempt.pages, ref.name: known[place]}
            elif ref.name in attempt.pages:
                known[place] = attempt.pages[ref.name]
        return [name for name in names if name not in attempt.pages]

    with _around(page_store.PageStore, "missing", missing):
        yield


@contextlib.contextmanager
def sweeps_pages_that_a_newer_record_names() -> Iterator[None]:
    """Model: F-page-sweep."""
    with mock.patch.object(page_store, "prepared_for", return_value=-1):
        yield


@contextlib.contextmanager
def counts_whoever_registered_since_the_scan_as_dead() -> Iterator[None]:
    """Review C: the entries are named after the read of the living."""
    live: dict[int, frozenset[int]] = {}

    async def look(self: Any, _named: frozenset[int]) -> None:
        with contextlib.suppress(StorageError):
            live[id(self)] = await self._epoch.live()
        self._is_looking = False

    def of(original: Callable[..., Any], self: Any, manifest: Manifest) -> list[int]:
        original(self, manifest)
        return [epoch for epoch in manifest.writers if epoch not in live.get(id(self), manifest.writers)]

    with mock.patch.object(commit.DeadWriters, "_look", look), _around(commit.DeadWriters, "of", of):
        yield


@contextlib.contextmanager
def takes_a_conflict_after_an_unknown_attempt_for_the_end_of_it() -> Iterator[None]:
    """Model: F-conflict."""

    def hear(original: Callable[..., Any], self: object, send: commit.Send, outcome: object, *rest: Any) -> object:
        step = original(self, send, outcome, *rest)
        if step is not commit.CommitStep.FINISHED and isinstance(outcome, Applied):
            send.commit.unknown = None
        return step

    with _around(commit.Committer, "_hear", hear):
        yield


@contextlib.contextmanager
def takes_an_absent_entry_for_an_attempt_that_was_not_applied() -> Iterator[None]:
    """Model: F-absent. Somebody may have dropped it."""

    def prepare(original: Callable[..., Any], self: Any, attempt: partition.Commit, **how: Any) -> object:
        attempt.log.commit_queue.committed_epoch = -1
        with mock.patch.object(partition.BrokerEpoch, "is_registered", return_value=True):
            return original(self, attempt, **how)

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def commits_objects_that_were_revoked() -> Iterator[None]:
    def prepare(original: Callable[..., Any], self: Any, attempt: partition.Commit, **how: Any) -> object:
        manifest = attempt.log.seen.manifest
        if manifest is not None and manifest.revoked_floor:
            attempt.log.seen.manifest = msgspec.structs.replace(manifest, revoked_floor="")
        return original(self, attempt, **how)

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def lets_unknown_producers_begin_with_any_sequence() -> Iterator[None]:
    """ADR 9."""

    def judge(original: Callable[..., Any], known: object, claim: decide.CandidateBatch, lost: object, _begin_at: object) -> object:
        return original(known, claim, lost, PermittedStart(claim.producer_epoch, SEQUENCE_MAX))

    with _around(decide, "_judge", judge):
        yield


@contextlib.contextmanager
def forgets_what_was_lost() -> Iterator[None]:
    def judge(original: Callable[..., Any], known: object, claim: object, lost: object, permitted_starts: object) -> object:
        return original(known, claim, None, permitted_starts)

    with _around(decide, "_judge", judge):
        yield


@contextlib.contextmanager
def takes_what_follows_a_lost_batch() -> Iterator[None]:
    with mock.patch.object(commit, "refuse_behind", return_value=None):
        yield


@contextlib.contextmanager
def puts_its_own_entry_beside_its_cas() -> Iterator[None]:
    """Models: B, Bn."""

    def prepare(original: Callable[..., Any], self: Any, attempt: partition.Commit, **how: Any) -> Any:
        step = original(self, attempt, **how)
        if isinstance(step, commit.Send) and step.decision.manifest is not None:
            own = IndexChunk(entries=step.decision.manifest.pending)
            chunk = Put(attempt.log.keys.index(own.entries[-1].last), encode(own), ABSENT)
            return step._replace(ops=(chunk, step.ops[step.manifest_at]), manifest_at=1)
        return step

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def numbers_every_commit_alike() -> Iterator[None]:
    def begin(self: partition.Commit, epoch: partition.BrokerEpoch) -> None:
        if not self.has_begun:
            self.epoch, self.commit_seq = epoch.current, 1
        self.attempt += 1

    with mock.patch.object(partition.Commit, "begin", begin):
        yield


@contextlib.contextmanager
def keeps_the_bytes_of_what_it_has_answered() -> Iterator[None]:
    kept: list[memoryview] = []

    def settle(original: Callable[..., Any], self: batch.Batch, result: object) -> None:
        kept.append(self.view)
        original(self, result)

    with _around(batch.Batch, "settle", settle):
        yield


@contextlib.contextmanager
def counts_no_bytes_of_what_it_carries() -> Iterator[None]:
    def split(original: Callable[..., Any], self: partition.InFlight, commit: partition.Commit, rest: partition.Commit) -> None:
        original(self, commit, rest)
        self.size_bytes -= rest.size_bytes
        rest.size_bytes = 0

    with _around(partition.InFlight, "split", split):
        yield


@contextlib.contextmanager
def places_producers_by_the_pages_that_have_not_expired() -> Iterator[None]:
    """The pages read for a commit are those that all of the record's pages call for."""

    def make_room(
        original: Callable[..., producer_pages.PagedStates], refs: tuple[PageRef, ...], *given: Any, expired_before_ms: int, **how: Any
    ) -> producer_pages.PagedStates:
        kept = tuple(ref for ref in refs if ref.newest_ms >= expired_before_ms)
        return original(kept, *given, expired_before_ms=expired_before_ms, **how)

    with _around(decide, "make_room", make_room):
        yield


@contextlib.contextmanager
def remembers_nobody_for_long() -> Iterator[None]:
    """Producers are forgotten a thousand times too early."""

    def is_expired(original: Callable[..., bool], state: Any, *, before_ms: int) -> bool:
        return original(state, before_ms=before_ms + decide.FORGOTTEN_AFTER * EXPIRATION_MS * 999 // 1_000)

    with _around(producer_pages, "is_expired", is_expired), _around(decide, "is_expired", is_expired):
        yield


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> contextlib.AbstractContextManager[object]:
    original = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        return wrapper(original, *given, **named)

    return mock.patch.object(owner, name, wrapped)
