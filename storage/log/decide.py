"""The decision of a commit, pure: what becomes of each batch and of the manifest (docs/internals/design/commit.md, I7).

`decide` refuses or deduplicates batches. It computes everything again on every attempt, from the manifest that the attempt's CAS
names. Rules for producers with sequences are Kafka's (KIP-98 and the idempotent producer of 1.0: the last five batches are remembered).
`drained` empties the ring of pending entries, and `attempt_outcome` says the outcome of a commit whose last attempt had no answer.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from storage.formats.manifest import Early, Entry, IndexChunk, LogState, Manifest, ProducerBatch, ProducerState, WriterEntry
from storage.limits import PRODUCER_BATCHES_KEPT, SEQUENCE_MAX
from storage.log.limits import LogLimits
from storage.log.producer_pages import NO_PAGES, NewPage, Pages, find, has_no_room, has_room, is_expired, make_room, page_name
from storage.log.producers import PermittedStart
from storage.recordbatch import NO_PRODUCER
from storage.vocabulary import ObjectId

PRODUCER_EXPIRATION_MS = 86_400_000
"""producer.id.expiration.ms: how long a producer that appends no more is remembered."""
FORGOTTEN_AFTER = 2
"""Times the expiration: until then an expired producer's state stays, and shows whether its next batch goes on from its last one."""
NONE_LOST: Mapping[int, int] = MappingProxyType({})
NOBODY: Mapping[int, PermittedStart] = MappingProxyType({})


def drained(manifest: Manifest) -> IndexChunk:
    """All that `manifest` has pending, which must be something, as ONE index chunk (docs/internals/design/commit.md, I3).

    The chunk may be put whatever becomes of the CAS beside it.

    A commit drains a full ring, upkeep one to which nobody appends. Both make the same chunk, because a ring only grows at its end until it
    leaves: two chunks whose last entries are the same are equal, and a shorter chunk of the same ring begins where the longer one does. So
    of all chunks of a ring, whoever put them and whenever they arrive, the one with the lowest key at or above an offset holds it:

        ring a b c … an idle drain reads it … a commit adds d … the CAS of the drain fails, its chunk lands: index/c has a b c
                   … a commit drains a b c d: index/d has a b c d     an offset of b: index/c     an offset of d: index/d
    """
    assert manifest.pending, "an empty ring leaves no chunk"
    return IndexChunk(entries=manifest.pending)


class CandidateBatch(Protocol):
    """What a decision needs to know of a batch."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class Outcome(Enum):
    APPENDED = auto()
    DUPLICATE = auto()  # appended before, at the offset the verdict names
    OUT_OF_ORDER_SEQUENCE = auto()
    NO_PREDECESSOR = auto()  # of a producer nobody knows, and not its first: what comes before may be on its way through another broker
    NO_ROOM = auto()  # an unknown producer, while the partition has no room to remember another
    INVALID_PRODUCER_EPOCH = auto()
    PARTITION_FENCED = auto()
    DELETED = auto()


class Verdict(NamedTuple):
    outcome: Outcome
    base_offset: int
    """-1 where there is none."""

    @property
    def is_refusal(self) -> bool:
        return self.outcome is not Outcome.APPENDED and self.outcome is not Outcome.DUPLICATE


class Writer(NamedTuple):
    """The committer: names the attempt in `manifest.writers`, which makes a lost reply decidable."""

    epoch: int
    commit_seq: int
    attempt: int


class Decision(NamedTuple):
    verdicts: tuple[Verdict, ...]
    manifest: Manifest | None
    """The record to put by CAS; None when nothing was appended."""
    chunk: IndexChunk | None
    """Entries that were pending before, to travel with the CAS (never the entry that this CAS creates)."""
    pages: tuple[NewPage, ...] = ()
    """Pages of producer states that `manifest` names, to travel with the CAS."""
    has_unknown: bool = False
    """A batch is refused with NO_PREDECESSOR."""

    @property
    def has_refusal(self) -> bool:
        return any(verdict.is_refusal for verdict in self.verdicts)


def decide(
    manifest: Manifest,
    claims: Sequence[CandidateBatch],
    *,
    object_id: ObjectId,
    early_start: int | None = None,
    writer: Writer,
    now_ms: int,
    limits: LogLimits,
    pages: Pages = NO_PAGES,
    lost: Mapping[int, int] = NONE_LOST,
    permitted_starts: Mapping[int, PermittedStart] = NOBODY,
    dead_writers: Collection[int] = (),
    version: int = 0,
    expiration_ms: int = PRODUCER_EXPIRATION_MS,
    must_drain: bool = False,
) -> Decision:
    """Decide the batches of one slice, in order.

    `early_start`: where their slice begins in an object that is stored later; None: it is stored.
    `pages`: the contents of the pages that `producer_pages.pages_needed` names; `claims` are no more than `producer_pages.fitting` says.
    `version`: the one that the CAS expects; new pages are named after it and `writer`, as no other attempt names its own.
    `lost`: the lowest sequence by producer that was answered with an error here. A producer that nobody knows may not begin behind it: it
    would take the place of what is sent again.
    `permitted_starts`: the epoch and highest sequence by producer with which it may begin though nobody knows it, because nothing of it can
    be on its way before that (docs/internals/adr/0028-unknown-producers-begin-when-proved.md). In Kafka every producer may begin with any.
    `dead_writers`: broker epochs whose registration was seen gone after `manifest` was read; only they may be dropped from `writers`.
    `must_drain`: send the pending entries as a chunk though the ring is not full.
    """
    if manifest.log_state is not LogState.OPEN:
        refusal = Verdict(Outcome.PARTITION_FENCED if manifest.log_state is LogState.FENCED else Outcome.DELETED, -1)
        return Decision((refusal,) * len(claims), None, None)
    next_offset = base = manifest.sequence_counter
    producers: dict[int, ProducerState] | None = None
    expired_before_ms = now_ms - expiration_ms
    verdicts: list[Verdict] = []
    spans: list[tuple[int, int]] = []
    span_end = -1
    appended_bytes = 0
    has_unknown = False
    max_timestamp = -1
    log_max_timestamp, log_max_offset = manifest.max_timestamp, manifest.max_timestamp_offset
    for claim in claims:
        producer_id = claim.producer_id
        if producer_id != NO_PRODUCER:
            if producers is None:
                producers = dict(manifest.producers)
            known = producers.get(producer_id) or find(manifest, pages, producer_id)
            if known is not None and is_expired(known, before_ms=expired_before_ms) and not _goes_on(known, claim):
                known = None
            if known is None and manifest.pages and has_no_room(manifest.pages, now_ms=now_ms):
                verdicts.append(Verdict(Outcome.NO_ROOM, -1))
                continue
            refused = _judge(known, claim, lost.get(producer_id), permitted_starts.get(producer_id))
            if refused is not None:
                verdicts.append(refused)
                has_unknown = has_unknown or refused.outcome is Outcome.NO_PREDECESSOR
                continue
            # Taken out first so that the dict stays ordered by last use: the oldest is spilled first.
            producers.pop(producer_id, None)
            producers[producer_id] = _after(known, claim, next_offset, now_ms)
        verdicts.append(Verdict(Outcome.APPENDED, next_offset))
        size_bytes = claim.size_bytes
        if claim.position != span_end:
            spans.append((claim.position, size_bytes))
        else:
            start, length = spans[-1]
            spans[-1] = (start, length + size_bytes)
        span_end = claim.position + size_bytes
        appended_bytes += size_bytes
        if claim.max_timestamp > max_timestamp:
            max_timestamp = claim.max_timestamp
            if max_timestamp > log_max_timestamp:
                log_max_timestamp, log_max_offset = max_timestamp, next_offset
        next_offset += claim.record_count
    if next_offset == base:
        return Decision(tuple(verdicts), None, None, has_unknown=has_unknown)

    hot, refs, written = manifest.producers, manifest.pages, tuple[NewPage, ...]()
    forgotten_before_ms = now_ms - FORGOTTEN_AFTER * expiration_ms
    if producers is not None and not refs and has_room(producers, expired_before_ms=forgotten_before_ms, limits=limits):
        hot = producers
    elif producers is not None:
        hot, refs, written = make_room(
            refs,
            producers,
            pages,
            claimed={claim.producer_id for claim in claims},
            now_ms=now_ms,
            expired_before_ms=forgotten_before_ms,
            limits=limits,
            name=page_name(version=version, epoch=writer.epoch, commit_seq=writer.commit_seq, attempt=writer.attempt),
        )
    writers = (
        {epoch: entry for epoch, entry in manifest.writers.items() if epoch not in dead_writers}
        if dead_writers
        else manifest.writers.copy()
    )
    writers[writer.epoch] = WriterEntry(writer.commit_seq, writer.attempt)
    batches = tuple(spans) if early_start is None else Early(early_start, tuple(spans))
    entry = Entry(base, next_offset - 1, object_id, batches, max_timestamp, log_max_timestamp)
    is_full = len(manifest.pending) >= limits.pending_entries_max
    chunk = drained(manifest) if manifest.pending and (is_full or must_drain) else None
    return Decision(
        tuple(verdicts),
        msgspec.structs.replace(
            manifest,
            sequence_counter=next_offset,
            pending=(entry,) if chunk else (*manifest.pending, entry),
            writers=writers,
            producers=hot,
            pages=refs,
            bytes_total=manifest.bytes_total + appended_bytes,
            last_append_ms=max(manifest.last_append_ms, now_ms),
            max_timestamp=log_max_timestamp,
            max_timestamp_offset=log_max_offset,
        ),
        chunk,
        written,
        has_unknown,
    )


def advance_sequence(sequence: int, count: int) -> int:
    """Sequences wrap from 2^31-1 to 0."""
    return (sequence + count) & SEQUENCE_MAX


def follows(known: ProducerState, claim: CandidateBatch) -> bool:
    """Whether `claim` is the batch after the last one of `known`: then every batch before it was appended."""
    batches = known.batches
    return known.epoch == claim.producer_epoch and bool(batches) and claim.first_seq == advance_sequence(batches[-1].last_seq, 1)


def _goes_on(expired: ProducerState, claim: CandidateBatch) -> bool:
    """Whether the state of an expired producer still says what becomes of `claim`: that it is the next batch, or one appended before.

    Anything else is judged as if nobody knew the producer.
    """
    if follows(expired, claim):
        return True
    last_seq = advance_sequence(claim.first_seq, claim.record_count - 1)
    return expired.epoch == claim.producer_epoch and any(
        batch.first_seq == claim.first_seq and batch.last_seq == last_seq for batch in expired.batches
    )


def _judge(
    known: ProducerState | None, claim: CandidateBatch, lost_seq: int | None, permitted_start: PermittedStart | None
) -> Verdict | None:
    """The verdict on a batch that is not to be appended; None for one that is."""
    if known is None:
        if lost_seq is not None and claim.first_seq > lost_seq:
            return Verdict(Outcome.OUT_OF_ORDER_SEQUENCE, -1)
        last_start = (
            permitted_start.first_seq if permitted_start is not None and claim.producer_epoch == permitted_start.producer_epoch else 0
        )
        return None if claim.first_seq <= last_start else Verdict(Outcome.NO_PREDECESSOR, -1)
    if claim.producer_epoch < known.epoch:
        return Verdict(Outcome.INVALID_PRODUCER_EPOCH, -1)
    if claim.producer_epoch > known.epoch:
        return None if claim.first_seq == 0 else Verdict(Outcome.OUT_OF_ORDER_SEQUENCE, -1)
    last_seq = advance_sequence(claim.first_seq, claim.record_count - 1)
    for batch in known.batches:
        if batch.first_seq == claim.first_seq and batch.last_seq == last_seq:
            return Verdict(Outcome.DUPLICATE, batch.base_offset)
    if not known.batches or claim.first_seq == advance_sequence(known.batches[-1].last_seq, 1):
        return None
    return Verdict(Outcome.OUT_OF_ORDER_SEQUENCE, -1)


def _after(known: ProducerState | None, claim: CandidateBatch, base_offset: int, now_ms: int) -> ProducerState:
    batch = ProducerBatch(claim.first_seq, advance_sequence(claim.first_seq, claim.record_count - 1), base_offset, now_ms)
    if known is None or known.epoch != claim.producer_epoch:
        return ProducerState(claim.producer_epoch, (batch,))
    return ProducerState(known.epoch, (*known.batches[1 - PRODUCER_BATCHES_KEPT :], batch), known.txn_first_offset)


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


class AttemptOutcome(Enum):
    UNDECIDED = auto()
    FAILED = auto()
    NEVER_KNOWN = auto()


def attempt_outcome(
    manifest: Manifest, version: int, *, epoch: int, commit_seq: int, sent_version: int, may_be_dropped: bool
) -> Found | AttemptOutcome:
    """The outcome of attempts without an answer, from the manifest as read since.

    `sent_version` is what the attempt expected. `may_be_dropped`: an entry of `epoch` may have been removed from `writers`.
    docs/internals/design/commit.md#unknown-outcomes says why this is all that can be known.

        the record read since                      fate         clients wait                  given up
        ──────────────────────────────────────────────────────────────────────────────────────────────
        writers[epoch] names our commit_seq        Found        answer as that attempt says   end
        the version is the one that was sent       UNDECIDED    send again                    fence
        the version moved, our entry may be gone   NEVER_KNOWN  answer REQUEST_TIMED_OUT      end
        the version moved otherwise                FAILED       decide again                  end

    A CAS names a version, and versions are never reused: an attempt at a version that is gone can never apply.

    Why `writers` is asked first, whatever the version, and again after a conflict (F-conflict):

        attempt 1 at version 7 … no answer … a read finds 7: undecided … attempt 1 lands: 8 … attempt 2 at 7: conflict, with ourselves

    Why an absent entry proves nothing if it may have been dropped (F-absent):

        attempt 1 lands, no answer … our session ends … another broker sees us gone and drops writers[epoch] … a read finds no entry

    It was never there only if our registration certainly exists, and no commit of this queue was applied under our epoch before:
    that one left an entry, so whoever finds none knows that somebody drops ours.
    """
    entry = manifest.writers.get(epoch)
    if entry is not None and entry.commit_seq == commit_seq:
        return Found(entry.attempt)
    if version == sent_version:
        return AttemptOutcome.UNDECIDED
    return AttemptOutcome.NEVER_KNOWN if entry is None and may_be_dropped else AttemptOutcome.FAILED
