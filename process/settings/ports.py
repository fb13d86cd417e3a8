"""Why an address cannot be listened on."""

import errno
import os
import socket
from pathlib import Path
from typing import Final

from process.settings.errors import EXIT_FAILED, EXIT_USAGE, StartError

_LISTENING: Final = "0A"
_PROC: Final = Path("/proc")


def cannot_listen(error: OSError, *, host: str, port: int, fix: str) -> StartError:
    """What to raise when binding failed. `fix`: what to type for another port, e.g. `--set http.listen=127.0.0.1:8071`."""
    if error.errno == errno.EADDRINUSE:
        owner = owner_of_port(port)
        by = f" ({owner})" if owner else ""
        return StartError(f"Port {port} on {host} is in use{by}. Choose another with {fix}.", exit_code=EXIT_FAILED)
    if error.errno == errno.EACCES:
        return StartError(
            f"Port {port} on {host} needs rights this process does not have. Choose one above 1023 with {fix}.",
            exit_code=EXIT_USAGE,
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return StartError(f"{host} is not an address of this machine. Choose another with {fix}.", exit_code=EXIT_USAGE)
    if isinstance(error, socket.gaierror) or (error.errno is not None and error.errno < 0):
        # `socket.create_server` makes an OSError of it, and says more than is wanted: only a resolver's numbers are negative.
        cause = str(error.strerror).partition(" (while ")[0]
        return StartError(f"{host} does not resolve ({cause}). Choose another with {fix}.", exit_code=EXIT_USAGE)
    reason = error.strerror or str(error)
    return StartError(f"Cannot listen on {host}:{port} ({reason}). Choose another with {fix}.", exit_code=EXIT_FAILED)


def owner_of_port(port: int, *, proc: Path = _PROC) -> str:
    """`pid 4312, java` of who listens on `port`; empty where the system does not tell (no /proc, another user's)."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening_inodes(proc / "net" / table, port)}
    if not sockets:
        return ""
    for process in proc.iterdir():
        if process.name.isdigit() and _holds_one_of(process, sockets):
            return f"pid {process.name}, {_command(process)}"
    return ""


def _listening_inodes(table: Path, port: int) -> list[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _holds_one_of(process: Path, sockets: set[str]) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False  # it ended meanwhile, or belongs to somebody else
    return any(_target(descriptor) in sockets for descriptor in descriptors)


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""  # closed meanwhile, as others of a busy process are all the time


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
