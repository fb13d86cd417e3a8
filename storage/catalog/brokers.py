"""Live brokers and compactors: each registers an ephemeral record and reads those of the others.

`BrokerDirectory` is one broker's view of all. `read_live` reads who is registered with a sentinel, so that no deposed leader answers.
`RecentPeers` remembers the brokers of before a loss of the metadata store; `MembershipLog` writes who comes and goes into the log.
Compactors register at compactors/{name}; `compactor_of` says which of them looks after a partition.
"""

import asyncio
import contextlib
import operator
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog
import xxhash

from runtime.clock import Clock
from runtime.ids import Entropy
from storage.catalog.identity import decode_cluster
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.records import ATTEMPTS_MAX, SharedReads, decode, encode, pause, write_one
from storage.errors import AlreadyExists, Corrupt, IncompatibleFormat, StorageError, Unavailable
from storage.formats.levels import LEVEL_FIRST, LEVEL_MAX, LEVEL_OF_ROLES, problem_with_announced
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, MetadataStore, NotApplied, OpResult, Put, Record, Session, Status, Unknown, WriteOutcome
from storage.vocabulary import PartitionId

RETURN_GRACE_S: Final = 5.0
"""Registering is tried once a second, and sessions that were kept alive together end within seconds of each other. A broker that died or
left in that time is listed for as long.
"""
_READ_KEYS_MAX: Final = 500
_SENTINEL_VALUE: Final = b"{}"
LEFT_MEANING: Final = "it was stopped, it died, or it lost the metadata store; the others serve its partitions at once"
BROKER_FMT: Final = 1
BROKER_FMT_ROLES: Final = 2
"""A record of a broker without some of the roles has this number."""
CACHE_AGE_S: Final = 1.0
LIVE_STALE_S: Final = 60.0
"""While the store is away, the brokers last seen alive are still the best answer for clients."""
SESSION_TIMEOUT_MS: Final = 10_000
HTTP_LISTENER: Final = "HTTP"
"""The name under which a broker registers the address of its HTTP API. No listener of Kafka's may have it."""
BLOCKS_LISTENER: Final = "ZONE-CACHE"
"""The name under which a broker registers where others of its zone ask for blocks. A dash is in no name of a listener of Kafka's."""
BROKER_ID_MAX: Final = 2**31 - 1
WRITER_ID_MIN: Final = 2**30
"""From here on are the ids of programs that append, and that nobody connects to."""
_POLL_S: Final = 0.25
_TAKEN_MARGIN_MS: Final = 2_000
COMPACTOR_FMT: Final = 1

_id = operator.attrgetter("broker_id")

_log = structlog.get_logger("membership")


class Listening(Protocol):
    """A broker's record, as far as this concerns."""

    @property
    def broker_id(self) -> int: ...
    @property
    def kafka_listeners(self) -> Sequence[object]: ...


B = TypeVar("B", bound=Listening)


class RecentPeers(Generic[B]):
    """One broker's memory of who was registered with it. `now_s` of all methods is one monotonic clock.

    Brokers that lose the metadata store together register again one after the other. Clients drop a broker that a Metadata response does
    not list (KIP-1102; librdkafka fails what is on its way to it). So those of before the loss are listed until each has had time to
    return.
    """

    def __init__(self) -> None:
        self._known: dict[int, B] = {}
        """Registered when they were last looked at, or before the loss, or less than RETURN_GRACE_S before one that may come."""
        self._missing_since_s: dict[int, float] = {}
        self._returned: set[int] = set()
        """Since the loss."""
        self._is_lost = False
        self._until_s: float | None = None
        """The end of the grace; None if nothing was lost since the last one was over."""

    def note(self, live: Sequence[B], *, is_registered: bool, now_s: float) -> None:
        """A list was read from the store, while this broker was registered or was not. The first one read after a loss starts the grace."""
        present = {broker.broker_id: broker for broker in live}
        if not (is_registered or self._is_lost):
            self._begin(now_s)
        elif is_registered and self._until_s is not None and now_s >= self._until_s:
            self.forget()
        self._is_lost = not is_registered
        self._note_missing(present, now_s)
        self._known.update(present)

    def returned(self, *, now_s: float) -> None:
        """This broker is registered, for the first time or again: the others may need as long once more."""
        if not self._is_lost:
            self._begin(now_s)
        elif self._until_s is not None:
            self._until_s = now_s + RETURN_GRACE_S
        self._is_lost = False

    def forget(self) -> None:
        """What is known of others is no better than the store's list, as when this broker leaves for good."""
        self._known.clear()
        self._missing_since_s.clear()
        self._returned.clear()
        self._until_s = None

    def missing(self, live: Sequence[B], *, now_s: float) -> list[B]:
        """The brokers of before the loss that are not in `live`, not under another id either, and still have time to return."""
        if self._until_s is None or now_s >= self._until_s:
            return []
        present = {broker.broker_id for broker in live}
        places = {listener for broker in live for listener in broker.kafka_listeners}
        return [
            broker
            for broker_id, broker in self._known.items()
            if broker_id not in present and broker_id not in self._missing_since_s and places.isdisjoint(broker.kafka_listeners)
        ]

    def _begin(self, now_s: float) -> None:
        if not self._known:
            return
        self._until_s = now_s + RETURN_GRACE_S
        self._drop_missing(now_s)
        self._missing_since_s.clear()
        self._returned.clear()

    def _note_missing(self, present: dict[int, B], now_s: float) -> None:
        """In the grace only of who has come back in it: the others are waited for."""
        for broker_id in self._known:
            if broker_id in present:
                self._missing_since_s.pop(broker_id, None)
            elif self._until_s is None or broker_id in self._returned:
                self._missing_since_s.setdefault(broker_id, now_s)
        self._returned.update(present)
        self._drop_missing(now_s)

    def _drop_missing(self, now_s: float) -> None:
        for broker_id, since_s in tuple(self._missing_since_s.items()):
            if now_s - since_s >= RETURN_GRACE_S:
                del self._known[broker_id], self._missing_since_s[broker_id]
                self._returned.discard(broker_id)


async def read_live(metadata: MetadataStore, session: Session, *, number: int) -> list[Record]:
    """The records of the registered brokers, by id: whoever registered before the call and is not among them, under that version, is gone.

    A list from a deposed leader of the shard (docs/internals/design/reading.md#reads-from-a-deposed-leader) lacks the brokers that
    registered since, and whoever drops what they wrote takes living brokers for dead. So the reader first puts a sentinel, a key beside the
    brokers that nobody has put before. It believes only a list that has the sentinel, and records that come with it from one server. What
    such a list does not have stays gone: a registration that comes later has a higher version.

    `session` is the reader's own, and `number` one that it has not used before: the sentinel goes with the session if nobody can remove it.
    Raises `Unavailable`, also when the list is older than the call.
    """
    sentinel = keys.broker_sentinel(session.session_id, number)
    outcome = await write_one(metadata, Put(sentinel, _SENTINEL_VALUE, ABSENT, session=session.session_id))
    try:
        start, end = keys.brokers_and_sentinels()
        paths = await metadata.list(start, end)
        # Whatever the put was answered: a list that has the key was made after it.
        if sentinel.path not in paths:
            why = outcome.status.value if isinstance(outcome, OpResult) else outcome.reason
            raise Unavailable(f"cannot read the live brokers for certain: sentinel={sentinel.path!r} put={why!r}")
        return await _read(metadata, sentinel.path, [path for path in paths if keys.is_broker(path)])
    finally:
        await write_one(metadata, Delete(sentinel))


class Registered(Protocol):
    """A broker's record, as far as this concerns."""

    @property
    def broker_id(self) -> int: ...
    @property
    def listeners(self) -> Iterable[object]: ...
    @property
    def rack(self) -> str | None: ...
    @property
    def version(self) -> str: ...
    @property
    def session_id(self) -> int: ...


class Change(NamedTuple):
    broker: Registered
    event: str


@dataclass(frozen=True, slots=True)
class Members:
    """The brokers registered at the last read, by id."""

    by_id: dict[int, Registered]

    def changes(self, now: "Members") -> list[Change]:
        """What happened between the two. A broker that lost its session and has another is still the same broker."""
        gone = [Change(broker, "broker_left") for broker_id, broker in self.by_id.items() if broker_id not in now.by_id]
        return gone + [
            Change(broker, "broker_registered_again" if broker_id in self.by_id else "broker_joined")
            for broker_id, broker in now.by_id.items()
            if broker_id not in self.by_id or self.by_id[broker_id].session_id != broker.session_id
        ]


class MembershipLog:
    """Given each list of the registered brokers, newest last."""

    def __init__(self) -> None:
        self._members: Members | None = None

    def note(self, live: Iterable[Registered], *, own_id: int) -> None:
        """The first list is where it begins: nothing is said of it. A broker does not speak of itself."""
        members = Members({broker.broker_id: broker for broker in live if broker.broker_id != own_id})
        former, self._members = self._members, members
        for broker, event in former.changes(members) if former is not None else ():
            facts = {"broker_id": broker.broker_id, "version": broker.version, "rack": broker.rack}
            facts["listeners"] = ", ".join(map(str, broker.listeners))
            if event == "broker_left":
                facts["meaning"] = LEFT_MEANING
            _log.info(event, **facts)


class Endpoint(NamedTuple):
    """An advertised address and the name of the listener it belongs to."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Role(Enum):
    """One kind of request that a broker serves; `broker.roles` names them."""

    PRODUCE = "produce"
    CONSUME = "consume"
    GROUPS = "groups"
    ADMIN = "admin"


ALL_ROLES: Final = frozenset(Role)


def kafka_only(listeners: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Without the addresses where Kafka is not spoken."""
    return tuple(endpoint for endpoint in listeners if endpoint.name not in (HTTP_LISTENER, BLOCKS_LISTENER))


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session_id` names the session the record goes with: a broker recognises its own record by it.

    `level_max`: the highest format level that the broker's release knows. A record without `roles` is that of a broker with all of them.
    """

    fmt: int = BROKER_FMT
    broker_id: int
    listeners: tuple[Endpoint, ...]
    rack: str | None
    version: str
    started_at_ms: int
    session_id: int
    level_max: int = LEVEL_FIRST
    roles: tuple[Role, ...] | msgspec.UnsetType = msgspec.UNSET

    def has_role(self, role: Role) -> bool:
        return self.roles is msgspec.UNSET or role in self.roles

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address of that listener; None if this broker has none of that name."""
        return next((endpoint for endpoint in self.listeners if endpoint.name == listener), None)

    @property
    def kafka_listeners(self) -> tuple[Endpoint, ...]:
        """The listeners that Kafka's clients connect to. They tell one broker's place from another's."""
        return kafka_only(self.listeners)


def able(live: Sequence[BrokerRecord], role: Role) -> list[BrokerRecord]:
    """Return the brokers of `live` that have the role. If none has it, all of them: the last one standing serves everything."""
    return [broker for broker in live if broker.has_role(role)] or list(live)


@dataclass(frozen=True, slots=True)
class Registration:
    """`epoch` is the version id of the record: unique, and greater with every registration that follows on one shard."""

    broker_id: int
    epoch: int


def _ignore(_registration: Registration) -> None:
    pass


_broker_decoder = msgspec.json.Decoder(BrokerRecord)


class BrokerDirectory:
    """One broker's view of all. `register` and `deregister` have one caller; `live` has any number."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        clock: Clock,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        level_max: int = LEVEL_MAX,
        entropy: Entropy = os.urandom,
        limits: CatalogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._level_max = level_max
        self._entropy = entropy
        self._level = LEVEL_FIRST
        self._metadata = metadata
        self._clock = clock
        self._session_timeout_ms = session_timeout_ms
        self._session: Session | None = None
        self._own: BrokerRecord | None = None
        self._own_id = -1
        self._own_epoch = -1
        self._is_valid = False
        self._live: list[BrokerRecord] = []
        self._scanned_at_s = float("-inf")
        self._live_until_s = 0.0
        self._changes = 0
        self._hinted = asyncio.Event()
        self._membership = MembershipLog()
        self._recent_peers: RecentPeers[BrokerRecord] = RecentPeers()
        self._scans = SharedReads(self._scan)
        self._sentinels = 0
        self._epoch_reads = SharedReads(self._read_epochs)
        self._subscription = metadata.subscribe(self._changed, prefix=keys.BROKERS_PREFIX)

    async def register(
        self,
        *,
        listeners: Sequence[Endpoint],
        rack: str | None,
        version: str,
        broker_id: int | None,
        roles: Collection[Role] = ALL_ROLES,
        on_registered: Callable[[Registration], None] = _ignore,
    ) -> Registration:
        """Announce this broker under `broker_id`, or under the smallest free id from 1 on; again after a loss, for a new epoch.

        One without `listeners` writes, and nobody connects to it: `live` does not list it, and its id is from WRITER_ID_MIN on.

        `on_registered` hears of it in the same turn of the loop in which `registered_epoch` becomes the new one; after that the former
        session, if there was one, is closed, which may take seconds.

        A record of the registration before, should it still be there, is taken over, so that nobody sees the broker gone in between.
        A given id that an earlier process of this broker still holds (the same listeners) is waited for, until its session must have ended.
        Raises `AlreadyExists` if another broker has it, `IncompatibleFormat` if the cluster is at a format level that this release does not
        know, or below the one of fewer than all `roles`; `Unavailable` if it is being raised to one that this release does not know, or the
        store cannot be reached.
        """
        former, self._session, self._is_valid = self._session, None, False
        try:
            if ALL_ROLES.difference(roles):
                await self._check_level_of_roles()
            registration = await self._register(tuple(listeners), rack, version, broker_id, roles)
            on_registered(registration)
            await self._learn_level(registration)
        except StorageError:
            # A put whose outcome is unknown must not be kept alive by the session it was made under.
            await self._end_session()
            raise
        finally:
            await _close(former)
        return registration

    async def _check_level_of_roles(self) -> None:
        (record,) = await self._metadata.get_many([keys.CLUSTER])
        level = LEVEL_FIRST if record is None else decode_cluster(record, level_max=self._level_max).level
        if level < LEVEL_OF_ROLES:
            raise IncompatibleFormat(
                f"a broker without some of the roles needs format level {LEVEL_OF_ROLES}, and this cluster is at {level}: "
                "when every broker is of this release, run: forebay cluster upgrade. Nothing was changed"
            )

    async def _register(
        self, listeners: tuple[Endpoint, ...], rack: str | None, version: str, broker_id: int | None, roles: Collection[Role]
    ) -> Registration:
        deadline_s = self._clock.monotonic_s() + (self._session_timeout_ms + _TAKEN_MARGIN_MS) / 1_000
        session = await self._open_session()
        attempts = 0
        expected = ABSENT
        while attempts < ATTEMPTS_MAX:
            candidate = broker_id if broker_id is not None else await self._free_id(is_writer=not listeners)
            record = BrokerRecord(
                fmt=BROKER_FMT_ROLES if ALL_ROLES.difference(roles) else BROKER_FMT,
                broker_id=candidate,
                listeners=listeners,
                rack=rack,
                version=version,
                started_at_ms=self._clock.now_ms(),
                session_id=session.session_id,
                level_max=self._level_max,
                roles=tuple([role for role in Role if role in roles]) if ALL_ROLES.difference(roles) else msgspec.UNSET,
            )
            key = keys.broker(candidate)
            outcome = await write_one(self._metadata, Put(key, encode(record), expected, session=session.session_id))
            expected = ABSENT
            if isinstance(outcome, OpResult) and outcome.version is not None:
                return self._registered(record, outcome.version)
            (holder,) = await self._metadata.get_many([key])
            if holder is not None and (held := decode_broker(holder)).session_id == session.session_id:
                return self._registered(record, holder.version)
            if holder is not None and self._own is not None and held.session_id == self._own.session_id:
                expected = holder.version
                attempts += 1
                continue
            if holder is not None and broker_id is not None:
                if held.kafka_listeners != kafka_only(listeners) or self._clock.monotonic_s() >= deadline_s:
                    raise id_taken(held)
                await asyncio.sleep(_POLL_S)
                continue
            attempts += 1
            if isinstance(outcome, Unknown) or outcome == OpResult(Status.SESSION_DOES_NOT_EXIST, None):
                # The put may still be on its way. That of an ended session fails for certain, so go on with another.
                await self._end_session()
                session = await self._open_session()
            elif isinstance(outcome, NotApplied):
                await asyncio.sleep(_POLL_S)
        raise Unavailable(f"cannot register a broker: attempts={ATTEMPTS_MAX} last_outcome={outcome}")

    async def deregister(self) -> None:
        """End the registration, if there is one. A store that does not answer ends it by itself when the session times out."""
        self._recent_peers.forget()
        await self._end_session()

    @property
    def is_registered(self) -> bool:
        """False as soon as the registration may have ended."""
        return self._is_valid and self._session is not None and not self._session.is_lost

    @property
    def registered_epoch(self) -> int | None:
        """The epoch whose record certainly exists; None as soon as it may have gone."""
        return self._own_epoch if self.is_registered else None

    @property
    def session(self) -> Session | None:
        """The session of the registration, for records that end with it; None while there is no valid registration."""
        return self._session if self.is_registered else None

    @property
    def own_id(self) -> int:
        """The id of the registration, or of the last one."""
        return self._own_id

    @property
    def level(self) -> int:
        """The format level in force, as last learned: what may be written. It only rises."""
        return self._level

    async def follow_level(self) -> None:
        """Learn of a level that is raised, until cancelled. Raises `IncompatibleFormat` if this release does not know it: a broker
        that was not registered when it was raised must stop.
        """
        while True:
            await asyncio.sleep(self._limits.level_read_every_s)
            with contextlib.suppress(Unavailable, Corrupt):
                (record,) = await self._metadata.get_many([keys.CLUSTER])
                if record is not None:
                    self._level = max(self._level, decode_cluster(record, level_max=self._level_max).level)

    async def watch(self) -> None:
        """Read who is registered whenever that may have changed, so that the log tells of it, until cancelled."""
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            with contextlib.suppress(StorageError):
                await self.live()
            await asyncio.sleep(CACHE_AGE_S)

    async def wait_lost(self) -> None:
        """Return when the registration is lost: others may take this broker for dead, and its id."""
        assert self._session is not None, "not registered"
        await self._session.wait_lost()

    async def live(self) -> list[BrokerRecord]:
        """All live brokers with an address, by id, at most a second old; up to LIVE_STALE_S old while the store does not answer.

        This one is among them while it is registered. One that lost its registration, or gave it up, lists itself only if no other lives,
        or nobody can say: clients of a lone broker have nowhere else to go.
        Raises `StorageError` if the store does not answer and there is no list, and `IncompatibleFormat`.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._live_until_s:
            return self._as_seen(self._live)
        try:
            return self._as_seen((await self._scans.ask([None]))[None])
        except Unavailable:
            if self._clock.monotonic_s() - self._scanned_at_s > LIVE_STALE_S:
                raise
            return self._as_seen(self._live, is_stale=True)

    def last_seen(self) -> list[BrokerRecord]:
        """As `live`, of the list that was read last, however old it is: no request is made."""
        return self._as_seen(self._live)

    def listed(self, live: Sequence[BrokerRecord]) -> list[BrokerRecord]:
        """All brokers that clients hear of, by id: those of `live`, and for RETURN_GRACE_S after a loss of the registration those that were
        registered before it, this one included.
        """
        return sorted([*live, *self._recent_peers.missing(live, now_s=self._clock.monotonic_s())], key=_id)

    async def epochs_now(self) -> frozenset[int]:
        """The epochs of all registered brokers, as of a moment after the call: an epoch that was handed out before it and is not among them
        is gone forever. Raises `Unavailable`, also while this broker is not registered itself.
        """
        return (await self._epoch_reads.ask([None]))[None]

    def close(self) -> None:
        """Take no more hints."""
        self._subscription.cancel()

    async def _end_session(self) -> None:
        session, self._session, self._is_valid = self._session, None, False
        self._live_until_s = 0.0
        await _close(session)

    async def _open_session(self) -> Session:
        self._session = await self._metadata.open_session(timeout_ms=self._session_timeout_ms)
        return self._session

    def _registered(self, record: BrokerRecord, epoch: int) -> Registration:
        self._own, self._own_id, self._own_epoch, self._is_valid = record, record.broker_id, epoch, True
        self._live_until_s = 0.0
        self._recent_peers.returned(now_s=self._clock.monotonic_s())
        return Registration(record.broker_id, epoch)

    async def _learn_level(self, registration: Registration) -> None:
        """As of a state that has the registration: an announcement made later finds this broker, and an earlier one is seen here."""
        for attempt in range(ATTEMPTS_MAX):
            own, cluster = await self._metadata.get_many([keys.broker(registration.broker_id), keys.CLUSTER])
            if own is not None and own.version >= registration.epoch:
                if cluster is not None:
                    found = decode_cluster(cluster, level_max=self._level_max)
                    if (problem := problem_with_announced(found.level, found.raising_to, level_max=self._level_max)) is not None:
                        raise Unavailable(problem)
                    self._level = max(self._level, found.level)
                return
            if not self.is_registered:
                break
            await pause(attempt, self._entropy)
        raise Unavailable(f"cannot read the format level for certain: broker_id={registration.broker_id} epoch={registration.epoch}")

    async def _free_id(self, *, is_writer: bool) -> int:
        """The smallest one from 1 on. A writer takes one by chance that no operator gives to a broker: many may start at a time."""
        if is_writer:
            return WRITER_ID_MIN + int.from_bytes(self._entropy(8), "big") % (BROKER_ID_MAX - WRITER_ID_MIN)
        start, end = keys.brokers()
        taken = {int(path.removeprefix(keys.BROKERS_PREFIX)) for path in await self._metadata.list(start, end)}
        return next(number for number in range(1, BROKER_ID_MAX) if number not in taken)

    async def _scan(self, _: list[None]) -> dict[None, list[BrokerRecord]]:
        changes = self._changes
        start, end = keys.brokers()
        registered = [decode_broker(stored) async for stored in self._metadata.range_scan(start, end)]
        self._membership.note(registered, own_id=self._own_id)
        live = [broker for broker in registered if broker.kafka_listeners]
        self._live, self._scanned_at_s = live, self._clock.monotonic_s()
        self._recent_peers.note(live, is_registered=self.is_registered, now_s=self._scanned_at_s)
        if changes == self._changes:
            self._live_until_s = self._scanned_at_s + CACHE_AGE_S
        return {None: live}

    async def _read_epochs(self, _: list[None]) -> dict[None, frozenset[int]]:
        session = self.session
        if session is None:
            raise Unavailable("cannot read the live brokers for certain: this broker is not registered")
        self._sentinels += 1
        records = await read_live(self._metadata, session, number=self._sentinels)
        return {None: frozenset([record.version for record in records])}

    def _as_seen(self, found: list[BrokerRecord], *, is_stale: bool = False) -> list[BrokerRecord]:
        """By id, with this broker if it is registered, or alone: its own record may be too new, or too old, for the list."""
        own = self._own
        if own is None:
            return list(found)
        others = [record for record in found if record.broker_id != own.broker_id or record.session_id != own.session_id]
        if others and not self.is_registered and not is_stale:
            return others
        return sorted([own, *(record for record in others if record.broker_id != own.broker_id)], key=_id)

    def _changed(self, path: str, _version: int | None) -> None:
        if keys.is_broker(path):
            self._changes += 1
            self._live_until_s = 0.0
            self._hinted.set()


def decode_broker(record: Record) -> BrokerRecord:
    """Raise `IncompatibleFormat`, or `Corrupt`."""
    broker = decode(_broker_decoder, record.value, known=BROKER_FMT_ROLES, path=record.path)
    if broker.fmt != (BROKER_FMT if broker.roles is msgspec.UNSET else BROKER_FMT_ROLES) or broker.roles == ():
        raise Corrupt(f"a broker's record and its format contradict: key={record.path!r} fmt={broker.fmt} roles={broker.roles}")
    return broker


def id_taken(holder: BrokerRecord) -> AlreadyExists:
    """What to tell another broker that was given the id of `holder`."""
    listeners = ",".join(str(endpoint) for endpoint in holder.kafka_listeners)
    return AlreadyExists(
        f"broker.id {holder.broker_id} is taken by the live broker at {listeners}. "
        f"Set another broker.id, or none to be assigned one: started_at_ms={holder.started_at_ms} version={holder.version!r}"
    )


class CompactorRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` is a ULID of the process; `http`: where its health and metrics are served, host:port."""

    fmt: int = COMPACTOR_FMT
    name: str
    host: str
    pid: int
    http: str
    version: str
    started_at_ms: int


_compactor_decoder = msgspec.json.Decoder(CompactorRecord)


def decode_compactor(record: Record) -> CompactorRecord:
    return decode(_compactor_decoder, record.value, known=COMPACTOR_FMT, path=record.path)


async def register_compactor(metadata: MetadataStore, record: CompactorRecord, session: Session) -> WriteOutcome:
    """Its record goes with `session`."""
    return await metadata.write([Put(keys.compactor(record.name), encode(record), None, session=session.session_id)])


async def live_compactors(metadata: MetadataStore) -> list[CompactorRecord]:
    """By name. Raises `Unavailable`, `IncompatibleFormat`."""
    start, end = keys.compactors()
    return [decode_compactor(record) async for record in metadata.range_scan(start, end)]


def compactor_of(partition: PartitionId, names: Collection[str]) -> str:
    """PURE: which of `names`, at least one, looks after `partition`: by rendezvous hash, so that who comes or goes moves only its share."""
    key = f"{partition.topic_id}/{partition.partition}"
    return max(names, key=lambda name: (xxhash.xxh3_64_intdigest(f"{key}|{name}"), name))


async def _read(metadata: MetadataStore, sentinel: str, paths: list[str]) -> list[Record]:
    records: list[Record] = []
    for first in range(0, len(paths), _READ_KEYS_MAX):
        # One request to one server, and the sentinel first: what is read after it is no older.
        asked = [keys.beside_brokers(path) for path in (sentinel, *paths[first : first + _READ_KEYS_MAX])]
        seen, *found = await metadata.get_many(asked)
        if seen is None:
            raise Unavailable(f"cannot read the live brokers for certain: sentinel={sentinel!r} is not there")
        records += [record for record in found if record is not None]
    return records


async def _close(session: Session | None) -> None:
    if session is not None:
        with contextlib.suppress(StorageError):
            await session.close()
