"""Exhaustive check of collectors of WAL objects: several at once, several partitions per object, no clock that is right.

An object has slices of several partitions and its header names them; each slice is committed by a CAS of its own partition. A COLLECTOR
takes any object that a listing shows: how old it is says a clock, which may be wrong. In each partition that the header names it raises
`revoked_floor` to the object's id by CAS, unless it is that high, then it looks for references, in `pending` as that CAS left it and in
index/ by a scan; if it finds none in any, it deletes the object. Commits refuse objects up to the floor; their broker uploads the slice
again under a higher id. A partition whose manifest is a tombstone takes no commit and has no references.

EARLY OBJECTS (`pages`). The bytes of slices travel as early pages beside their commits, put if absent; slices of one write may share one. A
page names its partitions. The writer stores the object later, if it lives, and then deletes its pages. A collector takes the pages of an
object that a list shows. If the object is there, they go. If it is not, the collector raises the floor in each partition that these pages
name, looks in each, and deletes these pages by name. A commit at or below the floor takes a new place, without an upload.

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


class Page(NamedTuple):
    """An early page: slices of these partitions, which have places in the object of this name."""

    name: int
    partitions: tuple[int, ...]


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
    """seen: each manifest as the collector's own CAS left it. todo: what it does next, to which partition. pages: those of a list, if it
    is about these and not about the object.
    """

    rounds: int
    about: int = -1
    pages: frozenset[Page] = frozenset()
    todo: tuple[tuple[str, int], ...] = ()
    seen: tuple[Seen | None, ...] = ()


class State(NamedTuple):
    """wanted: slices (partition, object) that their broker has yet to commit. pages: early pages that exist. sent: those of late commits.
    stores: how many early objects may still be stored.
    """

    partitions: tuple[Partition, ...]
    objects: frozenset[int]
    wanted: frozenset[tuple[int, int]]
    collectors: tuple[Collector, ...]
    late: int
    voids: int
    deletions: int
    pages: frozenset[Page] = frozenset()
    sent: frozenset[Page] = frozenset()
    stores: int = 0


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to collect. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    flushes: tuple[tuple[int, ...], ...] = ((0, 1),)  # the partitions of each object
    pages: tuple[tuple[int, ...], ...] = ()  # the partitions of each page of object 0, which is an early one then
    stores: int = 0  # 1: its writer may store it
    collectors: tuple[int, ...] = (1, 1)  # rounds of each
    late: int = 1
    voids: int = 0  # moves of log_start or the cursor
    deletions: int = 0  # of partition 1
    bug: str = ""
    reaches: tuple[str, ...] = ()


def named_in(v: Variant, name: int) -> tuple[int, ...]:
    """The partitions that an object's header names."""
    return v.flushes[name] if name < AGAIN else (name // AGAIN - 1,)


def is_early(v: Variant, name: int) -> bool:
    return bool(v.pages) and name % AGAIN == 0


def page_of(v: Variant, number: int, name: int) -> frozenset[Page]:
    """The early page that a commit of this slice takes along, if any."""
    if not is_early(v, name):
        return frozenset()
    together = (number,) if name >= AGAIN else next(partitions for partitions in v.pages if number in partitions)
    return frozenset((Page(name, together),))


def broken_promise(s: State) -> str | None:
    for number, p in enumerate(s.partitions):
        paged = {page.name for page in s.pages if number in page.partitions}
        lost = [name for name in p.log[p.void :] if name not in s.objects and name not in paged]
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
    if any(g.pages and {page for page in s.pages if page.name == g.about} - g.pages for g in s.collectors):
        yield "a page that the list does not show"
    if any(g.pages and g.about in s.objects and g.todo for g in s.collectors):
        yield "stored while it is collected"
    if any(g.todo and g.pages and all(g.about not in p.log for p in s.partitions) for g in s.collectors):
        yield "pages that nothing names are collected"


# Processes


def with_partition(s: State, number: int, p: Partition) -> State:
    return s._replace(partitions=(*s.partitions[:number], p, *s.partitions[number + 1 :]))


def committed(p: Partition, name: int) -> Partition:
    """Half of what may happen to the ring: a drain is a step of its own."""
    return p.changed()._replace(log=(*p.log, name))


def broker_steps(v: Variant, s: State) -> Steps:
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
                objects = s.objects if is_early(v, name) else s.objects | {again}
                after = over._replace(objects=objects, wanted=over.wanted | {(number, again)})
                how = "takes a new place in" if is_early(v, name) else "is refused, uploaded again as"
                yield f"partition {number}: object {name} {how} {again}", after
        elif name not in p.late:
            page = frozenset[Page]() if name in s.objects else page_of(v, number, name)
            after = with_partition(over, number, committed(p, name))
            yield f"partition {number}: commit of object {name}", after._replace(pages=s.pages | page)
            if s.late:
                sent = with_partition(s._replace(late=s.late - 1, sent=s.sent | page), number, p._replace(late=p.late | {name}))
                yield f"partition {number}: commit of object {name} is sent", sent


def early_steps(v: Variant, s: State) -> Steps:
    """The writer stores object 0 and deletes its pages. A page also arrives if the commit beside it has lost."""
    if s.stores:
        yield "object 0 is stored", s._replace(stores=0, objects=s.objects | {0})
    elif v.stores and any(page.name == 0 for page in s.pages):
        yield "its writer deletes the pages of object 0", s._replace(pages=frozenset(page for page in s.pages if page.name != 0))
    for page in s.sent:
        if any(page.name in s.partitions[number].late for number in page.partitions):
            continue
        yield f"late page of object {page.name}", s._replace(pages=s.pages | {page}, sent=s.sent - {page})


def log_steps(v: Variant, s: State) -> Steps:
    for number, p in enumerate(s.partitions):
        for name in p.late:
            page = s.sent & page_of(v, number, name)
            after = with_partition(s, number, committed(p, name))
            yield f"partition {number}: late commit of object {name}", after._replace(pages=s.pages | page, sent=s.sent - page)
        if p.state != "OPEN":
            continue
        if p.indexed < len(p.log):
            yield f"partition {number} is drained", with_partition(s, number, p.changed()._replace(indexed=len(p.log)))
        if s.voids and p.void < len(p.log):
            moved = p.changed()._replace(void=p.void + 1)
            after = with_partition(s._replace(voids=s.voids - 1), number, moved)
            if v.bug == "compactor deletes pages":
                after = after._replace(pages=frozenset(x for x in s.pages if x.name != p.log[p.void] or number not in x.partitions))
            yield f"partition {number}: log_start or cursor moves", after
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
            begun = Collector(g.rounds - 1, name, todo=plan(v, name), seen=(None,) * len(s.partitions))
            yield from collect(v, s, i, begun)
        for name in {page.name for page in s.pages} if g.rounds else ():
            listed = frozenset(page for page in s.pages if page.name == name)
            yield from collect(v, s, i, Collector(g.rounds - 1, name, listed, plan_of_pages(v, s, listed), (None,) * len(s.partitions)))


def plan_of_pages(v: Variant, s: State, listed: frozenset[Page]) -> tuple[tuple[str, int], ...]:
    if any(page.name in s.objects for page in listed) or v.bug == "age alone":
        return (("delete pages", 0),)
    named = sorted({number for page in listed for number in page.partitions})
    looks = named[:1] if v.bug == "one look" else named
    raises = named[:1] if v.bug == "one partition" else named
    return (*(("raise", number) for number in raises), *(("look", number) for number in looks), ("delete pages", 0))


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
        case "delete pages":
            gone = frozenset(page for page in s.pages if page.name == name) if v.bug == "all pages" else g.pages
            label = f"gc{i} deletes early pages of object {name}: {sorted(page.partitions for page in gone)}"
            yield label, with_collector(s, i, over)._replace(pages=s.pages - gone)
        case "delete":
            yield f"gc{i} deletes object {name}", with_collector(s, i, over)._replace(objects=s.objects - {name})
        case _:
            yield f"gc{i} finds partition {number} deleted", with_collector(s, i, following)


def explore(v: Variant, *, states_max: int) -> Result:
    processes = broker_steps, early_steps, log_steps, collector_steps
    start = State(
        partitions=(Partition(),) * (1 + max(number for named in v.flushes for number in named)),
        objects=frozenset(name for name in range(len(v.flushes)) if not is_early(v, name)),
        wanted=frozenset((number, name) for name, named in enumerate(v.flushes) for number in named),
        collectors=tuple(map(Collector, v.collectors)),
        late=v.late,
        voids=v.voids,
        deletions=v.deletions,
        stores=v.stores,
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
