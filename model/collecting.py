"""Exhaustive check of collectors of WAL objects: several at once, several partitions per object, no clock that is right.

An object has slices of several partitions and its header names them; each slice is committed by a CAS of its own partition. A COLLECTOR
takes any object that a listing shows: how old it is says a clock, which may be wrong. In each partition that the header names it raises
`revoked_floor` to the object's id by CAS, unless it is that high, then it looks for references, in `pending` as that CAS left it and in
index/ by a scan; if it finds none in any, it deletes the object. Commits refuse objects up to the floor; their broker uploads the slice
again under a higher id. A partition whose manifest is a tombstone takes no commit and has no references.

HOW IT IS MODELLED. Ids are numbers: flushes 0, 1, .. and, behind them, what is uploaded again. An entry is the id of its object; the first
`indexed` entries of a log are in index/, the others pending; those before `void` are below log_start or the compaction cursor. A CAS may
arrive late: while the version that it expects is there, it applies. `past scans`: a scan of index/ may be answered from an older state, so
show fewer entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.search import Result, Search, search

AGAIN: Final = 10
"""What is uploaded again has an id above all others: slice of partition p, flush f: AGAIN * (p + 1) + f."""


class Partition(NamedTuple):
    """late: objects of commits that were computed from the manifest as it is, and may yet arrive."""

    state: str = "OPEN"  # | DELETED | gone: purged, and topic-ids says so
    log: tuple[int, ...] = ()
    indexed: int = 0
    void: int = 0
    floor: int = -1
    late: frozenset[int] = frozenset()

    def changed(self) -> "Partition":
        """Under a new version: no CAS that expects the old one applies."""
        return self._replace(late=frozenset())


class Seen(NamedTuple):
    """What a manifest said: which entries were pending, and up to where they meant nothing."""

    indexed: int
    length: int
    void: int


class Collector(NamedTuple):
    """seen: each manifest as the collector's own CAS left it. todo: what it does next, to which partition."""

    rounds: int
    about: int = -1
    todo: tuple[tuple[str, int], ...] = ()
    seen: tuple[Seen | None, ...] = ()


class State(NamedTuple):
    """wanted: slices (partition, object) that their broker has yet to commit."""

    partitions: tuple[Partition, ...]
    objects: frozenset[int]
    wanted: frozenset[tuple[int, int]]
    collectors: tuple[Collector, ...]
    late: int
    voids: int
    deletions: int


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to collect. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    flushes: tuple[tuple[int, ...], ...] = ((0, 1),)  # the partitions of each object
    collectors: tuple[int, ...] = (1, 1)  # rounds of each
    late: int = 1
    voids: int = 0  # moves of log_start or the cursor
    deletions: int = 0  # of partition 1
    bug: str = ""
    reaches: tuple[str, ...] = ()


def named_in(v: Variant, name: int) -> tuple[int, ...]:
    """The partitions that an object's header names."""
    return v.flushes[name] if name < AGAIN else (name // AGAIN - 1,)


def broken_promise(s: State) -> str | None:
    for number, p in enumerate(s.partitions):
        lost = [name for name in p.log[p.void :] if name not in s.objects]
        if lost and p.state == "OPEN":
            return f"partition {number}: object {lost[0]} GONE"
    return None


def backwards(before: State, label: str, after: State) -> str | None:
    pairs = zip(before.partitions, after.partitions, strict=True)
    return f"{label}: acked entries are gone" if any(q.log[: len(p.log)] != p.log for p, q in pairs if q.state == "OPEN") else None


def situations(s: State) -> Iterator[str]:
    busy = [g.about for g in s.collectors if g.todo]
    if len(busy) > 1:
        yield "two collect the same" if len(set(busy)) == 1 else "two collect at once"
    if any(name >= AGAIN for p in s.partitions for name in p.log):
        yield "uploaded again"
    if any(p.late and any(g.todo for g in s.collectors) for p in s.partitions):
        yield "a commit on its way"


# Processes


def with_partition(s: State, number: int, p: Partition) -> State:
    return s._replace(partitions=(*s.partitions[:number], p, *s.partitions[number + 1 :]))


def committed(p: Partition, name: int) -> Partition:
    """Half of what may happen to the ring: a drain is a step of its own."""
    return p.changed()._replace(log=(*p.log, name))


def broker_steps(_: Variant, s: State) -> Steps:
    for number, name in s.wanted:
        p = s.partitions[number]
        over = s._replace(wanted=s.wanted - {(number, name)})
        if name in p.log:
            yield f"partition {number}: object {name} is found committed", over
        elif p.state != "OPEN":
            yield f"partition {number}: object {name} is refused: deleted", over
        elif name <= p.floor:
            again = AGAIN * (number + 1) + name
            if name >= AGAIN:
                yield f"partition {number}: object {name} is given up", over
            else:
                after = over._replace(objects=s.objects | {again}, wanted=over.wanted | {(number, again)})
                yield f"partition {number}: object {name} is refused, uploaded again as {again}", after
        elif name not in p.late:
            yield f"partition {number}: commit of object {name}", with_partition(over, number, committed(p, name))
            if s.late:
                sent = with_partition(s._replace(late=s.late - 1), number, p._replace(late=p.late | {name}))
                yield f"partition {number}: commit of object {name} is sent", sent


def log_steps(_: Variant, s: State) -> Steps:
    for number, p in enumerate(s.partitions):
        for name in p.late:
            yield f"partition {number}: late commit of object {name}", with_partition(s, number, committed(p, name))
        if p.state != "OPEN":
            continue
        if p.indexed < len(p.log):
            yield f"partition {number} is drained", with_partition(s, number, p.changed()._replace(indexed=len(p.log)))
        if s.voids and p.void < len(p.log):
            moved = p.changed()._replace(void=p.void + 1)
            yield f"partition {number}: log_start or cursor moves", with_partition(s._replace(voids=s.voids - 1), number, moved)
    last = len(s.partitions) - 1
    p = s.partitions[last]
    if p.state == "DELETED":
        yield f"partition {last} is purged", with_partition(s, last, p._replace(state="gone"))
    elif s.deletions:
        deleted = p.changed()._replace(state="DELETED")
        yield f"partition {last} becomes a tombstone", with_partition(s._replace(deletions=s.deletions - 1), last, deleted)


def plan(v: Variant, name: int) -> tuple[tuple[str, int], ...]:
    named = named_in(v, name)
    raises = tuple(("raise", number) for number in (named[:1] if v.bug == "one partition" else named))
    looks = tuple(("look", number) for number in named)
    if v.bug == "no floor":
        return (*looks, ("delete", 0))
    return (*looks, *raises, ("delete", 0)) if v.bug == "look first" else (*raises, *looks, ("delete", 0))


def collector_steps(v: Variant, s: State) -> Steps:
    for i, g in enumerate(s.collectors):
        if g.todo:
            yield from collect(v, s, i, g)
            continue
        for name in s.objects if g.rounds else ():
            begun = Collector(g.rounds - 1, name, plan(v, name), (None,) * len(s.partitions))
            yield from collect(v, s, i, begun)


def with_collector(s: State, i: int, g: Collector) -> State:
    return s._replace(collectors=(*s.collectors[:i], g, *s.collectors[i + 1 :]))


def seen_now(p: Partition) -> Seen:
    return Seen(p.indexed, len(p.log), p.void)


def collect(v: Variant, s: State, i: int, g: Collector) -> Steps:
    (what, number), name = g.todo[0], g.about
    over, following = Collector(g.rounds), g._replace(todo=g.todo[1:])
    p = s.partitions[number]
    match what:
        case "raise" if p.state == "OPEN":
            floor = name if v.bug == "floor lowered" else max(p.floor, name)
            raised = p if floor == p.floor else p.changed()._replace(floor=floor)
            seen = (*g.seen[:number], seen_now(p), *g.seen[number + 1 :])
            yield (
                f"gc{i} raises the floor of partition {number} to {floor}",
                with_collector(with_partition(s, number, raised), i, following._replace(seen=seen)),
            )
            if v.bug == "absent":
                todo = tuple(step for step in g.todo if step[1] != number or step[0] == "delete")
                yield f"gc{i} gets an old answer: partition {number} has no manifest", with_collector(s, i, g._replace(todo=todo))
        case "look" if p.state == "OPEN":
            for shown in range(p.indexed + 1) if v.bug == "past scans" else (p.indexed,):
                control = g.seen[number] or seen_now(p)
                pending = p.log[max(control.void, control.indexed) : control.length]
                is_needed = name in pending or name in p.log[control.void : shown]
                label = f"gc{i} finds {'a' if is_needed else 'no'} reference to object {name} in partition {number}"
                yield label, with_collector(s, i, over if is_needed else following)
        case "delete":
            yield f"gc{i} deletes object {name}", with_collector(s, i, over)._replace(objects=s.objects - {name})
        case _:
            yield f"gc{i} finds partition {number} deleted", with_collector(s, i, following)


def explore(v: Variant, *, states_max: int) -> Result:
    processes = broker_steps, log_steps, collector_steps
    start = State(
        partitions=(Partition(),) * (1 + max(number for named in v.flushes for number in named)),
        objects=frozenset(range(len(v.flushes))),
        wanted=frozenset((number, name) for name, named in enumerate(v.flushes) for number in named),
        collectors=tuple(map(Collector, v.collectors)),
        late=v.late,
        voids=v.voids,
        deletions=v.deletions,
    )
    return search(
        Search(
            start=start,
            following=lambda s: [step for process in processes for step in process(v, s)],
            broken=broken_promise,
            stuck=lambda s: "a commit is stuck" if s.wanted else None,
            backwards=backwards,
            situations=situations,
            reaches=frozenset(v.reaches),
        ),
        states_max=states_max,
    )
