"""What became of a commit whose last attempt had no answer, pure: from the control record as read since.

docs/design/commit.md#unknown-outcomes says why this is all that can be known.

    writers[epoch] names our commit_seq        APPLIED     the verdicts of the attempt it names count
    the version is the one that was sent       UNDECIDED   the attempt may still land
    the version moved, our entry may be gone   LOST        nobody can tell any more (model F-absent): it is never sent again
    the version moved otherwise                FAILED      it can never apply: decide again, under the same commit_seq

A CAS names a version, and versions are never reused: an attempt at a version that is gone can never apply. That it did apply, and that
somebody dropped our entry since, is possible only where our epoch may have been taken for dead.
"""

from enum import Enum, auto
from typing import NamedTuple

from storage.formats.control import Control


class Found(NamedTuple):
    """It was applied, by this attempt."""

    attempt: int


class Fate(Enum):
    UNDECIDED = auto()
    FAILED = auto()
    LOST = auto()


def fate_of(control: Control, version: int, *, epoch: int, commit_seq: int, sent_version: int, may_be_dropped: bool) -> Found | Fate:
    """`sent_version`: what the attempt expected. `may_be_dropped`: an entry of `epoch` may have been removed from `writers`."""
    entry = control.writers.get(epoch)
    if entry is not None and entry.commit_seq == commit_seq:
        return Found(entry.attempt)
    if version == sent_version:
        return Fate.UNDECIDED
    return Fate.LOST if entry is None and may_be_dropped else Fate.FAILED
