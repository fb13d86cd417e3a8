"""What others than this machine can reach, while nobody has to log in."""

import socket
from collections.abc import Sequence
from typing import Final

from process.settings.notation import HttpAddress, Listener, is_loopback, is_wildcard
from process.settings.sections import HttpSettings

FIX: Final = (
    "Listen on 127.0.0.1 if clients are on this machine; otherwise let only machines that you trust reach the port: "
    "a firewall, a private network"
)


def log_api_of(http: HttpSettings) -> str:
    """What of the log is served by HTTP: read_write, read or off."""
    if http.log_api != "auto":
        return http.log_api
    return "read_write" if is_loopback(http.listen.host) else "off"


def http_address_for_clients(http: HttpSettings) -> HttpAddress:
    """Return `http.advertised`, or http.listen by a name that others can resolve. Its port may be 0, which nobody can reach."""
    address = http.advertised or http.listen
    return address._replace(host=socket.gethostname()) if is_wildcard(address.host) else address


def exposed(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    """The listeners that take connections from beyond this machine."""
    return tuple(listener for listener in listeners if not is_loopback(listener.host))


def warning_of_listeners(listeners: Sequence[Listener]) -> str | None:
    """One line that names the listeners, what they allow, and what to do; None if there is nothing to warn of."""
    found = exposed(listeners)
    if not found:
        return None
    names = ", ".join(map(str, found))
    many = len(found) > 1
    return (
        f"Kafka listener{'s' * many} {names} take{'s' * (not many)} connections from beyond this machine, and there is no authentication: "
        f"whoever reaches {'them' if many else 'it'} can read, write and delete every topic and every group. {FIX}."
    )
