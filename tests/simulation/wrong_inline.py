"""Brokers that are wrong on purpose about batches that travel in their commits.

What overtakes is not among them: producers with sequences are refused, and send again, so that no log is wrong. The order in which batches
enter their commit queues is for tests/unit/storage/log/test_inline.py.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final
from unittest import mock

import msgspec

from storage.formats.manifest import Entry, IndexChunk, Manifest
from storage.log import decide, writer
from storage.log.batch import Batch
from storage.log.flush import InlineSettings
from storage.log.partition import Commit, CommitQueue

DRAINED: Final = decide.drained
JOIN: Final = writer.join


def _without_bytes(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """As if they named objects."""
    return tuple([msgspec.structs.replace(entry, batches=((0, entry.size_bytes),)) if entry.is_inline else entry for entry in entries])


@contextlib.contextmanager
def leaves_the_bytes_behind_when_the_ring_leaves() -> Iterator[None]:
    """Model: F-inline."""

    def drained(manifest: Manifest) -> IndexChunk:
        return IndexChunk(entries=_without_bytes(DRAINED(manifest).entries))

    with mock.patch.object(decide, "drained", drained):
        yield


@contextlib.contextmanager
def joins_a_commit_that_has_begun() -> Iterator[None]:
    """The attempt that is on its way does not have the batch."""

    def joined(queue: CommitQueue, batch: Batch, settings: InlineSettings) -> Commit | None:
        last = queue.commits[-1] if queue.commits else None
        return last if last is not None and last.is_inline and not last.is_given_up else None

    def join(commit: Commit, batch: Batch) -> None:
        begun, commit.commit_seq = commit.commit_seq, -1
        JOIN(commit, batch)
        commit.commit_seq = begun

    with mock.patch.object(writer, "joined", joined), mock.patch.object(writer, "join", join):
        yield
