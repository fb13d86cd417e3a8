"""The decision of a commit, pure: what becomes of each batch and of the control record (docs/design/commit.md, I7).

Everything that may refuse or deduplicate a batch is here and is computed anew on every attempt from the control record that the attempt's
CAS names. Rules for producers with sequences are Kafka's (KIP-98 and the idempotent producer of 1.0: the last five batches are remembered).
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from storage.formats.control import (
    Control,
    Entry,
    IndexChunk,
    LogState,
    ProducerBatch,
    ProducerState,
    WriterEntry,
    inline_bytes,
)
from storage.limits import PRODUCER_BATCHES_KEPT, SEQUENCE_MAX
from storage.log.limits import LogLimits
from storage.log.producer_pages import NO_PAGES, NewPage, Pages, find, has_no_room, has_room, is_expired, make_room, page_name
from storage.log.ring import drained
from storage.log.strangers import PermittedStart
from storage.recordbatch import NO_PRODUCER
from storage.vocabulary import ObjectId

PRODUCER_EXPIRATION_MS = 86_400_000
"""producer.id.expiration.ms: how long a producer that appends no more is remembered."""
FORGOTTEN_AFTER = 2
"""Times the expiration: until then an expired producer's state stays, and shows whether its next batch goes on from its last one."""
NONE_LOST: Mapping[int, int] = MappingProxyType({})
NOBODY: Mapping[int, PermittedStart] = MappingProxyType({})


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
    @property
    def carried(self) -> bytes: ...


class Outcome(Enum):
    APPENDED = auto()
    DUPLICATE = auto()  # appended before, at the offset the verdict names
    OUT_OF_ORDER_SEQUENCE = auto()
    NO_PREDECESSOR = auto()  # of a producer nobody knows, and not its first: what comes before may be on its way through another broker
    NO_ROOM = auto()  # an unknown producer, while the partition has no room to remember another
    INVALID_PRODUCER_EPOCH = auto()
    FENCED = auto()
    DELETED = auto()


class Verdict(NamedTuple):
    outcome: Outcome
    base_offset: int
    """-1 where there is none."""

    @property
    def is_refusal(self) -> bool:
        return self.outcome is not Outcome.APPENDED and self.outcome is not Outcome.DUPLICATE


class Writer(NamedTuple):
    """The committer: names the attempt in `control.writers`, which makes a lost reply decidable."""

    epoch: int
    commit_seq: int
    attempt: int


class Decision(NamedTuple):
    verdicts: tuple[Verdict, ...]
    control: Control | None
    """The record to put by CAS; None when nothing was appended."""
    chunk: IndexChunk | None
    """Entries that were pending before, to travel with the CAS (never the entry that this CAS creates)."""
    pages: tuple[NewPage, ...] = ()
    """Pages of producer states that `control` names, to travel with the CAS."""
    has_unknown: bool = False
    """A batch is refused with NO_PREDECESSOR."""

    @property
    def has_refusal(self) -> bool:
        return any(verdict.is_refusal for verdict in self.verdicts)


def decide(
    control: Control,
    claims: Sequence[CandidateBatch],
    *,
    object_id: ObjectId,
    is_inline: bool = False,
    writer: Writer,
    now_ms: int,
    limits: LogLimits,
    pages: Pages = NO_PAGES,
    lost: Mapping[int, int] = NONE_LOST,
    begin_at: Mapping[int, PermittedStart] = NOBODY,
    dead_writers: Collection[int] = (),
    version: int = 0,
    expiration_ms: int = PRODUCER_EXPIRATION_MS,
    must_drain: bool = False,
) -> Decision:
    """Decide the batches of one slice, in order.

    `is_inline`: the entry has the bytes that the batches carry; else it has their spans of the object.
    `pages`: the contents of the pages that `producer_pages.pages_needed` names; `claims` are no more than `producer_pages.fitting` says.
    `version`: the one that the CAS expects; new pages are named after it and `writer`, as no other attempt names its own.
    `lost`: the lowest sequence by producer that was answered with an error here. A producer that nobody knows may not begin behind it: it
    would take the place of what is sent again.
    `begin_at`: the epoch and highest sequence by producer with which it may begin though nobody knows it, because nothing of it can be on
    its way before that (docs/adr/0028-unknown-producers-begin-when-proved.md). In Kafka every producer may begin with any.
    `dead_writers`: broker epochs whose registration was seen gone after `control` was read; only they may be dropped from `writers`.
    `must_drain`: send the pending entries as a chunk though the ring is not full.
    """
    if control.log_state is not LogState.OPEN:
        refusal = Verdict(Outcome.FENCED if control.log_state is LogState.FENCED else Outcome.DELETED, -1)
        return Decision((refusal,) * len(claims), None, None)
    next_offset = base = control.sequence_counter
    producers: dict[int, ProducerState] | None = None
    expired_before_ms = now_ms - expiration_ms
    verdicts: list[Verdict] = []
    spans: list[tuple[int, int]] = []
    carried: list[bytes] = []
    span_end = -1
    appended_bytes = 0
    has_unknown = False
    max_timestamp = -1
    log_max_timestamp, log_max_offset = control.max_timestamp, control.max_timestamp_offset
    for claim in claims:
        producer_id = claim.producer_id
        if producer_id != NO_PRODUCER:
            if producers is None:
                producers = dict(control.producers)
            known = producers.get(producer_id) or find(control, pages, producer_id)
            if known is not None and is_expired(known, before_ms=expired_before_ms) and not _goes_on(known, claim):
                known = None
            if known is None and control.pages and has_no_room(control.pages, now_ms=now_ms):
                verdicts.append(Verdict(Outcome.NO_ROOM, -1))
                continue
            refused = _judge(known, claim, lost.get(producer_id), begin_at.get(producer_id))
            if refused is not None:
                verdicts.append(refused)
                has_unknown = has_unknown or refused.outcome is Outcome.NO_PREDECESSOR
                continue
            # Taken out first so that the dict stays ordered by last use: the oldest is spilled first.
            producers.pop(producer_id, None)
            producers[producer_id] = _after(known, claim, next_offset, now_ms)
        verdicts.append(Verdict(Outcome.APPENDED, next_offset))
        size_bytes = claim.size_bytes
        if is_inline:
            assert len(claim.carried) == size_bytes, "the bytes of an inline batch stay until its commit has ended"
            carried.append(claim.carried)
        elif claim.position != span_end:
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

    hot, refs, written = control.producers, control.pages, tuple[NewPage, ...]()
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
        {epoch: entry for epoch, entry in control.writers.items() if epoch not in dead_writers} if dead_writers else control.writers.copy()
    )
    writers[writer.epoch] = WriterEntry(writer.commit_seq, writer.attempt)
    batches = b"".join(carried) if is_inline else tuple(spans)
    entry = Entry(base, next_offset - 1, object_id, batches, max_timestamp, log_max_timestamp)
    is_full = len(control.pending) >= limits.pending_entries_max or (
        is_inline and inline_bytes(control.pending) + appended_bytes > limits.inline_pending_bytes_max
    )
    chunk = drained(control) if control.pending and (is_full or must_drain) else None
    return Decision(
        tuple(verdicts),
        msgspec.structs.replace(
            control,
            sequence_counter=next_offset,
            pending=(entry,) if chunk else (*control.pending, entry),
            writers=writers,
            producers=hot,
            pages=refs,
            bytes_total=control.bytes_total + appended_bytes,
            last_append_ms=max(control.last_append_ms, now_ms),
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


def _judge(known: ProducerState | None, claim: CandidateBatch, lost_seq: int | None, begin_at: PermittedStart | None) -> Verdict | None:
    """The verdict on a batch that is not to be appended; None for one that is."""
    if known is None:
        if lost_seq is not None and claim.first_seq > lost_seq:
            return Verdict(Outcome.OUT_OF_ORDER_SEQUENCE, -1)
        last_start = begin_at.first_seq if begin_at is not None and claim.producer_epoch == begin_at.producer_epoch else 0
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
