"""File descriptors: every connection takes one, and without one there is no health, no commit and no object either. So some are held in
reserve, and there are no more connections than the rest.
"""

import dataclasses
import resource
import sys
from dataclasses import dataclass
from typing import Final

import structlog

from process.accepting import HTTP_CONNECTIONS_MAX, PEER_CONNECTIONS_MAX
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.model import Settings
from process.settings.notation import scheme_of
from storage.opening import DISK_THREADS

RESERVED: Final = 96
"""25 are open in an idle broker: logs, the loop, listeners, SQLite. The rest is for files being read and written, and for HTTP: for
HTTP_CONNECTIONS_MAX of its connections, the others come on top."""
RESERVED_FOR_REMOTE_STORES: Final = 160
"""On top of that with S3 or Oxia: each of two clients of S3 keeps up to 64 connections, and Oxia has one for each of its nodes."""

_OPEN_WHEN_IDLE: Final = 25
_REMOTE: Final = frozenset({"s3", "oxia"})
_HTTP_SHARE: Final = 4

assert _OPEN_WHEN_IDLE + HTTP_CONNECTIONS_MAX + 2 * DISK_THREADS < RESERVED, "a file and its folder are open in each thread of the disk"

_HOW: Final = "ulimit -n, LimitNOFILE of a systemd unit, --ulimit nofile= of a container"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DescriptorLimits:
    """What this process may open (`limit`), what a broker keeps from Kafka's clients, `http` connections among it, and how many connections
    of theirs the settings allow.
    """

    limit: int
    reserved: int
    wanted: int
    http: int = HTTP_CONNECTIONS_MAX

    @property
    def connections(self) -> int:
        """How many there may be."""
        return min(self.wanted, self.limit - self.reserved)

    @property
    def needed(self) -> int:
        return self.wanted + self.reserved

    @property
    def effect(self) -> str:
        kept = f"no more than {self.connections} connections are open at a time, though kafka.max_connections allows {self.wanted}"
        return f"{kept}: another client takes the place of a silent one, or is closed at once if there is none"

    @property
    def fix(self) -> str:
        return f"raise the limit of open files to {self.needed} ({_HOW}), or set kafka.max_connections={self.connections}"


def fit_connections(settings: Settings) -> Settings:
    """Raise the limit of open files as far as this process may, and lower `kafka.max_connections` to what it leaves.

    Raise `StartError` if it leaves none.
    """
    room = room_for(settings)
    if room.connections == room.wanted:
        return settings
    _log.warning(
        "open_files_limited",
        limit=room.limit,
        reserved=room.reserved,
        max_connections=room.wanted,
        connections=room.connections,
        effect=room.effect,
        fix=room.fix,
    )
    return dataclasses.replace(
        settings,
        kafka=dataclasses.replace(settings.kafka, max_connections=room.connections),
        http=dataclasses.replace(settings.http, max_connections=room.http),
    )


def room_for(settings: Settings) -> DescriptorLimits:
    """As it is once the limit of this process was raised. Raise `StartError` if there is none for a connection."""
    wanted, reserved, http = settings.kafka.max_connections, reserve_of(settings), settings.http.max_connections
    limit = raise_limit(wanted + reserved)
    if limit < wanted + reserved:
        # Both give way: of what may be open beside the reserve of a broker that serves no streams, a quarter is for streams.
        least = reserved - (http - HTTP_CONNECTIONS_MAX)
        http = min(http, HTTP_CONNECTIONS_MAX + max(0, limit - least) // _HTTP_SHARE)
        reserved = least + http - HTTP_CONNECTIONS_MAX
    room = DescriptorLimits(limit, reserved, wanted, http)
    if room.connections < 1:
        raise StartError(
            f"This process may open {room.limit} files, and a broker holds {reserved} in reserve beside its connections. "
            f"Raise the limit to {room.needed} ({_HOW}).",
            exit_code=EXIT_USAGE,
        )
    return room


def peers_of_http(settings: Settings) -> int:
    """Connections of other brokers that the HTTP port has room for beside those of its clients, and as many to them."""
    return PEER_CONNECTIONS_MAX if settings.storage.zone_cache else 0


def reserve_of(settings: Settings) -> int:
    schemes = {scheme_of(settings.storage.url), scheme_of(settings.metadata.url)}
    for_stores = RESERVED_FOR_REMOTE_STORES if schemes & _REMOTE else 0
    return RESERVED + for_stores + 2 * peers_of_http(settings) + settings.http.max_connections - HTTP_CONNECTIONS_MAX


def raise_limit(needed: int) -> int:
    """The limit of open files after it was raised to what the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says that there is no hard limit, and yet refuses more than it has.
    for limit in (hard, needed):
        if _as_count(limit) <= _as_count(soft):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        break
    return _as_count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _as_count(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
