"""All that can happen to a topic, within bounds: the real TopicChanges of a few brokers over one store, every order of their requests, and
every fault of every request. A run is a list of choices; the search repeats runs with the next list until there is none.

Bounds: `switches` changes from a broker that could go on to another one, and `faults`: a request that is lost, applied without a reply, or
late (it arrives at any later moment); a broker that dies with its request sent, applied, or not; a read that an older state answers.
"""

import contextlib
import functools
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from storage.catalog.topic import Topic, TopicChanges, TopicState, decode_topic, decode_topic_id
from storage.errors import AlreadyExists, OutcomeUnknown, StorageError
from storage.formats.manifest import LogState, decode_manifest
from storage.metadata import keys
from storage.metadata.memory import Shard
from storage.metadata.port import Applied, DeleteRange, Key, MetadataStore, Put, Record, Unknown, WriteOp, WriteOutcome
from storage.vocabulary import TopicId

NAME: Final = "t"


class Wrong(AssertionError):
    """What must never be seen."""


@dataclass(eq=False)
class Request:
    """Of one broker, under way. Exactly one of the two is set."""

    write: Sequence[WriteOp] | None = None
    read: Sequence[Key] | None = None

    def __await__(self) -> Generator["Request", Any, Any]:
        return (yield self)


class BrokerMetadata:
    """What TopicChanges needs of a store."""

    def shard_of(self, _: str) -> int:
        return 0

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        outcome: WriteOutcome = await Request(write=ops)
        return outcome

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        found: list[Record | None] = await Request(read=wanted)
        return found


Program = Callable[["World", "Actor"], Coroutine[Any, Any, None]]
Option = tuple[str, "Actor | int", Any]


@dataclass(eq=False)
class Actor:
    """A broker that carries out a program."""

    number: int
    changes: TopicChanges
    steps: Coroutine[Request | None, Any, None] | None = None
    request: Request | None = None


@dataclass(eq=False)
class World:
    """`make_changes` is the implementation to judge."""

    make_changes: Callable[[MetadataStore], TopicChanges]
    shard: Shard = field(default_factory=Shard)
    past: list[dict[str, Record]] = field(default_factory=list)
    late: list[Sequence[WriteOp]] = field(default_factory=list)
    trace: list[tuple[str, Request | Sequence[WriteOp]]] = field(default_factory=list)
    ids: int = 0
    created: list[Topic] = field(default_factory=list)
    refused: set[TopicId] = field(default_factory=set)
    """Ids of creations that were said not to have happened."""
    deletion_begun: set[TopicId] = field(default_factory=set)
    deleted: set[TopicId] = field(default_factory=set)
    grown: dict[TopicId, int] = field(default_factory=dict)

    # What brokers do.

    async def create(self, actor: Actor) -> Topic | None:
        proposed: list[Topic] = []

        def propose() -> Topic:
            self.ids += 1
            proposed.append(
                Topic(
                    name=NAME,
                    topic_id=TopicId(f"id-{self.ids}"),
                    partition_count=1,
                    replication_factor=1,
                    configs={},
                    state=TopicState.CREATING,
                    created_at_ms=0,
                )
            )
            return proposed[-1]

        try:
            topic = await actor.changes.create(NAME, propose)
        except OutcomeUnknown:
            return None
        except StorageError as error:
            if isinstance(error, AlreadyExists) and self.holder() is None and not self.late and len(self.past) == 1:
                raise Wrong("a name that nobody ever had exists already") from error
            self.refused.update(one.topic_id for one in proposed)
            return None
        self.created.append(topic)
        return topic

    async def delete(self, actor: Actor, topic: Topic) -> None:
        self.deletion_begun.add(topic.topic_id)
        with contextlib.suppress(StorageError):
            await actor.changes.delete(topic)
            self.deleted.add(topic.topic_id)

    async def grow(self, actor: Actor, topic: Topic, count: int) -> None:
        with contextlib.suppress(StorageError):
            await actor.changes.add_partitions(topic, count)
            self.grown[topic.topic_id] = count

    # What there is.

    def holder(self) -> Topic | None:
        record = self.shard.records.get(keys.topic(NAME).path)
        return None if record is None else _topic_in(record)

    def check(self) -> None:
        """Of every state."""
        holder = self.holder()
        logs: dict[tuple[TopicId, int], LogState] = {}
        for path, record in self.shard.records.items():
            if (at := _partition_at(path)) is not None:
                logs[at] = _state_in(record.value)
        for (topic_id, partition), state in logs.items():
            if state is LogState.OPEN and (holder is None or holder.topic_id != topic_id or partition >= holder.logs_max):
                raise Wrong(f"an open log that belongs to nobody: {topic_id}/{partition}")
        if holder is None or holder.state is not TopicState.ACTIVE:
            return
        if holder.topic_id in self.deleted:
            raise Wrong(f"a deleted topic is back: {holder.topic_id}")
        if holder.topic_id in self.refused:
            raise Wrong(f"a creation that was said not to have happened did: {holder.topic_id}")
        for partition in range(holder.partition_count):
            if logs.get((holder.topic_id, partition)) is not LogState.OPEN:
                raise Wrong(f"a partition without an open log: {holder.topic_id}/{partition}")
        named = self.shard.records.get(keys.topic_id(holder.topic_id).path)
        if named is None or decode_topic_id(named).is_deleted:
            raise Wrong(f"a topic that is not found by its id: {holder.topic_id}")

    def check_end(self) -> None:
        """When every broker is done or dead and nothing is on its way."""
        holder = self.holder()
        active = holder if holder is not None and holder.state is TopicState.ACTIVE else None
        for topic in self.created:
            if topic.topic_id not in self.deletion_begun and (active is None or active.topic_id != topic.topic_id):
                raise Wrong(f"a created topic is gone: {topic.topic_id}")
        for topic_id in self.deleted:
            record = self.shard.records.get(keys.topic_id(topic_id).path)
            if record is None or not decode_topic_id(record).is_deleted:
                raise Wrong(f"nothing says that it was deleted: {topic_id}")
        for topic_id, count in self.grown.items():
            if active is not None and active.topic_id == topic_id and active.partition_count < count:
                raise Wrong(f"added partitions are gone: {topic_id}")

    def end(self) -> object:
        """What decides how it goes on from here."""
        records = frozenset((path, record.value) for path, record in self.shard.records.items())
        return records, frozenset(self.refused), frozenset(self.deleted), frozenset(self.grown.items())

    # How it goes on.

    def actor(self, number: int, program: Program) -> Actor:
        actor = Actor(number, self.make_changes(BrokerMetadata()))  # type: ignore[arg-type]
        actor.steps = program(self, actor)
        self.resume(actor, None)
        return actor

    def resume(self, actor: Actor, answer: object) -> None:
        assert actor.steps is not None
        try:
            while (asked := actor.steps.send(answer)) is None:
                answer = None  # a pause of no time: entropy is all zeros
            actor.request = asked
        except StopIteration:
            actor.request = None

    def apply(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        outcome = Applied(self.shard.apply(ops, lambda _: False, None))
        self.past.append(dict(self.shard.records))
        self.check()
        return outcome

    def answers(self, wanted: Sequence[Key]) -> list[list[Record | None]]:
        """What a read may be answered: what is there now, then what was there before, without repeats."""
        found: list[list[Record | None]] = []
        for state in (self.shard.records, *reversed(self.past)):
            answer = [state.get(key.path) for key in wanted]
            if answer not in found:
                found.append(answer)
        return found

    def options(self, actors: Sequence[Actor], current: Actor | None, *, switches: int, faults: int) -> list[Option]:
        """What may happen next; the first is that nothing special does."""
        ready = [actor for actor in actors if actor.request is not None]
        if current in ready and current is not None:
            ready.remove(current)
            ready = [current, *(ready if switches else [])]
        found: list[Option] = []
        for actor in ready:
            assert actor.request is not None
            if actor.request.write is not None:
                found.append(("write", actor, None))
                if faults:
                    found += [(kind, actor, None) for kind in ("lost", "reply lost", "late", "dies", "dies late", "dies written")]
            else:
                assert actor.request.read is not None
                newest, *older = self.answers(actor.request.read)
                found.append(("read", actor, newest))
                if faults:
                    found += [("read old", actor, answer) for answer in older]
        return found + [("arrives", number, None) for number in range(len(self.late))]

    def take(self, option: Option) -> None:
        kind, what, answer = option
        if isinstance(what, int):
            self.trace.append(("a late request arrives", self.late[what]))
            self.apply(self.late.pop(what))
            return
        assert what.request is not None
        asked = what.request
        self.trace.append((f"broker {what.number} {kind}", asked))
        ops = asked.write or ()
        match kind:
            case "write":
                self.resume(what, self.apply(ops))
            case "read" | "read old":
                self.resume(what, answer)
            case "lost":
                self.resume(what, Unknown("lost"))
            case "reply lost":
                self.apply(ops)
                self.resume(what, Unknown("reply lost"))
            case "late":
                self.late.append(ops)
                self.resume(what, Unknown("late"))
            case _:
                if kind == "dies written":
                    self.apply(ops)
                elif kind == "dies late":
                    self.late.append(ops)
                assert what.steps is not None
                what.steps.close()
                what.request = None


COSTS: Final = {"lost", "reply lost", "late", "dies", "dies late", "dies written", "read old"}


@dataclass
class Explored:
    runs: int = 0
    ends: int = 0


def explore(
    programs: Sequence[Program],
    *,
    switches: int,
    faults: int,
    make_changes: Callable[[MetadataStore], TopicChanges],
    before: Program | None = None,
) -> Explored:
    """Every run of `programs` within the bounds, each followed by a broker that finds the name and uses it. Raises `Wrong` with the run."""
    explored = Explored()
    ends: set[object] = set()
    for choices in _lists_of_choices():
        world = World(make_changes)
        try:
            _run(world, programs, choices, switches=switches, faults=faults, before=before)
            if (end := world.end()) not in ends:
                ends.add(end)
                _alone(world, _uses_the_name)
                world.check_end()
        except Wrong as wrong:
            raise Wrong(f"{wrong}\n  " + "\n  ".join(f"{who}: {_said(what)}" for who, what in world.trace)) from wrong
        explored.runs += 1
        explored.ends = len(ends)
    return explored


class Choices:
    """The choices of one run: those given, then always the first."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.counts: list[int] = []

    def choose(self, count: int) -> int:
        place = len(self.counts)
        self.counts.append(count)
        if place == len(self.given):
            self.given.append(0)
        return self.given[place]

    def advance(self) -> bool:
        """To the next list, in the order of a search in depth. False if that was the last."""
        while self.given:
            if self.given[-1] + 1 < self.counts[len(self.given) - 1]:
                self.given[-1] += 1
                self.counts.clear()
                return True
            self.given.pop()
        return False


def _lists_of_choices() -> Iterator[Choices]:
    choices = Choices()
    yield choices
    while choices.advance():
        yield choices


def _run(world: World, programs: Sequence[Program], choices: Choices, *, switches: int, faults: int, before: Program | None) -> None:
    if before is not None:
        _alone(world, before)
    world.past = [dict(world.shard.records)]
    actors = [world.actor(number, program) for number, program in enumerate(programs, 1)]
    current: Actor | None = None
    while True:
        options = world.options(actors, current, switches=switches, faults=faults)
        if not options:
            break
        taken = options[choices.choose(len(options))]
        if isinstance(taken[1], Actor):
            if current is not None and current is not taken[1] and current.request is not None:
                switches -= 1
            current = taken[1]
        faults -= taken[0] in COSTS
        world.take(taken)
    world.check_end()


def _alone(world: World, program: Program) -> None:
    actor = world.actor(0, program)
    while (asked := actor.request) is not None:
        if asked.write is not None:
            world.trace.append(("broker 0", asked))
            world.resume(actor, world.apply(asked.write))
        else:
            world.resume(actor, world.answers(asked.read or ())[0])


async def _uses_the_name(world: World, actor: Actor) -> None:
    """The name is free or has a topic that works; that can be deleted, and the name is free again."""
    fresh = await world.create(actor)
    found = world.holder()
    if found is None or found.state is not TopicState.ACTIVE:
        raise Wrong(f"a name of which nothing can be made: {found}")
    if fresh is not None and found.topic_id != fresh.topic_id:
        raise Wrong(f"another topic than the one that was created: {found.topic_id}")
    await world.grow(actor, found, 3)
    await world.delete(actor, found)
    if found.topic_id not in world.deleted or world.holder() is not None:
        raise Wrong(f"a topic that cannot be deleted: {found.topic_id}")
    if await world.create(actor) is None:
        raise Wrong("a name that is not free")


@functools.cache
def _partition_at(path: str) -> tuple[TopicId, int] | None:
    at = keys.partition_of_manifest(path)
    return None if at is None else (at.topic_id, at.partition)


@functools.cache
def _state_in(value: bytes) -> LogState:
    return decode_manifest(value, path="").log_state


@functools.cache
def _topic_in(record: Record) -> Topic:
    return decode_topic(record)


def _said(what: Request | Sequence[WriteOp]) -> str:
    if isinstance(what, Request) and what.read is not None:
        return ", ".join(key.path for key in what.read)
    ops = (what.write or ()) if isinstance(what, Request) else what
    return "; ".join(f"{type(op).__name__} {_key(op)} {op.value.decode()[:160] if isinstance(op, Put) else ''}" for op in ops)


def _key(op: WriteOp) -> str:
    return op.start.path if isinstance(op, DeleteRange) else op.key.path
