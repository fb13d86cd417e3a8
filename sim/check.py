"""Judges a history against the logs as they stand in the end. The classes are Jepsen's for Kafka, with promises 1 to 5 of the log."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.history import PLAIN, Attempt, BatchIdentity, End, History, LogStart, OperationOutcome, SeenBatch, Sent
from storage.log.partition import AGE_S_MAX


class Stored(NamedTuple):
    """A batch in the final log."""

    offset: int
    record_count: int
    value: bytes
    identity: BatchIdentity = PLAIN


@dataclass(frozen=True, slots=True)
class Log:
    """A partition of one incarnation of a topic: `place` has several of them if the topic was deleted and created again.

    What lay below `begin` was deleted, and then compacted away: nothing is known of it.
    """

    place: str
    topic_id: str
    batches: Sequence[Stored]
    begin: int = 0


def check(history: History, logs: Sequence[Log]) -> list[str]:
    """Every violation found, each beginning with the name of its class."""
    found: list[str] = []
    by_place: dict[str, list[Log]] = defaultdict(list)
    for log in logs:
        by_place[log.place].append(log)
    numbers = {(sent.place, sent.value): sent.number for sent in history.sent}
    for log in logs:
        found += _dense(log)
        found += _sequences(log, numbers, is_only=len(by_place[log.place]) == 1)
    found += _appends(history, by_place)
    found += _reads(history.seen, logs)
    # A batch for an incarnation that is gone does not go before those for the next one.
    found += _overtaken([one for one in history.sent if len(by_place[one.place]) == 1])
    for place, incarnations in by_place.items():
        if len(incarnations) > 1:
            continue  # offsets of one say nothing about those of another
        sent = [one for one in history.sent if one.place == place]
        found += _append_times(place, sent)
        ends = [one for one in history.ends if one.place == place]
        seen = [one for one in history.seen if one.place == place]
        found += _ends(place, sent, ends, seen)
        found += _starts(place, [one for one in history.starts if one.place == place], seen)
    return found


class RememberedProducers(NamedTuple):
    """Epoch and last sequence by producer id, as a broker says, and where the log ended before it was asked."""

    end: int
    producers: Mapping[int, tuple[int, int]]


def forgotten(logs: Sequence[Log], known: Mapping[str, RememberedProducers], may_have_expired: Callable[[Stored], bool]) -> Iterator[str]:
    """The last batch of every producer is what its partition remembers: else a batch sent again could pass for a new one.

    `known`: by place; those that are not in it are not judged. What a client gave up may be appended while a broker is asked, and later.
    `may_have_expired` says so of a producer whose last batch this is.
    """
    for log in logs:
        if log.place not in known:
            continue
        end, producers = known[log.place]
        last: dict[int, Stored] = {}
        possible: dict[int, set[tuple[int, int] | None]] = {}
        for one in log.batches:
            producer_id = one.identity.producer_id
            if one.identity != PLAIN and one.offset < end:
                last[producer_id] = one
                possible[producer_id] = {_remembered_as(one)}
            elif producer_id in last:
                possible[producer_id].add(_remembered_as(one))
        for producer_id, one in last.items():
            told = producers.get(producer_id)
            if told not in possible[producer_id] and not (told is None and may_have_expired(one)):
                yield f"forgotten: {log.place} producer_id={producer_id} appended={_remembered_as(one)} remembered={told}"


def _remembered_as(one: Stored) -> tuple[int, int]:
    return one.identity.epoch, one.identity.first_seq + one.record_count - 1


def _dense(log: Log) -> Iterator[str]:
    following = log.begin
    for one in log.batches:
        if one.offset != following:
            yield f"gap or reuse: {log.place} expected={following} found={one.offset} value={one.value!r}"
        following = one.offset + one.record_count


def _sequences(log: Log, numbers: dict[tuple[str, bytes], int], *, is_only: bool) -> Iterator[str]:
    """The batches of a producer stand in the order of its epochs and sequences, none missing before another.

    A producer goes on in a topic that was created again, where nobody knows what came before.
    """
    last: dict[int, tuple[BatchIdentity, int, int]] = {}  # by producer id: its last batch, the sequence that follows, and its number
    for one in log.batches:
        identity = one.identity
        if identity == PLAIN:
            continue
        number = numbers.get((log.place, one.value), -1)
        before = last.get(identity.producer_id)
        if before is not None and before[0].epoch > identity.epoch:
            yield f"order: epoch {identity.epoch} of a producer after {before[0].epoch}: {log.place} {one}"
        elif before is not None and before[0].epoch == identity.epoch:
            if identity.first_seq != before[1] or number <= before[2]:
                yield f"order: {log.place} expected_seq={before[1]} {one} follows number {before[2]}"
        elif is_only and identity.first_seq and not log.begin:
            yield f"order: begins at sequence {identity.first_seq}: {log.place} {one}"
        last[identity.producer_id] = identity, identity.first_seq + one.record_count, number


def _appends(history: History, by_place: dict[str, list[Log]]) -> Iterator[str]:
    """Acked: there, at the offset answered. Failed: not there. Unknown: at most once, or as often as it was sent without a sequence."""
    places: dict[tuple[str, bytes], list[tuple[Log, Stored]]] = defaultdict(list)
    for place, logs in by_place.items():
        for log in logs:
            for one in log.batches:
                places[place, one.value].append((log, one))
    for sent in history.sent:
        standing = places.pop((sent.place, sent.value), [])
        offsets = [one.offset for _, one in standing]
        oks = [attempt for attempt in sent.attempts if attempt.outcome is OperationOutcome.OK]
        begin = max((log.begin for log in by_place[sent.place]), default=0)
        lost = [ok for ok in oks if ok.offset not in offsets and ok.offset >= begin]
        yield from (f"lost ack: {_name(sent)} acked_at={ok.offset} found_at={offsets}" for ok in lost)
        yield from _too_late(history, sent, oks, standing)
        if standing:
            yield from _repeated(sent, standing)
        if len(by_place[sent.place]) == 1 and len({ok.offset for ok in oks}) < len(
            {ok.identity for ok in oks} if sent.is_idempotent else oks
        ):
            yield f"two acks for one offset: {_name(sent)} acked_at={[ok.offset for ok in oks]}"
    for (place, value), standing in places.items():
        yield f"never sent: {place} value={value!r} offsets={[one.offset for _, one in standing]}"


def _repeated(sent: Sent, standing: Sequence[tuple[Log, Stored]]) -> Iterator[str]:
    offsets = [one.offset for _, one in standing]
    possible = sent.possible
    if not possible:
        yield f"dirty read: {_name(sent)} failed for certain and is at {offsets}"
    elif not sent.is_idempotent:
        if len(standing) > len(possible):
            yield f"duplicate: {_name(sent)} is at {offsets} attempts={len(sent.attempts)}"
    else:
        # Given a new epoch or id its client has sent it as another batch. In another incarnation of the topic nobody knows of it.
        copies = Counter((log.topic_id, one.identity) for log, one in standing)
        identities = {attempt.identity for attempt in possible}
        if max(copies.values()) > 1:
            yield f"duplicate: {_name(sent)} is at {offsets} attempts={len(sent.attempts)}"
        if any(identity not in identities for _, identity in copies):
            yield f"never sent: {_name(sent)} is under {[one.identity for _, one in standing]}, sent under {sorted(identities)}"


def _too_late(history: History, sent: Sent, oks: Iterable[Attempt], standing: Sequence[tuple[Log, Stored]]) -> Iterator[str]:
    """A batch sent after the deletion of a topic was confirmed is in a later incarnation of it."""
    for ok in oks:
        deleted = [history.deleted_s.get(log.topic_id, float("inf")) for log, one in standing if one.offset == ok.offset]
        begun_s = min(attempt.invoked_s for attempt in sent.attempts if attempt.identity == ok.identity)
        if deleted and max(deleted) < begun_s:
            yield f"append to a deleted topic: {_name(sent)} sent_s={begun_s:.3f} deleted_s={max(deleted):.3f}"


def _overtaken(everything: Iterable[Sent]) -> Iterator[str]:
    """What a connection brought before its broker had refused an earlier batch of a producer without sequences is refused with that."""
    lanes: dict[tuple[int, str], list[tuple[Attempt, Sent]]] = defaultdict(list)
    for sent in everything:
        if not sent.is_idempotent:
            for attempt in sent.attempts:
                if attempt.arrived_s < float("inf"):
                    lanes[attempt.connection, sent.place].append((attempt, sent))
    for lane in lanes.values():
        if len(lane) == 1:
            continue
        lane.sort(key=lambda arrived: arrived[0].arrived_s)
        for place, (attempt, sent) in enumerate(lane):
            if attempt.was_taken is False:
                for later, other in lane[place + 1 :]:
                    if other is not sent and later.was_taken and later.arrived_s < attempt.settled_s:
                        yield f"overtaken: {_name(sent)} was refused, {_name(other)} behind it was not"


def _reads(seen: Iterable[SeenBatch], logs: Sequence[Log]) -> Iterator[str]:
    """Whatever any reader saw at an offset is there in the end."""
    standing = {(log.place, log.topic_id, one.offset): one for log in logs for one in log.batches}
    begins = {(log.place, log.topic_id): log.begin for log in logs}
    for one in seen:
        stored = standing.get((one.place, one.topic_id, one.offset))
        if stored is None and one.offset < begins.get((one.place, one.topic_id), 0):
            continue
        if stored is None:
            yield f"dirty read: {one} is not in the log"
        elif (stored.record_count, stored.value) != (one.record_count, one.value):
            yield f"two values at one offset: {one} and {stored}"


def _append_times(place: str, everything: Iterable[Sent]) -> Iterator[str]:
    """A batch sent after another was acked is behind it."""
    acks: list[tuple[float, int]] = []
    begins: list[tuple[float, int, Sent]] = []
    for sent in everything:
        for attempt in sent.attempts:
            if attempt.outcome is OperationOutcome.OK:
                acks.append((attempt.ended_s, attempt.offset))
                begins.append((_begin_of(sent, attempt), attempt.offset, sent))
    highest = _Highest(acks)
    for begun_s, offset, sent in begins:
        before = highest.before(begun_s)
        if before >= offset:
            yield f"out of real time: {_name(sent)} place={place} acked_at={offset} sent after the ack of offset {before}"


def _begin_of(sent: Sent, acked: Attempt) -> float:
    if not sent.is_idempotent:
        return acked.invoked_s
    return min(attempt.invoked_s for attempt in sent.attempts if attempt.identity == acked.identity)


def _ends(place: str, everything: Sequence[Sent], ends: Sequence[End], seen: Sequence[SeenBatch]) -> Iterator[str]:
    """An end is beyond every ack, every read and every end answered before it was asked for (promise 5).

    A broker that may have asked a deposed leader need only answer what was true once.
    """
    known = [
        (attempt.ended_s, attempt.offset + sent.record_count)
        for sent in everything
        for attempt in sent.attempts
        if attempt.outcome is OperationOutcome.OK
    ]
    known += [(one.at_s, one.offset + one.record_count) for one in seen]
    known += [(one.ended_s, one.offset) for one in ends]
    highest = _Highest(known)
    for end in ends:
        before = highest.before(end.invoked_s)
        if before > end.offset and not end.may_be_old:
            yield f"stale end: {place} {end} though {before} was known before"


def _starts(place: str, starts: Sequence[LogStart], seen: Sequence[SeenBatch]) -> Iterator[str]:
    """A start is no lower than any that was acknowledged or answered before it was asked for, and nothing below one is served that was
    known AGE_S_MAX before the question (promise 5). A broker that may have asked a deposed leader need only answer what was true once.
    """
    highest = _Highest([(one.ended_s, one.offset) for one in starts])
    for start in starts:
        before = highest.before(start.invoked_s)
        if before > start.offset and not start.may_be_old:
            yield f"stale start: {place} {start} though {before} was known before"
    for one in seen:
        before = highest.before(one.invoked_s - AGE_S_MAX)
        if one.offset + one.record_count <= before and not one.may_be_old:
            yield f"deleted record: {one} though the log began at {before} more than {AGE_S_MAX} s before it was asked for"


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
    return f"{sent.value.decode().rstrip('.')} ({'idempotent' if sent.is_idempotent else 'plain'}, {sent.place})"
