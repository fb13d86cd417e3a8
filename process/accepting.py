"""Accepts connections of one listening socket up to a bound, and outlives a lack of descriptors.

The loop's own servers do not do for a broker: they know no bound, and where `accept` fails for want of descriptors uvloop closes the
listener, while asyncio logs a thousand tracebacks a second.
"""

import asyncio
import contextlib
import errno
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import structlog

from runtime.logs import Rarely
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry

REFUSED: Final = Metric(
    "forebay_connections_refused_total",
    "Connections closed at once because there were already forebay_connections_max, none of them silent; for HTTP, the oldest idle one",
)
ACCEPT_FAILURES: Final = Metric(
    "forebay_accept_failures_total",
    "Times that no connection could be accepted, by error: EMFILE is this process's limit of open files, ENFILE that of the machine",
    ("error",),
)

BACKLOG: Final = 1_024
ACCEPTED_AT_ONCE: Final = 64
"""Then others have their turn on the loop."""
CLOSED_AT_ONCE: Final = 8
"""Connections that give their places to new ones, in a turn of the loop."""
RETRY_S: Final = 0.2
"""The pause without descriptors; new connections wait in the backlog meanwhile."""
HTTP_CONNECTIONS_MAX: Final = 32
"""Probes, scrapers and people: far more than there are. A broker has room for more: `http.max_connections`."""

_FIXES: Final = {
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE); new connections wait until there is a descriptor",
    errno.ENFILE: "raise the machine's limit (sysctl fs.file-max), or find the process with that many open files; new connections wait",
}
_NO_FIX: Final = "fix the cause; new connections wait, and each is tried again five times a second"

PEER_CONNECTIONS_MAX: Final = 64
"""With `storage.zone_cache`: to all other brokers together. So many of them, too, beside `http.max_connections`."""

P = TypeVar("P", bound=asyncio.BaseProtocol)

log = structlog.get_logger("accepting")


def bind(host: str, port: int) -> socket.socket:
    """A bound socket whose backlog fills from now on: early clients wait. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def unacknowledged_bytes(socket_fd: int) -> int:
    """What a socket was given and its peer's system has not taken; 0 of a negative number, and where the system does not tell."""
    queued = bytearray(4)
    if socket_fd >= 0:
        with contextlib.suppress(OSError):
            fcntl.ioctl(socket_fd, termios.TIOCOUTQ, queued)
    return int.from_bytes(queued, sys.byteorder)


class Acceptor(Generic[P]):
    """Between `start` and `stop`. A protocol is in `arriving` from `accept` on, until its owner takes it out in `connection_made`."""

    def __init__(
        self,
        name: str,
        bound: socket.socket,
        *,
        make: Callable[[str], P],
        has_room: Callable[[], bool],
        make_room: Callable[[str], bool],
        may_wait: Callable[[], bool] = lambda: False,
        fix: str,
        nursery: Nursery,
        telemetry: Telemetry,
        retry_s: float = RETRY_S,
    ) -> None:
        """`make` gets the client's address. `has_room`: whether another connection may be added to those open and arriving; without room a
        new one is closed at once, unless `make_room` closes another for its address and says so. `may_wait`, asked while there is no room
        and some are arriving: whether the next one waits in the backlog until these are open. When one is refused the log names the
        listener and the `fix`.
        """
        later = asyncio.get_running_loop().call_later
        self._bound = bound
        self._make = make
        self._has_room = has_room
        self._make_room = make_room
        self._may_wait = may_wait
        self._nursery = nursery
        self._retry_s = retry_s
        self._failures = telemetry.counter(ACCEPT_FAILURES)
        self._refused = telemetry.counter(REFUSED)
        self._say_refused = Rarely(lambda count: _say_refused(name, count, fix), later=later)
        self._say_failed = Rarely(lambda count: _say_failed(name, count, self._error, self._fix), later=later)
        self._error = self._fix = ""
        self._retry: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.arriving: set[P] = set()

    def start(self) -> None:
        self._bound.setblocking(False)
        asyncio.get_running_loop().add_reader(self._bound, self._accept)

    def stop(self) -> None:
        """Accept no more and close the socket."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._bound)
        self._bound.close()
        self._say_refused.stop()
        self._say_failed.stop()

    def _accept(self) -> None:
        made = 0
        for _ in range(ACCEPTED_AT_ONCE):
            if made == CLOSED_AT_ONCE:
                return  # what was closed for others is an open file until the loop's next turn
            if self.arriving and not self._has_room() and self._may_wait():
                return  # the socket stays readable: the loop calls again when these have come a step further
            try:
                accepted, address = self._bound.accept()
            except BlockingIOError:
                return
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                self._pause(error)
                return
            client_host = str(address[0]) if address else ""
            if not self._has_room():
                if not self._make_room(client_host):
                    self.note_refused()
                    accepted.close()
                    continue
                made += 1
            accepted.setblocking(False)
            protocol = self._make(client_host)
            self.arriving.add(protocol)
            self._nursery.spawn(self._adopt(protocol, accepted), name="accept")

    def note_refused(self) -> None:
        """Count a connection that was closed because there were too many, and say so."""
        self._refused.inc()
        self._say_refused.happened()

    async def _adopt(self, protocol: P, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, accepted)
        except OSError:
            accepted.close()  # its client has left meanwhile
        finally:
            self.arriving.discard(protocol)

    def _pause(self, error: OSError) -> None:
        """The socket stays readable as long as somebody waits in the backlog: without a pause the loop would do nothing else."""
        self._error = error.strerror or str(error)
        self._fix = _FIXES.get(error.errno or 0, _NO_FIX)
        self._failures.labels(errno.errorcode.get(error.errno or 0, "other")).inc()
        self._say_failed.happened()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._bound)
        self._retry = loop.call_later(self._retry_s, self._resume)

    def _resume(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._bound, self._accept)


def _say_refused(listener: str, count: int, fix: str) -> None:
    log.warning("connections_refused", listener=listener, count=count, cause="there are as many connections as there may be", fix=fix)


def _say_failed(listener: str, count: int, error: str, fix: str) -> None:
    log.error("accept_failed", listener=listener, count=count, cause=error, fix=fix)
