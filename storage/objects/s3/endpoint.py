"""The way to the bucket, the same for both clients: which server and region, through which proxy, and which certificates are trusted.

The environment has its say in each. Left to themselves the clients differ: botocore knows no CIDR in NO_PROXY and no ALL_PROXY.
An authority is named by `ca_file` in storage.url, else by AWS_CA_BUNDLE, else by SSL_CERT_FILE. The first two are trusted beside the
authorities of the system, which SSL_CERT_FILE and SSL_CERT_DIR replace. `describe_certificate` says what is wrong with one that is not.
"""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from storage.errors import Unavailable
from storage.objects.s3.faults import CertificateFlaw, Untrusted
from storage.objects.s3.location import S3Location

_NAMES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HEAD_BYTES_MAX: Final = 16 << 10
CAUSES_MAX: Final = 10
AUTHORITIES_EXPECTED_MAX: Final = 10
_VERIFY_CODES: Final = {
    10: CertificateFlaw.EXPIRED,
    9: CertificateFlaw.NOT_YET_VALID,
    62: CertificateFlaw.OTHER_NAME,
    64: CertificateFlaw.OTHER_NAME,
    **dict.fromkeys((2, 18, 19, 20, 21), CertificateFlaw.UNKNOWN_AUTHORITY),
}
"""OpenSSL's X509_V_ERR_…"""
REGION_DEFAULT: Final = "us-east-1"


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


class CaFile(NamedTuple):
    """PEM of authorities, and what named it."""

    path: str
    named_by: str


def ca_file_of(in_url: str | None, environment: Mapping[str, str]) -> CaFile | None:
    """The file of authorities that somebody named. None: those of the system."""
    named = (("ca_file in storage.url", in_url), *((name, environment.get(name)) for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE")))
    return next((CaFile(path, named_by) for named_by, path in named if path), None)


def read_authorities(ca: CaFile) -> bytes:
    """The bytes of the file. Raise `Unavailable`, with the fix, if it cannot be read or holds no certificate. Blocks."""
    try:
        with open(ca.path, "rb") as file:
            found = file.read()
        ssl.create_default_context(cadata=found.decode("ascii", "replace"))
    except OSError as error:
        # SSLError is one: the text has no certificate, or one that is cut short.
        why = "it holds no certificate in PEM" if isinstance(error, ssl.SSLError) else (error.strerror or str(error)).lower()
        raise Unavailable(f"{ca.named_by} names {ca.path}, which cannot be used: {why}. Correct it, or the file.") from error
    return found


def client_context(ca: CaFile | None, *, alone: bool = False) -> ssl.SSLContext:
    """What obstore trusts, for Python: the authorities of the system, unless `alone`, and those of `ca`. Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if alone else ssl.create_default_context()
    # As rustls has it: an authority in the middle may be named, and old ones lack extensions that OpenSSL could insist on.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if ca is not None:
        read_authorities(ca)
        context.load_verify_locations(ca.path)
    return context


def untrusted_of(error: BaseException | None) -> Untrusted | None:
    """What OpenSSL found wrong with a certificate, if `error` came of that."""
    for _ in range(CAUSES_MAX):
        # aiohttp's is one of ssl's by its type alone.
        error = getattr(error, "certificate_error", error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return Untrusted(_VERIFY_CODES.get(error.verify_code, CertificateFlaw.OTHER), error.verify_message)
        error = error and (error.__cause__ or error.__context__)
    return None


async def describe_certificate(url: str, flaw: CertificateFlaw, *, route: Route, ca: CaFile | None) -> str:
    """What is wrong with the certificate that the server of `url` shows, and the fix. Sends no request; the caller sets a deadline."""
    try:
        chain = await _shown_chain(url, route)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, AttributeError):
        return flaw.value
    # A file of all public authorities says nothing of this server's.
    is_expected = ca is not None and 0 < len(client_context(ca, alone=True).get_ca_certs()) <= AUTHORITIES_EXPECTED_MAX
    return explain_chain(chain, urlsplit(url).hostname or "", flaw, ca, is_expected=is_expected) if chain else flaw.value


def explain_chain(chain: Sequence[Mapping[str, Any]], host: str, flaw: CertificateFlaw, ca: CaFile | None, *, is_expected: bool) -> str:
    """PURE: what is wrong with `chain`, the certificates as `SSLSocket.getpeercert` describes them, the server's own first.

    `is_expected`: `ca` was named for this server.
    """
    own, last = chain[0], chain[-1]
    trusted = f"{ca.path} ({ca.named_by})" if ca is not None else "the authorities of the system"
    match flaw:
        case CertificateFlaw.EXPIRED | CertificateFlaw.NOT_YET_VALID:
            return f"{flaw.value} (valid from {own.get('notBefore')} to {own.get('notAfter')})"
        case CertificateFlaw.OTHER_NAME:
            names = ", ".join(value for _, value in own.get("subjectAltName", ())) or "no name at all"
            return f"{flaw.value} (it is for {names}, not for {host})"
        case CertificateFlaw.UNKNOWN_AUTHORITY:
            issuer = _name(last["issuer"])
            if last["subject"] != last["issuer"] and len(chain) == 1 and (own.get("caIssuers") or is_expected):
                # A server that shows its own certificate alone, though its authority is said to be known, forgot the ones in the middle.
                return (
                    f"{CertificateFlaw.INCOMPLETE.value} (it comes alone, signed by {issuer!r}, which is not among {trusted}; "
                    "if that is the authority itself, name its file by ca_file in storage.url)"
                )
            return f"{flaw.value} (signed by {issuer!r}, which is not among {trusted})"
        case _:
            return str(flaw.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEndpoint:
    """`url` is None for AWS itself."""

    bucket: str
    url: str | None
    region: str
    path_style: bool
    ca: CaFile | None = None
    proxies: Proxies = NO_PROXIES

    @property
    def url_of_bucket(self) -> str | None:
        """Where the bucket is addressed by host name this is its own host."""
        if self.url is None or self.path_style:
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.bucket}.{parts.netloc}"

    @property
    def url_of_requests(self) -> str:
        """As `url_of_bucket`, of AWS as well."""
        host = f"s3.{self.region}.amazonaws.com"
        return self.url_of_bucket or f"https://{host if self.path_style else f'{self.bucket}.{host}'}"

    @property
    def route(self) -> Route:
        """The way to the bucket. Raise `Unavailable` if a proxy is named that cannot be used."""
        return self.proxies.route(self.url_of_requests)

    @property
    def is_https(self) -> bool:
        return self.url_of_requests.startswith("https:")

    @property
    def shown(self) -> str:
        return self.url or "AWS"


def resolve_endpoint(location: S3Location, environment: Mapping[str, str]) -> BucketEndpoint:
    """What the URL says goes before the environment."""

    def first(*names: str) -> str | None:
        return next((environment[name] for name in names if environment.get(name)), None)

    url = location.endpoint or first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return BucketEndpoint(
        bucket=location.bucket,
        url=url and url.rstrip("/"),
        region=location.region or first("AWS_REGION", "AWS_DEFAULT_REGION") or REGION_DEFAULT,
        # Names with dots match no certificate of a host; an endpoint from the environment is one of a store that is not AWS.
        path_style=location.path_style or "." in location.bucket or (location.endpoint is None and url is not None),
        ca=ca_file_of(location.ca_file, environment),
        proxies=proxies_of(environment),
    )


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


def _name(parts: Iterable[Iterable[tuple[str, str]]]) -> str:
    return ", ".join(f"{name}={value}" for part in parts for name, value in part)


async def _shown_chain(url: str, route: Route) -> Sequence[Mapping[str, Any]]:
    """The certificates that the server shows, unverified."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    anything = ssl.create_default_context()
    anything.check_hostname = False
    anything.verify_mode = ssl.CERT_NONE
    if route.proxy is None:
        _, writer = await asyncio.open_connection(host, port, ssl=anything, server_hostname=host)
    else:
        proxy = urlsplit(route.proxy)
        is_https = proxy.scheme == "https"
        reader, writer = await asyncio.open_connection(
            proxy.hostname, proxy.port or (443 if is_https else 80), ssl=True if is_https else None, limit=HEAD_BYTES_MAX
        )
    try:
        if route.proxy is not None:
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            writer.write(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            if b" 200 " not in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0] + b" ":
                return []
            await writer.start_tls(anything, server_hostname=host)
        shown = writer.get_extra_info("ssl_object")._sslobj.get_unverified_chain()  # noqa: SLF001 - public from Python 3.13 on, in other words
        return [certificate.get_info() for certificate in shown or ()]
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
