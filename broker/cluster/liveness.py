"""Which registered brokers are alive: a killed one stays registered until its session ends, but its address shows it at once (ADR 0011).

There are two kinds of evidence of death, and no third:
- each of its listeners refuses connections, and an address that refuses has accepted one from here under the same registration;
- a later registration advertises the same listeners: the broker was started again.

Either counts for `DEATH_S`. A broker still registered after that keeps its session alive, so it lives whatever its address says: a broker
is wrong about a registration once, and not for long.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from broker.cluster.leadership import COORDINATOR_SLOTS
from broker.cluster.ownership import CLAIMS_PREFIX
from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.catalog.brokers import SESSION_TIMEOUT_MS, BrokerDirectory, BrokerRecord, Endpoint
from storage.errors import StorageError
from storage.metadata import keys
from storage.metadata.port import MetadataStore

FRESH_S: Final = 0.5
"""What a probe found is not asked again within this time."""
PROBE_S: Final = 0.3
RESOLVE_S: Final = 10.0
UNREACHED_S: Final = 10.0
"""An address that has never led anywhere is tried again after this time."""
DEATH_S: Final = SESSION_TIMEOUT_MS / 1_000 + 2.0
PROBES_MAX: Final = 8
ADDRESSES_MAX: Final = 4
"""Per listener: a name may have more."""

log = structlog.get_logger("groups")


class Address(NamedTuple):
    """An IP address and a port."""

    host: str
    port: int


class Network(Protocol):
    async def resolve(self, endpoint: Endpoint) -> Sequence[Address]:
        """Raises `OSError`."""
        ...

    async def probe(self, address: Address) -> None:
        """Connect and close. Raises `ConnectionRefusedError` if nobody listens there, another `OSError` if that cannot be found out."""
        ...


class SystemNetwork:
    """TCP."""

    async def resolve(self, endpoint: Endpoint) -> Sequence[Address]:
        try:
            return [Address(str(ipaddress.ip_address(endpoint.host)), endpoint.port)]
        except ValueError:
            pass
        try:
            found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"not a host name: {endpoint.host!r}") from error
        return list(dict.fromkeys(Address(str(address[0]), endpoint.port) for *_, address in found))

    async def probe(self, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connecting:
            connecting.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connecting, address)


@dataclass(slots=True)
class _Registration:
    """What is known of a broker since it registered."""

    record: BrokerRecord
    addresses: tuple[tuple[Address, ...], ...] | None = None
    """By listener, as they were when this broker met it; None: not resolved yet."""
    reached: set[Address] = field(default_factory=set)
    asked_at_s: float = float("-inf")
    is_silent: bool = False
    """Whether the last probe ended without an answer: nobody waits for the next one."""
    dead_since_s: float | None = None
    lives: bool = False
    """It did something that the dead do not do: no evidence counts any more."""
    probe: asyncio.Task[None] | None = None


class Peers:
    """One broker's view of the others. `run` must be running while it is used; `close` ends its hints."""

    def __init__(
        self, directory: BrokerDirectory, *, metadata: MetadataStore, clock: Clock, nursery: Nursery, network: Network | None = None
    ) -> None:
        self._directory = directory
        self._metadata = metadata
        self._clock = clock
        self._nursery = nursery
        self._network = network or SystemNetwork()
        self._known: dict[int, _Registration] = {}
        self._probes = asyncio.Semaphore(PROBES_MAX)
        self._claimed = asyncio.Event()
        self._subscription = metadata.subscribe(lambda _path, _version: self._claimed.set(), prefix=CLAIMS_PREFIX)

    async def run(self) -> None:
        """Meet the others once there are claims, until cancelled: one killed later was then reached before. Without groups, meet none."""
        try:
            if any(await self._metadata.get_many([keys.coordinator(slot) for slot in range(COORDINATOR_SLOTS)])):
                self._claimed.set()
        except StorageError as error:
            log.warning("claims_not_read", cause=str(error))
        while True:
            await self._claimed.wait()
            self._claimed.clear()
            try:
                await self.meet()
            except StorageError as error:
                log.warning("neighbours_not_met", cause=str(error))
            await asyncio.sleep(FRESH_S)

    def close(self) -> None:
        """Take no more hints."""
        self._subscription.cancel()

    async def standing(self) -> list[BrokerRecord]:
        """The registered brokers without those known to be dead, by id. Nobody is asked. Raises `StorageError`."""
        live = await self._directory.live()
        self._review(live)
        return [record for record in live if not self._is_dead(record.session_id)]

    async def meet(self) -> list[BrokerRecord]:
        """As `standing`. New brokers are asked, and not waited for."""
        standing = await self.standing()
        for found in self._known.values():
            if found.asked_at_s == float("-inf"):
                self._ask(found)
        return standing

    async def is_valid(self, session_id: int) -> bool:
        """Whether there is no evidence that the broker registered under that session is dead.

        Asks it if that was not done within `FRESH_S`, and waits for at most `PROBE_S` if the answer can make a difference.
        Raises `StorageError`. When cancelled, a broker that was asked may still answer.
        """
        await self.meet()
        found = self._known.get(session_id)
        if found is None or found.lives or found.dead_since_s is not None:
            return not self._is_dead(session_id)
        if self._clock.monotonic_s() - found.asked_at_s >= (FRESH_S if found.reached else UNREACHED_S):
            self._ask(found)
        if found.probe is not None and found.reached and not found.is_silent:
            await asyncio.wait({found.probe}, timeout=PROBE_S)
        return not self._is_dead(session_id)

    def note_life(self, session_id: int) -> None:
        """The broker registered under that session has done something since it was taken for dead."""
        if (found := self._known.get(session_id)) is not None and not found.lives:
            found.lives = True
            log.warning("broker_lives", broker_id=found.record.broker_id, though="it was taken for dead")

    def _review(self, live: Sequence[BrokerRecord]) -> None:
        others = {record.session_id: record for record in live if record.broker_id != self._directory.own_id}
        for gone in self._known.keys() - others.keys():
            if (probe := self._known.pop(gone).probe) is not None:
                probe.cancel()
        latest: dict[tuple[Endpoint, ...], int] = {}
        for record in live:
            place = record.kafka_listeners
            latest[place] = max(record.started_at_ms, latest.get(place, 0))
        for session_id, record in others.items():
            found = self._known.get(session_id)
            if found is None:
                found = self._known[session_id] = _Registration(record)
            # One address is one machine, so one clock ordered the two.
            if record.kafka_listeners and record.started_at_ms < latest[record.kafka_listeners]:
                self._note_death(found, "it was started again")

    def _is_dead(self, session_id: int) -> bool:
        found = self._known.get(session_id)
        if found is None or found.lives or found.dead_since_s is None:
            return False
        if self._clock.monotonic_s() - found.dead_since_s >= DEATH_S:
            self.note_life(session_id)
        return not found.lives

    def _note_death(self, found: _Registration, why: str) -> None:
        if found.dead_since_s is None and not found.lives:
            found.dead_since_s = self._clock.monotonic_s()
            log.warning("broker_dead", broker_id=found.record.broker_id, why=why)

    def _ask(self, found: _Registration) -> None:
        if found.probe is None:
            found.probe = self._nursery.spawn(self._probe(found), name="probe")

    async def _probe(self, found: _Registration) -> None:
        try:
            async with self._probes:
                if found.addresses is None:
                    async with asyncio.timeout(RESOLVE_S):
                        found.addresses = await self._addresses(found.record)
                async with asyncio.timeout(PROBE_S):
                    found.is_silent = not await self._is_answered(found)
        except (OSError, TimeoutError):
            found.is_silent = True
        finally:
            found.asked_at_s = self._clock.monotonic_s()
            found.probe = None

    async def _addresses(self, record: BrokerRecord) -> tuple[tuple[Address, ...], ...]:
        return tuple([tuple((await self._network.resolve(endpoint))[:ADDRESSES_MAX]) for endpoint in record.kafka_listeners])

    async def _is_answered(self, found: _Registration) -> bool:
        """Probe until somebody opens; False if nobody does, and not everybody refuses."""
        assert found.addresses is not None
        refusing: set[Address] = set()
        is_refused = True
        for address in dict.fromkeys(address for addresses in found.addresses for address in addresses):
            try:
                await self._network.probe(address)
            except ConnectionRefusedError:
                refusing.add(address)
            except OSError:
                is_refused = False
            else:
                found.reached.add(address)
                return True
        if is_refused and found.reached & refusing:
            self._note_death(found, "its listeners refuse")
        return is_refused
