"""Decides the fate of a commit whose last attempt had no answer, pure: from the control record as read since.

docs/design/commit.md#unknown-outcomes says why this is all that can be known.

    the record read since                      fate         clients wait                  given up
    ──────────────────────────────────────────────────────────────────────────────────────────────
    writers[epoch] names our commit_seq        Found        answer as that attempt says   end
    the version is the one that was sent       UNDECIDED    send again                    bury
    the version moved, our entry may be gone   NEVER_KNOWN  answer REQUEST_TIMED_OUT      end
    the version moved otherwise                FAILED       decide again                  end

A CAS names a version, and versions are never reused: an attempt at a version that is gone can never apply.

Why `writers` is asked first, whatever the version, and again after a conflict (F-conflict):

    attempt 1 at version 7 … no answer … a read finds 7: undecided … attempt 1 lands: 8 … attempt 2 at version 7: conflict, with ourselves

Why an absent entry proves nothing if it may have been dropped (F-absent):

    attempt 1 lands, no answer … our session ends … another broker sees us gone and drops writers[epoch] … a read finds no entry

It was never there only if our registration certainly exists, and no commit of this lane was applied under our epoch before: that one left
an entry, so whoever finds none knows that somebody drops ours.
"""

from enum import Enum, auto
from typing import NamedTuple

from storage.formats.control import Control
from storage.log.decide import Decision


class UnknownAttempts(NamedTuple):
    """The attempts of one commit that had no answer, while any of them may have been applied, or may yet be."""

    version: int
    """What the last of them expected."""
    decisions: tuple[tuple[int, Decision], ...]
    """What each of them sent, by its number: the verdicts of the one that was applied count."""

    def decision(self, attempt: int) -> Decision:
        return dict(self.decisions)[attempt]


def one_more(before: UnknownAttempts | None, attempt: int, decision: Decision, *, version: int) -> UnknownAttempts:
    """Earlier attempts may still be the one that was applied."""
    return UnknownAttempts(version, (*(before.decisions if before is not None else ()), (attempt, decision)))


class Found(NamedTuple):
    """It was applied, by this attempt."""

    attempt: int


class Fate(Enum):
    UNDECIDED = auto()
    FAILED = auto()
    NEVER_KNOWN = auto()


def fate_of(control: Control, version: int, *, epoch: int, commit_seq: int, sent_version: int, may_be_dropped: bool) -> Found | Fate:
    """`sent_version`: what the attempt expected. `may_be_dropped`: an entry of `epoch` may have been removed from `writers`."""
    entry = control.writers.get(epoch)
    if entry is not None and entry.commit_seq == commit_seq:
        return Found(entry.attempt)
    if version == sent_version:
        return Fate.UNDECIDED
    return Fate.NEVER_KNOWN if entry is None and may_be_dropped else Fate.FAILED
