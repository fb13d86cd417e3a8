"""Kafka's listener syntax: `NAME://host:port`, several separated by commas.

Every listener speaks plaintext. Names that promise more (SSL, SASL) are refused, not ignored.
"""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from process.settings.notation import Notation

_LISTENER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)://(\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]*):(\d{1,5})")
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]+):(\d{1,5})")
HTTP: Final = "HTTP"
"""The name that the address of the HTTP API has among those of a broker."""
_SECURED: Final = re.compile(r"SSL|SASL|TLS")
_PORT_MAX: Final = 65_535


class Listener(NamedTuple):
    """An address clients may use. `port` 0 means the port the system assigns when the listener is bound."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed(self.host)}:{self.port}"


class HttpAddress(NamedTuple):
    """Where the HTTP server listens; `port` 0 as above."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """An IPv6 address as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def is_wildcard(host: str) -> bool:
    """Whether `host` means every address of the machine: good to listen on, useless to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_listeners(value: object) -> tuple[Listener, ...]:
    """An empty host means every address, as in Kafka."""
    listeners = tuple(_listener(text) for text in _items(value))
    if not listeners:
        raise ValueError("names no listener: write for example PLAINTEXT://127.0.0.1:9092")
    names = [listener.name for listener in listeners]
    bound = [listener[1:] for listener in listeners if listener.port]
    for listener in listeners:
        if names.count(listener.name) > 1:
            raise ValueError(f"has two listeners named {listener.name}: give each its own name, e.g. INTERNAL and EXTERNAL")
        if bound.count(listener[1:]) > 1:
            raise ValueError(f"has two listeners on {bracketed(listener.host)}:{listener.port}: give each its own port")
    return listeners


def parse_advertised_listeners(value: object) -> tuple[Listener, ...]:
    """The addresses that clients connect to; empty: derived from the listeners."""
    if not _items(value):
        return ()
    listeners = parse_listeners(value)
    for listener in listeners:
        if is_wildcard(listener.host):
            example = Listener(listener.name, "broker-1", listener.port or 9092)
            unreachable = f"has host {listener.host}: clients cannot connect to that"
            raise ValueError(f"{unreachable}. Set a name clients can resolve, e.g. {example}")
    return listeners


def advertised_for(listeners: Sequence[Listener], *, hostname: str) -> tuple[Listener, ...]:
    """The default advertised addresses: the listeners, with this machine's name where they mean every address."""
    return tuple(listener._replace(host=hostname) if is_wildcard(listener.host) else listener for listener in listeners)


def parse_address(value: object) -> HttpAddress:
    if isinstance(value, HttpAddress):
        return value
    match = _ADDRESS.fullmatch(str(value).strip())
    if match is None or int(match[2]) > _PORT_MAX:
        raise ValueError("is not an address: write host:port, e.g. 127.0.0.1:8070")
    return HttpAddress(match[1].strip("[]"), int(match[2]))


def _items(value: object) -> list[object]:
    if isinstance(value, str):
        return [text.strip() for text in value.split(",") if text.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _listener(value: object) -> Listener:
    if isinstance(value, Listener):
        return value
    text = str(value).strip()
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > _PORT_MAX:
        raise ValueError(f"has {text!r}: not a listener. Expected NAME://host:port, e.g. PLAINTEXT://127.0.0.1:9092")
    name = match[1].upper()
    if _SECURED.search(name):
        raise ValueError(f"names {name}: not supported. This release speaks plaintext only, and says so rather than pretend")
    if name == HTTP:
        raise ValueError(f"names {name}: that is the name of the HTTP API's address. Give the listener another, e.g. INTERNAL")
    return Listener(name, match[2].strip("[]") or "0.0.0.0", int(match[3]))  # noqa: S104


def _show(listeners: Sequence[Listener]) -> str:
    return ",".join(str(listener) for listener in listeners)


LISTENERS: Final = Notation("listeners", parse_listeners, _show)
ADVERTISED_LISTENERS: Final = Notation("listeners", parse_advertised_listeners, _show)
ADDRESS: Final = Notation("host:port", parse_address)
ADDRESS_OR_NONE: Final = Notation(
    "host:port", lambda value: None if value in (None, "") else parse_address(value), lambda value: "" if value is None else str(value)
)
