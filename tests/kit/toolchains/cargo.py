"""Clients in Rust: one program each, built by Cargo from the versions and checksums of its Cargo.lock, and kept.

The name of a kept program says what it was built from. Two builds at once: one waits.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from services.build import BUILD_WITHIN_S, BuildError
from services.lock import only_one

_FLAGS: Final = ("--release", "--locked")
_LAST_LINES: Final = 10

_clock = SystemClock()


def command(folder: Path, cache: Path) -> list[str]:
    """The program of `folder`, built below `cache` if it is not there yet (some minutes; stderr says so). Raise `BuildError`."""
    target = cache / "cargo" / f"{folder.name}-{_digest(folder)}"
    if target.exists():
        return [str(target)]
    cargo = shutil.which("cargo")
    if cargo is None:
        raise BuildError(
            f"The client {folder.name} has to be built and there is no `cargo` on the PATH. "
            "Install Rust 1.85 or newer (https://rustup.rs), or name other clients."
        )
    try:
        # One lock for all versions of a client: they share what Cargo compiled on the way.
        with only_one(target.with_name(f".{folder.name}.lock"), what=f"building {folder.name}", within_s=BUILD_WITHIN_S):
            if not target.exists():
                _build(cargo, folder, target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{folder.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error
    return [str(target)]


def _digest(folder: Path) -> str:
    """Of all the program is made of: manifest, lock, sources with their names, flags, kind of machine."""
    digest = hashlib.sha256("\0".join((*_FLAGS, sys.platform, platform.machine())).encode())
    for path in (folder / "Cargo.toml", folder / "Cargo.lock", *sorted((folder / "src").rglob("*.rs"))):
        digest.update(f"\0{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _build(cargo: str, folder: Path, target: Path) -> None:
    """What Cargo compiled on the way is kept: it knows itself what a changed source leaves of it."""
    sys.stderr.write(f"building the client {folder.name} (some minutes, once)\n")
    started_s = _clock.monotonic_s()
    home = str(target.parent / "home")
    made = target.parent / f"{folder.name}.target"
    try:
        done = subprocess.run(
            [cargo, "build", *_FLAGS],
            cwd=folder,
            # A folder for what Cargo keeps where there is no HOME.
            env={"HOME": home} | os.environ | {"CARGO_TARGET_DIR": str(made)},
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
        raise BuildError(
            f"building the client {folder.name} failed. Rust 1.85, a C compiler and a registry of crates are needed. Cargo said:\n{said}"
        )
    fresh = target.with_name(f".{target.name}.fresh")
    shutil.copy2(made / "release" / _program(folder), fresh)
    os.replace(fresh, target)
    sys.stderr.write(f"built {target} in {_clock.monotonic_s() - started_s:.0f} s\n")


def _program(folder: Path) -> str:
    """As the package of Cargo.toml is named."""
    found = re.search(r'^name = "([^"]+)"$', (folder / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{folder}/Cargo.toml names no package"
    return found[1]
