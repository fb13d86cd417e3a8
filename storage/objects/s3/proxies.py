"""Proxies that the environment names (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), read in one way for both clients.

Left to themselves the clients differ: botocore knows no CIDR in NO_PROXY and no ALL_PROXY.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from storage.errors import Unavailable

_NAMES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Route(NamedTuple):
    """The way to one server. `proxy` None: directly. `variable` names what decided it, and is empty where nothing did."""

    proxy: str | None
    variable: str

    @property
    def shown(self) -> str:
        """The way in words, without credentials of the proxy."""
        if self.proxy is None:
            return f"directly ({self.variable} names it)" if self.variable else "directly"
        parts = urlsplit(self.proxy)
        return f"through the proxy {parts.scheme}://{parts.netloc.rpartition('@')[2]} ({self.variable})"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The variables that are set, by their names in lower case: how each is spelled, and its value."""

    variables: Mapping[str, tuple[str, str]]

    def route(self, url: str) -> Route:
        """The way to the server of `url`. Raise `Unavailable` if the proxy cannot be used."""
        parts = urlsplit(url)
        variable, proxy = self.variables.get(f"{parts.scheme}_proxy") or self.variables.get("all_proxy") or ("", "")
        if not proxy:
            return Route(None, "")
        spelled, excluded = self.variables.get("no_proxy", ("", ""))
        if _is_excluded(parts.hostname or "", parts.port, excluded):
            return Route(None, spelled)
        whole = proxy if "://" in proxy else f"http://{proxy.removeprefix('//')}"
        try:
            found = urlsplit(whole)
            usable = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
        except ValueError:
            usable = False
        if not usable:
            scheme = whole.partition("://")[0]
            raise Unavailable(
                f"{variable} names a proxy that S3 cannot be reached by (a {scheme}:// URL); expected http://host:port. "
                f"Correct it, or add {parts.hostname} to NO_PROXY."
            )
        return Route(whole, variable)


NO_PROXIES: Final = Proxies({})


def proxies_of(environment: Mapping[str, str]) -> Proxies:
    """A name in lower case goes before one in upper case; empty, it switches that off, as curl and Python have it."""
    found: dict[str, tuple[str, str]] = {}
    for name in _NAMES:
        spelled = name if name in environment else name.upper()
        if value := environment.get(spelled, "").strip():
            found[name] = (spelled, value)
    return Proxies(found)


def _is_excluded(host: str, port: int | None, excluded: str) -> bool:
    return any(_names(entry, host.lower(), port) for entry in excluded.lower().replace(",", " ").split())


def _names(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of NO_PROXY means `host`. It is a name with all below it, an address, a block or `*`; a port may follow a name."""
    if entry == "*":
        return True
    address = _address(host)
    if address is not None and (block := _block(entry.strip("[]"))) is not None:
        return address in block
    name, colon, of_port = entry.rpartition(":")
    if colon and of_port.isdecimal():
        return int(of_port) == port and _names(name, host, port)
    domain = entry.removeprefix("*").removeprefix(".")
    return bool(domain) and (host == domain or (address is None and host.endswith(f".{domain}")))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _block(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
