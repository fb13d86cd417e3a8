"""Clients in Go: one program each, built from the versions and checksums of its go.mod and go.sum, with what they share in ../go/.

The name of a program says what it was built from, so a changed source never meets an old program. Two builds at once: one waits.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from services.build import BUILD_WITHIN_S, BuildError
from services.lock import only_one

_FLAGS: Final = ("-mod=readonly", "-trimpath", "-buildvcs=false")
SHARED: Final = Path(__file__).parents[2] / "compat" / "go"
_SOURCES: Final = ("*.go", "go.mod", "go.sum")
_LAST_LINES: Final = 10

_clock = SystemClock()


def command(folder: Path, cache: Path, *, shared: Path = SHARED) -> list[str]:
    """The program of `folder`, built below `cache` if it is not there yet (seconds; stderr says so). Raise `BuildError`.

    `shared` is the folder of what the clients share.
    """
    target = cache / "go" / f"{folder.name}-{_digest(folder, shared)}"
    if target.exists():
        return [str(target)]
    go = shutil.which("go")
    if go is None:
        raise BuildError(
            f"The client {folder.name} has to be built and there is no `go` on the PATH. "
            "Install Go 1.26 or newer (https://go.dev/dl), or name other clients."
        )
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what=f"building {folder.name}", within_s=BUILD_WITHIN_S):
            if not target.exists():
                _build(go, folder, target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{folder.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error
    return [str(target)]


def _digest(folder: Path, shared: Path) -> str:
    """Of all the program is made of: its sources and the shared ones with their names, flags, kind of machine."""
    digest = hashlib.sha256("\0".join((*_FLAGS, sys.platform, platform.machine())).encode())
    for path in (*_sources(folder), *_sources(shared)):
        digest.update(f"\0{path.parent.name}/{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _sources(folder: Path) -> Iterator[Path]:
    for pattern in _SOURCES:
        yield from sorted(folder.glob(pattern))


def _build(go: str, folder: Path, target: Path) -> None:
    sys.stderr.write(f"building the client {folder.name} (some seconds, once)\n")
    started_s = _clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        fresh = Path(scratch) / folder.name
        # A folder for what Go keeps where there is no HOME; no workspace and no C compiler of this machine.
        environ = {"HOME": str(target.parent / "home")} | os.environ | {"GOFLAGS": "", "GOWORK": "off", "CGO_ENABLED": "0"}
        try:
            done = subprocess.run(
                [go, "build", *_FLAGS, "-o", str(fresh), "."],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"building the client {folder.name} did not end within {BUILD_WITHIN_S:.0f} s.") from error
        if done.returncode != 0:
            said = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
            raise BuildError(f"building the client {folder.name} failed. Go 1.26 and a module proxy are needed. Go said:\n{said}")
        os.replace(fresh, target)
    sys.stderr.write(f"built {target} in {_clock.monotonic_s() - started_s:.0f} s\n")
