"""One seed: its cluster, its clients, its nemesis, and the verdict."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from structlog.testing import capture_logs

from runtime.ids import IdSource
from sim.admin import Admin
from sim.broker import ConnectionLost, Ground, Place, Serving, SimBroker
from sim.check import Log, RememberedProducers, Stored, check, forgotten
from sim.compactor import DUTIES, DUTY_NAMES, SimCompactor, SimPurge
from sim.faults import FaultPlan, ObjectFaults
from sim.fsck import Floor, fsck, left_behind, unlike_their_objects
from sim.history import History
from sim.loop import Deadlock, OrderedNursery, VirtualClock, VirtualLoop, no_collection_of_cycles, stable_order
from sim.metadata import Shards
from sim.nemesis import Nemesis, Restoring
from sim.objects import KeptObjects
from sim.producers import IdempotentProducer, Producer
from sim.readers import EndAsker, SimReader
from sim.themes import Crowd, Theme, theme_of
from sim.upkeep import LastUpkeep
from storage.catalog.collections import Deletions
from storage.catalog.topics import Topic, Topics
from storage.formats.manifest import Manifest, decode_manifest
from storage.log.flush import NO_EARLY, EarlySettings
from storage.log.page_store import ActiveProducer
from storage.log.partition import AGE_S_MAX
from storage.metadata.memory import MemoryMetadataStore, SharedRecords
from storage.vocabulary import PartitionId

STEADY: Final = "steady"
FLEETING: Final = "fleeting"
LIVENESS_S: Final = 150.0
"""After the last fault everything is answered and read within this: the longest client timeout, and a commit's (30 s) twice."""
SERVED_S: Final = 40.0
"""Then any broker serves all of it within this."""
ASKED_MAX: Final = 20
PURGES_MAX: Final = 100
SHARDS: Final = (1, 2, 2, 4)
ALARMS: Final = frozenset({"data_damaged", "data_missing"})
ALL_EARLY: Final = EarlySettings(1_000_000.0)
COMPACTORS: Final = (0, 0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    faults: str = "usual"
    brokers: int | None = None
    """None: 2 to 4, by the seed."""
    theme: str | None = None
    """None: by the seed."""
    compactors: int | None = None
    """None: 0 to 3, by the seed."""
    duties: str | None = None
    """A name in sim.compactor.DUTIES; None: by the seed."""


@dataclass(frozen=True, slots=True)
class Report:
    """`violations` is what the log did wrong; `digest` names the run: equal seeds have equal digests."""

    seed: int
    violations: list[str]
    digest: str
    turns: int
    virtual_s: float
    appends: int
    reads: int


def run_seed(plan: Plan, *, show: Callable[[str], None] | None = None) -> Report:
    """Must not be called from a running loop. `show` is given every line of the trace."""
    chance = random.Random(f"forebay {plan.seed} {plan.faults}")
    loop = VirtualLoop()
    history = History(loop, show=show)

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        history.violation(f"loop: {context.get('message')} {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    theme = theme_of(chance, plan.faults, name=plan.theme)
    with contextlib.ExitStack() as stack:
        logged = stack.enter_context(capture_logs())
        stack.enter_context(no_collection_of_cycles())
        stack.enter_context(stable_order())
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
        world = _World(plan, theme, chance, history, loop)
        try:
            runner.run(world.run())
        except Deadlock as error:
            history.violation(f"deadlock: {error}")
        world.judge_alarms(logged)
    appends = sum(sent.acked is not None for sent in history.sent)
    return Report(plan.seed, history.violations, history.digest(), history.turns, loop.time(), appends, len(history.seen))


def early_of(seed: int) -> tuple[EarlySettings, ...]:
    """What the brokers of a seed commit before their object is stored, in turn: nothing in one seed of three."""
    if not seed % 3:
        return (NO_EARLY,)
    chance = random.Random(f"early {seed}")
    budgets = chance.choice(((1_000_000.0,), (20_000.0, 1_000_000.0), (0.0, 20_000.0, 1_000_000.0)))
    return tuple([EarlySettings(per_s, wait_max_s=chance.choice((0.0, 0.02, 0.1))) for per_s in budgets])


class _World:
    def __init__(self, plan: Plan, theme: Theme, chance: random.Random, history: History, loop: VirtualLoop) -> None:
        self._theme = theme
        self._chance = chance
        self._history = history
        self._loop = loop
        self._seed = plan.seed
        self._count = plan.brokers or chance.randint(2, 4)
        self._clock = VirtualClock(loop)
        records = SharedRecords(clock=self._clock, shards=chance.choice(SHARDS))
        self._metadata = MemoryMetadataStore(clock=self._clock, shared=records)
        self._records = records
        self._shards = Shards(records, self._metadata, loop, history.violation)
        self._shards.retention.trimmed = history.trimmed
        self._objects = KeptObjects(clock=self._clock)
        self._brokers: list[SimBroker] = []
        self._lives = 0
        self._ids = IdSource(clock=self._clock, entropy=chance.randbytes)
        self._partition_count = chance.randint(4, 8) if theme.is_wide else chance.randint(1, 2)
        self._places = [Place(STEADY, number) for number in range(self._partition_count)]
        self._producer_ids: set[int] = set()
        self._producers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[tuple[SimReader, asyncio.Task[None]]] = []
        # Drawn apart: seeds without compactors are what they were.
        apart = random.Random(f"compactors {plan.seed} {plan.faults}")
        count = plan.compactors if plan.compactors is not None else apart.choice(COMPACTORS)
        self._duties = DUTIES[plan.duties or apart.choice(DUTY_NAMES)]
        self._shards.retention.is_on = count > 0
        self._floors: Sequence[Floor] = ()
        self._purged: dict[PartitionId, tuple[Log, list[str]]] = {}
        """What there was of a partition of a deleted topic before the first of its keys went."""
        self._compactor_chances = [random.Random(apart.getrandbits(64)) for _ in range(count)]

    async def run(self) -> None:
        self._topic = await self._create_steady()
        metadata_plan = FaultPlan(self._child(), self._theme.metadata, self._loop)
        objects_plan = self._objects_plan = ObjectFaults(self._child(), self._theme.objects, self._loop)
        self._loop.watch(self._check_accounts)
        restoring = None
        if self._compactor_chances and (self._duties.collected_rate or self._duties.purged_rate):
            chance = random.Random(f"restored {self._seed} {self._count}")
            stores = (self._records, self._shards, self._metadata, self._objects)
            restoring = Restoring(*stores, chance, self._history.violation, self._theme.compactor)
        async with OrderedNursery() as nursery:
            self._nursery = nursery
            has_fixed_ids = self._chance.random() < 0.5
            ground = Ground(
                self._metadata,
                self._shards,
                self._objects,
                metadata_plan,
                objects_plan,
                nursery,
                self._history,
                has_fixed_ids=has_fixed_ids,
                producer_expiration_ms=self._theme.expiration_ms,
                skews_ms=self._theme.skews_ms,
                early=(ALL_EARLY,) if self._theme.is_early else early_of(self._seed),
                fetch_limits=self._theme.fetch_limits,
                compactor_limits=self._theme.compactor,
                log_limits=self._theme.log_limits,
            )
            self._ground = ground
            for broker_id in range(1, self._count + 1):
                self._brokers.append(self._start(broker_id))
            self._follow(self._places)
            self._follow(self._places)
            nursery.spawn(EndAsker("asker", self._places, self._live, self._history, self._child()).run(), name="asker")
            self._gather_crowd()
            chances = enumerate(self._compactor_chances, 1)
            compactors = [SimCompactor(number, ground, one, self._duties, self._before_purge) for number, one in chances]
            compacting = [nursery.spawn(one.run(), name="compactor") for one in compactors]
            admin = Admin(self._live, self._history, self._child())
            keeper = self._replace_fleeting(admin) if self._theme.has_fleeting else None
            nemesis = Nemesis(
                ground,
                self._brokers,
                self._start,
                self._manifest_of,
                self._ids,
                self._child(),
                kinds=self._theme.kinds,
                mean_s=self._theme.nemesis_s,
            )
            self._floors = nemesis.floors
            if self._theme.nemesis_s:
                nemesis.let_grow(lambda: self._grow(admin))
                nemesis.let_trim(lambda: self._trim(admin))
                await nemesis.rage(self._chance.uniform(*self._theme.faults_s))
                # A partition added late has a producer, which is to end, too, before anything is judged.
                await self._end(nemesis.changes, "a partition cannot be added, or a log trimmed")
            admin.is_over = True
            if keeper is not None:
                await self._end([keeper], "a topic cannot be created")
            await self._end(self._tasks, "a producer has no answers")
            for reader, _ in self._readers:
                reader.stop_at = await self._ends_of(reader)
            await self._end([task for _, task in self._readers], "a reader does not reach the end")
            for compactor in compactors:
                compactor.is_over = True
            await self._end(compacting, "a compactor does not end")
            for compactor in compactors:
                await compactor.recover()
            await self._read_all_again()
            remembered = {str(place): await self._remembered_of(place) for place in self._places}
        for compactor in compactors:
            await compactor.recover()  # what came late: an attempt that was noted long ago is found by the next cycle
        await self._judge(nemesis, remembered)
        await self._tidy_up()
        if restoring is not None:
            await restoring.run()

    def judge_alarms(self, logged: Sequence[Mapping[str, Any]]) -> None:
        """An alarm about the bytes of an object is false unless the object store gave a wrong answer about it."""
        alarms = {one["object"]: one for one in logged if one["event"] in ALARMS}
        for key, alarm in alarms.items():
            if key not in self._objects_plan.lied_about:
                self._history.violation(f"false alarm: {alarm['event']}: {alarm['partition']} offset={alarm['offset']} {alarm['cause']}")

    def _check_accounts(self) -> None:
        for broker in self._brokers:
            if broker.is_up:
                broker.accounts.check()

    async def _create_steady(self) -> Topic:
        topics = Topics(self._metadata, clock=self._clock, ids=self._ids, entropy=self._chance.randbytes)
        created = await topics.create(STEADY, partition_count=self._partition_count, replication_factor=1, configs={})
        self._shards.topic_names[created.topic_id] = STEADY
        topics.close()
        return created

    def _gather_crowd(self) -> None:
        crowd = self._theme.crowd
        narrow = self._chance.choice(self._places)
        for _ in range(crowd.count):
            self._produce(narrow if crowd.is_narrow else self._chance.choice(self._places), crowd)

    def _replace_fleeting(self, admin: Admin) -> asyncio.Task[None]:
        place = Place(FLEETING, 0, may_be_absent=True, is_fleeting=True)
        for _ in range(self._chance.randint(1, 3)):
            self._produce(place, Crowd(1, 10))
        self._follow([place])
        return self._nursery.spawn(admin.keep_replacing(place), name="admin")

    async def _grow(self, admin: Admin) -> None:
        """A partition more, and somebody who uses it at once."""
        place = Place(STEADY, self._partition_count, may_be_absent=True)
        if await admin.grow(STEADY, self._partition_count + 1) and place.partition == self._partition_count:
            self._partition_count += 1
            self._places.append(place)
            self._produce(place, Crowd(1, 6))
            self._follow([place])

    async def _trim(self, admin: Admin) -> None:
        place = self._chance.choice(self._places)
        manifest = self._manifest_of(PartitionId(self._topic.topic_id, place.partition))
        if manifest is None:
            return
        start = await admin.trim(place, self._topic.topic_id, manifest.sequence_counter)
        if start:
            await asyncio.sleep(AGE_S_MAX * 1.01)
            reader = SimReader("rereader", self._places, self._live, self._history, self._child())
            for broker in self._live():
                await reader.reread(broker, self._topic.topic_id, place.partition, self._chance.randrange(start))

    async def _end(self, tasks: list[asyncio.Task[None]], complaint: str, within_s: float = LIVENESS_S) -> None:
        unfinished = [task for task in tasks if not task.done()]
        if not unfinished:
            return
        await asyncio.wait(unfinished, timeout=within_s)
        waiting = [task for task in unfinished if not task.done()]
        for task in waiting:
            task.cancel()
        if waiting:
            self._history.violation(f"liveness: {complaint} after {within_s} s without faults")

    async def _read_all_again(self) -> None:
        """Through each broker alone: what one of them keeps in memory must not be what keeps it from answering."""
        for broker in list(self._brokers):
            reader = SimReader(f"reader of {broker.name}", self._places, lambda broker=broker: [broker], self._history, self._child())  # type: ignore[misc]
            reader.stop_at = await self._ends_of(reader)
            await self._end([self._nursery.spawn(reader.run(), name="reader")], f"{broker.name} does not serve all that there is", SERVED_S)

    async def _ends_of(self, reader: SimReader) -> tuple[str, dict[int, int]]:
        topics = Topics(self._metadata, clock=self._clock, ids=self._ids, entropy=self._chance.randbytes)
        name = reader.places[0].topic
        topic = (await topics.lookup([name])).get(name)
        topics.close()
        if topic is None:
            self._history.violation(f"a topic is gone: {name}")
            return "", {}
        ends = {}
        for place in reader.places:
            manifest = self._manifest_of(topic.partition(place.partition))
            ends[place.partition] = 0 if manifest is None else manifest.sequence_counter
        return topic.topic_id, ends

    async def _remembered_of(self, place: Place) -> RememberedProducers:
        """What a broker says that the partition remembers."""
        manifest = self._manifest_of(PartitionId(self._topic.topic_id, place.partition))
        end = 0 if manifest is None else manifest.sequence_counter

        async def ask(serving: Serving) -> list[ActiveProducer]:
            return await serving.parts.active_producers.of(PartitionId(self._topic.topic_id, place.partition))

        for _ in range(ASKED_MAX):
            try:
                found = await self._chance.choice(self._brokers).ask(ask)
            except ConnectionLost:
                await asyncio.sleep(1.0)
            else:
                return RememberedProducers(end, {one.producer_id: (one.epoch, one.last_sequence) for one in found})
        self._history.violation(f"liveness: nobody says what producers there are: {place}")
        return RememberedProducers(0, {})

    async def _before_purge(self, partition: PartitionId) -> None:
        manifest = self._manifest_of(partition)
        name = self._shards.topic_names.get(partition.topic_id)
        if partition not in self._purged and manifest is not None and name is not None:
            place = f"{name}/{partition.partition}"
            self._purged[partition] = await fsck(
                self._metadata,
                self._objects,
                partition,
                manifest,
                place=place,
                floors=self._floors,
                pages=self._shards.early_pages.kept,
                is_over=False,
            )

    async def _purge_all(self) -> None:
        """What the compactors have left, and what came late."""
        ids = IdSource(clock=self._clock, entropy=self._chance.randbytes)
        deletions = Deletions(self._metadata, self._objects, ids=ids, clock=self._clock, entropy=self._chance.randbytes)
        purge = SimPurge(metadata=self._metadata, objects=self._objects, deletions=deletions, clock=self._clock)
        purge.before = self._before_purge
        failed: set[str] = set()
        for _ in range(PURGES_MAX):
            done = await purge.run()
            failed |= done.failed.keys()
            if done.is_round:
                break
        deleted, records = self._shards.deleted_topics(), self._shards.manifests()
        if not done.is_round or failed & set(map(str, records)):
            self._history.violation(f"a topic cannot be purged: {done}")
        for partition, record in records.items():
            if partition.topic_id in deleted:
                manifest = decode_manifest(record.value, path=record.path)
                for text in await left_behind(self._metadata, self._objects, partition, manifest):
                    self._history.violation(text)

    async def _judge(self, nemesis: Nemesis, remembered: Mapping[str, RememberedProducers]) -> None:
        logs: list[Log] = []
        if self._compactor_chances:
            await self._purge_all()
        records = self._shards.manifests()
        logs += [log for partition, (log, _) in self._purged.items() if partition not in records]
        for partition, record in records.items():
            manifest = decode_manifest(record.value, path=record.path)
            name = self._shards.topic_names.get(partition.topic_id)
            if name is None:
                if manifest.sequence_counter:
                    self._history.violation(f"fsck: a log without a topic: {partition}")
                continue
            place = f"{name}/{partition.partition}"
            if partition in self._purged:
                log, wrong = self._purged[partition]
            else:
                log, wrong = await fsck(
                    self._metadata,
                    self._objects,
                    partition,
                    manifest,
                    place=place,
                    floors=nemesis.floors,
                    pages=self._shards.early_pages.kept,
                )
            logs.append(log)
            for text in wrong:
                self._history.violation(text)
        for text in await unlike_their_objects(self._shards.early_pages.kept, self._objects):
            self._history.violation(text)
        sent_by_value = {sent.value: sent for sent in self._history.sent}

        def may_have_expired(last: Stored) -> bool:
            sent_s = min(attempt.invoked_s for attempt in sent_by_value[last.value].attempts if attempt.identity == last.identity)
            return self._theme.may_have_expired(sent_s, self._loop.time())

        for text in (*check(self._history, logs), *forgotten(logs, remembered, may_have_expired)):
            self._history.violation(text)

    async def _tidy_up(self) -> None:
        """On a copy: what is put back afterwards, and what deletes then, has none of it."""
        if self._history.violations:
            return  # nothing is to be learned from it
        records = SharedRecords(clock=self._clock, shards=self._shards.count)
        records.put_back(self._records.copy())
        chance = random.Random(f"last upkeep {self._seed}")
        upkeep = LastUpkeep(records, chance, limits=self._theme.compactor, log_limits=self._theme.log_limits)
        for text in await upkeep.run(self._objects):
            self._history.violation(text)

    def _manifest_of(self, partition: PartitionId) -> Manifest | None:
        record = self._shards.manifests().get(partition)
        return None if record is None else decode_manifest(record.value, path=record.path)

    def _live(self) -> list[SimBroker]:
        return self._brokers

    def _start(self, broker_id: int) -> SimBroker:
        self._lives += 1
        broker = SimBroker(broker_id, self._lives, self._ground, self._child())
        broker.start()
        return broker

    def _follow(self, places: list[Place]) -> None:
        reader = SimReader(f"reader-{len(self._readers)}", list(places), self._live, self._history, self._child())
        self._readers.append((reader, self._nursery.spawn(reader.run(), name="reader")))

    def _produce(self, place: Place, crowd: Crowd) -> None:
        name = f"producer-{self._producers}"
        self._producers += 1
        batches = self._chance.randint(min(4, crowd.batches_max), crowd.batches_max)
        is_idempotent = self._chance.random() < crowd.idempotent_rate
        chance = self._child()
        leader = chance.randrange(self._count)
        brokers = (lambda: [self._brokers[leader]]) if self._theme.has_leaders else self._live
        make: Callable[..., Producer] = Producer
        if is_idempotent:
            make = partial(
                IdempotentProducer,
                note_id=self._note_id,
                style=chance.choice(self._theme.styles),
                delivery_timeout_s=crowd.delivery_timeout_s,
            )
        producer = make(
            name,
            place=place,
            batches=batches,
            brokers=brokers,
            history=self._history,
            chance=chance,
            pauses_s=crowd.pauses_s,
            start_s_max=crowd.start_s_max,
        )
        self._tasks.append(self._nursery.spawn(producer.run(), name="producer"))

    def _note_id(self, producer_id: int) -> None:
        if producer_id in self._producer_ids:
            self._history.violation(f"two producers of one id: {producer_id}")
        self._producer_ids.add(producer_id)

    def _child(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))
