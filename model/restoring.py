"""Exhaustive check of how collectors and starting processes notice that a copy of the metadata was put back.

COUNTER. One record of the metadata holds `n`, the number of collections; `by`, the id of the process that raised it last; and `kept`, the
objects that an acceptance keeps. The bucket holds markers, `forebay-collections/{n}`, each with the id of its maker. The bucket is AHEAD of
the record if a marker is above n, or if the marker of n has another id than `by`.

COLLECTOR. A cycle compares: it reads the record, lists the markers from n on, and where they are ahead reads the record again, for certain.
Still ahead: it refuses. Then it takes an object, revokes it and looks for references, raises the record by CAS, and puts the marker if
absent. A marker with another id makes it refuse. Then it compares again, and revokes and looks again. Only then it sends the delete. A
process that starts compares, too.

LOG. A commit names an object that is new and not revoked. Compaction or retention drops the name. In variants with marks a broker that has
the answer to a commit puts a mark of it into the bucket: its version and its object. A start refuses if the log does not know one of them.

RESTORE. Once a copy of the metadata is made, and once it is put back. All processes start again, and requests to the metadata are lost.
In variants that are `unaware` some processes do not notice: they, their requests, and brokers go on. Requests to the bucket arrive at any
time.

ACCEPTANCE. After a refusal the operator may accept the metadata, once no delete is under way. What they do not name is kept, then the
record takes n and id of the greatest marker.

HOW IT IS MODELLED. A CAS compares what the record says, as a restore brings versions back, too. Revoke and look are one step, and so is all
that comes between the second comparison and the delete: what overtakes these requests makes the delete one that is under way. A process
that dies is one that is paused and never goes on, or is killed and starts again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.search import Result, Search, search

NEW, NAMED, DROPPED, REVOKED = "new", "named", "dropped", "revoked"
NOBODY: Final = -1
START: Final = ("read", "list")
CYCLE: Final = (*START, "look", "raise", "mark", "delete")


class Counter(NamedTuple):
    """The record of collections."""

    n: int = 0
    by: int = NOBODY
    kept: frozenset[int] = frozenset()


class Metadata(NamedTuple):
    """objects: what each is to the log. commits: how many there were, the version of its manifest."""

    counter: Counter
    objects: tuple[str, ...]
    commits: int = 0


class Request(NamedTuple):
    """A request without an answer. number: n of a raise or a marker, else an object. expected: what a CAS compares."""

    what: str
    number: int
    by: int = NOBODY
    expected: Counter | int = 0


class Process(NamedTuple):
    """A collector. read: the record as it was, before the restore or `since` then. listed: the greatest marker of a list that was ahead."""

    rounds: int
    todo: tuple[str, ...] = ()
    read: Counter = Counter()
    since: bool = False
    listed: tuple[int, int] = (0, NOBODY)
    about: int = -1
    refused: str = ""  # | ahead: the bucket is | conflict: another has made its marker


class State(NamedTuple):
    """markers: (n, by). marks: (version, object) of commits; known: those that their broker has yet to put.

    trusted: a process that has read the record since the restore did not find the bucket ahead. accepting: steps of the acceptance to come.
    unnamed: objects that the metadata did not name when it began.
    """

    metadata: Metadata
    objects: frozenset[int]
    processes: tuple[Process, ...]
    late: int
    deaths: int
    markers: frozenset[tuple[int, int]] = frozenset()
    marks: frozenset[tuple[int, int]] = frozenset()
    known: frozenset[tuple[int, int]] = frozenset()
    network: frozenset[Request] = frozenset()
    copy: Metadata | None = None
    restored: bool = False
    trusted: bool = True
    accepting: tuple[str, ...] = ()
    unnamed: frozenset[int] | None = None


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to notice a restore. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    objects: tuple[str, ...] = (NAMED, NEW)
    collectors: tuple[int, ...] = (1, 1)  # rounds of each
    late: int = 0
    deaths: int = 0
    cycle: tuple[str, ...] = CYCLE
    unaware: bool = False
    marks: bool = False
    accepts: tuple[str, ...] = ()  # the order of an acceptance
    bugs: frozenset[str] = frozenset()
    reaches: tuple[str, ...] = ()


def is_ahead(v: Variant, marker: tuple[int, int], counter: Counter) -> bool:
    n, by = marker
    return n > counter.n or (n == counter.n > 0 and by != counter.by and "number alone" not in v.bugs)


def unknown_commits(v: Variant, s: State) -> list[tuple[int, int]]:
    """Marks of commits that the metadata do not know."""
    return [
        (version, name)
        for version, name in s.marks
        if version > s.metadata.commits or (not is_known(s, name) and "version alone" not in v.bugs)
    ]


def is_known(s: State, name: int) -> bool:
    """Does the log know the object, named or below what it may still read?"""
    return s.metadata.objects[name] in (NAMED, DROPPED)


def broken_promise(s: State) -> str | None:
    if not s.restored and any(p.refused for p in s.processes):
        return "refused, and nothing was restored"
    if s.unnamed is not None and (lost := [*(s.unnamed - s.objects)]):
        return f"object {lost[0]} was not named at the acceptance and is GONE"
    lost = [name for name, is_now in enumerate(s.metadata.objects) if is_now == NAMED and name not in s.objects]
    return f"not refused, and object {lost[0]} is named and GONE" if lost and s.trusted and s.unnamed is None else None


def backwards(before: State, label: str, after: State) -> str | None:
    sent = [request.number for request in after.network - before.network if request.what == "delete"]
    if any(before.metadata.objects[name] == NAMED for name in sent):
        return f"{label}: it is NAMED"
    if sent and before.unnamed is None and any(p.refused == "ahead" for p in before.processes):
        return f"{label}: behind a refusal"
    has_started = any(p.todo == ("list",) and not q.todo and not q.refused for p, q in zip(before.processes, after.processes, strict=True))
    if has_started and any(not is_known(before, name) for _, name in before.marks):
        return f"{label}: a commit that a mark names is LOST"
    return None


def situations(s: State) -> Iterator[str]:
    if any(p.refused for p in s.processes):
        yield "refused"
    if s.restored and s.trusted and s.unnamed is None:
        yield "not refused"
        if len(s.objects) < len(s.metadata.objects):
            yield "not refused, and collected"
    if s.restored and any(request.what == "delete" for request in s.network):
        yield "a delete under way behind the restore"
    if s.restored and any(request.what == "mark" for request in s.network):
        yield "a marker under way behind the restore"
    if s.restored and any(p.todo[:1] == ("raise",) and s.metadata.objects[p.about] == NAMED for p in s.processes):
        yield "named again behind the look"
    if s.metadata.counter.n > 1:
        yield "two raise"
    if s.metadata.counter.kept:
        yield "kept"
        if any(request.what == "delete" for request in s.network):
            yield "collected behind the acceptance"


# Processes


def with_process(s: State, i: int, p: Process) -> State:
    return s._replace(processes=(*s.processes[:i], p, *s.processes[i + 1 :]))


def with_object(s: State, name: int, becomes: str) -> State:
    m = s.metadata
    return s._replace(metadata=m._replace(objects=(*m.objects[:name], becomes, *m.objects[name + 1 :])))


def with_counter(s: State, counter: Counter) -> State:
    return s._replace(metadata=s.metadata._replace(counter=counter))


def log_steps(v: Variant, s: State) -> Steps:
    if any(p.refused for p in s.processes) or not (s.trusted or v.unaware):
        return
    for name, is_now in enumerate(s.metadata.objects):
        if is_now == NAMED:
            yield f"object {name} is dropped", with_object(s, name, DROPPED)
        if is_now != NEW:
            continue
        version = s.metadata.commits
        mark = (version + 1, name)
        if "mark early" in v.bugs:
            if mark not in s.marks:
                yield f"the mark of version {version + 1} is put", s._replace(marks=s.marks | {mark})
                continue
            yield f"object {name} is committed", committed(s, name)
        else:
            done = committed(s, name)
            yield f"object {name} is committed", done._replace(known=done.known | {mark}) if v.marks else done
        if v.marks and s.late:
            sent = s._replace(network=s.network | {Request("commit", name, expected=version)}, late=s.late - 1)
            yield f"the commit of object {name} is sent", sent
    for mark in s.known:
        yield f"the mark of version {mark[0]} is put", s._replace(known=s.known - {mark}, marks=s.marks | {mark})


def committed(s: State, name: int) -> State:
    after = with_object(s, name, NAMED)
    return after._replace(metadata=after.metadata._replace(commits=s.metadata.commits + 1))


def network_steps(_: Variant, s: State) -> Steps:
    m = s.metadata
    for request in s.network:
        what, number, by, expected = request
        over = s._replace(network=s.network - {request})
        match what:
            case "delete":
                yield f"object {number} is deleted", over._replace(objects=s.objects - {number})
            case "mark":
                put = over if any(n == number for n, _ in s.markers) else over._replace(markers=s.markers | {(number, by)})
                yield f"late request arrives: marker {number}", put
            case "raise":
                applies = m.counter == expected
                yield (
                    f"late request arrives: raise to {number}",
                    with_counter(over, Counter(number, by, m.counter.kept)) if applies else over,
                )
            case _:
                applies = m.commits == expected and m.objects[number] == NEW
                yield f"late request arrives: commit of object {number}", committed(over, number) if applies else over


def operator_steps(v: Variant, s: State) -> Steps:
    if not s.restored and s.copy is None:
        yield "a copy of the metadata is made", s._replace(copy=s.metadata)
    if s.copy is not None and s.copy != s.metadata:
        back = s._replace(metadata=s.copy, copy=None, restored=True, trusted=False)
        for going in range(len(s.processes) + 1 if v.unaware else 1):
            processes = s.processes[:going] + tuple(Process(p.rounds, START) for p in s.processes[going:])
            after = back._replace(processes=processes)
            if not going:
                after = after._replace(network=frozenset(r for r in s.network if r.what in ("delete", "mark")), known=frozenset())
            yield f"the copy is put back, {going or 'no'} of {len(processes)} go on", after
    if v.accepts and s.unnamed is None and not s.accepting and any(p.refused for p in s.processes):
        if not any(r.what == "delete" for r in s.network) or "accepted at once" in v.bugs:
            yield from accept(s._replace(accepting=v.accepts, unnamed=unnamed(s)))
    elif s.accepting:
        yield from accept(s)


def unnamed(s: State) -> frozenset[int]:
    return frozenset(name for name in s.objects if s.metadata.objects[name] != NAMED)


def accept(s: State) -> Steps:
    counter, over = s.metadata.counter, s._replace(accepting=s.accepting[1:])
    if s.accepting[0] == "keep":
        yield "the acceptance keeps what is not named", with_counter(over, counter._replace(kept=unnamed(s)))
    else:
        n, by = max({*s.markers, (counter.n, counter.by)}, key=lambda marker: marker[0])
        processes = tuple(Process(p.rounds, START) if p.refused else p for p in s.processes)
        yield f"the acceptance takes over {n}", with_counter(over, Counter(n, by, counter.kept))._replace(processes=processes)


def process_steps(v: Variant, s: State) -> Steps:
    for i, p in enumerate(s.processes):
        if p.refused:
            continue
        if s.deaths and p.todo != START:
            yield f"c{i} is killed, starts again", with_process(s, i, Process(p.rounds, START))._replace(deaths=s.deaths - 1)
        if p.todo:
            yield from collect(v, s, i, p)
        elif p.rounds:
            yield from collect(v, s, i, Process(p.rounds - 1, v.cycle))


def collect(v: Variant, s: State, i: int, p: Process) -> Steps:
    me = 10 * i + p.rounds
    now = s.metadata.counter
    over, following = with_process(s, i, Process(p.rounds)), p._replace(todo=p.todo[1:])
    refused = with_process(s, i, Process(p.rounds, refused="ahead"))
    raised = Counter(p.read.n + 1, me, p.read.kept)
    match p.todo[0]:
        case "read":
            yield f"c{i} reads {now.n}", with_process(s, i, following._replace(read=now, since=s.restored))
        case "list":
            greatest = max(s.markers, default=(0, NOBODY))
            if unknown_commits(v, s) and p.todo == ("list",):
                yield f"c{i} finds a mark of what the metadata do not know, refuses", refused
            elif not is_ahead(v, greatest, p.read):
                on = following._replace(since=False) if following.todo else Process(p.rounds)
                yield f"c{i} lists, up to {greatest[0]}", with_process(s, i, on)._replace(trusted=s.trusted or p.since)
            elif "read once" in v.bugs:
                yield f"c{i} lists, up to {greatest[0]}, refuses", refused
            else:
                yield f"c{i} lists, up to {greatest[0]}", with_process(s, i, p._replace(todo=("again", *p.todo), listed=greatest))
        case "again":
            if is_ahead(v, p.listed, now):
                yield f"c{i} reads {now.n} again, refuses", refused
            elif "stale" in v.bugs:
                yield f"c{i} reads {p.read.n} again, from a deposed leader, refuses", refused
            else:
                again = following._replace(read=now, since=s.restored, listed=(0, NOBODY))
                yield f"c{i} reads {now.n} again", with_process(s, i, again)
        case "look":
            for name in s.objects - p.read.kept:
                if s.metadata.objects[name] != NAMED:
                    yield f"c{i} finds object {name} unreferenced", with_process(looked(s, name), i, following._replace(about=name))
        case "raise":
            if now == p.read or "blind raise" in v.bugs:
                yield f"c{i} raises to {raised.n}", with_process(with_counter(s, raised), i, following)
            else:
                yield f"c{i} fails to raise to {raised.n}", over
            if s.late:
                request = Request("raise", raised.n, me, p.read)
                yield f"c{i} sends the raise to {raised.n}", over._replace(network=s.network | {request}, late=s.late - 1)
        case "mark":
            conflict = with_process(s, i, Process(p.rounds, refused="conflict"))
            of = [by for n, by in s.markers if n == raised.n]
            if not of or of == [me] or "overwrite" in v.bugs:
                markers = frozenset(marker for marker in s.markers if marker[0] != raised.n) | {(raised.n, me)}
                is_unknown = "own" in v.bugs and of
                yield f"c{i} puts marker {raised.n}", conflict if is_unknown else with_process(s, i, following)._replace(markers=markers)
            else:
                yield f"c{i} finds the marker {raised.n} of another, refuses", conflict
            if s.late:
                request = Request("mark", raised.n, me)
                yield f"c{i} sends marker {raised.n}", s._replace(network=s.network | {request}, late=s.late - 1)
        case _:
            yield from delete(v, s, i, p)


def looked(s: State, name: int) -> State:
    """Revoked where it was never named: no commit of this history of the metadata names it."""
    return with_object(s, name, REVOKED) if s.metadata.objects[name] == NEW else s


def delete(v: Variant, s: State, i: int, p: Process) -> Steps:
    now, name = s.metadata.counter, p.about
    following = p._replace(todo=p.todo[1:]) if p.todo[1:] else Process(p.rounds)
    if is_ahead(v, max(s.markers, default=(0, NOBODY)), now) and "compared once" not in v.bugs:
        yield f"c{i} compares again, reads {now.n}, refuses", with_process(s, i, Process(p.rounds, refused="ahead"))
    elif (s.metadata.objects[name] == NAMED and "looked once" not in v.bugs) or (name in now.kept and "kept before" not in v.bugs):
        yield f"c{i} gives up object {name}", with_process(s, i, Process(p.rounds))
    else:
        after = s if v.bugs & {"looked once", "revoked once"} else looked(s, name)
        yield f"c{i} deletes object {name}", with_process(after, i, following)._replace(network=s.network | {Request("delete", name)})


def explore(v: Variant, *, states_max: int) -> Result:
    processes = log_steps, network_steps, operator_steps, process_steps
    start = State(
        metadata=Metadata(Counter(), v.objects),
        objects=frozenset(range(len(v.objects))),
        processes=tuple(map(Process, v.collectors)),
        late=v.late,
        deaths=v.deaths,
    )
    return search(
        Search(
            start=start,
            following=lambda s: [step for process in processes for step in process(v, s)],
            broken=broken_promise,
            stuck=lambda _: None,
            backwards=backwards,
            situations=situations,
            reaches=frozenset(v.reaches),
        ),
        states_max=states_max,
    )
