"""More brokers that are wrong on purpose, in what the log remembers: producers, lost batches, its own numbers. Each is one small function,
since each reaches into names that are private to the log.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

import msgspec

from storage.formats.control import Control, IndexChunk, encode
from storage.log import append, broker_epoch, commit, decide, lane, partition
from storage.metadata.port import ABSENT, Applied, Put


@contextlib.contextmanager
def drops_producers_without_spilling_them() -> Iterator[None]:
    def make_room(producers: dict[int, Any], stored: object, keep: Collection[int]) -> tuple[dict[int, Any], tuple[int, ...]]:
        for producer_id in list(producers):
            if len(producers) <= decide.PRODUCERS_HOT_MAX:
                break
            if producer_id not in keep:
                del producers[producer_id]
        return producers, ()

    with mock.patch.object(decide, "_make_room", make_room):
        yield


@contextlib.contextmanager
def keeps_what_was_stored_when_others_have_written() -> Iterator[None]:
    """What is known of producers/ is not read again though another broker has committed since."""

    def observe(self: partition.PartitionLog, control: Control, version: int) -> None:
        if version > self.version:
            self.control, self.version, self.broken = control, version, None
            self.foreign_version = version
            self.wake()

    with mock.patch.object(partition.PartitionLog, "observe", observe):
        yield


@contextlib.contextmanager
def takes_a_conflict_after_an_unknown_attempt_for_the_end_of_it() -> Iterator[None]:
    """Model: F-conflict."""

    def hear(original: Callable[..., Any], self: object, attempt: lane.Commit, decided: object, outcome: object, *rest: Any) -> bool:
        is_heard = original(self, attempt, decided, outcome, *rest)
        if not is_heard and isinstance(outcome, Applied):
            attempt.unsure = False
        return bool(is_heard)

    with _around(commit.Committer, "_hear", hear):
        yield


@contextlib.contextmanager
def takes_an_absent_entry_for_an_attempt_that_was_not_applied() -> Iterator[None]:
    """Model: F-absent. Somebody may have dropped it."""

    def prepare(original: Callable[..., Any], self: Any, attempt: lane.Commit, **how: Any) -> object:
        attempt.log.committed_epoch = -1
        with mock.patch.object(broker_epoch.BrokerEpoch, "is_registered", return_value=True):
            return original(self, attempt, **how)

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def commits_objects_that_were_revoked() -> Iterator[None]:
    def prepare(original: Callable[..., Any], self: Any, attempt: lane.Commit, **how: Any) -> object:
        control = attempt.log.control
        if control is not None and control.revoked_floor:
            attempt.log.control = msgspec.structs.replace(control, revoked_floor="")
        return original(self, attempt, **how)

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def lets_strangers_begin_with_any_sequence() -> Iterator[None]:
    """ADR 9."""

    def judge(original: Callable[..., Any], known: object, claim: object, lost: object, *, is_waited_for: bool) -> object:
        return original(known, claim, lost, is_waited_for=True)

    with _around(decide, "_judge", judge):
        yield


@contextlib.contextmanager
def forgets_what_was_lost() -> Iterator[None]:
    def judge(original: Callable[..., Any], known: object, claim: object, lost: object, *, is_waited_for: bool) -> object:
        return original(known, claim, None, is_waited_for=is_waited_for)

    with _around(decide, "_judge", judge):
        yield


@contextlib.contextmanager
def takes_what_follows_a_lost_batch() -> Iterator[None]:
    with (
        mock.patch.object(commit, "refuse_followers"),
        mock.patch.object(append.Appender, "_refuse_gathered"),
    ):
        yield


@contextlib.contextmanager
def puts_its_own_entry_beside_its_cas() -> Iterator[None]:
    """Models: B, Bn."""

    def prepare(original: Callable[..., Any], self: Any, attempt: lane.Commit, **how: Any) -> Any:
        step = original(self, attempt, **how)
        decision = getattr(step, "decision", None)
        if decision is not None and decision.control is not None:
            own = IndexChunk(entries=decision.control.pending)
            step.ops = (Put(attempt.log.keys.index(own.entries[-1].last), encode(own), ABSENT), *step.ops[-1:])
        return step

    with _around(commit.Committer, "_prepare", prepare):
        yield


@contextlib.contextmanager
def numbers_every_commit_alike() -> Iterator[None]:
    def begin(self: lane.Commit, epoch: int) -> None:
        if not self.has_begun:
            self.epoch, self.commit_seq = epoch, 1
        self.attempt += 1

    with mock.patch.object(lane.Commit, "begin", begin):
        yield


@contextlib.contextmanager
def takes_itself_for_registered_under_an_epoch_that_is_gone() -> Iterator[None]:
    """Review D: the registration that exists is another than the one that wrote the entry."""

    def is_registered(self: broker_epoch.BrokerEpoch, epoch: int) -> bool:
        return self.registered_epoch() is not None and epoch == self.current

    with mock.patch.object(broker_epoch.BrokerEpoch, "is_registered", is_registered):
        yield


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> contextlib.AbstractContextManager[object]:
    original = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        return wrapper(original, *given, **named)

    return mock.patch.object(owner, name, wrapped)
