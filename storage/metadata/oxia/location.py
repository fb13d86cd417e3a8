"""Where an Oxia namespace is: `oxia://host:port/namespace`, or several nodes of it: `oxia://a:6648,b:6648/namespace`."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

PORT_DEFAULT: Final = 6648
NAMESPACE_DEFAULT: Final = "default"
_EXPECTED: Final = "expected oxia://host[:6648][,host[:6648]…][/namespace]"


@dataclass(frozen=True, slots=True)
class OxiaLocation:
    """`host` and `port` name the node that is asked first; `further` are `host:port` of others that know the same namespace."""

    host: str
    port: int
    namespace: str
    further: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of every node that was named, in their order."""
        return (_address(self.host, self.port), *self.further)

    def __str__(self) -> str:
        return f"oxia://{','.join(self.addresses)}/{self.namespace}"


def parse_oxia_url(url: str) -> OxiaLocation:
    """Raise ValueError, with what was expected in its message."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{error}; {_EXPECTED}: url={url!r}") from error
    if parts.scheme != "oxia":
        raise ValueError(f"not an Oxia URL; {_EXPECTED}: url={url!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"an Oxia URL has no parameters; {_EXPECTED}: url={url!r}")
    if "@" in parts.netloc:
        raise ValueError(f"an Oxia URL has no user; {_EXPECTED}: url={url!r}")
    namespace = parts.path.removeprefix("/") or NAMESPACE_DEFAULT
    if "/" in namespace:
        raise ValueError(f"a namespace has no slash; {_EXPECTED}: url={url!r}")
    nodes = [_parse_node(node, url) for node in parts.netloc.split(",")]
    (host, port), *others = nodes
    return OxiaLocation(host, port, namespace, tuple(_address(*other) for other in others))


def _parse_node(node: str, url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{node}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{error}; {_EXPECTED}: url={url!r}") from error
    if not host:
        raise ValueError(f"a host is missing; {_EXPECTED}: url={url!r}")
    if port == 0:
        raise ValueError(f"port 0 is nobody's; {_EXPECTED}: url={url!r}")
    return host, PORT_DEFAULT if port is None else port


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
