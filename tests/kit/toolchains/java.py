"""Clients of the JVM: the jars of a folder's pom.xml, and the sources of ../java and of the folder itself, compiled together."""

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.build import BuildError
from services.jars import assembled, found
from services.lock import only_one

COMPILE_WITHIN_S: Final = 300.0
SHARED: Final = Path(__file__).parents[2] / "compat" / "java"
# The first compiler only: a script is over before the second pays. Errors of the library go to standard error, and nothing else.
_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    "-Dfile.encoding=UTF-8",
)
_RELEASE: Final = "17"
# One source is for old and new libraries: what the new ones would rather not have called is called.
_WARNINGS: Final = "-Xlint:all,-classfile,-deprecation,-removal,-try,-path"


def command(folder: Path, cache: Path) -> list[str]:
    """The command line of `Script` with the jars of `folder`, fetched and compiled below `cache` once. Raise `BuildError`."""
    return program("Script", folder, cache)


def program(main_class: str, folder: Path, cache: Path) -> list[str]:
    """The same for another class of the sources."""
    jars = assembled(folder, cache=cache)
    return running(main_class, compiled([*sorted(SHARED.glob("*.java")), *sorted(folder.glob("*.java"))], jars, cache), jars)


def running(main_class: str, classes: Path, jars: Path) -> list[str]:
    return [found("java"), *_OPTIONS, "-cp", f"{classes}:{jars}/*", main_class]


def compiled(sources: Sequence[Path], jars: Path, cache: Path) -> Path:
    """The folder of the classes of these sources against these jars. Two at once: one waits. Raise `BuildError`."""
    target = cache / "classes" / f"{jars.name}-{_digest(sources)}"
    if target.exists():
        return target
    javac = found("javac")
    try:
        with only_one(target.with_name(f".{target.name}.lock"), what=f"compiling {jars.name}", within_s=COMPILE_WITHIN_S):
            if not target.exists():
                _compile(javac, sources, jars, target)
    except TimeoutError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"Classes cannot be kept in {target.parent} ({error.strerror}). Name a folder in FOREBAY_CACHE.") from error
    return target


def _digest(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256(_RELEASE.encode())
    for source in sources:
        digest.update(f"\0{source.name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:8]


def _compile(javac: str, sources: Sequence[Path], jars: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        fresh = Path(scratch) / "classes"
        options = ["--release", _RELEASE, "-encoding", "UTF-8", _WARNINGS, "-Werror", "-proc:none", "-cp", f"{jars}/*"]
        try:
            done = subprocess.run(
                [javac, *options, "-d", str(fresh), *map(str, sources)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMPILE_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"compiling for {jars.name} did not end within {COMPILE_WITHIN_S:.0f} s.") from error
        if done.returncode != 0:
            raise BuildError(f"compiling for {jars.name} failed. javac said:\n{done.stderr}{done.stdout}")
        fresh.replace(target)
