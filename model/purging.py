"""Exhaustive check of what happens to the keys and objects of a deleted topic. One topic of one partition, at times half made.

ORDER (docs/internals/adr/0015): a creation reserves the name, puts the manifest OPEN if absent, then makes the topic active; a deletion
marks the topic, makes the manifest a tombstone (also where there is none yet), then says in topic-ids that the id is deleted. A PURGE
follows: once topic-ids says "deleted", which stays true, or a list of topics/ that is newer than a key lacks its id, whatever is under the
partition's prefixes may go, in any order and as often as it is found; the tombstone goes only if no put of an OPEN record can be under way
any more.

LATE. Requests that were sent to the partition while it lived may arrive at any time: a CAS never applies again, but what travels beside it,
put if absent, does: index chunks, pages of producer states, places of segments. So may the PUT of a segment object, and the put of the
manifest itself by a creation that had no answer. A broker that found the topic once may append at any time later.

SETTLED. A creation that had an answer to every put of a manifest, OK or not, says so in the topic's record as it makes it active.
Then no such put is under way. A creation that was given up, or that did not say so, leaves its tombstones for ever.

HOW IT IS MODELLED. Read-and-send is one step. The record in topic-ids is kept for ever unless `keeps_record` is false.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.search import Result, Search, search

INDEX, PAGE, PLACE, COMPACTION, SEGMENT = "index/", "producers/", "segments/", "meta/compaction", "segment object"
CREATE: Final = "control OPEN if absent"
ENTRIES_MAX: Final = 2


class State(NamedTuple):
    """topic: free | CREATING | ACTIVE | DELETING | freed. named: what topic-ids says: nothing | name | deleted | removed.

    control: None, OPEN or DELETED. network: late requests: CREATE, or what is put if absent; `cas`: one of them has a CAS under the version
    that control has now. unanswered: the creation has a put without an answer. compactor: what it does next.
    """

    topic: str = "free"
    named: str = ""
    control: str | None = None
    entries: int = 0
    indexed: int = 0
    found: frozenset[str] = frozenset()
    network: frozenset[str] = frozenset()
    cas: bool = False
    unanswered: bool = False
    settled: bool = False
    creator: str = "reserve"
    compactor: str = "start"
    late: int = 0


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to purge. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    late: int = 2
    finds: str = "record"  # what says that the topic is dead: topic-ids | list: a list of topics/ that was made after a key was seen
    keeps_record: bool = True  # in topic-ids; else it goes when a scan found nothing else
    bug: str = ""
    reaches: tuple[str, ...] = ()


def broken_promise(s: State) -> str | None:
    if s.control == "OPEN" and s.topic == "freed":
        return "an open log that belongs to nobody"
    if s.topic == "ACTIVE" and s.control != "OPEN":
        return "a topic whose partition has no open log"
    if s.control == "OPEN" and s.indexed and INDEX not in s.found:
        return "the log is open, and its index is gone"
    if s.control == "OPEN" and s.compactor == "done" and SEGMENT not in s.found:
        return "the log is open, and its segment is gone"
    return None


def is_settled(v: Variant, s: State) -> bool:
    """Everything that may go is gone."""
    has_tombstone = s.control == "DELETED" and not may_unbury(v, s)
    return s.topic == "freed" and not s.found and not s.network and (s.control is None or has_tombstone)


def situations(s: State) -> Iterator[str]:
    if s.topic == "freed" and s.control is None and s.found:
        yield "keys behind the tombstone"
    if s.topic == "freed" and s.network:
        yield "a late request behind the deletion"
    if s.topic == "freed" and CREATE in s.network:
        yield "a late creation behind the deletion"
    if s.topic == "freed" and not s.settled:
        yield "half made"


# Processes


def creator_steps(_: Variant, s: State) -> Steps:
    match s.creator:
        case "reserve":
            yield "the creator reserves the name", s._replace(topic="CREATING", creator="put")
        case "put":
            control = s.control or "OPEN"
            answered = s._replace(control=control, creator="activate")
            yield "the creator puts control", answered
            if s.late and CREATE not in s.network:
                lost = s._replace(network=s.network | {CREATE}, unanswered=True, late=s.late - 1)
                yield "the creator puts control, has no answer", lost
        case "activate" if s.topic == "CREATING":
            active = s._replace(topic="ACTIVE", named="name", settled=not s.unanswered, creator="done")
            yield "the creator makes the topic active", active


def deleter_steps(v: Variant, s: State) -> Steps:
    """A client deletes the topic, or somebody gives up a creation."""
    if s.topic == "CREATING" and v.bug == "half made" and s.control != "DELETED":
        yield "a sweep makes control of a half-made topic a tombstone", buried(s)
    elif s.topic in ("CREATING", "ACTIVE"):
        yield "the topic is marked DELETING", s._replace(topic="DELETING")
    elif s.topic == "DELETING" and s.control != "DELETED":
        yield "control becomes a tombstone", buried(s)
    elif s.topic == "DELETING":
        yield "topic-ids says deleted, the name is free", s._replace(topic="freed", named="deleted")


def buried(s: State) -> State:
    return s._replace(control="DELETED", cas=False)


def broker_steps(_: Variant, s: State) -> Steps:
    """Appends, by a broker that found the topic once: each may carry an index chunk and a page."""
    if s.control != "OPEN" or s.named == "" or s.entries == ENTRIES_MAX:
        return
    beside = (INDEX, PAGE) if s.entries > s.indexed else ()
    after = s._replace(entries=s.entries + 1, indexed=s.entries, found=s.found.union(beside), cas=False)
    yield f"a broker appends{', with a chunk and a page' if beside else ''}", after
    if s.late and beside:
        yield "a broker sends a chunk, a page, a CAS: late", s._replace(network=s.network.union(beside), cas=True, late=s.late - 1)


def compactor_steps(_: Variant, s: State) -> Steps:
    """Each of its steps may come as late as it likes; only the first reads control."""
    match s.compactor:
        case "start" if s.control == "OPEN" and s.entries:
            yield "a compactor begins", s._replace(compactor="write", found=s.found | {COMPACTION})
        case "write":
            yield "the compactor writes its segment", s._replace(compactor="place", found=s.found | {SEGMENT})
        case "place":
            yield "the compactor reserves its place", s._replace(compactor="commit", found=s.found | {PLACE})
        case "commit":
            has_won = s.control == "OPEN" and SEGMENT in s.found
            after = s._replace(compactor="done" if has_won else "lost", cas=s.cas and not has_won)
            yield f"the compactor's CAS {'applies' if has_won else 'is refused'}", after


def purge_steps(v: Variant, s: State) -> Steps:
    may_begin = s.topic == "freed" if v.finds == "list" else s.named == "deleted"
    may_begin |= v.bug == "keys first" and s.topic == "DELETING"
    may_begin |= v.bug == "old list" and s.topic == "ACTIVE"
    for what in s.found if may_begin else ():
        yield f"a purge removes {what}", s._replace(found=s.found - {what})
    if s.topic == "freed" and s.control == "DELETED" and may_unbury(v, s):
        yield "a purge removes the tombstone", s._replace(control=None)
    if not v.keeps_record and s.named == "deleted" and not s.found and (s.control is None or not may_unbury(v, s)):
        yield "a purge scans, finds nothing, removes the record in topic-ids", s._replace(named="removed")


def may_unbury(v: Variant, s: State) -> bool:
    """May the tombstone go?"""
    return s.settled or v.bug == "tombstone early"


def network_steps(_: Variant, s: State) -> Steps:
    for what in s.network:
        after = s._replace(network=s.network - {what})
        if what == CREATE:
            yield "late request arrives: control OPEN if absent", after._replace(control=s.control or "OPEN")
        else:
            yield f"late request arrives: put of {what}", after._replace(found=s.found | {what})
    if s.cas and s.control == "OPEN" and s.network >= {INDEX, PAGE}:
        landed = s._replace(found=s.found | {INDEX, PAGE}, network=s.network - {INDEX, PAGE}, cas=False)
        yield "late request arrives: chunk, page, CAS", landed._replace(entries=s.entries + 1, indexed=s.entries)


# The search


def explore(v: Variant, *, states_max: int) -> Result:
    processes = creator_steps, deleter_steps, broker_steps, compactor_steps, purge_steps, network_steps
    return search(
        Search(
            start=State(late=v.late),
            following=lambda s: [step for process in processes for step in process(v, s)],
            broken=broken_promise,
            stuck=lambda _: None,
            backwards=lambda *_: None,
            situations=situations,
            reaches=frozenset(v.reaches),
            goal=lambda s: is_settled(v, s),
        ),
        states_max=states_max,
    )
