"""The life of a broker in its cluster: its id, its epoch, new ones when the session behind them is lost, and how it leaves.

Without a registration a broker goes on serving: every commit is a CAS, and what was begun under the old epoch is settled under it
(storage/log/commit.py). It only leads nothing for clients, as long as there are others (docs/internals/design/coordination.md).

`ControlledShutdown` gets producers to leave a draining broker before it closes connections
(docs/internals/adr/0016-leaving-without-an-error.md).
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Endpoint, Registration, Role
from storage.errors import AlreadyExists, IncompatibleFormat, StorageError
from storage.log.partition import BrokerEpoch

SESSIONS_LOST: Final = Metric(
    "forebay_sessions_lost_total", "Times that this broker's session with the metadata store was lost, and it registered again"
)
SAID_EVERY_ATTEMPTS: Final = 10

log = structlog.get_logger("registration")

THROTTLE_MS: Final = 2_000
"""Longer than QUIET_S, so that a connection is closed before it is used again; short, because some clients keep it for the next broker."""
QUIET_S: Final = 0.5
"""A client answered so that stays silent for this long has understood: more than a packet takes, and a client that waits for its CPU."""


def _ignore(_lost: str | None) -> None:
    pass


class BrokerLifecycle:
    """`begin` once, then `stay` as a task, then `end`."""

    def __init__(
        self,
        directory: BrokerDirectory,
        *,
        listeners: Sequence[Endpoint],
        rack: str | None,
        version: str,
        fixed_id: int | None,
        telemetry: Telemetry,
        roles: Collection[Role] = ALL_ROLES,
        on_change: Callable[[str | None], None] = _ignore,
        limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
    ) -> None:
        """`fixed_id`: the id the operator gave; without one it is assigned, and assigned again if somebody has it after a loss.

        `on_change` gets the reason why there is no registration, or None when there is one.
        """
        self._directory = directory
        self._listeners = tuple(listeners)
        self._rack = rack
        self._version = version
        self._fixed_id = fixed_id
        self._roles = frozenset(roles)
        self._sessions_lost = telemetry.counter(SESSIONS_LOST)
        self._on_change = on_change
        self._pause_s = limits.register_pause_s
        self._epoch: BrokerEpoch | None = None
        self._over = asyncio.Event()

    @property
    def broker_id(self) -> int:
        """The id of the current registration, or of the last one."""
        return self._directory.own_id

    async def begin(self) -> BrokerEpoch:
        """Register. What is returned names the epoch of the day. Raises `AlreadyExists` if the id is taken, else a `StorageError`."""
        registration = await self._register(self._fixed_id)
        directory = self._directory
        self._epoch = BrokerEpoch(registration.epoch, registered_epoch=lambda: directory.registered_epoch, live=directory.epochs_now)
        self._on_change(None)
        return self._epoch

    async def stay(self) -> None:
        """Register again, for a new epoch, whenever the registration is lost. Until cancelled, or `end`. Raises `IncompatibleFormat` if the
        cluster's formats are meanwhile at a level that this release does not know.
        """
        assert self._epoch is not None, "begin first"
        while not self._over.is_set():
            await self._directory.wait_lost()
            if self._over.is_set():
                return
            self._sessions_lost.inc()
            log.warning("session_lost", broker_id=self.broker_id, epoch=self._epoch.current)
            self._on_change("the session was lost")
            registration = await self._register_again()
            if registration is None:
                return
            log.info("registered_again", broker_id=registration.broker_id, epoch=registration.epoch)

    async def end(self) -> None:
        """Give the registration up, for good."""
        self._over.set()
        try:
            await self._directory.deregister()
        except StorageError as error:
            log.warning("deregister_failed", cause=str(error))

    async def _register_again(self) -> Registration | None:
        """None if the life has ended meanwhile."""
        wanted: int | None = self.broker_id
        for attempt in itertools.count():
            if self._over.is_set():
                break
            try:
                registration = await self._register(wanted)
            except AlreadyExists as error:
                self._failed(error, attempt)
                wanted = self._fixed_id
            except IncompatibleFormat:
                raise
            except StorageError as error:
                self._failed(error, attempt)
            else:
                if not self._over.is_set():
                    return registration
                await self._directory.deregister()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._over.wait()
        return None

    def _failed(self, error: StorageError, attempt: int) -> None:
        self._on_change(str(error))
        if attempt % SAID_EVERY_ATTEMPTS == 0:
            log.warning("register_failed", cause=str(error), attempts=attempt + 1)

    async def _register(self, broker_id: int | None) -> Registration:
        return await self._directory.register(
            listeners=self._listeners,
            rack=self._rack,
            version=self._version,
            broker_id=broker_id,
            roles=self._roles,
            on_registered=self._renew,
        )

    def _renew(self, registration: Registration) -> None:
        """Before the former session is closed: what begins meanwhile must not begin under an epoch whose record is gone."""
        if self._epoch is not None and not self._over.is_set():
            self._epoch.renew(registration.epoch)
            self._on_change(None)


class ControlledShutdown:
    """Gets producers to leave before their connections are closed. Made once per broker; `ask`, then `refuse`.

    A client that has a request under way when its connection closes cannot know what became of it: without retries that is an error.
    Clients look for the leader again after minutes or after an error, so they are asked in two ways, one after the other:

    asked     Produce is answered as ever, and with a throttle time: clients that honour it (KIP-219, Java from 2.0 on) send no more for so
              long
    refused   Produce is answered NOT_LEADER_OR_FOLLOWER, before anything was done: librdkafka looks for the leader again and does not count
              it as a retry

    Either way a moment comes when nothing is under way on a connection and nothing will be sent: that is when it is closed.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.is_asking = False
        self.is_refusing = False
        self._answered_at_s: dict[object, float] = {}

    def ask(self) -> None:
        self.is_asking = True

    def refuse(self) -> None:
        self.is_asking = self.is_refusing = True

    def throttle_ms(self, connection: object) -> int:
        """What an answer to Produce that is sent now says; it is noted that this connection gets one."""
        if not self.is_asking:
            return 0
        self._answered_at_s[connection] = self._clock.monotonic_s()
        return THROTTLE_MS

    def has_understood(self, connection: object, *, last_received_s: float) -> bool:
        """It was asked, and has been silent since."""
        return connection in self._answered_at_s and not self.is_under_way(connection, last_received_s=last_received_s)

    def is_under_way(self, connection: object, *, last_received_s: float) -> bool:
        """It was asked, and may send something that it began to send before it heard of it."""
        answered_at_s = self._answered_at_s.get(connection)
        return answered_at_s is not None and self._clock.monotonic_s() - max(answered_at_s, last_received_s) < QUIET_S

    def forget(self, connection: object) -> None:
        """It is closed."""
        self._answered_at_s.pop(connection, None)
