"""Compares what clients sent, heard and read with the log, and gives one verdict. Pure.

A producer numbers its records of a partition from 0, and each record carries that number. So all that is known is ranges: of numbers that
were handed over, of numbers that were acknowledged, of offsets that an independent reader found. Memory grows with batches, not records.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NOT_OURS: Final = -1
"""The producer of a stored record that no producer of this run has made, or whose bytes are damaged."""
SHOWN_MAX: Final = 200
"""Lines of a list; further ones are counted."""

LoadPartition = tuple[str, int]
NumberSpan = tuple[int, int]
"""The first number, and the one after the last."""


class SentRange(NamedTuple):
    """Records that a producer was about to hand over."""

    producer: int
    topic: str
    partition: int
    first: int
    end: int


class AckedRange(NamedTuple):
    """Records that a broker acknowledged, by the time `at`. `offset`: of the first one; negative where the broker only said that they are
    there."""

    producer: int
    topic: str
    partition: int
    first: int
    end: int
    offset: int
    at: float = 0.0


class DoubtfulRange(NamedTuple):
    """Records whose outcome the client does not know. `error`: what came in place of an answer."""

    producer: int
    topic: str
    partition: int
    first: int
    end: int
    error: str


class StoredRun(NamedTuple):
    """Records at consecutive offsets with consecutive numbers of one producer."""

    topic: str
    partition: int
    offset: int
    records: int
    producer: int
    sequence: int


class PartitionEnds(NamedTuple):
    topic: str
    partition: int
    start: int
    end: int


class SessionBegan(NamedTuple):
    """A member of a group was given a partition. Times are those of one clock of this machine."""

    at: float
    member: str
    topic: str
    partition: int


class SessionRead(NamedTuple):
    at: float
    member: str
    run: StoredRun


class SessionCommitted(NamedTuple):
    """A broker acknowledged this commit at that time."""

    at: float
    member: str
    topic: str
    partition: int
    offset: int


SessionEvent = SessionBegan | SessionRead | SessionCommitted


class RequestKey(NamedTuple):
    request: str
    key: str
    answer: str


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """The last sample of a broker or compactor. `run` is its token in the access log; `has_ended`: it may have counted more afterwards."""

    name: str
    run: str
    has_ended: bool
    appended: Mapping[str, int] = field(default_factory=dict)
    """Records by topic."""
    requests: Mapping[RequestKey, int] = field(default_factory=dict)
    sampled_at: float = 0.0
    """Everything it did until then is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`counts`: None where no broker could be asked. `logged`: requests by token in the S3 server's access log; None where there is no such
    server."""

    sent: Sequence[SentRange]
    acked: Sequence[AckedRange]
    doubtful: Sequence[DoubtfulRange]
    stored: Sequence[StoredRun]
    bounds: Sequence[PartitionEnds]
    idempotent: frozenset[int]
    groups: Mapping[str, Sequence[SessionEvent]]
    group_topics: Mapping[str, frozenset[str]]
    committed: Mapping[str, Mapping[LoadPartition, int]]
    counts: Sequence[ProcessCounts] | None
    logged: Mapping[str, Mapping[RequestKey, int]] | None
    trouble: Sequence[str] = ()
    """What went wrong beside the records: a process that ended by itself, an event that did not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadVerdict:
    """`faults` empty: everything agrees. `explained`: what a client cannot know, or a process could not say any more."""

    intent: int
    acked: int
    stored: int
    consumed: Mapping[str, int]
    puts_counted: int | None
    puts_unanswered: int
    """The log has them, and their process heard no answer: S3 was away, or the request was cancelled."""
    puts_after_samples: int
    puts_logged: int | None
    faults: tuple[str, ...]
    explained: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.faults

    def line(self) -> str:
        """The last line of a run."""
        read = [self.consumed[group] for group in sorted(self.consumed)]
        if not read:
            consumed = ""
        elif len(set(read)) == 1:
            consumed = f" · consumed {len(read)} × {read[0]:,}"
        else:
            consumed = " · consumed " + ", ".join(f"{self.consumed[group]:,} by {group}" for group in sorted(self.consumed))
        if self.puts_counted is None:
            puts = "PUT not checked: no broker was asked"
        elif self.puts_logged is None:
            puts = f"PUT {self.puts_counted:,} (not checked: no S3 server)"
        else:
            late = f" + {self.puts_unanswered:,} unanswered" if self.puts_unanswered else ""
            late += f" + {self.puts_after_samples:,} after last samples" if self.puts_after_samples else ""
            sign = "=" if self.puts_counted + self.puts_unanswered + self.puts_after_samples == self.puts_logged else "≠"
            puts = f"PUT {self.puts_counted:,}{late} {sign} {self.puts_logged:,}"
        word = "reconciled" if self.is_good else "NOT reconciled"
        return f"{word}: intent {self.intent:,} · acked {self.acked:,} · stored {self.stored:,}{consumed} · {puts}"


class _Lines:
    """Lines that are kept up to a bound, and then counted."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._more = 0

    def add(self, line: str) -> None:
        if len(self._kept) < SHOWN_MAX:
            self._kept.append(line)
        else:
            self._more += 1

    def all(self) -> tuple[str, ...]:
        return (*self._kept, f"and {self._more:,} more") if self._more else tuple(self._kept)


def reconcile(evidence: Evidence) -> LoadVerdict:
    """Compare everything with everything else."""
    faults, explained = _Lines(), _Lines()
    for line in evidence.trouble:
        faults.add(line)
    stored = _by_partition(evidence.stored)
    bounds = {(one.topic, one.partition): one for one in evidence.bounds}
    for place in sorted(stored.keys() - bounds.keys()):
        faults.add(f"{_at(place)}: records were read of a partition that the cluster does not name")
    for place, bound in sorted(bounds.items()):
        _check_offsets(place, bound, stored.get(place, []), faults)
    _check_records(evidence, stored, faults, explained)
    consumed = {}
    for group in sorted(evidence.groups):
        wanted = {place: bound for place, bound in bounds.items() if place[0] in evidence.group_topics[group]}
        consumed[group] = _check_group(
            group, evidence.groups[group], evidence.committed.get(group, {}), wanted, stored, faults=faults, explained=explained
        )
    _check_appended(evidence, faults, explained)
    unanswered, late = _check_requests(evidence, faults, explained)
    return LoadVerdict(
        intent=sum(one.end - one.first for one in evidence.sent),
        acked=sum(one.end - one.first for one in evidence.acked),
        stored=sum(run.records for run in evidence.stored),
        consumed=consumed,
        puts_counted=None if evidence.counts is None else sum(_puts(one.requests) for one in evidence.counts),
        puts_unanswered=unanswered,
        puts_after_samples=late,
        puts_logged=None if evidence.logged is None else sum(_puts(requests) for requests in evidence.logged.values()),
        faults=faults.all(),
        explained=explained.all(),
    )


def _check_offsets(place: LoadPartition, bound: PartitionEnds, runs: Sequence[StoredRun], faults: _Lines) -> None:
    """A log without gaps from its start to its end, of records of this run alone."""
    expected = bound.start
    reach = f"and the log reaches from {bound.start} to {bound.end}"
    for run in runs:
        if run.offset > expected:
            faults.add(f"{_at(place)} {_offsets(expected, run.offset)}: nothing could be read there, {reach}")
        elif run.offset < expected:
            faults.add(f"{_at(place)} {_offsets(run.offset, min(expected, run.offset + run.records))}: outside the log, or read twice")
        expected = max(expected, run.offset + run.records)
        if run.producer == NOT_OURS:
            faults.add(f"{_at(place)} {_offsets(run.offset, run.offset + run.records)}: stored, and never sent like that")
    if expected < bound.end:
        faults.add(f"{_at(place)} {_offsets(expected, bound.end)}: nothing could be read there, {reach}")
    elif expected > bound.end:
        faults.add(f"{_at(place)} {_offsets(bound.end, expected)}: stored behind the end of the log")


def _check_records(evidence: Evidence, stored: Mapping[LoadPartition, Sequence[StoredRun]], faults: _Lines, explained: _Lines) -> None:
    """Sent, acknowledged and stored, of each producer in each partition."""
    sent: dict[tuple[int, LoadPartition], list[NumberSpan]] = defaultdict(list)
    acked: dict[tuple[int, LoadPartition], list[AckedRange]] = defaultdict(list)
    doubtful: dict[tuple[int, LoadPartition], list[DoubtfulRange]] = defaultdict(list)
    found: dict[tuple[int, LoadPartition], list[StoredRun]] = defaultdict(list)
    for one in evidence.sent:
        sent[one.producer, (one.topic, one.partition)].append((one.first, one.end))
    for ack in evidence.acked:
        acked[ack.producer, (ack.topic, ack.partition)].append(ack)
    for doubt in evidence.doubtful:
        doubtful[doubt.producer, (doubt.topic, doubt.partition)].append(doubt)
    for place, runs in stored.items():
        for run in runs:
            if run.producer != NOT_OURS:
                found[run.producer, place].append(run)
    offsets = {place: [run.offset for run in stored.get(place, [])] for _, place in {*sent, *acked, *found}}
    for key in sorted({*sent, *acked, *found}):
        producer, place = key
        runs = found.get(key, [])
        there = merged((run.sequence, run.sequence + run.records) for run in runs)
        intended = merged(sent.get(key, []))
        heard = merged((ack.first, ack.end) for ack in acked.get(key, []))
        for first, end in without(there, intended):
            where = _offsets(*_offset_span(runs, first, end))
            faults.add(f"{_at(place)} {where}: records {first} to {end - 1} of producer {producer} are stored, and were never sent")
        for ack in acked.get(key, []):
            _check_acked(place, ack, stored.get(place, []), offsets[place], there, faults)
        if producer in evidence.idempotent:
            _check_once_in_order(place, producer, runs, faults)
        elif twice := sum(run.records for run in runs) - length(there):
            explained.add(f"{_at(place)}: {twice:,} records of producer {producer} are stored again: it is not idempotent")
        open_spans = without(intended, heard)
        if open_spans:
            is_there = length(open_spans) - length(without(open_spans, there))
            errors = Counter(doubt.error for doubt in doubtful.get(key, []))
            said = f" ({', '.join(sorted(errors))})" if errors else ""
            explained.add(
                f"{_at(place)}: the outcome of {length(open_spans):,} records of producer {producer} is unknown{said}: "
                f"{is_there:,} are stored, {length(open_spans) - is_there:,} are not"
            )


def _check_acked(
    place: LoadPartition, ack: AckedRange, runs: Sequence[StoredRun], offsets: Sequence[int], there: Sequence[NumberSpan], faults: _Lines
) -> None:
    """`runs`: all of the partition, and their offsets. `there`: the numbers of this producer that are stored anywhere in it."""
    lost = without([(ack.first, ack.end)], there)
    for first, end in lost:
        where = f" {_offsets(ack.offset + first - ack.first, ack.offset + end - ack.first)}" if ack.offset >= 0 else ""
        faults.add(f"{_at(place)}{where}: records {first} to {end - 1} of producer {ack.producer} were acknowledged, and are not stored")
    if ack.offset < 0 or lost:
        return
    said = StoredRun(*place, ack.offset, ack.end - ack.first, ack.producer, ack.first)
    for at, until in _unlike(said, runs, offsets):
        faults.add(f"{_at(place)} {_offsets(at, until)}: acknowledged to producer {ack.producer} there, and stored elsewhere")


def _check_once_in_order(place: LoadPartition, producer: int, runs: Sequence[StoredRun], faults: _Lines) -> None:
    seen: list[NumberSpan] = []
    following = 0
    for run in runs:
        span = (run.sequence, run.sequence + run.records)
        for first, end in without([span], without([span], seen)):
            at = run.offset + first - run.sequence
            faults.add(
                f"{_at(place)} {_offsets(at, at + end - first)}: records {first} to {end - 1} of producer {producer} are stored twice"
            )
        if run.sequence < following and not overlaps(seen, span):
            faults.add(f"{_at(place)} {_offsets(run.offset, run.offset + run.records)}: records of producer {producer} are out of order")
        following = max(following, span[1])
        seen = merged([*seen, span])


def _check_group(
    group: str,
    events: Sequence[SessionEvent],
    committed: Mapping[LoadPartition, int],
    bounds: Mapping[LoadPartition, PartitionEnds],
    stored: Mapping[LoadPartition, Sequence[StoredRun]],
    *,
    faults: _Lines,
    explained: _Lines,
) -> int:
    """The number of records that the group has read, each counted once."""
    by_place: dict[LoadPartition, list[SessionEvent]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at):
        by_place[(event.run.topic, event.run.partition) if isinstance(event, SessionRead) else (event.topic, event.partition)].append(event)
    total = 0
    for place, bound in sorted(bounds.items()):
        who = f"group {group}, {_at(place)}"
        read, again = _check_sessions(who, by_place.get(place, []), stored.get(place, []), faults)
        whole = [(bound.start, bound.end)] if bound.end > bound.start else []
        for first, end in without(whole, read):
            faults.add(f"{who} {_offsets(first, end)}: stored, and not read by the group")
        total += length(read)
        if again:
            explained.add(f"{who}: {again:,} records were read again after a rebalance, from the last commit on")
        if whole and committed.get(place, bound.start) != bound.end:
            faults.add(f"{who}: the group has committed offset {committed.get(place, 'none')}, and the log ends at {bound.end}")
    return total


def _check_sessions(who: str, events: Sequence[SessionEvent], runs: Sequence[StoredRun], faults: _Lines) -> tuple[list[NumberSpan], int]:
    """What a partition's members have read, and how many records more than once."""
    read: list[NumberSpan] = []
    offsets = [run.offset for run in runs]
    following: dict[str, int | None] = {}
    floor: dict[str, int] = {}
    commit = again = 0
    for event in events:
        if isinstance(event, SessionCommitted):
            commit = max(commit, event.offset)
        elif isinstance(event, SessionBegan):
            following[event.member], floor[event.member] = None, commit
        else:
            run = event.run
            span = (run.offset, run.offset + run.records)
            expected = following.get(event.member)
            if expected is None:
                if run.offset < floor.get(event.member, 0):
                    faults.add(f"{who}: {event.member} went on at offset {run.offset}, and {floor[event.member]} was committed before")
            elif run.offset != expected:
                faults.add(f"{who} {_offsets(*span)}: {event.member} read these where offset {expected} was next")
            following[event.member] = span[1]
            fresh = without([span], read)
            again += run.records - length(fresh)
            read = merged([*read, span])
            for first, end in _unlike(run, runs, offsets):
                faults.add(f"{who} {_offsets(first, end)}: {event.member} read other records than are stored there")
    return read, again


def _unlike(run: StoredRun, runs: Sequence[StoredRun], offsets: Sequence[int]) -> Iterator[NumberSpan]:
    """Where a run of records that were read is not what is stored at the same offsets."""
    at, end = run.offset, run.offset + run.records
    while at < end:
        index = bisect_right(offsets, at) - 1
        stored = runs[index] if index >= 0 else None
        if stored is None or at >= stored.offset + stored.records:
            following = offsets[index + 1] if index + 1 < len(offsets) else end
            yield at, min(following, end)
            at = min(following, end)
            continue
        until = min(end, stored.offset + stored.records)
        if (stored.producer, stored.sequence + at - stored.offset) != (run.producer, run.sequence + at - run.offset):
            yield at, until
        at = until


def _check_appended(evidence: Evidence, faults: _Lines, explained: _Lines) -> None:
    """The brokers' counters of appended records beside the log."""
    if evidence.counts is None:
        explained.add("what the brokers count was not compared: the scenario names no HTTP addresses of theirs")
        return
    stored: Counter[str] = Counter()
    for run in evidence.stored:
        stored[run.topic] += run.records
    counted: Counter[str] = Counter()
    for one in evidence.counts:
        counted.update(one.appended)
    ended = [one for one in evidence.counts if one.has_ended]
    names = ", ".join(one.name for one in ended)
    since = min((one.sampled_at for one in ended), default=0.0)
    acked, acked_since = Counter[str](), Counter[str]()
    for ack in evidence.acked:
        acked[ack.topic] += ack.end - ack.first
        acked_since[ack.topic] += ack.end - ack.first if ack.at >= since else 0
    for topic in sorted(stored.keys() | counted.keys()):
        left = stored[topic] - counted[topic]
        possible = acked_since[topic] + max(0, stored[topic] - acked[topic]) if ended else 0
        if left < 0 or left > possible:
            after = f"; after the last sample of {names} at most {possible:,} can have been appended" if ended else ""
            faults.add(f"topic {topic}: the brokers count {counted[topic]:,} appended records, and {stored[topic]:,} are stored{after}")
        elif left:
            explained.add(f"topic {topic}: {left:,} records were appended after the last sample of what has ended: {names}")


def _check_requests(evidence: Evidence, faults: _Lines, explained: _Lines) -> tuple[int, int]:
    """The meters beside the access log. Returns PUTs of the log that their processes heard no answer to, and PUTs that ended processes made
    after their last samples."""
    if evidence.logged is None or evidence.counts is None:
        return 0, 0
    unanswered_puts = late_puts = 0
    for one in evidence.counts:
        logged = evidence.logged.get(one.run, {})
        unanswered: Counter[tuple[str, str]] = Counter()
        for key, count in one.requests.items():
            if key.answer == "none":
                unanswered[key.request, key.key] += count
        late = 0
        for key in sorted({*one.requests, *logged}):
            if key.answer == "none":
                continue
            more = logged.get(key, 0) - one.requests.get(key, 0)
            slack = unanswered[key.request, key.key]
            unanswered_puts += max(0, min(more, slack)) if _is_put(key) else 0
            if more < 0 or (more > slack and not one.has_ended):
                faults.add(
                    f"{one.name} ({one.run}): it counts {one.requests.get(key, 0):,} {key.request} of {key.key} answered {key.answer}, "
                    f"and the S3 server's log has {logged.get(key, 0):,}"
                )
            elif more > slack:
                late += more - slack
                late_puts += more - slack if _is_put(key) else 0
        if late:
            explained.add(f"{one.name} ({one.run}): the S3 server's log has {late:,} requests after its last sample")
    known = {one.run for one in evidence.counts}
    for run in sorted(evidence.logged.keys() - known):
        faults.add(f"the S3 server's log has {sum(evidence.logged[run].values()):,} requests of an unknown process ({run or 'no token'})")
    return unanswered_puts, late_puts


def _is_put(key: RequestKey) -> bool:
    return key.request == "put" and key.answer != "none"


def _puts(requests: Mapping[RequestKey, int]) -> int:
    return sum(count for key, count in requests.items() if _is_put(key))


def _by_partition(runs: Iterable[StoredRun]) -> dict[LoadPartition, list[StoredRun]]:
    found: dict[LoadPartition, list[StoredRun]] = defaultdict(list)
    for run in runs:
        found[run.topic, run.partition].append(run)
    for part in found.values():
        part.sort(key=lambda run: run.offset)
    return found


def _offset_span(runs: Sequence[StoredRun], first: int, end: int) -> NumberSpan:
    """The offsets of these numbers, from the least to the greatest."""
    found = [
        (run.offset + max(first, run.sequence) - run.sequence, run.offset + min(end, run.sequence + run.records) - run.sequence)
        for run in runs
        if max(first, run.sequence) < min(end, run.sequence + run.records)
    ]
    return min(start for start, _ in found), max(stop for _, stop in found)


def _at(place: LoadPartition) -> str:
    return f"topic {place[0]} partition {place[1]}"


def _offsets(first: int, end: int) -> str:
    return f"offset {first}" if end - first == 1 else f"offsets {first} to {end - 1}"


def merged(spans: Iterable[NumberSpan]) -> list[NumberSpan]:
    """The same numbers in as few spans as possible, in order."""
    found: list[NumberSpan] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def without(spans: Sequence[NumberSpan], others: Sequence[NumberSpan]) -> list[NumberSpan]:
    """The numbers of `spans` that are not in `others`. Both are as `merged` makes them."""
    found: list[NumberSpan] = []
    index = 0
    for first, end in spans:
        at = first
        while index < len(others) and others[index][1] <= at:
            index += 1
        scan = index
        while scan < len(others) and others[scan][0] < end:
            if others[scan][0] > at:
                found.append((at, others[scan][0]))
            at = max(at, others[scan][1])
            scan += 1
        if at < end:
            found.append((at, end))
    return found


def overlaps(spans: Sequence[NumberSpan], span: NumberSpan) -> bool:
    return any(first < span[1] and span[0] < end for first, end in spans)


def length(spans: Iterable[NumberSpan]) -> int:
    return sum(end - first for first, end in spans)
