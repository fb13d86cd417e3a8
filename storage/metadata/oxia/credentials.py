"""What a connection to Oxia needs beside an address: TLS, and a token that goes with every request as `authorization: Bearer …`.

Certificates are read once. The token's file is looked at again while requests go out, because what issues tokens puts new ones there.
"""

import pkgutil
import ssl
from pathlib import Path
from typing import Final

import grpc
import structlog

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.metadata.oxia.location import OxiaAccess

LOOK_AGAIN_S: Final = 5.0
TOKEN_BYTES_MAX: Final = 64 * 1024

log = structlog.get_logger(__name__)

Metadata = tuple[tuple[str, str], ...]


class Token:
    """The token in a file. Its text is in no message."""

    def __init__(self, path: str, *, clock: Clock) -> None:
        """Raise `Unavailable`, in one line with the fix, if there is none."""
        self._path = Path(path)
        self._clock = clock
        self._is_failing = False
        self._metadata: Metadata = _bearer(self._path)
        self._look_at_s = clock.monotonic_s() + LOOK_AGAIN_S

    def metadata(self) -> Metadata:
        """What goes with a request now. A file that cannot be read any more leaves what it held last: the server says if it is too old."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_AGAIN_S
            try:
                self._metadata = _bearer(self._path)
            except Unavailable as error:
                if not self._is_failing:
                    log.warning("oxia_token_unreadable", cause=str(error))
                self._is_failing = True
            else:
                self._is_failing = False
        return self._metadata


def _bearer(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise Unavailable(f"token_file {path} cannot be read ({error.strerror}): correct metadata.url") from None
    token = content.strip()
    if not token:
        raise Unavailable(f"token_file {path} is empty: write the token into it")
    if len(content) > TOKEN_BYTES_MAX or not token.isascii() or any(byte <= 0x20 or byte == 0x7F for byte in token):
        raise Unavailable(f"token_file {path} holds more than a token: write the token into it and nothing else")
    return (("authorization", f"Bearer {token.decode()}"),)


def channel_credentials(access: OxiaAccess) -> grpc.ChannelCredentials | None:
    """None without TLS. Raise `Unavailable`, in one line with the fix, for files that cannot serve."""
    if not access.tls:
        return None
    ca = None if access.ca_file is None else _read("ca_file", access.ca_file)
    if ca is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca.decode(errors="replace"))
        except ssl.SSLError:
            raise Unavailable(f"ca_file {access.ca_file} holds no certificate in PEM: correct metadata.url") from None
    if access.cert_file is None or access.key_file is None:
        return grpc.ssl_channel_credentials(root_certificates=ca)
    certificate, key = _read("cert_file", access.cert_file), _read("key_file", access.key_file)
    try:
        # A key behind a password cannot be asked for: gRPC takes none.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(access.cert_file, access.key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise Unavailable(
            f"cert_file {access.cert_file} and key_file {access.key_file} are no certificate and its key in PEM, without a password "
            f"({getattr(error, 'reason', None) or 'unreadable'}): correct metadata.url"
        ) from None
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


def tls_context(access: OxiaAccess) -> ssl.SSLContext | None:
    """What `channel_credentials` found to be in order, for connections of our own. None without TLS."""
    if not access.tls:
        return None
    context = ssl.create_default_context(cafile=access.ca_file, cadata=None if access.ca_file else _grpc_authorities())
    context.set_alpn_protocols(["h2"])
    if access.cert_file is not None and access.key_file is not None:
        context.load_cert_chain(access.cert_file, access.key_file, password="")
    return context


def _grpc_authorities() -> str | None:
    roots = pkgutil.get_data("grpc._cython", "_credentials/roots.pem")
    return None if roots is None else roots.decode()


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unavailable(f"{name} {path} cannot be read ({error.strerror}): correct metadata.url") from None
