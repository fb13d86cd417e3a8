"""Ports nobody listens on."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Final

HOST: Final = "127.0.0.1"
_LOWEST: Final = 15_000
_TRIES: Final = 100
_ASSIGNED_TO_CLIENTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

_random = SystemRandom()


def free_port() -> int:
    """One that could be listened on a moment ago.

    It lies below those the system gives to outgoing connections: while a killed server is away, none of these can take its place.
    """
    for _ in range(_TRIES):
        port = _random.randrange(_LOWEST, _first_of_clients())
        if is_free(port):
            return port
    raise OSError(f"no free port on {HOST} in {_TRIES} tries")


def is_free(port: int) -> bool:
    """Whether a server may listen on `port` now; connections left over from an earlier server do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a free port while the block runs. Others cannot be assigned it; a server that asks for it by number may listen on it, and
    connections are refused while none does.
    """
    # A socket that is bound but does not listen: the system lets another one with SO_REUSEADDR bind and listen beside it.
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]


def _first_of_clients() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(_ASSIGNED_TO_CLIENTS.read_text().split()[0])
        if first > _LOWEST:
            return first
    return 32_768
