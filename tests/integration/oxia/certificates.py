"""Authorities and certificates of a test's own, made with openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

MADE_WITHIN_S = 30.0


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """Key and chain, as gRPC's servers take them."""
        return self.key.read_bytes(), self.certificate.read_bytes()


class Authority:
    """`ca_file` vouches for what `issue` makes."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl("req", "-x509", *_new_key(self._pair.key), "-out", self._pair.certificate, "-days", "2", "-subj", f"/CN={name}")

    @property
    def ca_file(self) -> Path:
        return self._pair.certificate

    def issue(self, name: str, *, alternative: str) -> Pair:
        """`alternative`: whose it is, as in `IP:127.0.0.1` or `DNS:oxia.example`."""
        pair = Pair(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        request, extensions = pair.key.with_suffix(".csr"), pair.key.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={alternative}\n")
        _openssl("req", *_new_key(pair.key), "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self._pair.certificate, "-CAkey", self._pair.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-out", pair.certificate, "-days", "2", "-extfile", extensions)
        return pair


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=MADE_WITHIN_S)
