"""Where an Oxia namespace is and how its nodes are spoken to: `oxia://host:port/namespace`, or several nodes of it:
`oxia://a:6648,b:6648/namespace?tls=true&ca_file=/etc/oxia/ca.pem&token_file=/run/secrets/oxia-token`. A token is never part of it.
"""

import difflib
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

PORT_DEFAULT: Final = 6648
NAMESPACE_DEFAULT: Final = "default"
PARAMETERS: Final = ("tls", "ca_file", "server_name", "cert_file", "key_file", "token_file")
_OF_TLS: Final = ("ca_file", "server_name", "cert_file", "key_file")
_EXPECTED: Final = "expected oxia://host[:6648][,host[:6648]…][/namespace][?tls=true&ca_file=…&token_file=…]"
_TOKEN_GOES_TO_A_FILE: Final = f"an oxia:// URL takes no secrets: write the token into a file and name that by token_file; {_EXPECTED}"
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class OxiaAccess:
    """What its servers ask for. Paths are of PEM files, but `token_file`, which holds nothing but the token.

    `ca_file` None: the authorities that come with grpcio. `server_name` None: the host of each node. `cert_file` and `key_file` are both
    given or neither.
    """

    tls: bool = False
    ca_file: str | None = None
    server_name: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class OxiaLocation:
    """`host` and `port` name the node that is asked first; `further` are `host:port` of others that know the same namespace."""

    host: str
    port: int
    namespace: str
    further: tuple[str, ...] = ()
    access: OxiaAccess = OxiaAccess()

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of every node that was named, in their order."""
        return (_address(self.host, self.port), *self.further)

    def __str__(self) -> str:
        given = {name: getattr(self.access, name) for name in PARAMETERS}
        written = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
        if not self.access.tls and self.access.token_file is None:
            del written["tls"]
        query = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in written.items() if value is not None)
        return f"oxia://{','.join(self.addresses)}/{self.namespace}{'?' if query else ''}{query}"


def parse_oxia_url(url: str) -> OxiaLocation:
    """Raise ValueError, with what was expected in its message, which shows no secret."""
    # This comes before all messages that show the URL.
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(_TOKEN_GOES_TO_A_FILE)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{error}; {_EXPECTED}: url={_without_query(url)!r}") from error
    if parts.scheme != "oxia":
        raise ValueError(f"not an Oxia URL; {_EXPECTED}: url={_without_query(url)!r}")
    parameters = _parse_parameters(parts.query)
    if parts.fragment:
        raise ValueError(f"an Oxia URL has no part after #; {_EXPECTED}: url={url!r}")
    namespace = parts.path.removeprefix("/") or NAMESPACE_DEFAULT
    if "/" in namespace:
        raise ValueError(f"a namespace has no slash; {_EXPECTED}: url={url!r}")
    nodes = [_parse_node(node, url) for node in parts.netloc.split(",")]
    (host, port), *others = nodes
    return OxiaLocation(host, port, namespace, tuple(_address(*other) for other in others), _access(parameters))


def _parse_parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "token":
            raise ValueError(_TOKEN_GOES_TO_A_FILE)
        if name not in PARAMETERS:
            nearest = difflib.get_close_matches(name, PARAMETERS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(PARAMETERS)}"
            raise ValueError(f"{name!r} is not a parameter of an oxia:// URL: {hint}; {_EXPECTED}")
        if name in found:
            raise ValueError(f"{name} is given twice; {_EXPECTED}")
        if not value:
            raise ValueError(f"{name} is empty; {_EXPECTED}")
        found[name] = value
    return found


def _access(parameters: dict[str, str]) -> OxiaAccess:
    said = parameters.pop("tls", None)
    if said is not None and said not in _BOOLEANS:
        raise ValueError(f"tls={said!r}: expected true or false; {_EXPECTED}")
    tls = said is not None and _BOOLEANS[said]
    if not tls and (needless := [name for name in _OF_TLS if name in parameters]):
        raise ValueError(f"{needless[0]} means nothing without tls=true; {_EXPECTED}")
    if ("cert_file" in parameters) != ("key_file" in parameters):
        raise ValueError(f"cert_file and key_file go together; {_EXPECTED}")
    if "token_file" in parameters and said is None:
        raise ValueError(
            "token_file without TLS would send the token readable by all on the way: add tls=true, or tls=false if something else "
            f"encrypts it; {_EXPECTED}"
        )
    return OxiaAccess(tls=tls, **parameters)


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


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
