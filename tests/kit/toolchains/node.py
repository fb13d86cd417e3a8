"""Clients of npm: `npm ci` in a copy of the client's folder, kept. Nothing is compiled, and no package runs a script of its own.

The name of an installation says what it was made from, so a changed lock or script never meets old packages. Two at once: one waits.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from services.build import BuildError
from services.lock import only_one

INSTALL_WITHIN_S: Final = 300.0
SCRIPT: Final = "script.mjs"
_MANIFEST: Final = "package.json"
_INPUTS: Final = (_MANIFEST, "package-lock.json", SCRIPT)
_ANSWERS_WITHIN_S: Final = 30.0
_LAST_LINES: Final = 10

_clock = SystemClock()


def command(folder: Path, cache: Path) -> list[str]:
    """`node script.mjs` of the client in `folder`, installed below `cache` if it is not there yet. Raise `BuildError`."""
    target = cache / "node" / _file_name(folder)
    if not target.exists():
        try:
            with only_one(target.with_name(f".{target.name}.lock"), what=f"installing {folder.name}", within_s=INSTALL_WITHIN_S):
                if not target.exists():
                    _install(folder, target)
        except TimeoutError as error:
            raise BuildError(str(error)) from error
        except OSError as error:
            raise BuildError(
                f"{folder.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE."
            ) from error
    return [_node(folder, target), str(target / SCRIPT)]


def _file_name(folder: Path) -> str:
    """A digest of all an installation is made of: manifest, lock, script, kind of machine (some packages are prebuilt programs)."""
    digest = hashlib.sha256(f"{sys.platform}\0{platform.machine()}".encode())
    for name in _INPUTS:
        digest.update(f"\0{name}\0".encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    return f"{folder.name}-{digest.hexdigest()[:12]}"


def _install(folder: Path, target: Path) -> None:
    npm = _on_path("npm", folder)
    sys.stderr.write(f"installing {folder.name} (some seconds, once)\n")
    started_s = _clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        for name in _INPUTS:
            shutil.copyfile(folder / name, fresh / name)
        try:
            done = subprocess.run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                cwd=fresh,
                # A folder for what npm keeps where there is no HOME.
                env={"HOME": str(target.parent / "home")} | os.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=INSTALL_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"installing {folder.name} did not end within {INSTALL_WITHIN_S:.0f} s.") from error
        if done.returncode != 0:
            said = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
            raise BuildError(f"installing {folder.name} failed. A registry of npm packages is needed. npm said:\n{said}")
        os.replace(fresh, target)
    sys.stderr.write(f"installed {target} in {_clock.monotonic_s() - started_s:.0f} s\n")


def _node(folder: Path, target: Path) -> str:
    """The one that the client's lock brings, else the one on the PATH, if it is new enough."""
    own = sorted(target.glob("node_modules/node-*/bin/node"))
    if own:
        return str(own[0])
    program = _on_path("node", folder)
    done = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
    )
    found = re.match(r"v(\d+)\.", done.stdout)
    if found is None or int(found[1]) < _major_min(folder):
        raise BuildError(f"The client {folder.name} needs a newer Node.js: {program} says {done.stdout.strip()!r}. {_mend(folder)}")
    return program


def _on_path(program: str, folder: Path) -> str:
    found = shutil.which(program)
    if found is None:
        raise BuildError(f"The client {folder.name} needs `{program}` and there is none on the PATH. {_mend(folder)}")
    return found


def _mend(folder: Path) -> str:
    return f"Install Node.js {_major_min(folder)} or newer with npm (https://nodejs.org/en/download), or name other clients."


def _major_min(folder: Path) -> int:
    """As `engines` of the manifest has it: `>=20`."""
    return int(json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["engines"]["node"].removeprefix(">="))
