"""The composition root: settings → stores, log, catalog, handlers, server → a broker that listens; and its way down."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from broker.admission import Admission
from broker.audit import open_audit_log
from broker.cluster.leadership import Leadership, leadership_of
from broker.cluster.liveness import Peers
from broker.cluster.ownership import Slots
from broker.cluster.registration import BrokerLifecycle, ControlledShutdown
from broker.cluster.roles import OwnRoles, PreferredReplicas
from broker.delayed_fetch import TRUSTED_POLL_S, Waiters
from broker.dispatch import Dispatch
from broker.groups.coordinator import Coordinator
from broker.groups.lag import LagSampler
from broker.groups.state import group_settings
from broker.handlers.log.fetch import Fetch
from broker.handlers.log.produce import Produce
from broker.handling.administration import Administration
from broker.handling.context import BrokerParts, TopicDefaults
from broker.handling.validation import THREADS, Recompression
from broker.http.parts import HttpParts
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from broker.responses import Responses
from broker.server import ConnectionLimits, Server
from process.accepting import bind
from process.cost.meter import CostMeter
from process.disk_space import DiskSpace, folders_of, measure_folders
from process.http.health import METADATA, Readiness
from process.http.probes import MetadataProbe, ObjectProbe, Probes
from process.identity import check_age, identify_cluster
from process.settings.errors import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import NOTHING_ACCEPTED, Accepted, Settings, http_address_for_clients, log_api_of
from process.settings.notation import Listener, is_loopback, is_memory, is_shared, without_secrets
from process.settings.ports import cannot_listen
from process.store_clocks import MetadataClock, ObjectClock, StoreClocks, Timed
from process.store_watch import StoreWatch
from process.tracing import sending_traces
from runtime.blocking import ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry, run_token
from runtime.version import forebay_version
from storage.cache.blocks import BlockCache, RangeSource
from storage.catalog.brokers import BLOCKS_LISTENER, HTTP_LISTENER, BrokerDirectory, Endpoint, Role
from storage.catalog.collections import CommitMarks
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.identity import ClusterRecord
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topics
from storage.errors import AlreadyExists, IncompatibleFormat, StorageError, Unavailable
from storage.log.flush import FlushSettings, early_settings
from storage.log.partition import BrokerEpoch
from storage.log.parts import open_log
from storage.log.tracing import BatchTrace, Tracing
from storage.log.traffic import TopicTraffic
from storage.log.writer import Appender
from storage.objects.requests import caused_by
from storage.opening import Stores, open_shared_blocks, open_stores
from storage.outcomes import StoreOutcomes
from storage.vocabulary import TopicId

if TYPE_CHECKING:
    from broker.zone_cache.blocks import ZoneLimits
    from broker.zone_cache.peers import ZoneCache

TAIL_SHARE: Final = 3 / 8
BLOCKS_SHARE: Final = 3 / 8
"""As a share of storage.cache_bytes; the last quarter is for what readers hold beside it: fetches under way and outgoing responses."""
DRAIN_ANSWERS_S: Final = 30.0
"""Requests that were received are answered for this long after the drain."""
DRAIN_COMMITS_S: Final = 30.0
STORE_EARLY_S: Final = 5.0
"""Early objects have this long to be stored. Readers find the others in the metadata store until they are compacted."""
LEAVE_GROUPS_S: Final = 3.0
"""Members that this broker is for HTTP clients; those that have not left by then are missed when their sessions end."""

assert TAIL_SHARE + BLOCKS_SHARE < 1

Announce = Callable[[str, dict[str, Any]], None]
OpenStores = Callable[[Telemetry], AbstractAsyncContextManager[Stores]]

log = structlog.get_logger("broker")


EARLY_LEFT: Final = "the object store takes none: what was acknowledged is read from the metadata store until it is compacted"


class Broker:
    """A broker that listens. `drain`, then `aclose` (or the end of the context that made it)."""

    def __init__(
        self,
        *,
        lifecycle: BrokerLifecycle,
        cluster_id: str,
        listeners: tuple[Listener, ...],
        readiness: Readiness,
        telemetry: Telemetry,
        server: Server,
        appender: Appender,
        groups: Coordinator,
        waiters: Waiters,
        marks: CommitMarks | None,
        http: HttpParts,
        cost: CostMeter,
        nursery: Nursery,
    ) -> None:
        self._nursery = nursery
        self._draining: asyncio.Task[None] | None = None
        self._marks = marks
        self.http = http
        self.roles = http.parts.roles.own
        self.cost = cost
        self.cluster_id = cluster_id
        self.listeners = listeners
        self.readiness = readiness
        self.telemetry = telemetry
        self._server = server
        self._appender = appender
        self._groups = groups
        self._waiters = waiters
        self._lifecycle = lifecycle
        self._is_closed = False

    @property
    def broker_id(self) -> int:
        return self._lifecycle.broker_id

    async def drain(self, *, drain_s: float) -> None:
        """Leave the cluster, serve on while clients leave (at most for `drain_s`), answer what was received, commit what was taken.

        Deregistered, this broker names the others to who asks: as leader, as controller and as coordinator, as long as there are others.
        Called again, wait for the end of the first drain, whose time counts.
        """
        self.begin_drain(drain_s)
        assert self._draining is not None, "begun"
        await asyncio.shield(self._draining)

    def begin_drain(self, drain_s: float) -> bool:
        """As `drain`, without a wait. Return whether it has ended. The process goes on, and answers HTTP, until it is stopped."""
        if self._draining is None:
            self._draining = self._nursery.spawn(self._drain(drain_s), name="drain")
        return self._draining.done()

    async def _drain(self, drain_s: float) -> None:
        self.readiness.note_draining()
        try:
            async with asyncio.timeout(LEAVE_GROUPS_S):
                for leave in self.http.before_drain:
                    await leave()
        except TimeoutError:
            log.warning("http_consumers_not_left", after_s=LEAVE_GROUPS_S)
        await self._lifecycle.end()
        self._groups.stop()
        await self._server.see_off(drain_s=drain_s)
        self._waiters.stop()
        await self._server.drain(drain_s=DRAIN_ANSWERS_S)
        try:
            async with asyncio.timeout(DRAIN_COMMITS_S):
                await self._appender.drain()
        except TimeoutError:
            log.warning("commits_abandoned", after_s=DRAIN_COMMITS_S)
        try:
            async with asyncio.timeout(STORE_EARLY_S):
                await self._appender.store_early()
        except TimeoutError:
            log.warning("early_objects_left", after_s=STORE_EARLY_S, meaning=EARLY_LEFT)
        if self._marks is not None:
            await self._marks.put()

    async def aclose(self) -> None:
        """Cut off what is left. Acked records are safe whatever happens here."""
        if not self._is_closed:
            self._is_closed = True
            await self._server.drain(drain_s=0.0)
            await self._lifecycle.end()


@contextlib.asynccontextmanager
async def open_broker(
    settings: Settings,
    *,
    announce: Announce,
    stores: OpenStores | None = None,
    leadership: Leadership | None = None,
    accepted: Accepted = NOTHING_ACCEPTED,
    zone_limits: "ZoneLimits | None" = None,
    fetch_limits: FetchLimits = DEFAULT_FETCH_LIMITS,
) -> AsyncIterator[Broker]:
    """A listening broker for as long as the context is open. Raises `StartError` for what the operator must fix.

    `accepted`: what of the stores is gone on with that would be refused.
    `stores` opens other stores than those the settings name, given the broker's telemetry; `leadership` is another strategy than theirs:
    how several brokers of one process share stores, and a test says who leads. `zone_limits` and
    `fetch_limits`: others than usual.
    """
    clock = SystemClock()
    ids = IdSource(clock=clock)
    telemetry = Telemetry(run=run_token())
    cost = CostMeter(telemetry, settings, clock=clock)
    outcomes = StoreOutcomes(clock=clock, telemetry=telemetry)
    readiness = Readiness(outcomes=outcomes, clock=clock)
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with contextlib.AsyncExitStack() as closing:
        opened = await closing.enter_async_context(
            _opened(settings, clock, ids, telemetry, outcomes, readiness, lost) if stores is None else stores(telemetry)
        )
        versions = opened.versions
        announce("stores opened", {"metadata": settings.metadata.url, "storage": settings.storage.url})
        with caused_by("start"):
            of_cluster = await _probed(opened, settings, outcomes, ids, clock, accepted=accepted)
        cluster = of_cluster.cluster_id
        sockets = [(listener, _bind(closing, listener)) for listener in settings.kafka.listeners]
        bound = tuple(listener._replace(port=sock.getsockname()[1]) for listener, sock in sockets)

        directory = BrokerDirectory(opened.metadata, clock=clock)
        closing.callback(directory.close)
        endpoints = _advertised(settings, bound)
        if (of_http := _http_endpoint(settings)) is not None:
            endpoints += (of_http,)
        if settings.storage.zone_cache:
            endpoints += (Endpoint(BLOCKS_LISTENER, *http_address_for_clients(settings.http)),)
        lifecycle = BrokerLifecycle(
            directory,
            listeners=endpoints,
            rack=settings.broker.rack,
            version=forebay_version(),
            fixed_id=settings.broker.id,
            telemetry=telemetry,
            roles=(own_roles := frozenset(map(Role, settings.broker.roles))),
            on_change=readiness.note_registration,
        )
        epoch = await _begun(lifecycle)
        roles = OwnRoles(own_roles, brokers=directory, telemetry=telemetry)
        announce("broker registered", {"broker_id": lifecycle.broker_id, "epoch": epoch.current, "cluster_id": cluster})

        zone: ZoneCache | None = None
        if settings.storage.zone_cache:
            # Imported where it is wanted: without the setting nothing is asked of a store for it, either.
            from broker.zone_cache.peers import open_zone_cache

            zone_opening = open_zone_cache(settings, opened, directory, clock=clock, telemetry=telemetry, limits=zone_limits)
            zone = await closing.enter_async_context(zone_opening)
        behind: RangeSource = zone.blocks if zone else opened.objects
        shared = await closing.enter_async_context(
            open_shared_blocks(
                behind,
                settings.storage.cache_dir,
                bytes_max=settings.storage.cache_dir_bytes,
                cluster=lambda: cluster,
                ids=ids,
                clock=clock,
                telemetry=telemetry,
            )
        )
        send = await closing.enter_async_context(sending_traces(settings.tracing.endpoint, version=forebay_version(), telemetry=telemetry))
        nursery = await closing.enter_async_context(Nursery())
        nursery.spawn(lifecycle.stay(), name="stay-registered")
        nursery.spawn(directory.follow_level(), name="follow-format-level")
        nursery.spawn(directory.watch(), name="brokers-watch")
        if not roles.is_whole:
            await roles.look()
            nursery.spawn(roles.run(), name="roles")
        walking = ThreadBlocking(threads=1, name="time-search")
        closing.callback(walking.close)
        soon = asyncio.get_running_loop().call_soon_threadsafe
        cache_bytes = settings.storage.cache_bytes
        responses = Responses(bytes_max=int(cache_bytes * (1 - TAIL_SHARE - BLOCKS_SHARE)), telemetry=telemetry, soon=soon)
        blocks = BlockCache(
            shared or behind,
            bytes_max=int(cache_bytes * BLOCKS_SHARE),
            clock=clock,
            telemetry=telemetry,
            on_damaged=_distrusting(*[cache.distrust for cache in (shared, zone and zone.blocks) if cache]),
        )
        if zone:
            nursery.spawn(zone.blocks.run(directory), name="zone-peers")
        topics = Topics(opened.metadata, clock=clock, ids=ids, telemetry=telemetry)
        closing.callback(topics.close)
        nursery.spawn(topics.watch(), name="topics-watch")
        traffic = TopicTraffic(find=topics.find_id, shown=settings.metrics.topics, telemetry=telemetry)
        nursery.spawn(traffic.run(opened.metadata, topics.lookup_now), name="topic-traffic")
        tracing = None if send is None else _traced(send, settings, topics, clock)
        parts = open_log(
            metadata=opened.metadata,
            objects=opened.objects,
            blocks=blocks,
            tail_bytes_max=int(cache_bytes * TAIL_SHARE),
            readers=responses.dropped,
            early=early_settings(settings.storage.early_bytes_per_second, is_shared=is_shared(settings.metadata.url)),
            level=lambda: directory.level,
            flush=FlushSettings(interval_s=settings.storage.flush_interval.total_seconds(), bytes_max=settings.storage.flush_bytes),
            epoch=epoch,
            producer_expiration_ms=settings.kafka.producer_id_expiration // timedelta(milliseconds=1),
            ids=ids,
            clock=clock,
            chance=random.Random(os.urandom(16)),  # noqa: S311 - for pauses
            nursery=nursery,
            telemetry=telemetry,
            walking=walking,
            doubt=None if versions is None else versions.doubt,
            former=topics.former,
            traffic=traffic,
            shared=shared,
            tracing=tracing,
        )
        closing.callback(parts.appender.stop)
        lost.add_done_callback(lambda told: parts.refuse(told.result()))
        waiters = Waiters(
            metadata=opened.metadata,
            partitions=parts.partitions,
            manifest_reads=parts.manifest_reads,
            clock=clock,
            trusted_poll_s=TRUSTED_POLL_S,
            limits=fetch_limits,
        )
        nursery.spawn(waiters.run(), name="waiters")
        strategy = leadership or leadership_of(settings.kafka.leader)
        peers = Peers(directory, metadata=opened.metadata, clock=clock, nursery=nursery)
        closing.callback(peers.close)
        nursery.spawn(peers.run(), name="peers")
        slots = Slots(opened.metadata, directory, peers)
        closing.callback(slots.close)
        groups = Coordinator(
            metadata=opened.metadata,
            slots=slots,
            clock=clock,
            ids=ids,
            nursery=nursery,
            settings=group_settings(settings.groups),
            telemetry=telemetry,
        )
        nursery.spawn(groups.run(), name="groups")
        group_lag = LagSampler(
            metadata=opened.metadata,
            listed=groups.listed,
            topics=topics,
            bounds=parts.manifest_reads,
            times=parts.time_search,
            clock=clock,
            telemetry=telemetry,
            interval_s=settings.metrics.lag_interval.total_seconds(),
            shown=settings.metrics.topics,
        )
        nursery.spawn(group_lag.run(), name="group-lag")
        audit = None
        if settings.log.audit is not None:
            opening = open_audit_log(settings.log.audit, broker_id=lambda: lifecycle.broker_id, telemetry=telemetry, clock=clock)
            audit = closing.enter_context(opening)
        handled = BrokerParts(
            cluster_id=cluster,
            clock=clock,
            topics=topics,
            confirmed_topics=ConfirmedTopics(opened.metadata, topics, clock=clock, nursery=nursery),
            brokers=directory,
            leadership=strategy,
            producer_ids=ProducerIds(opened.metadata),
            bounds=parts.manifest_reads,
            timestamps=parts.time_search,
            trimmer=parts.trimmer,
            active_producers=parts.producer_reads,
            topic_defaults=TopicDefaults(settings.kafka.auto_create_topics, settings.kafka.default_partitions),
            groups=groups,
            administration=Administration(audit.write if audit is not None else None),
            roles=roles,
        )
        controlled_shutdown = ControlledShutdown(clock=clock)
        compressing = ThreadBlocking(threads=THREADS, name="recompress")
        closing.callback(compressing.close)
        recompression = Recompression(blocking=compressing, nursery=nursery, clock=clock, telemetry=telemetry)
        fetching = Fetch(
            topics=topics,
            partitions=parts.partitions,
            manifest_reads=parts.manifest_reads,
            reader=parts.reader,
            waiters=waiters,
            clock=clock,
            replicas=PreferredReplicas(brokers=directory, leadership=strategy, rack=settings.broker.rack, clock=clock, roles=roles),
            limits=fetch_limits,
        )
        admission = Admission(
            bytes_max=settings.storage.max_buffer_bytes, telemetry=telemetry, soon=soon, later=asyncio.get_running_loop().call_later
        )
        dispatch = Dispatch(
            parts=handled,
            produce_handler=Produce(
                topics=topics,
                partitions=parts.partitions,
                appender=parts.appender,
                recompression=recompression,
                clock=clock,
                reads_records=settings.kafka.validate_records == "full",
                tracing=tracing,
            ),
            fetch_handler=fetching,
            controlled_shutdown=controlled_shutdown,
            responses=responses,
            clock=clock,
            telemetry=telemetry,
        )
        server = Server(
            requests=dispatch,
            controlled_shutdown=controlled_shutdown,
            admission=admission,
            responses=responses,
            limits=ConnectionLimits(
                settings.kafka.max_connections, settings.kafka.idle_timeout.total_seconds(), settings.kafka.max_request_bytes
            ),
            clock=clock,
            nursery=nursery,
            telemetry=telemetry,
            http_address=f"http://{settings.http.listen}",
        )
        closing.callback(server.stop_listening)
        for listener, sock in sockets:
            server.serve(listener.name, sock)
        nursery.spawn(server.close_idle(), name="close-idle")
        nursery.spawn(server.collect_garbage(), name="collect-garbage")
        probes = Probes(
            metadata=MetadataProbe(opened.metadata, broker_id=lambda: lifecycle.broker_id),
            objects=ObjectProbe(opened.objects, outcomes=outcomes, broker_id=lambda: lifecycle.broker_id),
            outcomes=outcomes,
            clock=clock,
        )
        nursery.spawn(probes.run(), name="probes")
        nursery.spawn(cost.run(), name="cost")
        store_watch = StoreWatch(opened, settings, of_cluster, on_lost=partial(_note_lost, readiness, lost))
        nursery.spawn(store_watch.run(), name="store-watch")
        marks: CommitMarks | None = None
        if versions is not None:
            marks = CommitMarks(opened.objects, commits=versions.commits, broker_id=lambda: lifecycle.broker_id, ids=ids, clock=clock)
            nursery.spawn(marks.run(), name="commit-marks")
        if timed := _timed(opened, settings, clock, broker_id=lambda: lifecycle.broker_id):
            nursery.spawn(StoreClocks(timed, telemetry=telemetry).run(), name="store-clocks")
        if folders := folders_of(settings):
            looking = ThreadBlocking(threads=1, name="disk-space")
            closing.callback(looking.close)
            nursery.spawn(DiskSpace(partial(measure_folders, folders), blocking=looking, clock=clock).run(), name="disk-space")
        readiness.note_listening()
        announce("kafka listening", {"listeners": ", ".join(map(str, bound)), "advertised": ", ".join(map(str, endpoints))})
        broker = Broker(
            lifecycle=lifecycle,
            cluster_id=cluster,
            listeners=bound,
            readiness=readiness,
            telemetry=telemetry,
            server=server,
            appender=parts.appender,
            groups=groups,
            waiters=waiters,
            marks=marks,
            http=HttpParts(
                parts=handled,
                metadata=opened.metadata,
                objects=opened.objects,
                produce=dispatch.wide_produce,
                fetch=fetching,
                controlled_shutdown=controlled_shutdown,
                admission=admission,
                responses=responses,
                address_of=server.address_of,
                clock=clock,
                telemetry=telemetry,
                nursery=nursery,
                locate=lambda partition, offset: parts.index.locate(parts.partitions.get(partition), offset),
                objects_uri=without_secrets(settings.storage.url).partition("?")[0].removesuffix("/") + "/",
                begin_drain=lambda drain_s: broker.begin_drain(drain_s),  # noqa: PLW0108 - the broker has these parts
                zone=zone,
                blocks=blocks,
            ),
            cost=cost,
            nursery=nursery,
        )
        closing.push_async_callback(broker.aclose)
        yield broker


def _distrusting(*caches: Callable[[str], None]) -> Callable[[str], None] | None:
    """Return a function that tells each of them of a damaged object; None without any."""
    if len(caches) <= 1:
        return caches[0] if caches else None

    def distrust(key: str) -> None:
        for cache in caches:
            cache(key)

    return distrust


def _note_lost(readiness: Readiness, lost: "asyncio.Future[str]", store: str, cause: str) -> None:
    readiness.note_lost(store, cause)
    if not lost.done():
        lost.set_result(cause)


@contextlib.asynccontextmanager
async def _opened(
    settings: Settings,
    clock: Clock,
    ids: IdSource,
    telemetry: Telemetry,
    outcomes: StoreOutcomes,
    readiness: Readiness,
    lost: "asyncio.Future[str]",
) -> AsyncIterator[Stores]:
    async with contextlib.AsyncExitStack() as closing:
        opening = open_stores(
            storage_url=settings.storage.url,
            s3_client="aioboto3" if settings.storage.s3_client == "aioboto3" else "obstore",
            metadata_url=settings.metadata.url,
            clock=clock,
            ids=ids,
            telemetry=telemetry,
            outcomes=outcomes,
            on_metadata_lost=partial(_note_lost, readiness, lost, METADATA),
        )
        try:
            stores = await closing.enter_async_context(opening)
        except IncompatibleFormat as error:
            raise StartError(str(error), exit_code=EXIT_USAGE) from error
        except Unavailable as error:
            raise StartError(str(error), exit_code=EXIT_UNREACHABLE) from error
        yield stores


async def _probed(
    stores: Stores, settings: Settings, outcomes: StoreOutcomes, ids: IdSource, clock: Clock, *, accepted: Accepted
) -> ClusterRecord:
    """The cluster, after both stores have answered and nothing speaks against them."""
    try:
        await stores.metadata.probe()
        await stores.objects.probe()
        outcomes.puts.ok(clock.monotonic_s())
        cluster = await identify_cluster(stores, settings, ids, clock, accept_new_store=accepted.accept_new_store)
        await check_age(stores, settings, ids, clock, accept_older=accepted.accept_older_metadata)
        outcomes.writes.ok(clock.monotonic_s())
    except IncompatibleFormat as error:
        raise StartError(str(error), exit_code=EXIT_USAGE) from error
    except StorageError as error:
        raise StartError(str(error), exit_code=EXIT_UNREACHABLE) from error
    return cluster


def _timed(stores: Stores, settings: Settings, clock: Clock, *, broker_id: Callable[[], int]) -> dict[str, Timed]:
    """The stores that have a clock of their own: files may lie on another machine, too."""
    found: dict[str, Timed] = {}
    if not is_memory(settings.storage.url):
        found["object_store"] = ObjectClock(stores.objects, broker_id, clock)
    if stores.times is not None:
        found["metadata"] = MetadataClock(stores.metadata, stores.times, broker_id, clock)
    return found


def _bind(closing: contextlib.AsyncExitStack, listener: Listener) -> socket.socket:
    try:
        bound = bind(listener.host, listener.port)
    except OSError as error:
        fix = f"--set kafka.listeners={listener._replace(port=listener.port + 100)}"
        raise cannot_listen(error, host=listener.host, port=listener.port, fix=fix) from error
    closing.callback(bound.close)
    return bound


def _advertised(settings: Settings, bound: Sequence[Listener]) -> tuple[Endpoint, ...]:
    """The addresses that clients are given; port 0 becomes the port that was bound."""
    ports = {listener.name: listener.port for listener in bound}
    return tuple(
        Endpoint(listener.name, listener.host, listener.port or ports[listener.name]) for listener in settings.kafka.advertised_listeners
    )


def _http_endpoint(settings: Settings) -> Endpoint | None:
    """Where clients of the log's HTTP API find this broker; None if there is none, or if its port is the system's choice."""
    address = http_address_for_clients(settings.http)
    if log_api_of(settings.http) == "off" or not address.port:
        return None
    if is_loopback(address.host) and not all(is_loopback(one.host) for one in settings.kafka.advertised_listeners):
        return None  # on another machine it would be that machine's own
    return Endpoint(HTTP_LISTENER, *address)


async def _begun(lifecycle: BrokerLifecycle) -> BrokerEpoch:
    try:
        return await lifecycle.begin()
    except AlreadyExists as error:
        raise StartError(str(error), exit_code=EXIT_FAILED) from error
    except IncompatibleFormat as error:
        raise StartError(str(error), exit_code=EXIT_USAGE) from error
    except StorageError as error:
        raise StartError(f"cannot register: {error}", exit_code=EXIT_UNREACHABLE) from error


def _traced(send: Callable[[BatchTrace], None], settings: Settings, topics: Topics, clock: Clock) -> Tracing:
    def name_of(topic_id: TopicId) -> str:
        topic = topics.find_id(topic_id)
        return str(topic_id) if topic is None else topic.name

    chance = random.Random(os.urandom(16))  # noqa: S311 - for sampling
    return Tracing(send, ratio=settings.tracing.sample_ratio, name_of=name_of, clock=clock, chance=chance)
