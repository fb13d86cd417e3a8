"""Judges a history against the log as it stands in the end. The classes are Jepsen's for Kafka, with promises 1 to 5 of the log."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sim.history import Attempt, End, History, Outcome, Seen, Sent


class Stored(NamedTuple):
    """A batch in the final log."""

    offset: int
    record_count: int
    value: bytes


FinalLogs = Mapping[int, Sequence[Stored]]


def check(history: History, logs: FinalLogs) -> list[str]:
    """Every violation found, each beginning with the name of its class."""
    found: list[str] = []
    for partition, log in logs.items():
        found += _dense(partition, log)
    found += _appends(history.sent, logs)
    found += _orders(history.sent, logs)
    found += _reads(history.seen, logs)
    for partition in logs:
        sent = [one for one in history.sent if one.partition == partition]
        found += _append_times(partition, sent)
        ends = [one for one in history.ends if one.partition == partition]
        seen = [one for one in history.seen if one.partition == partition]
        found += _ends(partition, sent, ends, seen)
    return found


def _dense(partition: int, log: Sequence[Stored]) -> Iterator[str]:
    following = 0
    for one in log:
        if one.offset != following:
            yield f"gap or reuse: partition={partition} expected={following} found={one.offset} value={one.value!r}"
        following = one.offset + one.record_count


def _appends(everything: Iterable[Sent], logs: FinalLogs) -> Iterator[str]:
    """Acked: there, at the offset told. Failed: not there. Unknown: once or not at all, or as often as it was sent without a sequence."""
    places: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for partition, log in logs.items():
        for one in log:
            places[partition, one.value].append(one.offset)
    for sent in everything:
        offsets = places.pop((sent.partition, sent.value), [])
        oks = [attempt.offset for attempt in sent.attempts if attempt.outcome is Outcome.OK]
        yield from (f"lost ack: {_name(sent)} acked_at={offset} found_at={offsets}" for offset in oks if offset not in offsets)
        possible = sum(attempt.outcome is not Outcome.FAIL for attempt in sent.attempts)
        if offsets and not possible:
            yield f"dirty read: {_name(sent)} failed for certain and stands at {offsets}"
        elif len(offsets) > (1 if sent.is_idempotent else possible):
            yield f"duplicate: {_name(sent)} stands at {offsets} attempts={len(sent.attempts)}"
        if len(set(oks)) < len(oks):
            yield f"two acks for one offset: {_name(sent)} acked_at={oks}"
    for (partition, value), offsets in places.items():
        yield f"never sent: partition={partition} value={value!r} offsets={offsets}"


def _orders(everything: Iterable[Sent], logs: FinalLogs) -> Iterator[str]:
    """An idempotent producer's batches stand in the order sent, none missing before another."""
    senders = {(sent.partition, sent.value): sent for sent in everything if sent.is_idempotent}
    following: dict[str, int] = defaultdict(int)
    for partition, log in logs.items():
        for one in log:
            sent = senders.get((partition, one.value))
            if sent is None:
                continue
            if sent.number != following[sent.producer]:
                yield f"order: {_name(sent)} at {one.offset} follows number {following[sent.producer] - 1}"
            following[sent.producer] = sent.number + 1


def _reads(seen: Iterable[Seen], logs: FinalLogs) -> Iterator[str]:
    """What any reader ever saw is what stands there in the end."""
    standing = {(partition, one.offset): one for partition, log in logs.items() for one in log}
    for one in seen:
        stored = standing.get((one.partition, one.offset))
        if stored is None:
            yield f"dirty read: {one} is not in the log"
        elif (stored.record_count, stored.value) != (one.record_count, one.value):
            yield f"two values at one offset: {one} and {stored}"


def _append_times(partition: int, everything: Iterable[Sent]) -> Iterator[str]:
    """What was sent after another batch was acked stands behind it."""
    acks: list[tuple[float, int]] = []
    begins: list[tuple[float, int, Sent]] = []
    for sent in everything:
        for attempt in sent.attempts:
            if attempt.outcome is Outcome.OK:
                acks.append((attempt.ended_s, attempt.offset))
                begins.append((_begin_of(sent, attempt), attempt.offset, sent))
    highest = _Highest(acks)
    for begun_s, offset, sent in begins:
        before = highest.before(begun_s)
        if before >= offset:
            yield f"out of real time: {_name(sent)} partition={partition} acked_at={offset} sent after the ack of offset {before}"


def _begin_of(sent: Sent, attempt: Attempt) -> float:
    return sent.attempts[0].invoked_s if sent.is_idempotent else attempt.invoked_s


def _ends(partition: int, everything: Sequence[Sent], ends: Sequence[End], seen: Sequence[Seen]) -> Iterator[str]:
    """An end is beyond every ack, every read and every end told before it was asked for (promise 5)."""
    known = [
        (attempt.ended_s, attempt.offset + sent.record_count)
        for sent in everything
        for attempt in sent.attempts
        if attempt.outcome is Outcome.OK
    ]
    known += [(one.at_s, one.offset + one.record_count) for one in seen]
    known += [(one.ended_s, one.offset) for one in ends]
    highest = _Highest(known)
    for end in ends:
        before = highest.before(end.invoked_s)
        if before > end.offset:
            yield f"stale end: partition={partition} {end} though {before} was known before"


class _Highest:
    """The highest of some values up to a moment."""

    def __init__(self, timed: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._values: list[int] = []
        highest = -1
        for at_s, value in sorted(timed):
            highest = max(highest, value)
            self._times.append(at_s)
            self._values.append(highest)

    def before(self, at_s: float) -> int:
        """-1 if there is none before `at_s`."""
        index = bisect_left(self._times, at_s)
        return self._values[index - 1] if index else -1


def _name(sent: Sent) -> str:
    return f"{sent.value.decode().rstrip('.')} ({'idempotent' if sent.is_idempotent else 'plain'}, partition {sent.partition})"
