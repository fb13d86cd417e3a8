"""Brokers that are wrong on purpose, each in one way that the design forbids: what a checker worth its name must find."""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from sim.metadata import SimMetadata
from storage.errors import Unavailable
from storage.formats.manifest import Manifest
from storage.log.commit import Committer, DeadWriters, Send
from storage.log.decide import Outcome
from storage.log.fresh_reads import LogBounds, ManifestReads, bounds_of
from storage.log.partition import CachedManifest, Commit
from storage.log.uploads import Uploader
from storage.metadata.port import Put, WriteOp
from storage.vocabulary import PartitionId

Original = Callable[..., Any]


@contextlib.contextmanager
def retries_what_is_unknown_as_new() -> Iterator[None]:
    """Nobody asks `writers` what became of an attempt."""

    def prepare(original: Original, self: Committer, commit: Commit, **how: Any) -> object:
        if not commit.is_given_up:
            commit.unknown = None
        return original(self, commit, **how)

    with _around(Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def puts_without_condition() -> Iterator[None]:
    """Manifests and chunks are put whatever stands there."""

    def write(original: Original, self: SimMetadata, ops: Sequence[WriteOp]) -> Awaitable[object]:
        bare = [
            dataclasses.replace(op, expected_version=None) if isinstance(op, Put) and "/partitions/" in op.key.path else op for op in ops
        ]
        return original(self, bare)  # type: ignore[no-any-return]

    with _around(SimMetadata, "write", write):
        yield


@contextlib.contextmanager
def shows_before_the_cas() -> Iterator[None]:
    """The tail cache is filled with what is about to be committed (I8)."""

    def prepare(original: Original, self: Committer, commit: Commit, **how: Any) -> object:
        step = original(self, commit, **how)
        if (decision := _decision(step)) is not None:
            offsets = [verdict.base_offset for verdict in decision.verdicts if verdict.outcome is Outcome.APPENDED]
            batches = [
                batch for batch, verdict in zip(commit.batches, decision.verdicts, strict=True) if verdict.outcome is Outcome.APPENDED
            ]
            if batches:
                self._tail.add(commit.log.readers.tail, list(zip(batches, offsets, strict=True)))
        return step

    with _around(Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def acks_before_the_cas() -> Iterator[None]:
    """Clients are answered when the CAS is sent (I1)."""

    def prepare(original: Original, self: Committer, commit: Commit, **how: Any) -> object:
        step = original(self, commit, **how)
        if (decision := _decision(step)) is not None:
            self._answer(commit, decision.verdicts)
        return step

    with _around(Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def commits_before_the_upload() -> Iterator[None]:
    """An upload that failed is taken for one that will still succeed (I1)."""

    async def upload(original: Original, self: Uploader, key: str, parts: Sequence[bytes], **how: Any) -> None:
        self._limits = dataclasses.replace(self._limits, upload_timeout_s=0.01)
        with contextlib.suppress(Unavailable):
            await original(self, key, parts, **how)

    with _around(Uploader, "upload", upload):
        yield


@contextlib.contextmanager
def tells_ends_from_memory() -> Iterator[None]:
    """The end of a partition is what this broker last heard of it (promise 5)."""

    async def read(original: Original, self: ManifestReads, partitions: Sequence[PartitionId]) -> list[LogBounds | Exception]:
        logs = [self._partitions.get(partition) for partition in partitions]
        if any(log.seen.manifest is None for log in logs):
            return await original(self, partitions)  # type: ignore[no-any-return]
        return [bounds_of(log) for log in logs]

    with _around(ManifestReads, "read", read):
        yield


@contextlib.contextmanager
def serves_what_it_once_knew() -> Iterator[None]:
    """Nobody asks again whether what lies below the known end was deleted meanwhile (promise 5)."""
    with mock.patch.object(CachedManifest, "may_be_old", return_value=False):
        yield


@contextlib.contextmanager
def refuses_for_certain_after_sending() -> Iterator[None]:
    """A write without an answer is taken for one that was refused."""

    def hear(original: Original, self: Committer, send: Send, *rest: Any) -> object:
        known = original(self, send, *rest)
        if send.commit.unknown is not None:
            send.commit.settle_all(Unavailable("no answer, so no"), 0.0)
        return known

    with _around(Committer, "_hear", hear):
        yield


@contextlib.contextmanager
def drops_the_writers_of_the_living() -> Iterator[None]:
    """Every other broker's entry leaves the manifest with each commit."""

    def of(self: DeadWriters, manifest: Manifest) -> list[int]:
        return [epoch for epoch in manifest.writers if epoch != self._epoch.current]

    with mock.patch.object(DeadWriters, "of", of):
        yield


def _decision(step: object) -> Any:
    decision = getattr(step, "decision", None)
    return decision if decision is not None and decision.manifest is not None else None


def _around(owner: type, name: str, wrapper: Callable[..., Any]) -> contextlib.AbstractContextManager[object]:
    original = getattr(owner, name)

    def wrapped(self: object, *given: Any, **named: Any) -> Any:
        return wrapper(original, self, *given, **named)

    return mock.patch.object(owner, name, wrapped)
