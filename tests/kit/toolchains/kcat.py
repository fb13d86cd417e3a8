"""kcat as Debian packages it, installed if that may be done: root on a Debian."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from services.build import BuildError

PACKAGE_WITHIN_S: Final = 300.0
_ANSWERS_WITHIN_S: Final = 10.0
_ROOT: Final = Path(__file__).parents[3]
_INSTALL: Final = "apt-get install -y -q kcat || (apt-get update -q && apt-get install -y -q kcat)"


class NotOnThisMachineError(BuildError):
    """There is no kcat here and none may be installed, or it is that of another release of Debian: nothing that this folder could pin."""


def command(folder: Path, cache: Path) -> list[str]:
    """`python script.py`, which runs the `kcat` of the PATH. Raise `NotOnThisMachineError`."""
    kcat = found()
    version = tomllib.loads((folder / "client.toml").read_text(encoding="utf-8"))["version"]
    program, library = version.rstrip(")").split(" (librdkafka ")
    try:
        said = subprocess.run(
            [kcat, "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{kcat} -V does not work: {error}") from error
    if f"Version {program} " not in said or f"librdkafka {library} " not in said:
        raise NotOnThisMachineError(f"kcat {version} is that of Debian 12; {kcat} says: {said.strip()[-200:]}")
    return ["/usr/bin/env", f"PYTHONPATH={_ROOT}", sys.executable, str(folder / "script.py")]


def found() -> str:
    """The path of `kcat`, installed now if that may be done. Raise `NotOnThisMachineError` or `BuildError`."""
    path = shutil.which("kcat")
    if path is None and shutil.which("apt-get") and os.geteuid() == 0:
        try:
            subprocess.run(_INSTALL, shell=True, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=PACKAGE_WITHIN_S)
        except subprocess.SubprocessError as error:
            raise BuildError(f"kcat cannot be installed: {error}") from error
        path = shutil.which("kcat")
    if path is None:
        raise NotOnThisMachineError("kcat is not installed, and this is no Debian that may be changed")
    return path
