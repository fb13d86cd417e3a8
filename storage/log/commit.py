"""The committer: the order of effects that makes batches visible (docs/internals/design/commit.md). Offsets are born here.

    uploaded slices → open their commit queues → decide (pure) → ONE write per shard → applied?  tail, wake, ack
                           ↑                                      │
                           └── read what is missing or old ── conflict, no answer

A round carries the commits of one shard that are ready; those that need a read or another attempt go on in a round of their own. So a shard
that does not answer holds up its own partitions, and a partition that cannot be read itself. A commit queue opens one commit at a time
(I6).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import (
    Fenced,
    InvalidProducerEpoch,
    NotFound,
    OutcomeUnknown,
    OutOfOrderSequence,
    PredecessorMissing,
    StorageError,
    Unavailable,
)
from storage.formats.manifest import IndexChunk, Manifest, encode
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.log.batch import Appended, AppendedBefore, Batch
from storage.log.decide import (
    NOBODY,
    PRODUCER_EXPIRATION_MS,
    AttemptOutcome,
    Decision,
    Found,
    Outcome,
    UnknownAttempts,
    Verdict,
    Writer,
    attempt_outcome,
    decide,
    one_more,
)
from storage.log.early_objects import EarlyObjects
from storage.log.flush import GATHERS_FORGOTTEN_S, GATHERS_S, GATHERS_S_MAX
from storage.log.fresh_reads import ManifestReads
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.page_store import PageStore
from storage.log.partition import NEVER_S, BrokerEpoch, Commit, CommitQueue, Losses, PartitionLog, Sources, TailCache
from storage.log.producer_pages import NO_PAGES, fitting
from storage.log.unknown_producers import UnknownProducers, proved_for
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, MetadataStore, NotApplied, Put, Status, Unknown, WriteOp, WriteOutcome
from storage.objects.requests import CAUSE

LOOK_TIMEOUT_S: Final = 10.0
LOOKS: Final = Metric("forebay_dead_writer_scans_total", "Reads of brokers/ to find which writers of a partition are gone", ("outcome",))
CONFLICT_MEMORY: Final = 0.75
"""How much of the share of conflicts the next commit leaves: four conflicts in a row make it two thirds."""
COMMIT_CONFLICTS: Final = Metric("forebay_commit_conflicts_total", "Commits that lost a CAS and were decided again")
COMMIT_UNKNOWN: Final = Metric("forebay_commit_unknown_total", "Commit attempts whose outcome had to be read back")

BACKOFF_S: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses before the n-th repetition, the last one for all after it; each is taken with a jitter of half to all of it."""
OP_OVERHEAD_BYTES: Final = 64
"""What a store may count of an op beside key and value: conditions, depth, lengths."""


class DeadWriters:
    """Finds entries of `writers` whose brokers are gone: only those may be dropped (docs/internals/design/commit.md#unknown-outcomes).

    An epoch is the version of a registration record. One that was read in a manifest and is not among those registered at a later
    moment is gone: versions are never reused. The order matters:

        scan begins … broker 10 registers, commits … manifest with {10: …} is read … scan ends without 10    must not count 10 as dead

    It looks in the background and at intervals, so that no commit waits for it. An epoch that was found dead stays so.
    """

    def __init__(
        self, *, epoch: BrokerEpoch, clock: Clock, nursery: Nursery, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS
    ) -> None:
        self._limits = limits
        self._writers_kept_max = limits.writers_kept_max
        self._epoch = epoch
        self._clock = clock
        self._nursery = nursery
        self._dead: dict[int, None] = {}
        self._look_at_s = float("-inf")
        self._is_looking = False
        self._looks = telemetry.counter(LOOKS)

    def of(self, manifest: Manifest) -> Collection[int]:
        """The epochs in `writers` that are known to be gone; if there are too many of others, they are looked for."""
        writers = manifest.writers
        if len(writers) <= self._writers_kept_max:
            return ()
        dead = [epoch for epoch in writers if epoch in self._dead]
        if len(writers) - len(dead) > self._writers_kept_max and not self._is_looking and self._clock.monotonic_s() >= self._look_at_s:
            self._is_looking = True
            self._nursery.spawn(self._look(frozenset(writers)), name="dead-writers")
        return dead

    async def _look(self, named: frozenset[int]) -> None:
        """`named` was read before this began: its epochs were registered before."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                live = await self._epoch.live()
        except (StorageError, TimeoutError):
            self._looks.labels("failed").inc()
        else:
            self._looks.labels("done").inc()
            self._dead.update(dict.fromkeys(sorted(named - live - {self._epoch.current})))
            while len(self._dead) > self._limits.dead_writers_kept_max:
                del self._dead[next(iter(self._dead))]
        finally:
            self._is_looking = False
            self._look_at_s = self._clock.monotonic_s() + self._limits.dead_writers_look_every_s


def refusal(batch: Batch, verdict: Verdict, log: PartitionLog) -> StorageError:
    facts = f"partition={log.partition} producer_id={batch.producer_id} epoch={batch.producer_epoch} sequence={batch.first_seq}"
    match verdict.outcome:
        case Outcome.OUT_OF_ORDER_SEQUENCE:
            return OutOfOrderSequence(f"the sequence does not follow the last one appended: {facts}")
        case Outcome.NO_PREDECESSOR:
            return PredecessorMissing(f"what comes before it may be on its way through another broker: {facts}")
        case Outcome.NO_ROOM:
            return Unavailable(f"too many producers have appended lately; ids of producers should be kept and reused: {facts}")
        case Outcome.INVALID_PRODUCER_EPOCH:
            return InvalidProducerEpoch(f"a newer epoch of this producer has appended: {facts}")
        case Outcome.PARTITION_FENCED:
            return Fenced(f"the partition is fenced: {facts}")
        case Outcome.DELETED:
            return NotFound(f"the partition was deleted: {facts}")
        case Outcome.APPENDED | Outcome.DUPLICATE:
            raise AssertionError(f"not a refusal: {verdict}")


def put_chunk(keys: PartitionKeys, chunk: IndexChunk) -> Put:
    """The put of `chunk` under its last offset, if absent. It travels before the CAS that takes its entries out of the manifest, in
    the same request: a collector that does not find them in the record finds them here (model `F-collect-stale`).
    """
    return Put(keys.index(chunk.entries[-1].last), encode(chunk), ABSENT)


def enter(commit: Commit) -> None:
    commit.log.commit_queue.commits.append(commit)
    commit.in_flight.add(commit)


def carry_over(commit: Commit, count: int) -> None:
    """Leave the batches from the `count`-th on to a commit of their own, right behind this one."""
    assert 0 < count < len(commit.batches)
    batches = commit.batches[count:]
    size_bytes = sum([batch.size_bytes for batch in batches])
    rest = Commit(
        commit.log,
        batches,
        commit.object_id,
        commit.deadline_s,
        commit.in_flight,
        size_bytes,
        is_early=commit.is_early,
        is_uploaded=True,
        committing=commit.committing,
    )
    if commit.committing is not None:
        commit.committing.note_split()
    commit.batches = commit.batches[:count]
    commit.place = None  # what is left of it has another place: at the old one all of it lies
    commit.log.commit_queue.commits.insert(1, rest)
    commit.in_flight.split(commit, rest)


def take(commit: Commit) -> bool:
    """Open the commit if it is its queue's turn."""
    queue = commit.log.commit_queue
    if queue.is_busy or not commit.is_uploaded or not queue.commits or queue.commits[0] is not commit:
        return False
    queue.is_busy = True
    return True


def note_applied(commit: Commit) -> None:
    """`writers` has had an entry of its epoch since."""
    queue = commit.log.commit_queue
    queue.committed_epoch = commit.epoch
    if commit.committing is not None:
        commit.committing.note_applied()
        commit.committing = None
    if commit.attempt == 1:
        queue.conflict_share *= CONFLICT_MEMORY


def note_conflict(commit: Commit) -> None:
    if commit.attempt == 1:
        queue = commit.log.commit_queue
        queue.conflict_share = queue.conflict_share * CONFLICT_MEMORY + (1 - CONFLICT_MEMORY)


def note_full(queue: CommitQueue, now_s: float) -> None:
    """A commit came to nothing because the manifest would have been too large."""
    queue.full_s = now_s


def note_over_budget(queue: CommitQueue, now_s: float) -> None:
    """The budget has no turn for a slice: its partition gathers for a while, longer each time in a row."""
    is_in_a_row = now_s - queue.gathers_until_s < GATHERS_FORGOTTEN_S
    queue.gathers_s = min(GATHERS_S_MAX, 2 * queue.gathers_s) if is_in_a_row else GATHERS_S
    queue.gathers_until_s = now_s + queue.gathers_s


def needs_place(commit: Commit, manifest: Manifest) -> bool:
    """Whether an early commit has no place yet, or one that the collector has revoked."""
    return commit.is_early and (commit.place is None or commit.place.object_id <= manifest.revoked_floor)


def join(commit: Commit, batch: Batch) -> None:
    """Add a batch to an early commit that has not begun."""
    assert commit.is_early, f"its batches lie in an object: {commit.log.partition}"
    assert not commit.has_begun, f"begun: {commit.log.partition}"
    commit.batches.append(batch)
    commit.in_flight.grow(commit, batch.size_bytes)


def release(commit: Commit) -> Commit | None:
    """End the open commit and open the next one of its commit queue if that is uploaded."""
    queue = commit.log.commit_queue
    assert queue.is_busy, f"released twice: {commit.log.partition}"
    assert queue.commits[0] is commit, f"not the open commit: {commit.log.partition}"
    del queue.commits[0]
    queue.is_busy = False
    return _end(commit)


def leave(commit: Commit) -> Commit | None:
    """End a commit that was answered before it was opened; open the one behind it if it was in its way."""
    assert not commit.is_open, f"open: {commit.log.partition}"
    commit.log.commit_queue.commits.remove(commit)
    return _end(commit)


def _end(commit: Commit) -> Commit | None:
    waiting = commit.log.commit_queue.commits
    commit.in_flight.remove(commit)
    commit.batches = []
    commit.pages, commit.unknown, commit.committing, commit.place = NO_PAGES, None, None, None
    if waiting and take(waiting[0]):
        return waiting[0]
    return None


def refuse_behind(commit: Commit, sources: Sources, error: StorageError) -> None:
    """A batch of these `sources` was lost before it was committed: what follows it in the commit queue, or is gathered, must not be
    appended before its retry. (`decide` would refuse most followers with a sequence by itself, but not those of an unknown producer that
    may begin late: ADR 9.)
    """
    if not sources:
        return
    queue = commit.log.commit_queue
    is_behind = False
    for follower in queue.commits:
        if is_behind:
            _refuse(follower.batches, sources, error)
        is_behind = is_behind or follower is commit
    _refuse(queue.gathered, sources, error)


def _refuse(batches: list[Batch], sources: Sources, error: StorageError) -> None:
    for batch in batches:
        if id(batch.append.source) in sources:
            batch.settle(error)


class Purpose(Enum):
    COMMIT = auto()
    FENCING_WRITE = auto()
    """Put what is there once more: whoever wins, the version moves, and an attempt that may still be on its way can never apply."""
    READ_BARRIER = auto()
    """The same, before a refusal that no retry heals: only a write shows that the record it rests on was not a deposed leader's."""


class Send(NamedTuple):
    """One attempt: its ops stay together in one request; `manifest_at` is the place of the CAS among them."""

    commit: Commit
    purpose: Purpose
    decision: Decision
    ops: tuple[WriteOp, ...]
    manifest_at: int
    expected_version: int
    size_bytes: int


class CommitStep(Enum):
    """What comes next for a commit that sends nothing now."""

    FINISHED = auto()
    """It has its outcome."""
    READ = auto()
    """Decide again on a manifest, and pages, that are read now."""
    DECIDE = auto()
    """Nothing keeps it from another attempt."""
    UPLOAD_AGAIN = auto()


class Committer:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        manifest_reads: ManifestReads,
        tail: TailCache,
        early_objects: EarlyObjects,
        epoch: BrokerEpoch,
        upload_again: Callable[[Commit, str], Awaitable[None]],
        clock: Clock,
        chance: random.Random,
        nursery: Nursery,
        telemetry: Telemetry,
        unknown_producers: UnknownProducers,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._unknown_producers_wait_s = limits.unknown_producers_wait_s
        self._metadata = metadata
        self._manifest_reads = manifest_reads
        self._tail = tail
        self._early_objects = early_objects
        self._epoch = epoch
        self._upload_again = upload_again
        self._clock = clock
        self._chance = chance
        self._nursery = nursery
        self._unknown_producers = unknown_producers
        self._producer_expiration_ms = producer_expiration_ms
        self.losses = Losses()
        self._pages = PageStore(metadata=metadata, clock=clock, telemetry=telemetry, limits=limits)
        self._dead_writers = DeadWriters(epoch=epoch, clock=clock, nursery=nursery, telemetry=telemetry, limits=limits)
        self._conflicts = telemetry.counter(COMMIT_CONFLICTS)
        self._unknown = telemetry.counter(COMMIT_UNKNOWN)

    async def run(self, commits: Sequence[Commit]) -> None:
        """Their slices are durable: commit those whose turn it is, and all that this makes ready. Returns when no first attempt is left."""
        by_shard: dict[int, list[Commit]] = {}
        for commit in commits:
            commit.is_uploaded = True
            if take(commit):
                by_shard.setdefault(self._metadata.shard_of(commit.log.keys.partition_key), []).append(commit)
        if len(by_shard) == 1:
            (ready,) = by_shard.values()
            await self._run_ready(ready)
        elif by_shard:
            async with asyncio.TaskGroup() as group:
                for ready in by_shard.values():
                    group.create_task(self._run_ready(ready))

    def fail(self, commits: Sequence[Commit], error: StorageError) -> None:
        """Their slices will never be durable: answer, and let the commit queues go on."""
        for commit in commits:
            if commit in commit.in_flight:
                self._lose(commit, error, error)
                self._go_on(leave(commit))

    def give_up(self, commit: Commit) -> None:
        """Answer a commit that is past its deadline: definitely refused if nothing can have been applied, else as unknown (then it is only
        fenced). What it holds is released at once, wherever it waits.
        """
        if commit.is_given_up:
            return
        commit.is_given_up, commit.committing = True, None  # what was answered holds no memory
        partition = commit.log.partition
        if commit.unknown is not None or commit.is_sent:
            cause = commit.cause or "the write is under way"
            self._lose(commit, OutcomeUnknown(f"no answer from metadata in time: partition={partition} cause={cause}"), after_lost())
        else:
            cause = commit.cause or "its object is not stored yet, or earlier commits of the partition are under way"
            self._lose(commit, Unavailable(f"gave up waiting for the commit: partition={partition} cause={cause}"), after_lost())
        if not commit.is_open:
            self._go_on(leave(commit))

    def _lose(self, commit: Commit, error: StorageError, after: StorageError) -> None:
        """Answer all that wait for it, and refuse with `after` what the same connections sent behind it."""
        sources = commit.settle_all(error, self._clock.monotonic_s())
        refuse_behind(commit, sources, after)
        self.losses.note(commit.log.partition, sources)

    def _go_on(self, opened: Commit | None) -> None:
        if opened is not None:
            self._nursery.spawn(self._run_ready([opened]), name="commit-opened")

    async def _run_ready(self, ready: list[Commit]) -> None:
        """Open commits of one shard, and those behind them that become ready meanwhile."""
        while ready:
            ready, again = await self._attempt(ready, is_fresh=False)
            if again:
                self._nursery.spawn(self._repeat(again), name="commit-repeat")

    async def _repeat(self, commits: list[Commit]) -> None:
        """Attempts on records read again, until every commit has its outcome."""
        repetition = 0
        while commits:
            pause_s = BACKOFF_S[min(repetition, len(BACKOFF_S) - 1)]
            repetition += 1
            if pause_s:
                await asyncio.sleep(pause_s * (0.5 + self._chance.random() / 2))
            opened: list[Commit] = []
            try:
                await self._manifest_reads.refresh([commit.log for commit in commits])
                await self._pages.load([commit for commit in commits if not commit.is_given_up])
                await self._unknown_producers.look(commits, wait_s=self._unknown_producers_wait_s)
            except StorageError as error:
                for commit in commits:
                    commit.cause = str(error)
            else:
                opened, commits = await self._attempt(commits, is_fresh=True)
            commits = self._without_overdue(commits, opened)
            if opened:
                self._nursery.spawn(self._run_ready(opened), name="commit-opened")

    def _without_overdue(self, commits: list[Commit], opened: list[Commit]) -> list[Commit]:
        """Give up what is overdue; what is left of it to be fenced stays."""
        now_s = self._clock.monotonic_s()
        kept: list[Commit] = []
        for commit in commits:
            if commit.deadline_s <= now_s:
                self.give_up(commit)
            if commit.is_given_up and commit.unknown is None:
                _add(opened, release(commit))
            else:
                kept.append(commit)
        return kept

    async def _attempt(self, commits: list[Commit], *, is_fresh: bool) -> tuple[list[Commit], list[Commit]]:
        """One round, of one shard. Returns the commits it made ready and those that need another attempt."""
        opened: list[Commit] = []
        again: list[Commit] = []
        sends: list[Send] = []
        for commit in commits:
            match self._prepare(commit, is_fresh=is_fresh):
                case Send() as send:
                    commit.is_sent = send.purpose is Purpose.COMMIT
                    sends.append(send)
                case CommitStep.FINISHED:
                    _add(opened, release(commit))
                case CommitStep.READ:
                    again.append(commit)
                case CommitStep.UPLOAD_AGAIN:
                    self._nursery.spawn(self._reupload(commit), name="commit-reupload")
        requests = _split(sends, bytes_max=self._limits.write_request_bytes_max)
        asked_s = asyncio.get_running_loop().time()
        outcomes = await self._write_all([[op for send in request for op in send.ops] for request in requests])
        for request, outcome in zip(requests, outcomes, strict=True):
            first = 0
            for send in request:
                send.commit.is_sent = False
                if self._hear(send, outcome, first + send.manifest_at, asked_s) is CommitStep.FINISHED:
                    _add(opened, release(send.commit))
                else:
                    again.append(send.commit)
                first += len(send.ops)
        return opened, again

    def _prepare(self, commit: Commit, *, is_fresh: bool) -> Send | CommitStep:
        """What this attempt sends, or what became of the commit without sending. Synchronous: manifest cannot change meanwhile."""
        log = commit.log
        seen = log.seen
        if commit.unknown is None:
            if not commit.has_begun:
                commit.batches = [batch for batch in commit.batches if not batch.is_settled]
            if commit.is_given_up or not commit.batches:
                return CommitStep.FINISHED
            if (broken := seen.broken or commit.unreadable) is not None:
                self._lose(commit, broken, after_lost())
                return CommitStep.FINISHED
        # A hint saves a CAS that could only fail; what is not hinted is found out by the CAS (I10).
        if not is_fresh and (seen.manifest is None or seen.is_hinted):
            return CommitStep.READ
        if seen.manifest is None:
            if seen.is_behind:
                commit.cause = f"metadata answered from the past: known_version={seen.version}"
                return CommitStep.READ
            # attempt without an answer … it applies, readers see it … the topic is deleted … no record: nobody may say that it never was
            gone: StorageError = NotFound(f"no such partition: {log.partition}")
            if commit.unknown is not None:
                gone = OutcomeUnknown(f"the partition is gone: {log.partition}")
            self._lose(commit, gone, after_lost())
            return CommitStep.FINISHED
        if commit.unknown is not None:
            step = self._settle(commit, commit.unknown, seen.manifest)
            if step is not CommitStep.DECIDE:
                return step
        return self._decide(commit, seen.manifest, is_fresh=is_fresh)

    def _settle(self, commit: Commit, unknown: UnknownAttempts, manifest: Manifest) -> Send | CommitStep:
        """What a read says of attempts without an answer: the table of storage/log/decide.py."""
        log = commit.log
        outcome = attempt_outcome(
            manifest,
            log.seen.version,
            epoch=commit.epoch,
            commit_seq=commit.commit_seq,
            sent_version=unknown.version,
            may_be_dropped=log.commit_queue.committed_epoch == commit.epoch or not self._epoch.is_registered(commit.epoch),
        )
        match outcome:
            case Found(attempt):
                self._applied(commit, unknown.decision(attempt))
                return CommitStep.FINISHED
            case AttemptOutcome.NEVER_KNOWN:
                self._lose(commit, OutcomeUnknown(f"the record of the attempt was dropped: partition={log.partition}"), after_lost())
                return CommitStep.FINISHED
            case AttemptOutcome.FAILED:
                # None of its attempts can land any more: it may be cut, and refused for certain, like one that was never sent.
                commit.unknown = None
                return CommitStep.FINISHED if commit.is_given_up else CommitStep.DECIDE
            case AttemptOutcome.UNDECIDED:
                # What it becomes may not change behind the answer of its clients:
                #     attempt at version 7 … no answer … given up: REQUEST_TIMED_OUT … who looks finds nothing … the attempt lands
                # A put at version 7 decides it: whichever of the two comes second finds version 8.
                return self._put_again(commit, Purpose.FENCING_WRITE, _NOTHING, manifest) if commit.is_given_up else CommitStep.DECIDE

    def _decide(self, commit: Commit, manifest: Manifest, *, is_fresh: bool) -> Send | CommitStep:
        log = commit.log
        version, producers = log.seen.version, log.producers
        if manifest.pages and self._pages.missing(commit):
            return CommitStep.READ
        if manifest.revoked_floor and not commit.is_early and commit.object_id <= manifest.revoked_floor:
            return CommitStep.UPLOAD_AGAIN
        if len(commit.batches) > 1 and (count := fitting(manifest, commit.batches, self._limits)) < len(commit.batches):
            carry_over(commit, count)  # not of one that may have been applied: the version is the one at which it fitted
        commit.begin(self._epoch)
        if needs_place(commit, manifest):
            # An attempt that may yet land was at this version, so under this floor: only one that has none takes another place.
            assert commit.unknown is None, f"a place for what may have been applied: {log.partition}"
            self._take_place(commit, manifest)
        dead = self._dead_writers.of(manifest)
        waiting = producers.waiting
        permitted_starts = (
            waiting.permitted_starts(self._clock.monotonic_s(), wait_s=self._unknown_producers_wait_s) if waiting.refused else NOBODY
        )
        decision = decide(
            manifest,
            commit.batches,
            object_id=commit.object_id,
            early_start=None if commit.place is None else commit.place.start,
            writer=Writer(commit.epoch, commit.commit_seq, commit.attempt),
            now_ms=self._clock.now_ms(),
            limits=self._limits,
            pages=commit.pages,
            lost=producers.lost and producers.lost_since(self._clock.monotonic_s() - self._unknown_producers_wait_s),
            permitted_starts={**permitted_starts, **proved_for(commit, manifest)} if commit.permitted_starts else permitted_starts,
            dead_writers=dead and [epoch for epoch in dead if epoch != commit.epoch],
            version=version,
            expiration_ms=self._producer_expiration_ms,
            must_drain=commit.must_drain,
        )
        if decision.has_unknown and commit.permitted_starts is None and commit.unknown is None:
            commit.unknown_producers = _unknown_producers(commit, decision)
            return CommitStep.READ
        if decision.manifest is None:
            if decision.has_refusal and not is_fresh:
                return CommitStep.READ  # a negative answer is never given from a record that may be old
            # Time alone may turn what an attempt would append into a refusal, a producer expires: then it must not land behind the answer.
            #     attempt 1 at version 7 … no answer … its producer expires, attempt 2 refuses … attempt 1 lands: appended and refused
            # As a fencing write does, a read barrier at version 7 decides it before the answer is given.
            if commit.unknown is not None or any(verdict.outcome is Outcome.OUT_OF_ORDER_SEQUENCE for verdict in decision.verdicts):
                return self._put_again(commit, Purpose.READ_BARRIER, decision, manifest)
            self._answer(commit, decision.verdicts)
            return CommitStep.FINISHED
        value = encode(decision.manifest)
        if len(value) > self._limits.manifest_bytes_max:
            return self._make_smaller(commit, len(value), self._limits.manifest_bytes_max)
        cas = Put(log.keys.manifest, value, version)
        place = commit.place
        if place is not None and self._early_objects.is_stored(place.object_id):
            place = None  # and its pages go
        if decision.chunk is None and not decision.pages and not producers.page_garbage and place is None:
            return Send(commit, Purpose.COMMIT, decision, (cas,), 0, version, _size_bytes(cas))
        ops: list[WriteOp] = [Put(log.keys.producer_page(new.name), encode(new.page), ABSENT) for new in decision.pages]
        if place is not None:
            ops += place.puts(log.keys.partition_key)
        if decision.chunk is not None:
            ops.append(put_chunk(log.keys, decision.chunk))
        ops.append(cas)
        manifest_at = len(ops) - 1
        if producers.page_garbage:
            ops += [Delete(log.keys.producer_page(name)) for name in producers.page_garbage]
        send = Send(commit, Purpose.COMMIT, decision, tuple(ops), manifest_at, version, sum(map(_size_bytes, ops)))
        if (decision.pages or place is not None) and send.size_bytes > self._limits.write_request_bytes_max:
            return self._make_smaller(commit, send.size_bytes, self._limits.write_request_bytes_max)
        if producers.page_garbage:
            producers.forget_page_garbage()
        return send

    def _take_place(self, commit: Commit, manifest: Manifest) -> None:
        data = b"".join([batch.view for batch in commit.batches])
        commit.place = self._early_objects.take(commit.log, data, floor=manifest.revoked_floor)
        commit.object_id, position = commit.place.object_id, commit.place.start
        for batch in commit.batches:
            batch.position = position
            position += batch.size_bytes

    def _make_smaller(self, commit: Commit, size_bytes: int, bytes_max: int) -> CommitStep:
        """The manifest, or the request, would be too large: drain the ring of pending entries, else take fewer batches."""
        if not commit.must_drain:
            commit.must_drain = True
        elif commit.unknown is not None:
            pass  # neither cut nor refused for certain: it may have been applied
        elif len(commit.batches) > 1:
            carry_over(commit, len(commit.batches) // 2)
        else:
            note_full(commit.log.commit_queue, self._clock.monotonic_s())
            facts = f"partition={commit.log.partition} bytes={size_bytes} max={bytes_max}"
            self._lose(commit, Unavailable(f"manifest is full: {facts}"), after_lost())
            return CommitStep.FINISHED
        return CommitStep.READ

    def _put_again(self, commit: Commit, purpose: Purpose, decision: Decision, manifest: Manifest) -> Send:
        version = commit.log.seen.version
        put = Put(commit.log.keys.manifest, encode(manifest), version)
        return Send(commit, purpose, decision, (put,), 0, version, _size_bytes(put))

    async def _write_all(self, requests: Sequence[Sequence[WriteOp]]) -> list[WriteOutcome]:
        if not requests:
            return []
        if len(requests) == 1:
            return [await self._write(requests[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._write(ops)) for ops in requests]
        return [task.result() for task in tasks]

    async def _write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        timeout_s = self._limits.commit_write_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._metadata.write(ops)
        except TimeoutError:
            return Unknown(f"no answer after {timeout_s} s")

    def _hear(self, send: Send, outcome: WriteOutcome, manifest_at: int, asked_s: float) -> CommitStep:
        """Take in what became of an attempt that was sent after `asked_s`.

        Meanwhile a reader may have seen what was written, or newer records still, so what is known never goes back:

            our CAS makes version 8 … another broker makes 9 … a fetch here reads 9 … our answer arrives: 8
        """
        commit = send.commit
        match outcome:
            case Applied(results):
                result = results[manifest_at]
                if result.status is Status.OK:
                    assert result.version is not None, "a successful put has a version"
                    if send.purpose is Purpose.COMMIT:
                        self._applied(commit, send.decision, version=result.version, asked_s=asked_s)
                    else:
                        commit.log.note_put_again(send.expected_version, result.version, asked_s)
                    if send.purpose is Purpose.READ_BARRIER:
                        self._answer(commit, send.decision.verdicts)
                    return CommitStep.FINISHED
                # Nothing of this attempt happened. Earlier attempts without an answer remain open, so `unknown` stays:
                #     attempt 1 at version 7 … no answer … a read finds 7 … attempt 1 lands: version 8 … attempt 2 at 7: conflict
                self._conflicts.inc()
                note_conflict(commit)
                if send.decision.pages:
                    commit.log.producers.discard_pages(new.name for new in send.decision.pages)
            case Unknown(reason):
                self._unknown.inc()
                commit.cause = reason
                if send.purpose is Purpose.COMMIT:
                    commit.unknown = one_more(commit.unknown, commit.attempt, send.decision, version=send.expected_version)
            case NotApplied(reason):
                commit.cause = reason
        return CommitStep.READ

    def _applied(self, commit: Commit, decision: Decision, *, version: int | None = None, asked_s: float = NEVER_S) -> None:
        """The CAS is known to have applied: only now are batches shown (I8) and acknowledged (I1)."""
        log = commit.log
        seen = log.seen
        note_applied(commit)
        self._tail.add(
            log.readers.tail,
            [
                (batch, verdict.base_offset)
                for batch, verdict in zip(commit.batches, decision.verdicts, strict=True)
                if verdict.outcome is Outcome.APPENDED and not batch.is_settled
            ],
        )
        if version is not None and version > seen.version:
            assert decision.manifest is not None
            if seen.manifest is not None and seen.manifest.pages != decision.manifest.pages:
                self._replace_pages(log, seen.manifest, decision, version)
            log.advance(decision.manifest, version, asked_s)
        self._answer(commit, decision.verdicts)

    def _replace_pages(self, log: PartitionLog, before: Manifest, decision: Decision, version: int) -> None:
        assert decision.manifest is not None
        self._pages.note_written(log, decision.pages)
        named = {ref.name for ref in decision.manifest.pages}
        log.producers.discard_pages(ref.name for ref in before.pages if ref.name not in named)
        if self._pages.is_sweep_due(log):
            self._nursery.spawn(self._pages.sweep(log, decision.manifest, version), name="sweep-pages")

    def _answer(self, commit: Commit, verdicts: Sequence[Verdict]) -> None:
        log = commit.log
        manifest, waiting, traffic = log.seen.manifest, log.producers.waiting, log.traffic
        log_start = manifest.log_start if manifest is not None else 0
        for batch, verdict in zip(commit.batches, verdicts, strict=True):
            outcome = verdict.outcome
            if outcome is Outcome.APPENDED:
                traffic.bytes_in += batch.size_bytes
                traffic.records_in += batch.record_count
            if outcome is Outcome.APPENDED or outcome is Outcome.DUPLICATE:
                if waiting.refused:
                    waiting.forget(batch.producer_id)
                answer = Appended if outcome is Outcome.APPENDED else AppendedBefore
                batch.settle(answer(verdict.base_offset, log_start))
                continue
            if outcome is Outcome.NO_PREDECESSOR:
                now_s = self._clock.monotonic_s()
                waiting.make_wait(batch.producer_id, batch.producer_epoch, batch.first_seq, now_s, wait_s=self._unknown_producers_wait_s)
            batch.settle(refusal(batch, verdict, log))

    async def _reupload(self, commit: Commit) -> None:
        """The object is at or below the floor of revoked ids: its bytes get a new, higher name before they may be committed."""
        CAUSE.set("recommit")
        manifest = commit.log.seen.manifest
        try:
            await self._upload_again(commit, manifest.revoked_floor if manifest is not None else "")
        except StorageError as error:
            self._lose(commit, error, error)
            if (following := release(commit)) is not None:
                await self._run_ready([following])
            return
        await self._repeat([commit])


_NOTHING: Final = Decision((), None, None)


def _unknown_producers(commit: Commit, decision: Decision) -> tuple[Batch, ...]:
    judged = zip(commit.batches, decision.verdicts, strict=True)
    return tuple([batch for batch, verdict in judged if verdict.outcome is Outcome.NO_PREDECESSOR])


def after_lost() -> StorageError:
    return Unavailable("an earlier batch was not committed for certain")


def _size_bytes(op: WriteOp) -> int:
    return OP_OVERHEAD_BYTES + (len(op.value) + len(op.key.path) if isinstance(op, Put) else 0)


def _split(sends: list[Send], *, bytes_max: int) -> list[list[Send]]:
    """Cut one shard's attempts into requests of about `bytes_max`; the ops of one commit stay together and in order."""
    requests: list[list[Send]] = []
    size_bytes = op_count = 0
    for send in sends:
        send_bytes = send.size_bytes
        if not requests or size_bytes + send_bytes > bytes_max or op_count + len(send.ops) > WRITE_REQUEST_OPS_MAX:
            requests.append([])
            size_bytes = op_count = 0
        requests[-1].append(send)
        size_bytes += send_bytes
        op_count += len(send.ops)
    return requests


def _add(opened: list[Commit], commit: Commit | None) -> None:
    if commit is not None:
        opened.append(commit)
