"""Listening: accepts connections, keeps them within bounds, drains them."""

import asyncio
import contextlib
import gc
import socket
from dataclasses import dataclass
from typing import Final

import structlog

from broker.addresses import IN_PLACE, Addresses, ClientAddress, ConnectionPlaces
from broker.admission import STALLED, Admission
from broker.cluster.registration import ControlledShutdown
from broker.connection import HTTP, NO_MEMORY, TLS, Connection, Requests
from broker.protocol.wire import OtherProtocol, ProtocolViolation
from broker.responses import UNREAD, Responses
from process.accepting import Acceptor
from runtime.clock import Clock
from runtime.logs import Rarely
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from runtime.turns import Turns, in_turns
from storage.limits import FRAME_BYTES_MAX

CONNECTIONS: Final = Metric("forebay_connections", "Open client connections", ("listener",), aggregation="sum")
CONNECTIONS_MAX: Final = Metric(
    "forebay_connections_max",
    "Client connections there may be: kafka.max_connections, or fewer if the limit of open files is too low",
    aggregation="sum",
)
EVICTED: Final = Metric(
    "forebay_connections_evicted_total", "Connections closed because others waited for the memory, or the place, they held", ("reason",)
)
VIOLATIONS: Final = Metric("forebay_protocol_violations_total", "Connections closed because of what the client sent")

LOOK_EVERY_S: Final = 0.05
FINISH_S: Final = 5.0
"""In the end connections are closed where nothing is under way; one that is never found so is read no further after this."""
STUCK_S: Final = 1.0
"""Then a client is not waited for that has sent half a request, or does not take its answers, and was silent for this long."""
PART_S: Final = 1.0
"""A client that was sent the end of our stream has this long to read it, and what came before it, and to close."""
TAKEN_CHECK_S: Final = 1.0
STALLED_S: Final = 15.0
"""While requests wait for memory, who keeps requests that it has sent from being begun, and was silent for this long, is cut off."""

STUCK_CHECK_S: Final = 5.0
"""While the budget of requests is used up and not a byte of it was given back for this long, memory is looked for in garbage."""

MORE_CONNECTIONS: Final = (
    "raise kafka.max_connections, and the limit of open files (ulimit -n, LimitNOFILE) if the start warned that it is too low; "
    "or find the client that opens that many"
)

HELD_UP: Final = "it takes no replies, or its long poll is in the way of what it sent after it, while others wait for the memory"
FIX_TLS: Final = (
    "listeners are plaintext: use security.protocol=PLAINTEXT in the client, or let it connect to a proxy before the broker that ends TLS"
)
CLIENT_ID_CHARS_MAX: Final = 256
"""Characters of a client id in the log."""
_REASONS: Final = {STALLED: "half_sent", UNREAD: "unread", HELD_UP: "held_up", IN_PLACE: "idle", NO_MEMORY: "no_memory"}
_FIXES: Final = {IN_PLACE: MORE_CONNECTIONS}

log = structlog.get_logger("server")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections_max: int = 2_000
    idle_timeout_s: float = 600.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    idle_check_s: float = 15.0


class Server:
    def __init__(
        self,
        *,
        requests: Requests,
        admission: Admission,
        controlled_shutdown: ControlledShutdown,
        responses: Responses,
        limits: ConnectionLimits,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        http_address: str = "",
    ) -> None:
        """`http_address`: where HTTP is served, for those who speak it here."""
        self._requests = requests
        self._admission = admission
        self._controlled_shutdown = controlled_shutdown
        self._responses = responses
        self._limits = limits
        self._clock = clock
        self._nursery = nursery
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._addresses = Addresses(requests=admission, replies=responses)
        self._places = ConnectionPlaces(connections_max=limits.connections_max)
        self._acceptors: list[Acceptor[Connection]] = []
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._telemetry = telemetry
        self._gauge = telemetry.gauge(CONNECTIONS)
        telemetry.gauge(CONNECTIONS_MAX).set(limits.connections_max)
        self._violations = telemetry.counter(VIOLATIONS)
        self._evicted = telemetry.counter(EVICTED)
        self._http_address = http_address
        self._last_said: dict[str, dict[str, object]] = {}
        self._sayings: dict[str, Rarely] = {}
        self._is_draining = False
        self._held_before_bytes = -1

    def address_of(self, client_host: str) -> ClientAddress:
        """The account that all of an address share."""
        return self._addresses.of(client_host)

    def serve(self, listener_name: str, bound: socket.socket) -> None:
        """Accept connections on a socket that `bind` made, until `stop_listening` or `drain`."""
        acceptor = Acceptor(
            listener_name,
            bound,
            make=lambda client_host: self._make(listener_name, client_host),
            has_room=self._has_room,
            make_room=lambda client_host: self._places.make_room(self._addresses.of(client_host)),
            # Those that arrive say nothing yet, and give their places up before one that has spoken.
            may_wait=lambda: self._places.silent_count <= self._arriving(),
            fix=MORE_CONNECTIONS,
            nursery=self._nursery,
            telemetry=self._telemetry,
        )
        self._acceptors.append(acceptor)
        acceptor.start()

    def stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        for saying in self._sayings.values():
            saying.stop()

    async def see_off(self, *, drain_s: float) -> None:
        """Serve on, also who connects now, and get clients to leave; until all have, at most for `drain_s`.

        For the first half producers are asked, in the second they are refused (broker/cluster/registration.py). A connection
        is closed when its client has understood; those that were not asked, because they produce nothing, stay.
        """
        began_s = self._clock.monotonic_s()
        while self._connections and (left_s := began_s + drain_s - self._clock.monotonic_s()) > 0:
            self._controlled_shutdown.ask()
            if left_s <= drain_s / 2:
                self._controlled_shutdown.refuse()
            for connection in tuple(self._connections):
                if self._controlled_shutdown.has_understood(connection, last_received_s=connection.last_active_s):
                    connection.finish()
            await self._closed_within(min(left_s, LOOK_EVERY_S))

    async def drain(self, *, drain_s: float) -> None:
        """Stop accepting, close connections between requests, answer what was received for at most `drain_s`, then cut them off."""
        self._is_draining = True
        self.stop_listening()
        self._controlled_shutdown.refuse()
        began_s = now_s = self._clock.monotonic_s()
        while (unanswered := [one for one in self._connections if not one.has_parted]) and now_s < began_s + drain_s:
            for connection in unanswered:
                if now_s >= began_s + FINISH_S or (connection.waits_for_client and now_s >= connection.last_active_s + STUCK_S):
                    connection.drain()
                elif not self._controlled_shutdown.is_under_way(connection, last_received_s=connection.last_active_s):
                    connection.finish()
            await self._closed_within(LOOK_EVERY_S)
            now_s = self._clock.monotonic_s()
        if unanswered:
            log.warning("connections_cut_off", count=len(unanswered), after_s=drain_s)
        await self._closed_within(min(drain_s, PART_S))
        for connection in tuple(self._connections):
            connection.abort()

    async def _closed_within(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()

    def _has_room(self) -> bool:
        return self._places.has_room(self._arriving())

    def _arriving(self) -> int:
        return sum(len(acceptor.arriving) for acceptor in self._acceptors)

    def _make(self, listener_name: str, client_host: str) -> Connection:
        return Connection(
            requests=self._requests,
            admission=self._admission,
            responses=self._responses,
            frame_bytes_max=self._limits.frame_bytes_max,
            listener=listener_name,
            address=self._addresses.of(client_host),
            on_made=self._on_made,
            on_lost=self._on_lost,
            on_refused=self._on_refused,
            on_evicted=self._on_evicted,
            now_s=self._clock.monotonic_s,
            soon=asyncio.get_running_loop().call_soon,
        )

    def _on_made(self, connection: Connection) -> None:
        for acceptor in self._acceptors:
            acceptor.arriving.discard(connection)
        if self._is_draining:
            connection.abort()  # it was accepted a moment before
            return
        self._gauge.labels(connection.listener).inc()
        self._places.take(connection)
        self._connections[connection] = self._nursery.spawn(connection.run(), name="connection")
        self._all_closed.clear()

    def _on_refused(self, connection: Connection, reason: ProtocolViolation) -> bytes:
        self._violations.inc()
        if not isinstance(reason, OtherProtocol):
            self._say("protocol_violation", connection, cause=str(reason))
            return b""
        fix = FIX_TLS if reason.protocol == TLS else f"HTTP is served at {self._http_address} (http.listen); this port is Kafka's"
        self._say("other_protocol", connection, protocol=reason.protocol, cause=str(reason), fix=fix)
        return _answer_to_http(fix) if reason.protocol == HTTP else b""

    def _on_evicted(self, connection: Connection, reason: str) -> None:
        self._evicted.labels(_REASONS[reason]).inc()
        facts = {"cause": reason, "arrived_bytes": connection.arrived_bytes} | ({"fix": _FIXES[reason]} if reason in _FIXES else {})
        self._say("connection_evicted", connection, reason=_REASONS[reason], **facts)

    def _say(self, event: str, connection: Connection, **facts: object) -> None:
        """Each kind the first time at once, then rarely, with the facts of the last one and how many there were."""
        kind = f"{event} {facts.get('protocol') or facts.get('reason')}"
        client_id = connection.client_id
        about = {"client_host": connection.client_host, "client_id": client_id and client_id[:CLIENT_ID_CHARS_MAX]}
        self._last_said[kind] = about | {"listener": connection.listener} | facts
        if kind not in self._sayings:
            later = asyncio.get_running_loop().call_later
            self._sayings[kind] = Rarely(lambda count: log.warning(event, count=count, **self._last_said[kind]), later=later)
        self._sayings[kind].happened()

    def _on_lost(self, connection: Connection) -> None:
        task = self._connections.pop(connection, None)
        if task is not None:
            task.cancel()
            self._gauge.labels(connection.listener).dec()
        self._places.give_back(connection)
        self._controlled_shutdown.forget(connection)
        if not self._connections:
            self._all_closed.set()

    async def close_idle(self) -> None:
        """Close connections that were silent for too long, and readers that take nothing while others wait; until cancelled."""
        checked_s = self._clock.monotonic_s()
        while True:
            await asyncio.sleep(TAKEN_CHECK_S)
            now_s = self._clock.monotonic_s()
            await in_turns(self._responses.look_in_steps(now_s))
            if self._admission.is_short or now_s - checked_s >= self._limits.idle_check_s:
                checked_s = now_s
                await self.close_silent()

    async def collect_garbage(self) -> None:
        """Look for requests in garbage when some wait for memory; until cancelled."""
        while True:
            await asyncio.sleep(STUCK_CHECK_S)
            self.collect_when_stuck()

    def collect_when_stuck(self) -> None:
        """What nobody refers to but itself goes when the collector runs, and that waits for new objects: not while all wait."""
        held_bytes = self._admission.held_bytes
        if self._admission.is_short and held_bytes == self._held_before_bytes:
            gc.collect()
        self._held_before_bytes = held_bytes

    async def close_silent(self) -> None:
        """Close connections that were silent for the idle timeout, and those that keep requests waiting for memory by their silence."""
        now_s = self._clock.monotonic_s()
        is_short = self._admission.is_short
        turns = Turns()
        for connection in tuple(self._connections):
            await turns.spent()
            connection.note_progress()
            silent_s = now_s - connection.last_active_s
            # Not `close`: that waits until the client has taken what is buffered for it, and this one may never do so.
            if is_short and connection.is_holding_memory and silent_s > STALLED_S:
                connection.evict(STALLED if connection.has_partial_request else HELD_UP)
            elif connection.is_idle and silent_s > self._limits.idle_timeout_s:
                connection.abort()


def _answer_to_http(text: str) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
