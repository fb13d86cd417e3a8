"""Exhaustive check of merges: small segments become one, beside compaction, retention and collectors of segment objects. One partition.

SEGMENTS. The newest one is in control (`segment`); the CAS that commits the next one travels with the put of its entry into segments/.
Both ops have conditions of their own, so the put may land late, alone, when the CAS beside it is refused.

MERGE of neighbours S1..Sk in segments/ into S'. (1) object S'. (2) CAS control: `rewritten` := S'; that commits it: readers take S' for
its range. (3) one request puts S' into segments/ in place of the other entries, each op under the version that a scan showed. Anyone may
send it. (4) CAS control: `rewritten` := nothing, once a scan shows that (3) was done, or log_start is above all of it. Old objects are the
collectors'.

PLACES. How an entry gets into segments/, and what (3) does to the entries of the sources:
- kept: put if absent; S' is put under all keys of the sources. No key is absent again before log_start has passed it.
- reserved: the key has the id of its object in it, and is put empty before the CAS that names the segment. The manifest remembers the
  version of that put, and the entry is filled in under it; (3) puts S' under the key of Sk and deletes the others. Readers pass over empty
  places; a compactor that lost leaves one behind.
- deleted: put if absent; (3) as in `reserved`. A late put finds its key absent again, and brings an old entry back.

READ of offset o below the cursor: `rewritten` if it covers o, else `segment`, else segments/ by a ceiling get.

CONTENT. A merge may leave out what compaction by key shows to be obsolete, so what a reader gets of an offset has a generation, which each
merge raises. It must never fall: an older generation may bring back a key that was deleted.

HOW IT IS MODELLED. Read-and-send is one step. Only what may land late beside or behind what others do is in the network; its sender learns
nothing, and others repeat it. A CAS of retention or of a collector is one step. `stale`: a scan may be answered from any older state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from model.search import Result, Search, search

ABSENT: Final = 0
"""Versions of a key begin at 1 and are never used again."""
Key = tuple[int, str]
"""The end, and in `reserved` the object."""


class Segment(NamedTuple):
    """A segment object: the generation of each offset from `base` on. `by`: its writer and id."""

    base: int
    generations: tuple[int, ...]
    by: str

    @property
    def last(self) -> int:
        return self.base + len(self.generations) - 1

    def covers(self, offset: int) -> bool:
        return self.base <= offset <= self.last


class Entry(NamedTuple):
    """What segments/ has under a key. segment: None in a place that is empty."""

    key: Key
    version: int
    segment: Segment | None


Entries = frozenset[Entry]


class Manifest(NamedTuple):
    cursor: int
    segment: Segment
    rewritten: Segment | None = None
    log_start: int = 0
    revoked: frozenset[Segment] = frozenset()
    version: int = 0


class Put(NamedTuple):
    """expected: a version, ABSENT, or None for any."""

    key: Key
    segment: Segment | None
    expected: int | None


class Delete(NamedTuple):
    key: Key
    expected: int | None


class Cas(NamedTuple):
    expected: int
    new: Manifest


Ops = tuple[Put | Delete | Cas, ...]


class Job(NamedTuple):
    """A compactor, merger or collector: rounds left, and in a round what it is about.

    step: what it does next · is_current: control has not changed since it was read · sources: entries as they were scanned · seen: control
    as a collector's own CAS left it.
    """

    rounds: int
    step: str = ""
    about: Segment | None = None
    is_current: bool = True
    sources: tuple[Entry, ...] = ()
    seen: Manifest | None = None

    def over(self) -> "Job":
        return Job(self.rounds)


class State(NamedTuple):
    """deleted: the last version of keys that are gone. past: what segments/ has been, for scans that are stale. late: how many requests may
    still be."""

    control: Manifest
    entries: Entries
    deleted: frozenset[tuple[Key, int]]
    objects: frozenset[Segment]
    network: frozenset[Ops]
    compactors: tuple[Job, ...]
    mergers: tuple[Job, ...]
    collectors: tuple[Job, ...]
    moves: int
    late: int
    past: frozenset[Entries] = frozenset()


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to merge. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    places: str = "kept"
    rolled: int = 2  # segments of one record each in segments/, at first
    wal: int = 0  # records behind `segment` that are not compacted
    compactors: tuple[int, ...] = ()  # rounds of each
    mergers: tuple[int, ...] = (1,)
    collectors: tuple[int, ...] = ()
    collects: tuple[str, ...] = ("revoke", "look", "delete")
    moves: int = 0  # of log_start
    late: int = 0
    splits: bool = False  # step 3 as two requests: the key of Sk, and the others once a scan shows it
    stale: bool = False
    touches: bool = False  # a merger puts its sources as they are, under their versions, before it commits
    bug: str = ""
    reaches: tuple[str, ...] = ()


# Store, reader, promises


def apply(s: State, ops: Ops) -> State:
    """The server: every op in order, each on its own condition."""
    control, entries, deleted = s.control, {e.key: e for e in s.entries}, dict(s.deleted)
    for op in ops:
        if isinstance(op, Cas):
            control = op.new._replace(version=control.version + 1) if op.expected == control.version else control
            continue
        there = entries.get(op.key)
        if op.expected is not None and op.expected != (there.version if there else ABSENT):
            continue
        if isinstance(op, Put):
            version = (there.version if there else deleted.pop(op.key, 0)) + 1
            entries[op.key] = Entry(op.key, version, op.segment)
        elif there:
            del entries[op.key]
            deleted[op.key] = there.version
    return s._replace(control=control, entries=frozenset(entries.values()), deleted=frozenset(deleted.items()))


def deliver(s: State, label: str, ops: Ops) -> Steps:
    """A request arrives now, or late."""
    yield label, apply(s, ops)
    if s.late:
        yield f"{label}: late", s._replace(network=s.network | {ops}, late=s.late - 1)


def read(s: State, offset: int) -> int | str:
    """The generation that a reader gets of an offset below the cursor, or what is wrong."""
    c = s.control
    found = next((x for x in (c.rewritten, c.segment) if x and x.covers(offset)), None)
    if found is None:
        entry = min((e for e in s.entries if e.key[0] >= offset and e.segment), default=None, key=lambda e: e.key)
        found = entry.segment if entry else None
    if found is None or not found.covers(offset):
        return "NOTHING"
    return found.generations[offset - found.base] if found in s.objects else f"object {found.by} GONE"


def broken_promise(s: State) -> str | None:
    for offset in range(s.control.log_start, s.control.cursor):
        found = read(s, offset)
        if isinstance(found, str):
            return f"offset {offset}: a reader gets {found}"
    return None


def backwards(before: State, label: str, after: State) -> str | None:
    for offset in range(after.control.log_start, before.control.cursor):
        was, found = read(before, offset), read(after, offset)
        if isinstance(was, int) and isinstance(found, int) and found < was:
            return f"{label}: offset {offset} goes back to what a merge had left out"
    return None


def is_settled(s: State) -> bool:
    """No merge is half done, and no entry is there that should have gone."""
    c = s.control
    covered = [o for x in {e.segment for e in s.entries} if x for o in range(x.base, x.last + 1)]
    return (
        c.rewritten is None
        and not s.network
        and all(e.key[0] >= c.log_start for e in s.entries if e.segment)
        and len(set(covered)) == len(covered)
        and not any(e.segment is None and is_lost_place(c, e) for e in s.entries)
    )


def situations(s: State) -> Iterator[str]:
    c = s.control
    if c.rewritten and any(c.rewritten in e[1:] for e in s.entries):
        yield "put, not cleared"
    if c.rewritten and any(e.segment and c.rewritten.covers(e.segment.base) and e.segment != c.rewritten for e in s.entries):
        yield "committed, not put"
    if c.rewritten and c.rewritten.base < c.log_start <= c.rewritten.last:
        yield "log_start inside a merge"
    if c.rewritten and c.rewritten.last < c.log_start:
        yield "log_start above a merge"
    if any(e.segment and any(g > 1 for g in e.segment.generations) for e in s.entries):
        yield "merged twice"
    if any(e.segment is None and is_lost_place(c, e) for e in s.entries):
        yield "an empty place of one that lost"
    if s.network and not c.rewritten and any(e.segment and max(e.segment.generations) for e in s.entries):
        yield "a late request behind a merge"
    if sum(bool(j.about) for j in s.collectors) > 1:
        yield "two collect at once"


# Processes


def with_job(jobs: tuple[Job, ...], i: int, job: Job) -> tuple[Job, ...]:
    return (*jobs[:i], job, *jobs[i + 1 :])


def key_of(v: Variant, segment: Segment) -> Key:
    return segment.last, segment.by if v.places == "reserved" else ""


def compactor_steps(v: Variant, s: State) -> Steps:
    """WAL -> segment, one record each."""
    c = s.control
    for i, k in enumerate(s.compactors):
        if k.about is None:
            if not k.rounds or c.cursor > v.rolled + v.wal:
                continue
            new = Segment(c.cursor, (0,), f"s{c.cursor}k{i}{k.rounds}")
            job = Job(k.rounds - 1, "", new)
            after = s._replace(compactors=with_job(s.compactors, i, job), objects=s.objects | {new})
            place: Ops = (Put(key_of(v, new), None, ABSENT),) if v.places == "reserved" else ()
            label = f"k{i} writes segment {new.by}" + (" and reserves its place" if place else "")
            yield label, apply(after, place)
            if place and s.late:
                twice = apply(after, place)
                yield f"{label} twice, once late", twice._replace(network=s.network | {place}, late=s.late - 1)
            continue
        over = s._replace(compactors=with_job(s.compactors, i, k.over()))
        if c.cursor != k.about.base or k.about in c.revoked:
            yield f"k{i} finds its segment {k.about.by} refused", over
            continue
        # The place was reserved once, so the version of that put is 1.
        put = Put(key_of(v, c.segment), c.segment, 1 if v.places == "reserved" else ABSENT)
        cas = Cas(c.version, c._replace(cursor=k.about.last + 1, segment=k.about))
        yield from deliver(over, f"k{i} sends put of {c.segment.by}, CAS of {k.about.by}", (put, cas))


def scans(v: Variant, s: State) -> Iterator[Entries]:
    """What a scan of segments/ may be answered."""
    yield from {s.entries, *s.past} if v.stale else (s.entries,)


def groups(v: Variant, c: Manifest, entries: Entries) -> Iterator[tuple[Entry, ...]]:
    """Neighbours that may be merged: two or more."""
    found = sorted((e for e in entries if e.segment), key=lambda e: e.key)
    distinct = list({e.segment: e for e in found}.values())  # of several keys of one segment, the last
    for first in range(len(distinct)):
        for end in range(first + 2, len(distinct) + 1):
            group = tuple(distinct[first:end])
            segments = [e.segment for e in group if e.segment]
            is_row = all(b.base == a.last + 1 for a, b in pairwise(segments))
            if is_row and (segments[-1].last < c.segment.base or v.bug == "newest"):
                yield group


def merger_steps(v: Variant, s: State) -> Steps:
    for i, m in enumerate(s.mergers):
        if m.about is not None:
            yield from commit_steps(v, s, i, m, m.about)
        elif m.rounds and (s.control.rewritten is None or v.bug == "overwritten"):
            for entries in scans(v, s):
                for group in groups(v, s.control, entries):
                    yield from plan_steps(v, s, i, m, group)


def plan_steps(v: Variant, s: State, i: int, m: Job, group: tuple[Entry, ...]) -> Steps:
    segments = [e.segment for e in group if e.segment]
    if not s.objects.issuperset(segments):
        return
    generations = tuple(g + 1 for x in segments for g in x.generations)
    new = Segment(segments[0].base, generations, f"m{i}{m.rounds}")
    job = Job(m.rounds - 1, "touch" if v.touches else "commit", new, sources=group)
    after = s._replace(mergers=with_job(s.mergers, i, job), objects=s.objects | {new})
    label = f"m{i} reads control, scans, writes {new.by} of {', '.join(x.by for x in segments)}"
    if v.bug == "deleted first":
        after, label = apply(after, tuple(Delete(e.key, e.version) for e in group)), f"{label}, deletes their entries"
    yield label, after


def commit_steps(v: Variant, s: State, i: int, m: Job, new: Segment) -> Steps:
    c = s.control
    over = s._replace(mergers=with_job(s.mergers, i, m.over()))
    if m.step == "touch":
        if not s.entries.issuperset(m.sources):
            yield f"m{i} finds a source changed, gives up", over
            return
        touched = tuple(e._replace(version=e.version + 1) for e in m.sources)
        after = apply(s, tuple(Put(e.key, e.segment, e.version) for e in m.sources))
        job = m._replace(step="commit", sources=touched)
        yield f"m{i} touches its sources", after._replace(mergers=with_job(s.mergers, i, job))
        return
    is_taken = c.rewritten is not None and v.bug != "overwritten"
    if is_taken or (new in c.revoked and v.bug != "no floor"):
        yield f"m{i} finds its merge {new.by} refused", over
    elif m.is_current or v.bug in ("scan first", "overwritten"):
        cas: Ops = (Cas(c.version, c._replace(rewritten=new)),)
        yield f"m{i} commits {new.by}", apply(over, cas)
        if s.late:
            lost = over._replace(objects=s.objects - {new}) if v.bug == "loser" else over
            what = f"m{i} commits {new.by}: late" + (", takes it for refused, deletes it" if v.bug == "loser" else "")
            yield what, lost._replace(network=s.network | {cas}, late=s.late - 1)
    elif v.touches or s.entries.issuperset(m.sources):
        again = m._replace(is_current=True, step="touch" if v.touches else "commit")
        yield f"m{i} reads and scans again", s._replace(mergers=with_job(s.mergers, i, again))
    else:
        yield f"m{i} finds a source changed, gives up", over


def rewritten_ops(v: Variant, merged: Segment, entries: Entries) -> Ops:
    """Step 3, from a scan."""
    inside = sorted((e for e in entries if merged.base <= e.key[0] <= merged.last), key=lambda e: e.key)
    place = next((e for e in reversed(inside) if e.segment and e.key[0] == merged.last), None)
    ops: list[Put | Delete] = []
    for e in inside:
        version = None if v.bug == "blind" else e.version
        if e != place and v.splits and not (place and place.segment == merged):
            continue
        if e == place or v.places == "kept":
            ops += [] if e.segment == merged else [Put(e.key, merged, version)]
        else:
            ops.append(Delete(e.key, version))
    return tuple(ops)


def is_done(v: Variant, merged: Segment, entries: Entries) -> bool:
    """Does a scan show that step 3 was done, or that nobody needs it?"""
    inside = [e for e in entries if e.segment and merged.base <= e.key[0] <= merged.last]
    has_place = any(e.segment == merged and e.key[0] == merged.last for e in inside)
    return has_place and (v.bug == "cleared half way" or all(e.segment == merged for e in inside))


def rewritten_steps(v: Variant, s: State) -> Steps:
    """Steps 3 and 4, by anyone."""
    c = s.control
    if c.rewritten is None:
        return
    done = apply(s, (Cas(c.version, c._replace(rewritten=None)),))
    if v.bug == "cleared when sent":
        ops = rewritten_ops(v, c.rewritten, s.entries)
        yield "someone puts the merge, clears it without an answer", apply(done, ops)
        if s.late:
            yield "someone puts the merge: late, clears it", done._replace(network=s.network | {ops}, late=s.late - 1)
        return
    for entries in scans(v, s):
        if ops := rewritten_ops(v, c.rewritten, entries):
            yield from deliver(s, f"someone puts merge {c.rewritten.by}", ops)
        if is_done(v, c.rewritten, entries) or (c.rewritten.last < c.log_start and v.bug != "finished first"):
            yield f"someone clears merge {c.rewritten.by}", done


def is_lost_place(c: Manifest, e: Entry) -> bool:
    """An empty place that no CAS can name any more."""
    return e.key[0] < c.cursor and e.key != (c.segment.last, c.segment.by)


def retention_steps(v: Variant, s: State) -> Steps:
    c = s.control
    for start in range(c.log_start + 1, c.cursor + 1) if s.moves else ():
        yield f"retention moves log_start to {start}", apply(s, (Cas(c.version, c._replace(log_start=start)),))._replace(moves=s.moves - 1)

    def may_go(e: Entry) -> bool:
        if e.segment is None:
            return is_lost_place(c, e) or v.bug == "places swept"
        is_rewritten = v.bug == "finished first" and c.rewritten is not None and c.rewritten.covers(e.key[0])
        return e.key[0] < c.log_start and not is_rewritten

    if ops := tuple(Delete(e.key, e.version) for e in sorted(s.entries, key=lambda e: e.key) if may_go(e)):
        yield f"retention deletes keys {[op.key for op in ops]}", apply(s, ops)


def is_referenced(c: Manifest, entries: Entries, segment: Segment) -> bool:
    return segment in (c.segment, c.rewritten) or any(e.segment == segment for e in entries)


def collector_steps(v: Variant, s: State) -> Steps:
    for i, g in enumerate(s.collectors):
        jobs = partial(with_job, s.collectors, i)
        if g.about is None:
            for x in s.objects if g.rounds else ():
                yield from collect(v, s, i, Job(g.rounds - 1, v.collects[0], x), x)
        elif g.about not in s.objects:
            yield f"gc{i} finds {g.about.by} gone", s._replace(collectors=jobs(g.over()))
        else:
            yield from collect(v, s, i, g, g.about)


def collect(v: Variant, s: State, i: int, g: Job, x: Segment) -> Steps:
    c, jobs = s.control, partial(with_job, s.collectors, i)
    following = dict(zip(v.collects, v.collects[1:], strict=False))
    job = g._replace(step=following.get(g.step, ""))
    match g.step:
        case "revoke":
            revoked = c._replace(revoked=c.revoked | {x})
            after = apply(s, (Cas(c.version, revoked),))
            yield f"gc{i} revokes {x.by}", after._replace(collectors=jobs(job._replace(seen=Manifest(0, c.segment, c.rewritten))))
        case "look":
            for entries in scans(v, s) if v.bug == "stale look" else (s.entries,):
                is_needed = is_referenced(g.seen or c, entries, x)
                after_look = job.over() if is_needed else job
                yield f"gc{i} finds {'a' if is_needed else 'no'} reference to {x.by}", s._replace(collectors=jobs(after_look))
        case _:
            yield f"gc{i} deletes {x.by}", s._replace(collectors=jobs(job.over()), objects=s.objects - {x})


def network_steps(_: Variant, s: State) -> Steps:
    for ops in s.network:
        what = ", ".join(f"{type(op).__name__.lower()}{'' if isinstance(op, Cas) else f' of key {op.key[0]}'}" for op in ops)
        yield f"late request arrives: {what}", apply(s._replace(network=s.network - {ops}), ops)


# The search


def canonical(v: Variant, s: State) -> State:
    """Call control's new version 0: only whether it has changed matters. A CAS that expects an older one never applies."""
    if v.stale:
        s = s._replace(past=s.past | {s.entries})
    if s.control.version == 0:
        return s
    without = (tuple(op for op in ops if not isinstance(op, Cas)) for ops in s.network)
    mergers = tuple(m._replace(is_current=False) if m.about else m for m in s.mergers)
    return s._replace(control=s.control._replace(version=0), network=frozenset(filter(None, without)), mergers=mergers)


def start(v: Variant) -> State:
    segments = [Segment(o, (0,), f"s{o}") for o in range(v.rolled + 1)]
    newest = segments[-1]
    entries = {Entry(key_of(v, x), 2 if v.places == "reserved" else 1, x) for x in segments[:-1]}
    if v.places == "reserved":
        entries.add(Entry(key_of(v, newest), 1, None))
    return State(
        control=Manifest(cursor=v.rolled + 1, segment=newest),
        entries=frozenset(entries),
        deleted=frozenset(),
        objects=frozenset(segments),
        network=frozenset(),
        compactors=tuple(map(Job, v.compactors)),
        mergers=tuple(map(Job, v.mergers)),
        collectors=tuple(map(Job, v.collectors)),
        moves=v.moves,
        late=v.late,
        past=frozenset((frozenset(entries),)) if v.stale else frozenset(),
    )


def explore(v: Variant, *, states_max: int) -> Result:
    processes = compactor_steps, merger_steps, rewritten_steps, retention_steps, collector_steps, network_steps

    def following(s: State) -> list[tuple[str, State]]:
        return [(label, canonical(v, after)) for process in processes for label, after in process(v, s)]

    return search(
        Search(
            start=start(v),
            following=following,
            broken=broken_promise,
            stuck=lambda _: None,
            backwards=backwards,
            situations=situations,
            reaches=frozenset(v.reaches),
            goal=is_settled,
        ),
        states_max=states_max,
    )
