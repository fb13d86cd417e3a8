"""The committer: the order of effects that makes batches visible (DESIGN.md §5). Offsets are born here.

    uploaded slices → open their lanes → read what is missing → decide (pure) → ONE write per shard → applied?  tail, wake, ack
                                             ↑                                                        │
                                             └── read again, ask `writers` first ── conflict, unknown ┘

A round carries every commit that is ready; those that need another attempt go on in a round of their own and hold up nobody else.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import (
    Fenced,
    InvalidProducerEpoch,
    NotFound,
    OutcomeUnknown,
    OutOfOrderSequence,
    StorageError,
    Unavailable,
)
from storage.formats.control import encode
from storage.limits import CONTROL_BYTES_MAX, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX, WRITERS_KEPT_MAX
from storage.log.batch import Appended, Batch
from storage.log.broker_epoch import BrokerEpoch
from storage.log.control_reads import ControlReads
from storage.log.decide import Decision, Outcome, Verdict, Writer, decide
from storage.log.lane import Commit, expire_followers, refuse_followers, release, take
from storage.log.partition import PartitionLog
from storage.log.producer_spill import ProducerSpill
from storage.log.tail import TailCache
from storage.metadata.port import ABSENT, Applied, MetadataStore, NotApplied, Put, Status, Unknown, WriteOp, WriteOutcome

COMMIT_CONFLICTS: Final = Metric("forebay_commit_conflicts_total", "Commits that lost a CAS and were decided again")
COMMIT_UNKNOWN: Final = Metric("forebay_commit_unknown_total", "Commit attempts whose outcome had to be read back")

BACKOFF_S: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses before the n-th repetition, the last one for all after it; each is taken with a jitter of half to all of it."""
WRITE_TIMEOUT_S: Final = 10.0
STRANGERS_WAIT_S: Final = 35.0
"""How long a producer that nobody knows must be refused before it may begin behind its first sequence: longer than any broker that is
well goes on trying to commit what was sent before (COMMIT_TIMEOUT_S, and a little)."""
OP_OVERHEAD_BYTES: Final = 64
"""What a store may count of an op beside key and value: conditions, depth, lengths."""


class Committer:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        control_reads: ControlReads,
        tail: TailCache,
        epoch: BrokerEpoch,
        upload_again: Callable[[Commit, str], Awaitable[None]],
        clock: Clock,
        chance: random.Random,
        nursery: Nursery,
        telemetry: Telemetry,
    ) -> None:
        self._metadata = metadata
        self._control_reads = control_reads
        self._tail = tail
        self._epoch = epoch
        self._upload_again = upload_again
        self._clock = clock
        self._chance = chance
        self._nursery = nursery
        self._spill = ProducerSpill(metadata=metadata)
        self._conflicts = telemetry.counter(COMMIT_CONFLICTS)
        self._unknown = telemetry.counter(COMMIT_UNKNOWN)

    async def run(self, commits: Sequence[Commit]) -> None:
        """Their slices are durable: commit those whose turn it is, and all that this makes ready. Returns when no first attempt is left."""
        for commit in commits:
            commit.is_uploaded = True
        ready = [commit for commit in commits if take(commit)]
        while ready:
            opened, again = await self._attempt(ready, is_fresh=False)
            if again:
                self._nursery.spawn(self._repeat(again), name="commit-repeat")
            ready = opened

    async def fail(self, commits: Sequence[Commit], error: StorageError) -> None:
        """Their slices will never be durable: answer, and let the lanes go on."""
        opened: list[Commit] = []
        for commit in commits:
            commit.settle_all(error)
            refuse_followers(commit, error)
            commit.is_uploaded = True
            if take(commit) and (following := release(commit)) is not None:
                opened.append(following)
        await self._run_opened(opened)

    async def _run_opened(self, ready: list[Commit]) -> None:
        while ready:
            ready, again = await self._attempt(ready, is_fresh=False)
            if again:
                self._nursery.spawn(self._repeat(again), name="commit-repeat")

    async def _repeat(self, commits: list[Commit]) -> None:
        """Attempts after the first, on control records read anew, until every commit has its outcome."""
        repetition = 0
        while commits:
            pause_s = BACKOFF_S[min(repetition, len(BACKOFF_S) - 1)]
            repetition += 1
            if pause_s:
                await asyncio.sleep(pause_s * (0.5 + self._chance.random() / 2))
            try:
                await self._control_reads.refresh([commit.log for commit in commits])
            except StorageError as error:
                opened, commits = self._expire(commits, error)
            else:
                opened, commits = await self._attempt(commits, is_fresh=True)
                more, commits = self._expire(commits, None)
                opened += more
            if opened:
                self._nursery.spawn(self._run_opened(opened), name="commit-opened")

    def _expire(self, commits: list[Commit], error: StorageError | None) -> tuple[list[Commit], list[Commit]]:
        """Answer commits past their deadline: definitely refused if nothing was sent, else as unknown (and then only buried)."""
        now_s = self._clock.monotonic_s()
        opened: list[Commit] = []
        kept: list[Commit] = []
        for commit in commits:
            expire_followers(commit.log, now_s)
            if commit.deadline_s > now_s or commit.is_abandoned:
                kept.append(commit)
            elif commit.unsure:
                commit.settle_all(OutcomeUnknown(f"no answer from metadata: partition={commit.log.partition} cause={error}"))
                refuse_followers(commit, _AFTER_LOST)
                commit.is_abandoned = True
                kept.append(commit)
            else:
                commit.settle_all(Unavailable(f"gave up committing: partition={commit.log.partition} cause={error}"))
                refuse_followers(commit, _AFTER_LOST)
                _add(opened, release(commit))
        return opened, kept

    async def _attempt(self, commits: list[Commit], *, is_fresh: bool) -> tuple[list[Commit], list[Commit]]:
        """One round. Returns the commits it made ready and those that need another attempt."""
        opened: list[Commit] = []
        again: list[Commit] = []
        try:
            await self._read_missing(commits, is_fresh=is_fresh)
            dead = await self._dead_writers(commits) if any(_has_many_writers(commit.log) for commit in commits) else frozenset()
        except StorageError:
            return opened, commits
        sent: dict[int, list[tuple[Commit, Decision, Sequence[WriteOp], int]]] = defaultdict(list)
        for commit in commits:
            step = self._prepare(commit, is_fresh=is_fresh, dead=dead)
            if step is _FINISHED:
                _add(opened, release(commit))
            elif isinstance(step, _Send):
                sent[self._metadata.shard_of(commit.log.keys.partition_key)].append((commit, step.decision, step.ops, step.size_bytes))
            elif step is _UPLOAD_AGAIN:
                self._nursery.spawn(self._reupload(commit), name="commit-reupload")
            else:
                again.append(commit)
        requests = [request for shard in sent.values() for request in _split(shard)]
        outcomes = await self._write_all([[op for _, _, ops, _ in request for op in ops] for request in requests])
        for request, outcome in zip(requests, outcomes, strict=True):
            first = 0
            for commit, decision, ops, _ in request:
                control_op = first + len(ops) - 1
                first += len(ops)
                cas = ops[-1]
                assert isinstance(cas, Put)
                if self._hear(commit, decision, outcome, control_op, cas.expected_version):
                    _add(opened, release(commit))
                else:
                    again.append(commit)
        return opened, again

    async def _read_missing(self, commits: Sequence[Commit], *, is_fresh: bool) -> None:
        """Control records never read, or said to be changed by others; and states in producers/ of producers that control does not hold
        (in this order: I7). A hint saves a CAS that could only fail; what is not hinted is found out by the CAS (I10)."""
        unread = [commit.log for commit in commits if commit.log.control is None or (not is_fresh and commit.log.unexplained_hints > 0)]
        if unread:
            await self._control_reads.refresh(unread)
        await self._spill.read_missing(commits)

    async def _dead_writers(self, commits: Sequence[Commit]) -> frozenset[int]:
        live = await self._epoch.live()
        named = {epoch for commit in commits if commit.log.control for epoch in commit.log.control.writers}
        return frozenset(named - live - {self._epoch.current} - {commit.epoch for commit in commits})

    def _prepare(self, commit: Commit, *, is_fresh: bool, dead: frozenset[int]) -> "_Send | object":
        """What this attempt sends, or what became of the commit without sending. Synchronous: control cannot change meanwhile."""
        log = commit.log
        control = log.control
        if not commit.has_begun:
            commit.batches = [batch for batch in commit.batches if not batch.is_settled]
            if not commit.batches:
                return _FINISHED
        if log.broken is not None and not commit.unsure:
            commit.settle_all(log.broken)
            return _FINISHED
        if control is None:
            if commit.unsure:
                commit.settle_all(OutcomeUnknown(f"the partition is gone: {log.partition}"))
            commit.settle_all(NotFound(f"no such partition: {log.partition}"))
            return _FINISHED
        if commit.unsure:
            entry = control.writers.get(commit.epoch)
            if entry is not None and entry.commit_seq == commit.commit_seq:
                self._applied(commit, commit.unsure_decisions[entry.attempt])
                return _FINISHED
            if log.version != commit.unsure_version:
                # The CAS named a version that is no longer current: it can never apply any more. That it did apply is possible only if
                # somebody dropped our entry since.
                if entry is None and (log.committed_epoch == commit.epoch or not self._epoch.is_registered(commit.epoch)):
                    commit.settle_all(OutcomeUnknown(f"the record of the attempt was dropped: partition={log.partition}"))
                    refuse_followers(commit, _AFTER_LOST)
                    return _FINISHED
                if commit.is_abandoned:
                    return _FINISHED
            elif commit.is_abandoned:
                # Put what is there once more: whoever wins, the version moves and the old attempt is decided.
                put = Put(log.keys.control, encode(control), log.version)
                return _Send(_BURIAL, (put,))
        if not self._spill.is_known(commit):
            return _AGAIN
        if control.revoked_floor and commit.object_id <= control.revoked_floor:
            return _UPLOAD_AGAIN
        commit.begin(self._epoch.current)
        decision = decide(
            control,
            commit.batches,
            object_id=commit.object_id,
            writer=Writer(commit.epoch, commit.commit_seq, commit.attempt),
            now_ms=self._clock.now_ms(),
            stored=log.stored,
            lost=log.lost,
            waited_for=self._waited_for(log),
            dead_writers=dead,
            must_drain=commit.must_drain,
        )
        if decision.control is None:
            if decision.has_refusal and not is_fresh:
                return _AGAIN  # a negative answer is never given from a record that may be old
            self._answer(commit, decision.verdicts)
            return _FINISHED
        value = encode(decision.control)
        if len(value) > CONTROL_BYTES_MAX:
            if commit.must_drain:
                commit.settle_all(
                    Unavailable(f"control record is full: partition={log.partition} bytes={len(value)} max={CONTROL_BYTES_MAX}")
                )
                refuse_followers(commit, _AFTER_LOST)
                return _FINISHED
            commit.must_drain = True
            return _AGAIN
        ops: tuple[Put, ...] = (Put(log.keys.control, value, log.version),)
        if decision.chunk is not None:
            chunk = encode(decision.chunk)
            ops = (Put(log.keys.index(decision.chunk.entries[-1].last), chunk, ABSENT), *ops)
        return _Send(decision, ops)

    async def _write_all(self, requests: Sequence[Sequence[WriteOp]]) -> list[WriteOutcome]:
        if len(requests) == 1:
            return [await self._write(requests[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._write(ops)) for ops in requests]
        return [task.result() for task in tasks]

    async def _write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                return await self._metadata.write(ops)
        except TimeoutError:
            return Unknown(f"no answer after {WRITE_TIMEOUT_S} s")

    def _hear(self, commit: Commit, decision: Decision, outcome: WriteOutcome, control_op: int, expected_version: int | None) -> bool:
        """Take in what became of an attempt. True if the commit has its outcome.

        Meanwhile a reader may have seen what was written, or newer records still: what is known never goes back.
        """
        match outcome:
            case Applied(results):
                result = results[control_op]
                if result.status is Status.OK:
                    assert result.version is not None, "a successful put has a version"
                    if decision is _BURIAL:
                        return True
                    assert decision.control is not None
                    self._applied(commit, decision, version=result.version)
                    return True
                self._conflicts.inc()
            case Unknown():
                self._unknown.inc()
                if decision is not _BURIAL:
                    commit.unsure = True
                    assert expected_version is not None
                    commit.unsure_version = expected_version
                    commit.unsure_decisions[commit.attempt] = decision
            case NotApplied():
                pass
        return False

    def _applied(self, commit: Commit, decision: Decision, *, version: int | None = None) -> None:
        """The CAS is known to have applied: only now are batches shown (I8) and acknowledged (I1)."""
        log = commit.log
        log.committed_epoch = commit.epoch
        log.explain_hint()
        appended = [
            (batch, verdict.base_offset)
            for batch, verdict in zip(commit.batches, decision.verdicts, strict=True)
            if verdict.outcome is Outcome.APPENDED
        ]
        self._tail.add(log.tail, appended)
        if version is not None and version > log.version:
            assert decision.control is not None
            log.advance(decision.control, version)
        self._answer(commit, decision.verdicts)
        if decision.to_spill and not log.is_spilling:
            log.is_spilling = True
            self._nursery.spawn(self._spill.write(log, decision.to_spill), name="producer-spill")

    def _waited_for(self, log: PartitionLog) -> Collection[int]:
        if not log.strangers:
            return ()
        since_s = self._clock.monotonic_s() - STRANGERS_WAIT_S
        return [producer_id for producer_id, refused_s in log.strangers.items() if refused_s <= since_s]

    def _answer(self, commit: Commit, verdicts: Sequence[Verdict]) -> None:
        log = commit.log
        log_start = log.control.log_start if log.control is not None else 0
        for batch, verdict in zip(commit.batches, verdicts, strict=True):
            if verdict.outcome is Outcome.NO_PREDECESSOR:
                log.make_wait(batch.producer_id, self._clock.monotonic_s())
            elif log.strangers:
                log.strangers.pop(batch.producer_id, None)
            if verdict.is_refusal:
                batch.settle(_refusal(batch, verdict, log))
            else:
                batch.settle(Appended(verdict.base_offset, log_start))

    async def _reupload(self, commit: Commit) -> None:
        """The object is at or below the floor of revoked ids: its bytes get a new, higher name before they may be committed."""
        control = commit.log.control
        try:
            await self._upload_again(commit, control.revoked_floor if control is not None else "")
        except StorageError as error:
            commit.settle_all(error)
            refuse_followers(commit, error)
            if (following := release(commit)) is not None:
                await self._run_opened([following])
            return
        await self._repeat([commit])


class _Send:
    __slots__ = ("decision", "ops", "size_bytes")

    def __init__(self, decision: Decision, ops: tuple[Put, ...]) -> None:
        self.decision = decision
        self.ops = ops
        self.size_bytes = sum([len(op.value) + len(op.key.path) + OP_OVERHEAD_BYTES for op in ops])


_FINISHED: Final = object()
_AGAIN: Final = object()
_UPLOAD_AGAIN: Final = object()
_AFTER_LOST: Final = Unavailable("an earlier batch was not committed for certain")
_BURIAL: Final = Decision((), None, None, ())

_Sent = tuple[Commit, Decision, Sequence[WriteOp], int]


def _split(sent: list[_Sent]) -> list[list[_Sent]]:
    """Cut one shard's commits into requests within the limits of a request; the ops of one commit stay together and in order."""
    requests: list[list[_Sent]] = [[]]
    size_bytes = op_count = 0
    for item in sent:
        if requests[-1] and (size_bytes + item[3] > WRITE_REQUEST_BYTES_MAX or op_count + len(item[2]) > WRITE_REQUEST_OPS_MAX):
            requests.append([])
            size_bytes = op_count = 0
        requests[-1].append(item)
        size_bytes += item[3]
        op_count += len(item[2])
    return requests


def _has_many_writers(log: PartitionLog) -> bool:
    return log.control is not None and len(log.control.writers) > WRITERS_KEPT_MAX


def _add(opened: list[Commit], commit: Commit | None) -> None:
    if commit is not None:
        opened.append(commit)


def _refusal(batch: Batch, verdict: Verdict, log: PartitionLog) -> StorageError:
    facts = f"partition={log.partition} producer_id={batch.producer_id} epoch={batch.producer_epoch} sequence={batch.first_seq}"
    match verdict.outcome:
        case Outcome.OUT_OF_ORDER_SEQUENCE:
            return OutOfOrderSequence(f"the sequence does not follow the last one appended: {facts}")
        case Outcome.NO_PREDECESSOR:
            return Unavailable(f"what comes before it may be on its way through another broker: {facts}")
        case Outcome.INVALID_PRODUCER_EPOCH:
            return InvalidProducerEpoch(f"a newer epoch of this producer has appended: {facts}")
        case Outcome.FENCED:
            return Fenced(f"the partition is fenced: {facts}")
        case Outcome.DELETED:
            return NotFound(f"the partition was deleted: {facts}")
        case Outcome.APPENDED | Outcome.DUPLICATE:
            raise AssertionError(f"not a refusal: {verdict}")
