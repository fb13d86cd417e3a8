"""Exhaustive check of spilled producer states: one partition, two brokers, producers with sequences, every interleaving.

What `leaderless.py` shows of commits is taken for granted here and modelled only as far as states of producers depend on it: a commit is
a CAS of control at the version it was decided from; a broker whose reply was lost asks `writers` for its commit number, else sends the
same batches again under that number and a new attempt. Beside it is what `leaderless.py` leaves out: sequences, and gets that a deposed
leader of the store answers.

THE DESIGN (Forebay-pages*). Manifest holds the states of `hot` producers, and names immutable pages, each with states of a range of
producer ids. The state of a producer is what hot says, else what the page says that covers its id, else it is unknown: its first batch
has sequence 0. A commit without room in control for all its states sends [put-if-absent of new pages] + [CAS of control: hot without what
was spilled, pages with the new names and without those they replace] in ONE request. A failing CAS does not stop the put: such a page is
garbage that nobody names. (That states of this very commit are in a page beside its CAS is no harm, as it is with index chunks, F-own:
nobody finds a page but through its name in control, and that name is the maker's own: the key has the version the CAS expects, the
broker's epoch, the number of its commit and the attempt.) A page that control names and a get does not find: the get was stale, or
control was. Read control again; never "the producer is unknown".

DELETION. The maker deletes what it replaced once it knows that its CAS was applied. Anybody sweeps: list, read control (version c, stale
or not), delete pages whose key has a version < c and that control at c does not name: a CAS at a version below c was applied by c, or
never will be.

HOW IT IS MODELLED. A batch is (producer, sequence) and has one record; clients send any batch to any broker at any time, and again, also
when it was acked long ago. A state is how many batches of a producer were appended (all five that Kafka remembers, and their offsets,
follow from it). Manifest keeps its whole history: a get gives any version of it, in any order, and a page that exists may be missing.
(That a deleted page may still be found needs no step of its own: what is decided from it was decided before and is late.) Reading and
sending are one step, as requests may be late. A timeout leaves a request behind that may apply at any time; a broker that dies begins
anew under another epoch, its commit numbers with it. A list may be cut short or old; a delete may be late. A touch is any other CAS of
control. Garbage that no control ever named is left out, where keys are unique: nothing reads it. Which states are spilled is free (any
policy), as are the moments of deletes and sweeps.

THE WAY BEFORE (design='registers'): producers/{pid} has the state of one producer and is overwritten by CAS in the background; a commit
drops from hot what it has read there. Its states go back (F-spill), and with reads in the right order they do wherever a get may be stale
(F-spill-stale).

PROMISES. No batch is appended twice or out of turn, none is acked that was not appended; each page that control names exists; the state
anybody finds from the newest control is the truth; and from everywhere all batches can still be appended and acked.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from model.search import VIOLATION, Result, Search, search

SEQUENCES = 2
Batch = tuple[int, int]
States = tuple[tuple[int, int], ...]


class Key(NamedTuple):
    """producers/{version}-{epoch}-{number}-{attempt}-{part}; a variant may leave some of it out (0). epoch: of the broker."""

    version: int
    epoch: int
    number: int
    attempt: int
    part: int


class Reference(NamedTuple):
    """A page of the producers low..high."""

    low: int
    high: int
    key: Key


class Manifest(NamedTuple):
    """hot: batches appended, by producer (0: not hot). writers: by broker epoch the number and attempt of its last commit.

    appended: how many batches of each producer are in the log. expired: producers that may be forgotten. No broker looks at these two.
    """

    hot: tuple[int, ...]
    pages: tuple[Reference, ...]
    writers: tuple[tuple[int, int], ...]
    appended: tuple[int, ...]
    expired: frozenset[int] = frozenset()


class Request(NamedTuple):
    """Puts of pages, the CAS of control at version `expected`, then deletes. control is None where the CAS can only fail."""

    epoch: int
    is_awaited: bool
    expected: int
    control: Manifest | None
    appends: tuple[Batch, ...] = ()
    puts: tuple[tuple[Key, States], ...] = ()
    deletes: tuple[Key, ...] = ()


class Spill(NamedTuple):
    """A spill of one producer in the background. state: as taken from control; version: what the put expects; -1: not read yet."""

    producer: int
    state: int
    version: int


class Broker(NamedTuple):
    """One lane. batches: of the open commit; unsure: attempts whose outcome it does not know, each with what it would have appended."""

    timeouts: int
    lives: int
    epoch: int
    number: int = 1
    attempt: int = 0
    is_waiting: bool = False
    batches: tuple[Batch, ...] = ()
    unsure: tuple[tuple[int, tuple[Batch, ...]], ...] = ()
    spill: Spill | None = None


class State(NamedTuple):
    """manifests: all there ever were, by version. registers: the same of each producers/{pid}. wrong: a promise broken."""

    manifests: tuple[Manifest, ...]
    pages: frozenset[tuple[Key, States]]
    registers: tuple[tuple[int, ...], ...]
    network: frozenset[Request]
    brokers: tuple[Broker, ...]
    touches: int
    expiries: int
    wrong: str = ""


Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Variant:
    """A way to spill. `about` says what is in it, or what breaks it."""

    name: str
    about: str
    expect: str = "OK"
    design: str = "pages"  # pages | registers
    key: str = "all"  # what makes the key of a page: all | epoch and number | no number | no attempt | version
    overwrites: bool = False  # pages are put whatever is there
    absent: str = "read again"  # a page that is not found: read again | unknown producer
    deletes: str = "after"  # replaced pages are deleted after the CAS is known applied | beside it
    sweep: str = "below"  # of what control at c does not name, pages with a version below c | up to c | any
    keeps_copies: bool = True  # a page written anew keeps older states of producers that are hot
    order: str = "state first"  # registers: what a spill reads first: its state | the version it will replace
    stale: bool = True  # gets may be stale
    expiry: str = ""  # page: dropped whole when all in it that are not hot are gone for good | hot: a hot state is dropped alone
    hot_max: int = 1
    page_max: int = 2
    gather: int = 1  # batches in a commit
    producers: int = 2
    timeouts: tuple[int, ...] = (1, 1)  # of each broker
    lives: tuple[int, ...] = (1, 1)
    touches: int = 0
    is_reduced: bool = True  # what no longer matters is left out of the states
    reaches: tuple[str, ...] = ()


# Store and promises


def apply(v: Variant, s: State, r: Request) -> tuple[State, bool]:
    """The server: puts, then the CAS, then deletes; each on its own condition. Did the CAS apply?"""
    pages = dict(s.pages)
    for key, states in r.puts:
        if v.overwrites or key not in pages:
            pages[key] = states
    after = s._replace(network=s.network - {r})
    has_won = r.control is not None and r.expected == len(s.manifests) - 1
    if has_won and r.control is not None:
        appended = list(s.manifests[-1].appended)
        for producer, sequence in r.appends:
            if sequence != appended[producer]:
                after = after._replace(
                    wrong=f"{name(producer, sequence)} is appended {'twice' if sequence < appended[producer] else 'out of turn'}"
                )
            appended[producer] = sequence + 1
        after = after._replace(manifests=(*s.manifests, r.control._replace(appended=tuple(appended))))
    for key in r.deletes:
        pages.pop(key, None)
    return after._replace(pages=frozenset(pages.items())), has_won


def acked(s: State, batches: Iterable[Batch]) -> State:
    """These are acknowledged as appended."""
    lies = [name(p, n) for p, n in batches if n >= s.manifests[-1].appended[p]]
    return s._replace(wrong=f"{lies[0]} is acked and was never appended") if lies else s


def name(producer: int, sequence: int) -> str:
    return f"p{producer}:{sequence}"


def covering(c: Manifest, producer: int) -> Reference | None:
    return next((page for page in c.pages if page.low <= producer <= page.high), None)


def found(s: State, c: Manifest, producer: int) -> int | None:
    """The state that control and the store give when no get is stale; None if the page is not there."""
    if c.hot[producer] or s.registers:
        return c.hot[producer] or s.registers[producer][-1]
    page = covering(c, producer)
    states = () if page is None else dict(s.pages).get(page.key)
    return None if states is None else dict(states).get(producer, 0)


def broken_promise(v: Variant, s: State) -> str | None:
    c = s.manifests[-1]
    if s.wrong:
        return s.wrong
    there = dict(s.pages)
    for page in c.pages:
        if page.key not in there:
            return f"control names {shown(page.key)}, which is gone"
    for producer, appended in enumerate(c.appended) if v.expect != VIOLATION or v.expiry else ():
        state = found(s, c, producer)
        if state != appended and not (state == 0 and producer in c.expired):
            return f"p{producer} has {appended} batches in the log, its state says {state}"
    return None


def is_done(s: State) -> bool:
    """All is appended that clients still want; the store finds its states (see above), so that all can be acked."""
    c = s.manifests[-1]
    return all(appended == SEQUENCES or producer in c.expired for producer, appended in enumerate(c.appended))


def situations(s: State) -> Iterator[str]:
    c, there = s.manifests[-1], dict(s.pages)
    once = {page.key for old in s.manifests[:-1] for page in old.pages} - {page.key for page in c.pages}
    if once & set(there):
        yield "a page was replaced"
    if once - set(there):
        yield "an old control names a page that was deleted"
    if len(c.pages) > 1:
        yield "two pages"
    if any(c.hot[producer] for page in c.pages for producer, _ in there.get(page.key, ())):
        yield "an older state of a hot producer in a page"
    if any(len(broker.unsure) > 1 for broker in s.brokers):
        yield "two attempts unknown"
    if any(
        broker.unsure and not broker.is_waiting and c.writers[broker.epoch] == (broker.number, broker.unsure[0][0]) for broker in s.brokers
    ):
        yield "applied, and its broker does not know"


# Brokers


def with_broker(s: State, i: int, broker: Broker, **changes: object) -> State:
    return s._replace(brokers=(*s.brokers[:i], broker, *s.brokers[i + 1 :]), **changes)  # type: ignore[arg-type]


def next_commit(s: State, i: int) -> State:
    b = s.brokers[i]
    return with_broker(s, i, Broker(b.timeouts, b.lives, b.epoch, b.number + 1, spill=b.spill))


def readable(v: Variant, s: State) -> range:
    """Versions of control that a get may give."""
    return range(0 if v.stale else len(s.manifests) - 1, len(s.manifests))


def offers(v: Variant, s: State) -> Iterator[tuple[Batch, ...]]:
    """What clients may send."""
    single = [(p, n) for p in range(v.producers) for n in range(SEQUENCES) if p not in s.manifests[-1].expired]
    for size in range(1, v.gather + 1):
        yield from combinations(single, size)


def broker_steps(v: Variant, s: State) -> Steps:
    for i, b in enumerate(s.brokers):
        if b.is_waiting:
            request = next(r for r in s.network if r.epoch == b.epoch and r.is_awaited)
            network = s.network - {request} | {request._replace(is_awaited=False)}
            if b.timeouts:
                unsure = (*b.unsure, (b.attempt, request.appends))
                doubting = b._replace(timeouts=b.timeouts - 1, attempt=b.attempt + 1, is_waiting=False, unsure=unsure)
                yield f"b{i} TIMEOUT", with_broker(s, i, doubting, network=network)
            if b.lives > 1:
                yield f"b{i} DIES, begins anew", with_broker(s, i, Broker(b.timeouts, b.lives - 1, b.epoch + 1), network=network)
            continue
        for version in readable(v, s):
            c, old = s.manifests[version], f" {version} (stale)" if version + 1 < len(s.manifests) else f" {version}"
            applied = [batches for attempt, batches in b.unsure if c.writers[b.epoch] == (b.number, attempt)]
            if applied:
                yield f"b{i} reads control{old}: its commit was applied, acks", acked(next_commit(s, i), applied[0])
                continue
            for batches in [b.batches] if b.batches else offers(v, s):
                for label, after in attempts(v, s, i, version, batches):
                    yield f"b{i} reads control{old}{label}", after


def attempts(v: Variant, s: State, i: int, version: int, batches: tuple[Batch, ...]) -> Steps:
    """What may come of deciding these batches from control at this version."""
    b, c = s.brokers[i], s.manifests[version]
    for read, states in stored(v, s, c, {producer for producer, _ in batches if not c.hot[producer]}):
        counts = {p: c.hot[p] or states.get(p, 0) for p, _ in batches}
        appends, repeated = [], []
        for producer, sequence in batches:
            if sequence == counts[producer]:
                counts[producer] += 1
                appends.append((producer, sequence))
            elif sequence < counts[producer]:
                repeated.append((producer, sequence))
        if not appends:
            if repeated or b.unsure:
                yield f"{read}: finds {names(repeated)} appended before, acks", acked(next_commit(s, i) if b.unsure else s, repeated)
            continue
        hot = list(c.hot)
        for producer, _ in appends:
            hot[producer] = counts[producer]
        writers = (*c.writers[: b.epoch], (b.number, b.attempt), *c.writers[b.epoch + 1 :])
        new = c._replace(hot=tuple(hot), writers=writers)
        for made, control, puts in rooms(v, s, version, new, b):
            kept = {page.key for page in control.pages}
            deletes = tuple(page.key for page in c.pages if page.key not in kept) if v.deletes == "beside" else ()
            request = Request(b.epoch, True, version, control, tuple(appends), puts, deletes)
            waiting = b._replace(is_waiting=True, batches=batches)
            label = f"{read}, sends commit of {names(appends)}{made}"
            yield label, with_broker(acked(s, ()), i, waiting, network=s.network | {request})


def names(batches: Iterable[Batch]) -> str:
    return " ".join(name(*batch) for batch in batches) or "nothing"


def shown(key: Key) -> str:
    return "page " + "-".join(map(str, key))


def stored(v: Variant, s: State, c: Manifest, producers: set[int]) -> Iterator[tuple[str, dict[int, int]]]:
    """States of producers that control does not hold, as gets may give them."""
    if v.design == "registers":
        yield from registered(v, s, tuple(sorted(producers)))
        return
    there, states = dict(s.pages), dict[int, int]()
    keys = {page.key for p in producers if (page := covering(c, p)) is not None}
    for key in keys & set(there):
        states.update(there[key])
    if keys <= set(there):
        yield "".join(f" and {shown(key)}" for key in sorted(keys)), states
    if v.absent == "unknown producer" and keys:
        yield "".join(f", does not find {shown(key)}" for key in sorted(keys)), {}


def registered(v: Variant, s: State, producers: tuple[int, ...]) -> Iterator[tuple[str, dict[int, int]]]:
    if not producers:
        yield "", {}
        return
    producer, history = producers[0], s.registers[producers[0]]
    for label, states in registered(v, s, producers[1:]):
        for version in range(0 if v.stale else len(history) - 1, len(history)):
            stale = " (stale)" if version + 1 < len(history) else ""
            yield f" and producers/{producer}: {history[version]}{stale}{label}", {producer: history[version], **states}


def rooms(v: Variant, s: State, version: int, new: Manifest, b: Broker) -> Iterator[tuple[str, Manifest, tuple[tuple[Key, States], ...]]]:
    """The ways to keep control small enough: any choice of what leaves it. version: of the control this was decided from."""
    c = s.manifests[version]
    hot = [p for p, count in enumerate(new.hot) if count]
    excess = len(hot) - v.hot_max
    if excess <= 0:
        yield "", new, ()
    elif v.design == "registers":
        for leaving in combinations(hot, excess):
            for read, states in stored(v, s, c, set(leaving)):
                if all(new.hot[p] == c.hot[p] == states[p] for p in leaving):
                    yield f"{read}, drops {producers_shown(leaving)}", without(new, leaving), ()
        yield ", finds no room", new, ()  # and goes beyond it: a background spill will be asked for
    else:
        for leaving in combinations(hot, excess):
            if (made := page_puts(v, s, version, new, leaving, b)) is not None:
                pages, puts = made
                to = ", ".join(shown(key) for key, _ in puts)
                yield f", spills {producers_shown(leaving)} to {to}", without(new, leaving)._replace(pages=pages), puts


def producers_shown(producers: Iterable[int]) -> str:
    return " ".join(f"p{producer}" for producer in producers)


def without(c: Manifest, leaving: tuple[int, ...]) -> Manifest:
    return c._replace(hot=tuple(0 if p in leaving else count for p, count in enumerate(c.hot)))


def page_puts(
    v: Variant, s: State, version: int, new: Manifest, leaving: tuple[int, ...], b: Broker
) -> tuple[tuple[Reference, ...], tuple[tuple[Key, States], ...]] | None:
    """References and puts of the pages that take in what leaves; None if a page to be replaced is not found."""
    there, c = dict(s.pages), s.manifests[version]
    part, puts, references = 0, list[tuple[Key, States]](), list[Reference]()
    for low, high, old in ranges(v, c):
        mine = {p: new.hot[p] for p in leaving if low <= p <= high}
        if not mine:
            if old is not None:
                references.append(old)
            continue
        if old is not None and old.key not in there and v.absent == "read again":
            return None
        before = dict(there.get(old.key, ())) if old is not None else {}
        if not v.keeps_copies:
            before = {p: count for p, count in before.items() if not new.hot[p]}
        states = sorted((before | mine).items())
        pieces = [tuple(states[at : at + v.page_max]) for at in range(0, len(states), v.page_max)]
        lows = [low, *(piece[0][0] for piece in pieces[1:])]
        highs = [*(begin - 1 for begin in lows[1:]), high]
        for piece, first, last in zip(pieces, lows, highs, strict=True):
            key = key_of(v, version, b, part)
            part += 1
            puts.append((key, piece))
            references.append(Reference(first, last, key))
    return tuple(references), tuple(puts)


def ranges(v: Variant, c: Manifest) -> Iterator[tuple[int, int, Reference | None]]:
    """All producer ids, in order: those of each page, and those between pages."""
    low = 0
    for page in c.pages:
        if low < page.low:
            yield low, page.low - 1, None
        yield page.low, page.high, page
        low = page.high + 1
    if low < v.producers:
        yield low, v.producers - 1, None


def key_of(v: Variant, version: int, b: Broker, part: int) -> Key:
    whole = Key(version, b.epoch, b.number, b.attempt, part)
    match v.key:
        case "all":
            return whole
        case "epoch and number":
            return whole._replace(version=0, attempt=0)
        case "no number":
            return whole._replace(number=0)
        case "no attempt":
            return whole._replace(attempt=0)
        case "version":
            return Key(version, 0, 0, 0, part)
    raise ValueError(f"no such key: {v.key!r}")


def network_steps(v: Variant, s: State) -> Steps:
    for r in s.network:
        after, has_won = apply(v, s, r)
        late = "" if r.is_awaited else "late "
        label = f"{late}request of epoch {r.epoch}: {'CAS applied' if has_won else 'CAS refused'}, control is at {len(after.manifests) - 1}"
        if r.is_awaited:
            i, b = next((i, b) for i, b in enumerate(s.brokers) if b.epoch == r.epoch)
            if has_won:
                after = acked(next_commit(after, i), r.appends)
            else:
                ready = b._replace(is_waiting=False, batches=b.batches if b.unsure else (), attempt=b.attempt if b.unsure else 0)
                after = with_broker(after, i, ready)
        yield label, after


# Upkeep


def upkeep_steps(v: Variant, s: State) -> Steps:
    c, current = s.manifests[-1], len(s.manifests) - 1
    if s.touches:
        yield "another CAS of control", s._replace(manifests=(*s.manifests, c), touches=s.touches - 1)
    named = [{page.key for page in control.pages} for control in s.manifests]
    for key, states in sorted(s.pages):
        after = s._replace(pages=s.pages - {(key, states)})
        if key not in named[-1] and any(key in names for names in named[:-1]):
            yield f"who replaced {shown(key)} knows that it has, and deletes it", after
        bound = {"below": key.version + 1, "up to": key.version, "any": 0, "never": current + 1}[v.sweep]
        for version in range(bound, current + 1) if v.stale else [current] if current >= bound else []:
            if key not in named[version]:
                yield f"a sweep lists {shown(key)}, does not find it in control {version}, deletes it", after


def expiry_steps(v: Variant, s: State) -> Steps:
    """Drop what is a day old: states of producers of which no batch is under way anywhere, nor will be."""
    c = s.manifests[-1]
    held = {p for b in s.brokers for p, _ in b.batches} | {p for r in s.network for p, _ in r.appends}
    if not s.expiries:
        return
    there = dict(s.pages)
    for page in c.pages if v.expiry == "page" else ():
        gone = {p for p, _ in there.get(page.key, ()) if not c.hot[p]}
        if not gone & held:
            kept = tuple(other for other in c.pages if other != page)
            new = c._replace(pages=kept, expired=c.expired | gone)
            yield f"{shown(page.key)} expires", s._replace(manifests=(*s.manifests, new), expiries=0)
    for producer in range(v.producers) if v.expiry == "hot" else ():
        if c.hot[producer] and producer not in held:
            new = without(c, (producer,))._replace(expired=c.expired | {producer})
            yield f"hot state of p{producer} expires", s._replace(manifests=(*s.manifests, new), expiries=0)


def spill_steps(v: Variant, s: State) -> Steps:
    """Spills in the background, as they were: two reads in either order, then a CAS of producers/{pid}."""
    for i, b in enumerate(s.brokers) if v.design == "registers" else ():
        spill = b.spill
        for job in [spill] if spill is not None else [Spill(p, -1, -1) for p in range(v.producers)]:
            history = s.registers[job.producer]
            if job.state < 0 and (v.order == "state first" or job.version >= 0):
                for version in readable(v, s):
                    state = s.manifests[version].hot[job.producer]
                    stale = " (stale)" if version + 1 < len(s.manifests) else ""
                    if state:
                        label = f"b{i} spills p{job.producer}: takes state {state} from control {version}{stale}"
                        yield label, with_broker(s, i, b._replace(spill=job._replace(state=state)))
            elif job.version < 0:
                for version in range(0 if v.stale else len(history) - 1, len(history)):
                    stale = " (stale)" if version + 1 < len(history) else ""
                    label = f"b{i} spills p{job.producer}: reads version {version}{stale} of producers/{job.producer}"
                    yield label, with_broker(s, i, b._replace(spill=job._replace(version=version)))
            else:
                has_won = job.version == len(history) - 1
                longer = (*history, job.state) if has_won else history
                registers = (*s.registers[: job.producer], longer, *s.registers[job.producer + 1 :])
                label = f"b{i} puts state {job.state} to producers/{job.producer}{'' if has_won else ': refused'}"
                yield label, with_broker(s, i, b._replace(spill=None), registers=registers)


# The search


def canonical(v: Variant, s: State) -> State:
    """The same state without what no longer matters (HOW IT IS MODELLED says why): requests that can only fail, lost attempts, garbage."""
    if s.wrong or v.key != "all" or v.deletes == "beside" or not v.is_reduced:
        return s
    current = len(s.manifests) - 1
    brokers = s.brokers
    for r in s.network:
        if r.expected < current and r.is_awaited:
            brokers = tuple(b._replace(is_waiting=False) if b.epoch == r.epoch else b for b in brokers)
    network = frozenset(r for r in s.network if r.expected == current)
    ever = {page.key for control in s.manifests for page in control.pages}
    pages = frozenset((key, states) for key, states in s.pages if key in ever)
    return s._replace(network=network, pages=pages, brokers=tuple(forgetful(s, b, network) for b in brokers))


def forgetful(s: State, b: Broker, network: frozenset[Request]) -> Broker:
    """The broker without attempts that lost. If none is left it is as if its commit had not begun."""
    known = {control.writers[b.epoch] for control in s.manifests} | {
        r.control.writers[b.epoch] for r in network if r.control and r.epoch == b.epoch
    }
    unsure = tuple((attempt, batches) for attempt, batches in b.unsure if (b.number, attempt) in known)
    if unsure or b.is_waiting:
        return b._replace(unsure=unsure)
    return Broker(b.timeouts, b.lives, b.epoch, b.number, spill=b.spill)


def start(v: Variant) -> State:
    none = (0,) * v.producers
    control = Manifest(none, (), ((0, 0),) * sum(v.lives), none)
    brokers = tuple(Broker(timeouts, v.lives[i], sum(v.lives[:i])) for i, timeouts in enumerate(v.timeouts))
    registers = ((0,),) * v.producers if v.design == "registers" else ()
    return State((control,), frozenset(), registers, frozenset(), brokers, v.touches, 1 if v.expiry else 0)


def explore(v: Variant, *, states_max: int) -> Result:
    processes: tuple[Callable[[Variant, State], Steps], ...] = (broker_steps, network_steps, upkeep_steps, expiry_steps, spill_steps)

    def following(s: State) -> list[tuple[str, State]]:
        return [(label, canonical(v, after)) for process in processes for label, after in process(v, s)]

    return search(
        Search(
            start=start(v),
            following=following,
            broken=lambda s: broken_promise(v, s),
            stuck=lambda _: None,
            backwards=lambda _before, _label, _after: None,
            situations=situations,
            reaches=frozenset(v.reaches),
            goal=is_done,
        ),
        states_max=states_max,
    )
