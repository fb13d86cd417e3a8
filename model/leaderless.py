"""Exhaustive check of the leaderless log: append, index, compact, truncate, collect garbage. One partition, every interleaving.

THE STORE, as Oxia's server has it: a WriteRequest is a list of puts, applied in order as one durable step. Each has its own condition, and
one that fails fails ALONE: its siblings still apply. A CAS names the version it was computed from; it can never apply once a newer one
exists.

COMMIT. A broker reads `control`, decides, and sends [chunk of what `pending` holds, if due] + [CAS control := new]. The CAS alone commits:
it takes the offsets and adds an entry to `pending`, a ring of at most K. When the ring is full (or earlier: any policy is allowed here) the
NEXT commit carries all of it to index/{last offset} as one chunk, put-if-absent, and begins a new ring. The chunk repeats what is committed
already, so it does no harm when the CAS beside it fails. Any broker may drain an idle ring likewise. Chunks may overlap in the end; all of
them are true.

UNKNOWN OUTCOME (timeout): read control; `writers[me] >= number of my commit` means applied, otherwise send again under the same number.
After one unknown attempt EVERY re-read asks this, also one that follows a definite conflict.

COMPACTION writes a segment object, puts segments/{end}, moves `cursor` by CAS (that commits it), deletes index keys below it, then WAL
objects. Better (Forebay-segment, -all): the cursor CAS carries the entry in `segment`; its put into segments/ travels with the next cursor
CAS, as chunks do.

EARLY SLICES. A small batch has its bytes in an early page beside its CAS, put if absent with every attempt. Its entry names a place in an
object that its writer stores later; then the pages of that object go. A page is named after its place, and a place is given once, so a
late page says nothing but the truth. A commit whose place is at or below the floor takes a new one, in an object above it, once it knows
that its attempts have lost. A writer that dies never stores its object: the pages stay until compaction has their batches, or a collector
that has raised the floor finds no reference.

READ of offset o: o < cursor: `segment`, segments/; else `pending`, index/: a ceiling get. A ceiling that does not cover o is nothing.
An early batch is in its page or its object, and a reader may ask for either first. If it finds neither, a deposed leader may have answered
for the page, or the batch has moved. It asks for [manifest, page] in ONE answer, which counts if that has the entry; then for the object;
then for a proof that the entry still counts. Only then the batch is damaged.

RETENTION moves log_start by CAS, then deletes. COLLECTION of an object: CAS its name into `revoked`, then look for references, then delete.

HOW IT IS MODELLED. A batch is a number, and so is the WAL object that holds it (an inline batch has none: its bytes are in its entry). All
but early ones are uploaded before the run: only the collector looks at uncommitted objects, and it is free to look late. An early batch has
its number for its place, and its object is stored at any time, or never. Read-and-send is one step, as a request may be delayed at will. A
lost request is one that is never delivered; a lost reply is a timeout followed by a late delivery (the writer learns the same, others see
the same). A paused process is one that others overtake. A CAS of compactor, collector or retention is one step: a refused one changes
nothing and is computed again.

READERS OF BATCH 0 (`reads`) get answers from any older state. All other reads are of the newest.

NOT MODELLED: objects shared by partitions (`collecting.py`), other stale reads from a deposed Oxia leader, transactions, progress.
Producers' sequences, and stale reads with them, are in `pages.py`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar

from model.search import Result, Search, search

Name = int | str
"""The name of an object: a WAL object has that of its batch, a segment object a word."""
Batches = tuple[int, ...]
A = TypeVar("A")
AGAIN: Final = 10
"""An early batch that takes a new place has its number plus this for a name from then on."""


class Chunk(NamedTuple):
    """Consecutive offsets base..end and the batch of each: a committed entry (of one batch), or what index/ or segments/ has at {end}."""

    end: int
    base: int
    batches: Batches
    segment: str | None = None  # the segment object; None: each batch is in its own WAL object


class Manifest(NamedTuple):
    """THE record of the partition. next: sequence_counter. writers[i]: number of the last commit of writer i (0: absent)."""

    version: int = 0
    next: int = 0
    log_start: int = 0
    cursor: int = 0
    pending: tuple[Chunk, ...] = ()
    segment: Chunk | None = None  # with segments='control' only: the newest segment entry, not yet in segments/
    writers: tuple[int, ...] = ()
    revoked: frozenset[Name] = frozenset()

    def newer(self) -> "Manifest":
        return self._replace(version=self.version + 1)


class Cas(NamedTuple):
    """Put of control on condition that its version is still `expected`. entry: what it commits (None for a drain)."""

    expected: int
    new: Manifest | None
    entry: Chunk | None


HOPELESS: Final = Cas(-1, None, None)
"""Every CAS that expects an older version."""


class EarlyPage(NamedTuple):
    """The bytes of a batch, put if absent under the place that they have in an object which is stored later."""

    place: int
    batch: int


Ops = tuple[Cas | Chunk | EarlyPage, ...]


class Request(NamedTuple):
    """A WriteRequest under way. ops: Cas, Chunk for an index put, or EarlyPage.

    late=0: its sender waits for the reply; else nobody does (1, 2.. tell equals apart).
    """

    sender: Name
    late: int
    ops: Ops


class Writer(NamedTuple):
    """One broker's lane: a single open commit.

    unsure: an attempt ended unknown and is 'open' (may still win) or 'closed' (has won or never will).
    """

    timeouts: int
    step: str = "ready"  # ready | materialising, committing, indexing: waits for a reply | clearing | finished
    done: int = 0
    unsure: str | None = None
    snapshot: Manifest | None = None  # only the seed protocol commits from an older read
    is_again: bool = False  # its early batch has a new place


class EarlyObject(NamedTuple):
    """An object that its writer stores after the commits of its batches.

    placed: batches that have places in it. leaving: batches of the one that was stored last, whose pages go now. left: how many may still
    be stored.
    """

    placed: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    left: int = 0


class Job(NamedTuple, Generic[A]):
    """Compactor, collector or retention: rounds left; in a round the steps to do, what it is about, and control as it was seen."""

    rounds: int
    todo: tuple[str, ...] = ()
    about: A | None = None
    seen: Manifest | None = None

    def then(self) -> "Job[A]":
        return self._replace(todo=self.todo[1:]) if self.todo[1:] else Job(self.rounds)


class Answer(NamedTuple):
    """A state of the store, as far as it concerns a reader of batch 0.

    entry: absent | live | void: below cursor or log_start. pages: the early pages of the batch, by name.
    """

    entry: str
    pages: frozenset[int]


class State(NamedTuple):
    """indexed, segments: what is in index/ and segments/. objects: names of those that exist. drains, prunes: how many may still happen.

    truth: every entry ever committed. pages: the early pages that exist. early: the open early object of each writer. adopted: what
    another process than its writer has stored. past: all answers that were true once. reader: what a reader of batch 0 has yet to ask for
    (None: it has not begun), or what it says in the end.
    """

    control: Manifest
    indexed: frozenset[Chunk]
    segments: frozenset[Chunk]
    objects: frozenset[Name]
    network: frozenset[Request]
    writers: tuple[Writer, ...]
    compactors: tuple[Job[Chunk], ...]
    collector: Job[frozenset[Name]]
    retention: Job[int]
    drains: int
    prunes: int
    truth: tuple[Chunk, ...]
    acked: frozenset[int]
    pages: frozenset[EarlyPage] = frozenset()
    early: tuple[EarlyObject, ...] = ()
    adopted: frozenset[int] | None = None
    past: frozenset[Answer] = frozenset()
    reader: tuple[str, ...] | None = None


Steps = Iterator[tuple[str, State]]

WRONG_ENDS: Final = ("damaged",), ("passed over",)
ENDS: Final = (*WRONG_ENDS, ("it has the batch",), ("it reads elsewhere",))
"""How a reader ends."""


@dataclass(frozen=True)
class Variant:
    """A protocol to check. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    commit: str = "ring"  # ring | own: the own chunk beside its CAS | seed: materialise, CAS, own index put, clear
    ring: int = 1  # K
    index: str = "namespace"  # namespace: segments/ apart | one namespace for both, puts: overwrite | if-absent | void below cursor
    retry: str = "remember"  # after an unknown outcome: remember commit numbers | look for the own entry | blind
    order: tuple[str, ...] = ("segment", "cursor", "index", "objects")  # the compactor's steps after it has written the segment object
    segments: str = "entry first"  # | control: the cursor CAS carries the entry, which gets into segments/ later, as chunks get into index/
    gc: tuple[str, ...] = ()  # the collector's steps: revoke | revoke up to: all names up to one | look: for references | delete
    collects: tuple[type, ...] = (int,)  # it is after WAL objects (int), segment objects (str)
    compactors: tuple[int, ...] = (1,)  # rounds of each
    drains: int = 1
    retention: int = 0  # moves of log_start
    prunes: int = 0
    bug: str = ""
    inline: Batches = ()  # batches that travel in their entry: no object
    gc_rounds: int = 1
    early: Batches = ()  # batches that travel in an early page beside their CAS; their writer stores an object of them later
    stores: int = 1  # early objects of each writer
    refused: str = "refuses"  # what a writer does whose batch is below the floor | new place: of an early batch, above the floor
    leaves: tuple[str, ...] = ("store", "pages")  # the writer's steps when its early object is due
    reads: tuple[tuple[str, ...], ...] = ()  # what a reader of batch 0, an early one, may ask for in this order, until it has the batch
    reaches: tuple[str, ...] = ()  # situations it must have been through
    batches: tuple[tuple[int, ...], ...] = ((1,), (2,))  # sizes of each writer's batches
    timeouts: int = 1  # of each writer


# Store, reader, promises


def join(*entries: Chunk) -> Chunk:
    return Chunk(entries[-1].end, entries[0].base, tuple(batch for e in entries for batch in e.batches))


def apply(v: Variant, s: State, ops: Ops) -> tuple[State, list[bool]]:
    """The server: every op in order, each on its own condition."""
    control, index, truth, applied = s.control, s.indexed, s.truth, list[bool]()
    for op in ops:
        if isinstance(op, EarlyPage):
            applied.append(all(page.place != op.place for page in s.pages))
            s = s._replace(pages=s.pages | {op}) if applied[-1] else s
        elif isinstance(op, Chunk):
            there = {x for x in index if x.end == op.end}
            applied.append(not there or v.index == "overwrite")
            index = index - there | {op} if applied[-1] else index
        else:
            applied.append(op.new is not None and op.expected == control.version)
            if op.new is not None and applied[-1]:
                control = op.new
                truth = truth if op.entry is None else (*truth, op.entry)
    return s._replace(control=control, indexed=index, truth=truth), applied


def read(v: Variant, s: State, offset: int) -> int | str:
    """What a reader gets for a committed offset: its batch, or what is wrong."""
    c = s.control
    in_segments = v.index == "namespace" and offset < c.cursor
    in_manifest: tuple[Chunk, ...] = c.pending
    if in_segments:
        in_manifest = () if c.segment is None else (c.segment,)
    entries = [e for e in in_manifest if e.base <= offset <= e.end] or (s.segments if in_segments else s.indexed)
    void_below = c.cursor if v.index == "void" else 0
    found = min((x for x in entries if x.end >= offset and (x.segment or x.end >= void_below)), default=None)  # the ceiling get
    if found is None or found.base > offset:
        return "NOTHING"
    batch = found.batches[offset - found.base]
    if not found.segment and batch in v.inline:
        return "BYTES GONE" if v.bug == "chunks name inline batches" and found in s.indexed else batch
    if not found.segment and content(batch) in v.early and batch not in s.objects:
        return next((page.batch for page in s.pages if page.place == place_of(v, batch)), f"early page {batch} GONE, and no object")
    return batch if (found.segment or batch) in s.objects else f"object {found.segment or batch} GONE"


def content(name: int) -> int:
    """The batch that has this name."""
    return name % AGAIN


def place_of(v: Variant, batch: int) -> int:
    """The place of a batch in its early object, which no other batch ever has."""
    return min(v.early) if v.bug == "a place is given again" else batch


def broken_promise(v: Variant, s: State) -> str | None:
    log: Batches = ()
    c, committed = s.control, {content(e.batches[0]) for e in s.truth}
    for e in s.truth:
        if e.base != len(log):
            return f"batch {e.batches[0]} got offset {e.base}, expected {len(log)}: not dense, or used twice"
        log += e.batches
    if len(committed) != len(s.truth):
        return f"appended twice: batches {[e.batches[0] for e in s.truth]}"
    if not s.acked <= committed:
        return f"acked, not committed: batch {set(s.acked - committed)}"
    if s.reader in WRONG_ENDS:
        return f"batch 0 is in the log, and its reader ends with: {s.reader[0]}"
    if c.next != len(log) or c.log_start > c.next or c.cursor > c.next:
        return f"next {c.next}, log_start {c.log_start}, cursor {c.cursor}, but the log has {len(log)} records"
    for x in s.indexed | s.segments:  # so a reader with an old control finds truth or nothing
        if x.batches != log[x.base : x.end + 1]:
            return f"entry {x.base}..{x.end} says batches {x.batches}, the log says {log[x.base : x.end + 1]}"
    wrong = [o for o in range(c.log_start, c.next) if read(v, s, o) != log[o]]
    return f"offset {wrong[0]}: expected batch {log[wrong[0]]}, a reader gets {read(v, s, wrong[0])}" if wrong else None


def situations(s: State) -> Iterator[str]:
    """The troubles this state is in, for Variant.reaches."""
    c, chunks, segments = s.control, sorted(s.indexed), sorted(s.segments)
    if any(a.end >= b.base for a, b in pairwise(chunks)):
        yield "overlapping chunks"
    if any(a.end >= b.base for a, b in pairwise(segments)):
        yield "overlapping segments"
    in_log = {batch for e in s.truth for batch in e.batches}
    if any(page.batch not in in_log for page in s.pages):
        yield "an early page that nothing names"
    if any(page.batch in s.objects for page in s.pages):
        yield "an early page beside its object"
    if any(page.batch in x.batches for page in s.pages for x in s.indexed):
        yield "an early page that a chunk names"
    if any(batch >= AGAIN for batch in in_log):
        yield "a new place"
    if s.reader in ENDS:
        yield s.reader[0]
    if any(x.base < c.cursor <= x.end for x in chunks):
        yield "cursor inside a chunk"
    if not any(k.todo or k.rounds for k in s.compactors) and any(x.end < c.cursor for x in chunks):
        yield "late chunk below cursor"
    if c.cursor < c.log_start < c.next:
        yield "log_start above cursor"
    if 0 < c.next == c.log_start and not (chunks or segments or c.pending):
        yield "all truncated"


# Processes


def with_writer(s: State, i: int, w: Writer) -> State:
    return s._replace(writers=(*s.writers[:i], w, *s.writers[i + 1 :]))


def next_batch(v: Variant, s: State, i: int) -> State:
    w = s.writers[i]
    return with_writer(s, i, Writer(w.timeouts, "ready" if w.done + 1 < len(v.batches[i]) else "finished", w.done + 1))


def send(s: State, i: int, w: Writer, step: str, ops: Ops) -> State:
    return with_writer(s._replace(network=s.network | {Request(i, 0, ops)}), i, w._replace(step=step))


def add_late(network: frozenset[Request], sender: Name, ops: Ops) -> frozenset[Request]:
    """Add a request whose reply nobody awaits."""
    ops, late = tuple(op for op in ops if op != HOPELESS), 1
    while Request(sender, late, ops) in network:
        late += 1
    return network | {Request(sender, late, ops)} if ops else network


def name_of(v: Variant, i: int, w: Writer) -> int:
    return sum(map(len, v.batches[:i])) + w.done + AGAIN * w.is_again


def commits(v: Variant, s: State, i: int, w: Writer, c: Manifest) -> Iterator[Ops]:
    """The requests that may commit the writer's next batch, computed from control as read."""
    done, base = w.done, c.next
    if v.bug == "next from index":
        base = 1 + max((x.end for x in (*s.indexed, *s.segments, *c.pending)), default=-1)
    size = v.batches[i][done]
    entry = Chunk(base + size - 1, base, (name_of(v, i, w),) * size)
    writers = (*c.writers[:i], done + 1, *c.writers[i + 1 :])
    new = c.newer()._replace(next=base + size, pending=(entry,), writers=writers)
    cas, longer = Cas(c.version, new, entry), (*c.pending, entry)
    if v.commit == "own" and len(longer) >= v.ring:
        yield cas._replace(new=new._replace(pending=())), join(*longer)
    elif len(longer) <= v.ring:
        yield (cas._replace(new=new._replace(pending=longer)),)
    if v.commit == "ring" and c.pending:
        yield join(*c.pending), cas


def is_seen(v: Variant, s: State, i: int, batch: int) -> bool:
    """Does the writer find its batch committed?"""
    if v.retry == "look":
        return any(batch in x.batches for x in (*s.control.pending, *s.indexed, *s.segments))
    return v.retry == "remember" and s.control.writers[i] > s.writers[i].done


def ready_steps(v: Variant, s: State, i: int, w: Writer, batch: int) -> Steps:
    c, with_ack = s.control, s._replace(acked=s.acked | {batch})
    name = name_of(v, i, w)
    is_revoked = name in c.revoked and batch not in v.inline and v.bug != "early commits pass the floor"
    takes_new_place = is_revoked and v.refused == "new place" and batch in v.early and AGAIN + batch not in c.revoked
    if v.bug == "a new place before the outcome" and takes_new_place:
        w = w._replace(unsure=None)
    if w.unsure and is_seen(v, s, i, batch):
        yield f"w{i} finds batch {batch} committed, acks", next_batch(v, with_ack, i)
    elif v.prunes and w.unsure == "closed" and not c.writers[i] and v.bug != "absent is not applied":
        yield f'w{i} cannot tell, answers "outcome unknown" for batch {batch}', next_batch(v, s, i)
    elif is_revoked and not takes_new_place:
        yield f"w{i} finds object {name} revoked, refuses", next_batch(v, s, i)
    elif v.commit == "seed" and c.pending:
        w = w._replace(snapshot=c._replace(pending=()))
        yield f"w{i} reads control, sends put of what is pending", send(s, i, w, "materialising", (join(*c.pending),))
    else:
        # A closed attempt that is not seen has lost.
        w = w._replace(unsure="open" if w.unsure == "open" else None, is_again=w.is_again or takes_new_place)
        placed, page = with_place(v, s, i, name_of(v, i, w))
        if v.bug == "ack before CAS":
            placed = placed._replace(acked=s.acked | {batch})
        for ops in commits(v, s, i, w, c):
            after = send(placed, i, w, "committing", (*page, *ops))
            yield f"w{i} reads control, sends commit of batch {batch}{' in a new place' if takes_new_place else ''}", after


def with_early(s: State, i: int, early: EarlyObject) -> State:
    return s._replace(early=(*s.early[:i], early, *s.early[i + 1 :]))


def with_place(v: Variant, s: State, i: int, batch: int) -> tuple[State, tuple[EarlyPage, ...]]:
    """Give a batch that travels early a place in the open object of its writer, and the page that goes with its commit."""
    if content(batch) not in v.early:
        return s, ()
    early = s.early[i]
    is_known = batch in s.objects or (v.bug == "a page is sent once" and batch in early.placed)
    page = () if is_known else (EarlyPage(place_of(v, batch), batch),)
    return with_early(s, i, early._replace(placed=early.placed | {batch})), page


def early_steps(v: Variant, s: State) -> Steps:
    """A writer stores the object in which it has given places, then deletes its pages. One that has died does neither."""
    for i, early in enumerate(s.early):
        if early.leaving:
            yield leave(v, s, i, v.leaves[1], early.leaving, early._replace(leaving=frozenset()))
        elif early.placed and early.left:
            placed = early.placed if v.bug == "all pages go" else frozenset[int]()
            yield leave(v, s, i, v.leaves[0], early.placed, EarlyObject(placed, early.placed, early.left - 1))
    if v.bug == "another stores the object" and s.adopted is None and s.pages:
        found = frozenset(page.batch for page in s.pages)
        yield f"another stores an object of {set(found)}", s._replace(adopted=found, objects=s.objects | found)
    elif v.bug == "another stores the object" and s.adopted:
        yield "another deletes all early pages", s._replace(adopted=frozenset(), pages=frozenset())


def leave(v: Variant, s: State, i: int, step: str, about: frozenset[int], early: EarlyObject) -> tuple[str, State]:
    after = with_early(s, i, early)
    if step == "store":
        return f"w{i} stores an object of {set(about)}", after._replace(objects=s.objects | about)
    gone = about | s.early[i].placed if v.bug == "all pages go" else about
    return f"w{i} deletes early pages of {set(gone)}", after._replace(pages=without_pages(s, gone))


def without_pages(s: State, batches: Collection[Name]) -> frozenset[EarlyPage]:
    return frozenset(page for page in s.pages if page.batch not in batches)


def writer_steps(v: Variant, s: State) -> Steps:
    c = s.control
    for i, w in enumerate(s.writers):
        batch = content(name_of(v, i, w))
        if w.step == "ready":
            yield from ready_steps(v, s, i, w, batch)
        elif w.step == "clearing":
            is_own = c.pending and batch in c.pending[0].batches
            cleared = c.newer()._replace(pending=()) if is_own else c
            yield f"w{i} clears pending", next_batch(v, s._replace(control=cleared), i)
        elif w.step != "finished" and w.timeouts:
            request = next(r for r in s.network if r.sender == i and not r.late)
            unsure = w.unsure
            if w.step == "committing" and unsure != "closed":
                unsure = "closed" if HOPELESS in request.ops else "open"
            network = add_late(s.network - {request}, i, request.ops)
            after = with_writer(s._replace(network=network), i, Writer(w.timeouts - 1, "ready", w.done, unsure, is_again=w.is_again))
            yield f"w{i} TIMEOUT while {w.step}", next_batch(v, after, i) if w.step == "indexing" else after


def described(op: Cas | Chunk | EarlyPage) -> str:
    if isinstance(op, EarlyPage):
        return f"early page {op.batch}"
    return f"chunk {op.base}..{op.end}" if isinstance(op, Chunk) else "CAS"


def network_steps(v: Variant, s: State) -> Steps:
    for r in s.network:
        after, applied = apply(v, s._replace(network=s.network - {r}), r.ops)
        what = ", ".join(described(op) + ("" if ok else " refused") for op, ok in zip(r.ops, applied, strict=True))
        if isinstance(r.sender, str):
            yield f"late request of {r.sender}: {what}", after
        else:
            late = "late " if r.late else ""
            yield f"{late}request of w{r.sender}: {what}", after if r.late else reply(v, after, r.sender, r.ops, applied)


def reply(v: Variant, s: State, i: int, ops: Ops, applied: list[bool]) -> State:
    """The sender hears what became of its request."""
    w = s.writers[i]
    if w.step == "materialising":
        assert w.snapshot is not None
        return send(s, i, w._replace(snapshot=None), "committing", next(commits(v, s, i, w, w.snapshot)))
    if w.step == "indexing":
        return with_writer(s, i, w._replace(step="clearing"))
    cas, has_won = next((op, ok) for op, ok in zip(ops, applied, strict=True) if isinstance(op, Cas))
    if not has_won:
        return with_writer(s, i, w._replace(step="ready", unsure=None if v.bug == "conflict is final" else w.unsure))
    assert cas.entry is not None
    s = s._replace(acked=s.acked.union(map(content, cas.entry.batches)))
    return send(s, i, w, "indexing", (cas.entry,)) if v.commit == "seed" else next_batch(v, s, i)


def other_broker_steps(v: Variant, s: State) -> Steps:
    """Idle drains, which may be late too, and the pruning of control.writers."""
    c = s.control
    if s.drains and c.pending and v.commit == "ring":
        ops = join(*c.pending), Cas(c.version, c.newer()._replace(pending=()), None)
        yield "a broker sends an idle drain", s._replace(drains=s.drains - 1, network=add_late(s.network, "the drain", ops))
    for i, number in enumerate(c.writers):
        if s.prunes and number:
            pruned = c.newer()._replace(writers=(*c.writers[:i], 0, *c.writers[i + 1 :]))
            yield f"a broker prunes writers[{i}]", s._replace(prunes=s.prunes - 1, control=pruned)


def plans(v: Variant, s: State, name: str) -> Iterator[Chunk]:
    """Any number of whole batches from the cursor on; in a single namespace only what is not pending any more."""
    c = s.control
    base = max(c.cursor, c.log_start)
    batches: Batches = ()
    for o in range(base, c.next):
        batch = read(v, s, o)
        if isinstance(batch, str) or (v.index != "namespace" and any(e.base <= o <= e.end for e in c.pending)):
            return
        batches = (*batches, batch)
        if o + 1 == c.next or read(v, s, o + 1) != batch:
            yield Chunk(o, base, batches, name)


def compactor_steps(v: Variant, s: State) -> Steps:
    c = s.control
    for i, k in enumerate(s.compactors):
        if not k.todo:
            for p in plans(v, s, f"s{i}{k.rounds}") if k.rounds else ():
                assert p.segment is not None
                job = Job(k.rounds - 1, v.order, p, Manifest(cursor=c.cursor, segment=c.segment))
                after = with_compactor(s, i, job)._replace(objects=s.objects | {p.segment})
                yield f"k{i} writes segment object {p.segment} of {p.base}..{p.end}", after
        else:
            assert k.about is not None
            assert k.seen is not None
            yield compactor_step(v, s, i, k, k.about, k.seen)


def with_compactor(s: State, i: int, job: Job[Chunk]) -> State:
    return s._replace(compactors=(*s.compactors[:i], job, *s.compactors[i + 1 :]))


def compactor_step(v: Variant, s: State, i: int, k: Job[Chunk], p: Chunk, seen: Manifest) -> tuple[str, State]:
    c, after = s.control, with_compactor(s, i, k.then())
    match k.todo[0]:
        case "segment" if v.index != "namespace":
            index = frozenset(x for x in s.indexed if x.end != p.end) | {p}
            return f"k{i} overwrites index entry {p.end}", after._replace(indexed=index)
        case "segment":
            is_there = any(x.end == p.end for x in s.segments)
            segments = s.segments if is_there else s.segments | {p}
            return f"k{i} puts segment entry {p.base}..{p.end}{': refused' if is_there else ''}", after._replace(segments=segments)
        case "cursor":
            segments = s.segments
            if v.segments == "control" and seen.segment and all(x.end != seen.segment.end for x in segments):
                segments |= {seen.segment}  # travels with the CAS and lands whatever becomes of that
            if c.cursor == seen.cursor and p.segment not in c.revoked:
                moved = c.newer()._replace(cursor=p.end + 1, segment=p if v.segments == "control" else None)
                return f"k{i} moves cursor to {p.end + 1}", after._replace(control=moved, segments=segments)
            objects = s.objects - {p.segment} if v.bug == "loser deletes its object" else s.objects
            aborted = with_compactor(s, i, Job(k.rounds))
            return f"k{i} cursor CAS refused, aborts", aborted._replace(segments=segments, objects=objects)
        case "index":
            below = p.end + (v.index == "namespace")  # in a single namespace the new entry itself is at p.end
            index = frozenset(x for x in s.indexed if (x.base if v.bug == "delete by base" else x.end) >= below)
            return f"k{i} deletes index keys below {below}", after._replace(indexed=index)
        case "pages":
            return f"k{i} deletes early pages of {sorted(set(p.batches))}", after._replace(pages=without_pages(s, p.batches))
    return f"k{i} deletes WAL objects {sorted(set(p.batches))}", after._replace(objects=s.objects - set(p.batches))


def is_referenced(c: Manifest, s: State, name: Name) -> bool:
    """Is the object needed by control (as known) or by index/ and segments/ (as they are), above cursor and log_start?"""
    if isinstance(name, str):
        return any(x.segment == name for x in (*s.segments, c.segment) if x)
    floor = max(c.cursor, c.log_start)
    return any(name in x.batches[max(0, floor - x.base) :] for x in (*c.pending, *s.indexed))


def collections(v: Variant, s: State) -> Iterator[Job[frozenset[Name]]]:
    """The one under way, else each that may begin."""
    job = s.collector
    if job.todo:
        yield job
        return
    named = s.objects | {page.batch for page in s.pages}
    for name in named if v.gc and job.rounds else ():
        if isinstance(name, v.collects) and not is_referenced(s.control, s, name):
            is_range = "revoke up to" in v.gc and isinstance(name, int)
            yield Job(job.rounds - 1, v.gc, frozenset(range(name + 1)) if is_range and isinstance(name, int) else frozenset((name,)))


def collector_steps(v: Variant, s: State) -> Steps:
    c = s.control
    for g in collections(v, s):
        about = g.about or frozenset()
        done = g.then()
        if g.todo[0] == "look":
            unneeded = frozenset(name for name in about if not is_referenced(g.seen or c, s, name))
            looked = done._replace(about=unneeded) if done.todo else done
            yield f"gc finds no reference to {set(unneeded) or 'none'}", s._replace(collector=looked)
        elif g.todo[0] == "delete":
            after = s._replace(objects=s.objects - about, pages=without_pages(s, about))
            yield f"gc deletes objects {set(about)}", after._replace(collector=done)
        else:
            seen = Manifest(log_start=c.log_start, cursor=c.cursor, pending=c.pending, segment=c.segment)
            raised = done._replace(seen=seen) if done.todo else done
            revoking = c.newer()._replace(revoked=c.revoked | about)
            yield f"gc revokes objects {set(about)}", s._replace(control=revoking, collector=raised)
    if v.bug == "revoked is shortened" and c.revoked and not s.collector.todo:
        yield "gc shortens the list of revoked objects", s._replace(control=c.newer()._replace(revoked=frozenset()))


def answer(s: State) -> Answer:
    """What the leader of the day says."""
    entry = next((e for e in s.truth if content(e.batches[0]) == 0), None)
    pages = frozenset(page.batch for page in s.pages if content(page.batch) == 0)
    if entry is None:
        return Answer("absent", pages)
    return Answer("live" if entry.end >= max(s.control.cursor, s.control.log_start) else "void", pages)


def reader_steps(v: Variant, s: State) -> Steps:
    """A reader has an entry of batch 0 from some answer. Each answer of the metadata store may be as old as a deposed leader; one of the
    object store is not.
    """
    if not v.reads or all(a.entry == "absent" for a in s.past):
        return
    for todo in v.reads if s.reader is None else (s.reader,):
        if todo and todo not in ENDS:
            for what, following in asked(s, todo[0], todo[1:]):
                yield f"a reader asks for {todo[0]}: {what}", s._replace(reader=following)


def asked(s: State, ask: str, rest: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a reader may be given for one request, and what it does next."""
    name = next(e.batches[0] for e in s.truth if content(e.batches[0]) == 0)
    found = ("it has the batch",)
    match ask:
        case "object":
            yield ("there", found) if name in s.objects else ("absent", rest)
        case "page":
            for is_there in {name in a.pages for a in s.past}:
                yield ("there", found) if is_there else ("absent, maybe from a deposed leader", rest)
        case "page from the leader":
            yield ("there", found) if name in answer(s).pages else ("absent", rest)
        case "manifest and page":
            for is_live in {a.entry == "live" for a in s.past if a.entry != "absent" and name not in a.pages}:
                yield ("entry, no page, maybe from a deposed leader", rest) if is_live else ("entry void", ("it reads elsewhere",))
        case "proof":  # a write has shown the manifest to be the newest
            yield ("entry", rest) if answer(s).entry == "live" else ("entry void", ("it reads elsewhere",))


def retention_steps(_: Variant, s: State) -> Steps:
    """Move log_start (into the middle of a batch too, and to the very end), then delete what is wholly below."""
    r, c = s.retention, s.control
    for start in range(c.log_start + 1, c.next + 1) if r.rounds and not r.todo else ():
        job = Job(r.rounds - 1, ("objects", "keys"), start)
        yield f"retention moves log_start to {start}", s._replace(control=c.newer()._replace(log_start=start), retention=job)
    to = r.about or 0
    if r.todo[:1] == ("objects",):
        dead = {e.batches[0] for e in s.truth if e.end < to} | {x.segment for x in s.segments if x.end < to}
        yield f"retention deletes objects {dead or 'none'}", s._replace(retention=r.then(), objects=s.objects - dead)
    elif r.todo:
        index, segments = (frozenset(x for x in keys if x.end >= to) for keys in (s.indexed, s.segments))
        yield f"retention deletes keys below {to}", s._replace(retention=r.then(), indexed=index, segments=segments)


# The search


def canonical(s: State) -> State:
    """If control has changed, call its new version 0 and every CAS computed before HOPELESS: only equality of versions matters anywhere."""
    if s.control.version == 0:
        return s
    network = frozenset[Request]()
    for r in sorted(s.network, key=lambda r: r.late):
        ops = tuple(HOPELESS if isinstance(op, Cas) else op for op in r.ops)
        network = add_late(network, r.sender, ops) if r.late else network | {r._replace(ops=ops)}
    writers = tuple(
        w._replace(unsure=w.unsure and "closed", snapshot=None if w.snapshot is None else w.snapshot._replace(version=-1))
        for w in s.writers
    )
    return s._replace(control=s.control._replace(version=0), network=network, writers=writers)


def remembered(v: Variant, s: State) -> State:
    return s._replace(past=s.past | {answer(s)}) if v.reads else s


def backwards(before: State, label: str, after: State) -> str | None:
    has_gone_back = after.control.log_start < before.control.log_start or after.control.cursor < before.control.cursor
    return f"{label}: goes back" if has_gone_back else None


def start(v: Variant) -> State:
    none, uploaded = frozenset[Chunk](), frozenset[Name](range(sum(map(len, v.batches)))) - {*v.inline, *v.early}
    return State(
        control=Manifest(writers=(0,) * len(v.batches)),
        indexed=none,
        segments=none,
        objects=uploaded,
        network=frozenset(),
        writers=(Writer(v.timeouts),) * len(v.batches),
        compactors=tuple(Job(rounds) for rounds in v.compactors),
        collector=Job(v.gc_rounds),
        retention=Job(v.retention),
        drains=v.drains,
        prunes=v.prunes,
        truth=(),
        acked=frozenset(),
        early=(EarlyObject(left=v.stores),) * len(v.batches) if v.early else (),
    )


def explore(v: Variant, *, states_max: int) -> Result:
    processes = (
        writer_steps,
        early_steps,
        reader_steps,
        network_steps,
        other_broker_steps,
        compactor_steps,
        collector_steps,
        retention_steps,
    )

    def following(s: State) -> list[tuple[str, State]]:
        return [(label, canonical(remembered(v, after))) for process in processes for label, after in process(v, s)]

    return search(
        Search(
            start=start(v),
            following=following,
            broken=lambda s: broken_promise(v, s),
            stuck=lambda s: "a writer is stuck" if any(w.step != "finished" for w in s.writers) else None,
            backwards=backwards,
            situations=situations,
            reaches=frozenset(v.reaches),
        ),
        states_max=states_max,
    )
