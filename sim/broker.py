"""A broker of the simulation: the real log, catalog and handlers over faulty stores, registered as a real broker is, and mortal.

A `Place` is what clients know of the cluster: topics by their names, and what an answer's error code means to a client library.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from kio.schema.errors import ErrorCode

from broker.cluster.leadership import leadership_of
from broker.cluster.registration import BrokerLifecycle
from broker.cluster.roles import OwnRoles
from broker.delayed_fetch import TRUSTED_POLL_S, Waiters
from broker.handlers.log.fetch import Fetch
from broker.handlers.log.produce import Produce
from broker.handling.administration import Administration
from broker.handling.context import BrokerParts, Context, TopicDefaults
from broker.handling.validation import Recompression
from broker.limits import FetchLimits
from broker.responses import Responses
from compactor.limits import CompactorLimits
from runtime.blocking import InlineBlocking
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from sim.accounts import Accounts
from sim.faults import FaultPlan, ObjectFaults, Wire
from sim.history import History
from sim.loop import OrderedNursery, VirtualClock
from sim.metadata import Shards, SimMetadata
from sim.objects import SimObjects
from storage.cache.blocks import BlockCache
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Endpoint
from storage.catalog.collections import CommitMarks
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topics
from storage.errors import StorageError
from storage.formats.levels import LEVEL_MAX
from storage.log.flush import EarlySettings, FlushSettings
from storage.log.limits import LogLimits
from storage.log.parts import open_log
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.version_watch import VersionWatch
from storage.objects.memory import MemoryObjectStore

if TYPE_CHECKING:
    from broker.groups.coordinator import Coordinator

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 2_000
START_PAUSE_S: Final = 0.2
HANDLER_TIMEOUT_S: Final = 60.0
"""As the dispatcher gives a handler."""
CLIENT_LATENCY_S: Final = 0.004
LISTENER: Final = "PLAINTEXT"
MARKED_EVERY_S: Final = 2.0
"""More often than a real broker, so that what is started again finds marks of its own time."""


class ConnectionLost(Exception):
    """The broker went away, or closed the connection: what was asked may or may not have been done."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all brokers stand on."""

    metadata: MemoryMetadataStore
    shards: Shards
    objects: MemoryObjectStore
    metadata_plan: FaultPlan
    objects_plan: ObjectFaults
    nursery: Nursery
    history: History
    has_fixed_ids: bool
    """Whether the operator gave every broker its id; otherwise they are assigned."""
    producer_expiration_ms: int
    skews_ms: tuple[int, ...]
    """By how much the wall clocks of brokers may be wrong when they start."""
    early: tuple[EarlySettings, ...]
    """What brokers let their commits carry, in turn."""
    fetch_limits: FetchLimits
    compactor_limits: CompactorLimits
    log_limits: LogLimits


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts of a broker that is up, as its dispatcher has them."""

    nursery: Nursery
    parts: BrokerParts
    produce: Produce
    fetch: Fetch
    responses: Responses
    telemetry: Telemetry

    @property
    def context(self) -> Context:
        return Context(self.parts, LISTENER, "client")


class SimBroker:
    """One life of a broker. `start` begins it; `crash` ends it at whatever await it has reached."""

    def __init__(self, broker_id: int, life: int, ground: Ground, chance: random.Random) -> None:
        loop = asyncio.get_running_loop()
        self.name = f"broker-{broker_id}.{life}"
        self.clock = VirtualClock(loop, skew_ms=chance.choice(ground.skews_ms))
        self._broker_id = broker_id
        self._ground = ground
        self._chance = chance
        self._gate = asyncio.Event()
        self._gate.set()
        wire = Wire(f"{self.name} metadata", ground.metadata_plan, self._gate, ground.nursery, ground.history)
        self._metadata = SimMetadata(ground.metadata, wire, ground.shards)
        self._watched = VersionWatch(
            self._metadata,
            ids=IdSource(clock=self.clock, entropy=chance.randbytes),
            telemetry=Telemetry(),
            on_lost=lambda cause: ground.history.violation(f"false alarm: {self.name}: {cause}"),
        )
        self.accounts = Accounts(self.name, self.clock, ground.history.violation)
        objects_wire = Wire(f"{self.name} objects", ground.objects_plan, self._gate, ground.nursery, ground.history)
        self._objects = SimObjects(ground.objects, objects_wire, ground.objects_plan, self.accounts)
        self._asked: dict[asyncio.Future[object], None] = {}
        self._serving: Serving | None = None
        self.is_up = False
        """Whether it serves; looked at between every two turns."""
        self._believes_registered: Callable[[], int | None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    @property
    def serving(self) -> Serving:
        """Raises `ConnectionLost` if nobody listens."""
        if self._serving is None:
            raise ConnectionLost(self.name)
        return self._serving

    @property
    def history(self) -> History:
        return self._ground.history

    def start(self) -> None:
        self._task = self._ground.nursery.spawn(self._run(), name=self.name)

    def pause(self) -> None:
        """Nothing gets in or out, keep-alives included, until `resume`: the session ends meanwhile if that takes long enough."""
        self._gate.clear()
        self._metadata.lose_session()

    def resume(self) -> None:
        self._gate.set()

    def lose_session(self) -> None:
        self._metadata.lose_session()

    def depose(self, shard: int) -> None:
        """Its reads of that shard are answered from the past until `find_leaders`."""
        self._metadata.depose(shard)

    def find_leaders(self) -> None:
        self._metadata.find_leaders()

    def may_have_read_old(self, since_s: float) -> bool:
        """Whether what it was asked since then may rest on a read of a deposed leader."""
        return self._metadata.may_have_read_old(since_s)

    async def crash(self) -> None:
        """Returns when nothing of it runs any more."""
        assert self._task is not None
        self._metadata.crash()
        self._go_down()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def ask(self, work: Callable[[Serving], Awaitable[T]]) -> T:
        """One request and its answer. Raises `ConnectionLost`; what a handler raises closes the connection, as in the dispatcher."""
        serving = self.serving
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            await self.travel()
            try:
                async with asyncio.timeout(HANDLER_TIMEOUT_S):
                    result = await work(serving)
            except (StorageError, TimeoutError) as error:
                fail(answer, ConnectionLost(f"{self.name}: {error!r}"))
                return
            except Exception as error:  # noqa: BLE001 - the dispatcher goes on, and calls it a bug
                self._ground.history.violation(f"unforeseen: {self.name} {error!r}")
                fail(answer, ConnectionLost(self.name))
                return
            await self.travel()
            if not answer.done():
                answer.set_result(result)

        self.expect(answer)
        serving.nursery.spawn(serve(), name="serve")
        return await answer

    def check_registration(self) -> None:
        """Under the epoch for which it says that nobody may drop its entries, there is a registration."""
        epoch = self._believes_registered()
        if epoch is not None and epoch not in self._ground.shards.registered_epochs():
            self._ground.history.violation(f"not registered: {self.name} takes itself for registered under epoch {epoch}")

    async def travel(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / CLIENT_LATENCY_S))
        await self._gate.wait()

    def expect(self, answer: "asyncio.Future[T]") -> None:
        """`answer` fails with `ConnectionLost` if the broker goes down before it has one."""
        self._asked[cast("asyncio.Future[object]", answer)] = None
        answer.add_done_callback(self._forget)

    def _forget(self, answer: "asyncio.Future[T]") -> None:
        self._asked.pop(cast("asyncio.Future[object]", answer), None)

    async def _run(self) -> None:
        try:
            async with OrderedNursery() as nursery:
                try:
                    await self._live(nursery)
                finally:
                    nursery.is_dead = True
        except BaseExceptionGroup as group:
            self._ground.history.violation(f"{self.name} died: {_leaves(group)}")
            self._metadata.crash()
        finally:
            self._go_down()

    async def _live(self, nursery: Nursery) -> None:
        """As broker/assembly.py puts a broker together, without sockets and groups."""
        chance, telemetry, clock, fetch_limits = self._chance, Telemetry(), self.clock, self._ground.fetch_limits
        fixed_id = self._broker_id if self._ground.has_fixed_ids else None
        while True:
            await self._gate.wait()
            directory, lifecycle = self._new_lifecycle(fixed_id)
            try:
                epoch = await lifecycle.begin()
                break
            except StorageError as error:
                # Its process ends, and is started again by whoever looks after it.
                self._ground.history.trace(self.name, "not registered", repr(error))
                directory.close()
            await asyncio.sleep(START_PAUSE_S)
        ids = IdSource(clock=clock, entropy=chance.randbytes)
        topics = Topics(self._watched, clock=clock, ids=ids, entropy=chance.randbytes)
        log = open_log(
            metadata=self._watched,
            objects=self._objects,
            blocks=BlockCache(
                self._objects,
                bytes_max=chance.choice((0, 4_096, 1 << 20)),
                block_bytes=1_024,
                part_bytes=512,
                clock=clock,
                telemetry=telemetry,
            ),
            tail_bytes_max=chance.choice((0, 2_048, 1 << 20)),
            early=self._ground.early[self._broker_id % len(self._ground.early)],
            level=lambda: LEVEL_MAX,
            flush=FlushSettings(interval_s=chance.choice((0.0, 0.02, 0.25)), gather_s=0.005, bytes_max=chance.choice((400, 1 << 20))),
            epoch=epoch,
            ids=ids,
            clock=clock,
            chance=chance,
            nursery=nursery,
            telemetry=telemetry,
            producer_expiration_ms=self._ground.producer_expiration_ms,
            doubt=self._watched.doubt,
            former=topics.former,
            limits=self._ground.log_limits,
        )
        marks = CommitMarks(self._objects, commits=self._watched.commits, broker_id=lambda: lifecycle.broker_id, ids=ids, clock=clock)
        nursery.spawn(self._mark(marks), name="commit-marks")
        waiters = Waiters(
            metadata=self._watched,
            partitions=log.partitions,
            manifest_reads=log.manifest_reads,
            clock=clock,
            trusted_poll_s=chance.choice((fetch_limits.poll_s, TRUSTED_POLL_S)),
            limits=fetch_limits,
        )
        nursery.spawn(waiters.run(), name="waiters")
        parts = BrokerParts(
            cluster_id="sim",
            clock=clock,
            topics=topics,
            confirmed_topics=ConfirmedTopics(self._watched, topics, clock=clock, nursery=nursery),
            brokers=directory,
            leadership=leadership_of("self"),
            producer_ids=ProducerIds(self._watched, entropy=chance.randbytes),
            bounds=log.manifest_reads,
            timestamps=log.time_search,
            trimmer=log.trimmer,
            active_producers=log.producer_reads,
            topic_defaults=TopicDefaults(auto_create=False),
            groups=cast("Coordinator", None),  # groups have a world of their own
            administration=Administration(),
            roles=OwnRoles(ALL_ROLES, brokers=directory, telemetry=telemetry),
        )
        produce = Produce(
            topics=topics,
            partitions=log.partitions,
            appender=log.appender,
            recompression=Recompression(blocking=InlineBlocking(), nursery=nursery, clock=clock, telemetry=telemetry),
            clock=clock,
        )
        fetch = Fetch(
            topics=topics,
            partitions=log.partitions,
            manifest_reads=log.manifest_reads,
            reader=log.reader,
            waiters=waiters,
            clock=clock,
            limits=fetch_limits,
        )
        responses = Responses(bytes_max=0, telemetry=telemetry, soon=asyncio.get_running_loop().call_soon)
        self.accounts.buffered_bytes = lambda: log.appender.buffered_bytes
        self._serving = Serving(nursery, parts, produce, fetch, responses, telemetry)
        self.is_up = True
        self._believes_registered = lambda: epoch.current if epoch.is_registered(epoch.current) else None
        self._ground.history.trace(self.name, "up", f"id={lifecycle.broker_id} epoch={epoch.current}")
        await lifecycle.stay()

    async def _mark(self, marks: CommitMarks) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / MARKED_EVERY_S))
            await marks.put()

    def _new_lifecycle(self, fixed_id: int | None) -> tuple[BrokerDirectory, BrokerLifecycle]:
        directory = BrokerDirectory(self._watched, clock=self.clock, session_timeout_ms=SESSION_TIMEOUT_MS, entropy=self._chance.randbytes)
        return directory, BrokerLifecycle(
            directory,
            listeners=[Endpoint(LISTENER, f"broker-{self._broker_id}", 9092)],
            rack=None,
            version="sim",
            fixed_id=fixed_id,
            telemetry=Telemetry(),
        )

    def _go_down(self) -> None:
        self._serving = None
        self.is_up = False
        for answer in tuple(self._asked):
            fail(answer, ConnectionLost(self.name))


def fail(answer: "asyncio.Future[T]", error: Exception) -> None:
    """Unless it has a result. Whoever asked may have left."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def _leaves(group: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(_leaves(error) if isinstance(error, BaseExceptionGroup) else repr(error) for error in group.exceptions)


INDEFINITE: Final = frozenset({ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower})
"""Answers to Produce after which a client does not know whether its batch was appended. After any other error it was not."""
ABSENT: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id})

CurrentBrokers = Callable[[], list[SimBroker]]
"""The brokers there are now, up or not."""


class Place(NamedTuple):
    """A partition as clients name it. `may_be_absent`: its topic comes and goes, or the partition came later than the topic.

    `is_fleeting`: the former. A producer may find that nobody knows what it appended before.
    """

    topic: str
    partition: int
    may_be_absent: bool = False
    is_fleeting: bool = False

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def is_deserved(self, code: ErrorCode) -> bool:
        """Whether a client that does nothing wrong may be given this error: those it tries again after, absence only where there is any."""
        return code.retriable and (self.may_be_absent or code not in ABSENT)
