"""Certificates of S3 servers: which authorities are trusted, and what is wrong with a certificate that is not.

An authority is named by `ca_file` in storage.url, else by AWS_CA_BUNDLE, else by SSL_CERT_FILE: the same for both clients. The first two
are trusted beside the authorities of the system, which SSL_CERT_FILE and SSL_CERT_DIR replace.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from storage.errors import Unavailable
from storage.objects.s3.faults import CertificateFlaw, Untrusted
from storage.objects.s3.proxies import Route

HEAD_BYTES_MAX: Final = 16 << 10
CAUSES_MAX: Final = 10
AUTHORITIES_EXPECTED_MAX: Final = 10


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


_VERIFY_CODES: Final = {
    10: CertificateFlaw.EXPIRED,
    9: CertificateFlaw.NOT_YET_VALID,
    62: CertificateFlaw.OTHER_NAME,
    64: CertificateFlaw.OTHER_NAME,
    **dict.fromkeys((2, 18, 19, 20, 21), CertificateFlaw.UNKNOWN_AUTHORITY),
}
"""OpenSSL's X509_V_ERR_…"""


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
