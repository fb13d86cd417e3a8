"""Traces of produced batches: for a sampled one, when it arrived, was sealed, stored, committed and answered.

Only sampled batches are touched, and without tracing none of this is called. The `traceparent` of the batch's first record is looked for in
its first HEADERS_READ_MAX headers; compressed records are not decompressed for it. Others send what is traced (process/tracing.py).
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from runtime.clock import Clock
from storage.errors import StorageError
from storage.log.batch import Append, Appended, Batch
from storage.log.partition import Commit, PartitionLog
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, parse_header
from storage.vocabulary import TopicId

HEADERS_READ_MAX: Final = 32
TRACEPARENT: Final = b"traceparent"
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MS_PER_S: Final = 1_000


class Stage(NamedTuple):
    """Part of the way of a batch, in seconds of the monotonic clock."""

    name: str
    began_s: float
    ended_s: float


@dataclass(slots=True, kw_only=True)
class BatchTrace:
    """Times are of the monotonic clock, 0 for what did not happen; with `wall_s` added they are seconds since the Unix epoch.

    `parent`: the traceparent that its first record carries, or empty. `key`: of the WAL object, if it is stored in one.
    """

    topic: str
    partition: int
    records: int
    size_bytes: int
    parent: str
    wall_s: float
    began_s: float
    submitted_s: float
    key: str = ""
    sealed_s: float = 0.0
    stored_s: float = 0.0
    settled_s: float = 0.0
    answered_s: float = 0.0
    outcome: Appended | StorageError | None = None

    def stages(self) -> list[Stage]:
        """List the stages between arrival and answer, in order: gather, put, commit, ack.

        If the outcome is an error, the last one before the ack failed. A batch that its commit carries is not put, and its wait is part of
        the commit.
        """
        ended = Stage("ack", self.settled_s, self.answered_s)
        if not self.sealed_s:
            return [Stage("commit", self.submitted_s, self.settled_s), ended]
        gathered = Stage("gather", self.submitted_s, self.sealed_s)
        if not self.stored_s:
            return [gathered, Stage("put", self.sealed_s, self.settled_s), ended]
        return [gathered, Stage("put", self.sealed_s, self.stored_s), Stage("commit", self.stored_s, self.settled_s), ended]


class Submit(Protocol):
    def __call__(self, log: PartitionLog, batch: Batch) -> None: ...


class Tracing:
    """`send` is given each trace once its batch is answered; it must not wait."""

    def __init__(
        self,
        send: Callable[[BatchTrace], None],
        *,
        ratio: float,
        name_of: Callable[[TopicId], str],
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._send = send
        self._ratio = ratio
        self._name_of = name_of
        self._clock = clock
        self._chance = chance

    def arrive(self, append: Append) -> None:
        """Its batches have arrived now."""
        append.began_s = self._clock.monotonic_s()

    def sampling(self, submit: Submit) -> Submit:
        """As `submit`, which takes the batches; some are traced."""

        def sampled(log: PartitionLog, batch: Batch) -> None:
            if self._chance.random() < self._ratio:
                self._trace(log, batch)
            submit(log, batch)

        return sampled

    def note_sealed(self, commits: Iterable[Commit], key: str, at_s: float) -> None:
        for trace in _traces_of(commits):
            trace.key, trace.sealed_s = key, at_s

    def note_stored(self, commits: Iterable[Commit], at_s: float) -> None:
        for trace in _traces_of(commits):
            trace.stored_s = at_s

    def _trace(self, log: PartitionLog, batch: Batch) -> None:
        now_s = self._clock.monotonic_s()
        trace = BatchTrace(
            topic=self._name_of(log.partition.topic_id),
            partition=log.partition.partition,
            records=batch.record_count,
            size_bytes=batch.size_bytes,
            parent=traceparent_of(batch.view),
            wall_s=self._clock.now_ms() / _MS_PER_S - now_s,
            began_s=batch.append.began_s or now_s,
            submitted_s=now_s,
        )
        answered = batch.append.on_done
        if not isinstance(answered, _Answered):
            answered = batch.append.on_done = _Answered(answered, self._send, self._clock)
        answered.traces.append(trace)
        batch.append = _TracedAppend(batch.append, trace, self._clock)


class _Answered:
    """Called in place of `answer` when an append is done, however many of its batches are traced."""

    __slots__ = ("_answer", "_clock", "_send", "traces")

    def __init__(self, answer: Callable[[Append], None], send: Callable[[BatchTrace], None], clock: Clock) -> None:
        self._answer = answer
        self._send = send
        self._clock = clock
        self.traces: list[BatchTrace] = []

    def __call__(self, append: Append) -> None:
        try:
            self._answer(append)
        finally:
            now_s = self._clock.monotonic_s()
            for trace in self.traces:
                trace.answered_s = now_s
                self._send(trace)


class _TracedAppend(Append):
    """Stands for the append of one traced batch, and hears when that has its result."""

    __slots__ = ("_clock", "_inner", "trace")

    def __init__(self, inner: Append, trace: BatchTrace, clock: Clock) -> None:
        # The inner append alone holds the answer, and lets it go with the result.
        super().__init__(inner.source, _is_not_asked, inner.results, inner.remaining, inner.arrived)
        self._inner = inner
        self._clock = clock
        self.trace = trace

    def settle(self, index: int, result: Appended | StorageError) -> None:
        if self.trace.outcome is None:
            self.trace.outcome, self.trace.settled_s = result, self._clock.monotonic_s()
        self._inner.settle(index, result)


def _is_not_asked(_append: Append) -> None:
    pass


def _traces_of(commits: Iterable[Commit]) -> Iterator[BatchTrace]:
    for commit in commits:
        for batch in commit.batches:
            if isinstance(batch.append, _TracedAppend):
                yield batch.append.trace


def traceparent_of(batch: memoryview) -> str:
    """The traceparent that the first record of a batch carries; empty if it has none, or is compressed, or not what it should be."""
    header = parse_header(batch)
    if header.attributes & CODEC_MASK or not header.record_count:
        return ""
    try:
        _, at = _varint(batch, HEADER_BYTES)
        _, at = _varint(batch, at + 1)  # behind the attributes
        _, at = _varint(batch, at)
        for _ in ("key", "value"):
            length, at = _varint(batch, at)
            at += max(0, length)
        count, at = _varint(batch, at)
        for _ in range(min(count, HEADERS_READ_MAX)):
            length, at = _varint(batch, at)
            key = bytes(batch[at : at + min(length, len(TRACEPARENT) + 1)]) if length > 0 else b""
            at += max(0, length)
            length, at = _varint(batch, at)
            if key == TRACEPARENT:
                found = _TRACEPARENT.fullmatch(batch[at : at + max(0, length)])
                return "" if found is None else str(found[0], "ascii")
            at += max(0, length)
    except IndexError:
        pass  # its records are not what the header says: whoever reads them will say so
    return ""


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint of at most five bytes and what is behind it. Raise IndexError at the end, and for a longer one."""
    value = 0
    for shift in range(0, 35, 7):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise IndexError("a varint of more than five bytes")
