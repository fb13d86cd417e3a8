"""Python clients: of the project's own environment, or, where the folder has a requirements.txt, installed from its pins below the cache.

requirements.txt gives every version with its hashes; pip checks them. The interpreter is that of this process either way.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from services.build import BuildError
from services.lock import only_one

INSTALL_WITHIN_S: Final = 300.0
_ROOT: Final = Path(__file__).parents[3]
_REQUIREMENTS: Final = "requirements.txt"
_LAST_LINES: Final = 10


def command(folder: Path, cache: Path) -> list[str]:
    """`python script.py` with the client importable. Raise `BuildError`."""
    paths = [str(_ROOT)]
    if (folder / _REQUIREMENTS).exists():
        paths.insert(0, str(_installed(folder, cache)))
    else:
        _check_version(folder)
    return ["/usr/bin/env", f"PYTHONPATH={os.pathsep.join(paths)}", sys.executable, str(folder / "script.py")]


def _check_version(folder: Path) -> None:
    given = tomllib.loads((folder / "client.toml").read_text(encoding="utf-8"))
    try:
        found = importlib.metadata.version(given["library"])
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError(f"{given['library']} is not installed beside {sys.executable}: run `make setup-dev`.") from error
    if found != given["version"]:
        raise BuildError(f"{given['library']} is {found} here and {given['version']} in {folder.name}/client.toml: change one of them.")


def _installed(folder: Path, cache: Path) -> Path:
    requirements = folder / _REQUIREMENTS
    digest = hashlib.sha256(requirements.read_bytes())
    digest.update(f"{platform.python_version()} {sys.platform} {platform.machine()}".encode())
    target = cache / "python" / f"{folder.name}-{digest.hexdigest()[:12]}"
    if target.exists():
        return target
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what=f"installing {folder.name}", within_s=INSTALL_WITHIN_S):
            if not target.exists():
                _install(requirements, target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"installing {folder.name} did not end within {INSTALL_WITHIN_S:.0f} s.") from error
    except OSError as error:
        raise BuildError(f"{folder.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error
    return target


def _install(requirements: Path, target: Path) -> None:
    sys.stderr.write(f"installing {requirements.parent.name} (once)\n")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        fresh = Path(folder) / "installed"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--require-hashes"]
        done = subprocess.run(
            [*pip, "--target", str(fresh), "--requirement", str(requirements)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN_S,
            check=False,
        )
        if done.returncode != 0:
            said = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
            raise BuildError(f"installing {requirements.parent.name} failed; a package index is needed. pip said:\n{said}")
        os.replace(fresh, target)
