"""Programs of Java as folders of jars, put together once by Maven from a folder's pom.xml and kept.

The name of a kept folder says what it was made from. Every jar is compared with `jars.sha256` beside the pom, and no jar may be missing
there: what was resolved today is what will be resolved tomorrow. Two at once: one waits.

`python -m services.jars FOLDER` writes `jars.sha256` again, after a change of a version; with `--keep` it fetches them ahead of their use.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runtime.clock import SystemClock
from services.build import BuildError, cache_folder
from services.lock import only_one

ASSEMBLE_WITHIN_S: Final = 600.0
# Without a version here every Maven takes the one it was built with.
_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0:copy-dependencies"
_POM: Final = "pom.xml"
_SUMS: Final = "jars.sha256"
# Its reason comes first, advice after it; some builds colour both even when nobody looks.
_FIRST_LINES: Final = 3
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")

_clock = SystemClock()


def found(program: str) -> str:
    """The path of `java`, `javac` or `mvn`. Raise `BuildError`."""
    path = shutil.which(program)
    if path is None:
        what = "Maven 3.8 or newer" if program == "mvn" else "a Java development kit, 17 or newer"
        raise BuildError(f"There is no `{program}` on the PATH. Install {what} (Debian: apt install openjdk-17-jdk-headless maven).")
    return path


def assembled(folder: Path, *, cache: Path | None = None) -> Path:
    """The folder of the jars that `folder`/pom.xml asks for, fetched now if it is not there yet. Raise `BuildError`."""
    target = (cache or cache_folder()) / "jars" / f"{folder.name}-{_digest(folder)}"
    if target.exists():
        return target
    mvn = found("mvn")
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what=f"fetching the jars of {folder.name}", within_s=ASSEMBLE_WITHIN_S):
            if not target.exists():
                _assemble(mvn, folder, target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(
            f"The jars of {folder.name} cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE."
        ) from error
    return target


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for part in (_POM, _SUMS):
        digest.update((folder / part).read_bytes())
    return digest.hexdigest()[:8]


def _assemble(mvn: str, folder: Path, target: Path) -> None:
    sys.stderr.write(f"fetching the jars of {folder.name} (once)\n")
    started_s = _clock.monotonic_s()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        fresh = Path(scratch) / "jars"
        _copy(mvn, folder, fresh)
        _compare(folder, fresh)
        fresh.replace(target)
    sys.stderr.write(f"kept {target} after {_clock.monotonic_s() - started_s:.0f} s\n")


def _copy(mvn: str, folder: Path, target: Path) -> None:
    command = [mvn, "-q", "-B", "-f", str(folder / _POM), _GOAL, f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASSEMBLE_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"Maven did not fetch the jars of {folder.name} within {ASSEMBLE_WITHIN_S:.0f} s.") from error
    if done.returncode != 0 or not target.is_dir():
        said = "\n".join(_COLOURS.sub("", done.stdout + done.stderr).splitlines()[:_FIRST_LINES])
        raise BuildError(f"Maven cannot fetch the jars of {folder.name}. A Maven repository must be reachable. Maven said:\n{said}")


def _compare(folder: Path, jars: Path) -> None:
    pinned = (folder / _SUMS).read_text().splitlines()
    fetched = _sums(jars)
    if odd := sorted(set(pinned) ^ set(fetched), key=lambda line: line.split()[-1]):
        names = ", ".join(dict.fromkeys(line.split()[-1] for line in odd))
        raise BuildError(f"What Maven fetched for {folder.name} is not what {_SUMS} says: {names}.")


def _sums(jars: Path) -> list[str]:
    """As `sha256sum` prints them."""
    return [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in sorted(jars.iterdir())]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.jars", description="The jars of a folder's pom.xml.")
    parser.add_argument("folder", type=lambda text: Path(text).absolute(), help="where pom.xml is")
    parser.add_argument(
        "--keep", action="store_true", help="fetch what jars.sha256 pins, unless it is kept, instead of writing jars.sha256"
    )
    given = parser.parse_args(arguments)
    try:
        if given.keep:
            sys.stdout.write(f"{assembled(given.folder)}\n")
        else:
            _pin(given.folder)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_UNAVAILABLE
    return os.EX_OK


def _pin(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "jars"
        _copy(found("mvn"), folder, fresh)
        (folder / _SUMS).write_text("".join(f"{line}\n" for line in _sums(fresh)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
