"""What has to be installed: pyspark, and a Java that it can start (JAVA_HOME's, else the one on the PATH). And where files are kept."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark.errors import SparkUnavailable

OLDEST: Final = 17
"""Spark 4 is compiled for it."""
_ANSWER_WITHIN_S: Final = 30.0
_VERSION: Final = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_REMEDY: Final = f"Install a Java runtime, {OLDEST} or newer (Debian: apt install openjdk-17-jre-headless)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """`version` is as Java prints it, `17.0.15`."""

    program: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpark:
    folder: Path
    version: str


def found_pyspark() -> PySpark:
    """Raise `SparkUnavailable` if it is not installed."""
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise SparkUnavailable(
            "Spark is not installed (760 MB). In a clone: uv tool install --force '.[spark]', or make setup-dev."
        ) from error
    return PySpark(folder=Path(pyspark.__file__).parent, version=pyspark.__version__)


def found_java() -> Java:
    """Raise `SparkUnavailable` if there is none, or none that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if program is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no `java` on the PATH"
        raise SparkUnavailable(f"Spark needs Java, and {where}. {_REMEDY}.")
    version, release = read_version(_said_by(program))
    if release < OLDEST:
        raise SparkUnavailable(f"Spark needs Java {OLDEST} or newer, and {program} is {version}. {_REMEDY}, or name another in JAVA_HOME.")
    return Java(program=Path(program), version=version)


def read_version(said: str) -> tuple[str, int]:
    """Version and release of what `java -version` prints: `17.0.15`, 17; `1.8.0_402`, 8. Raise `SparkUnavailable` if it says neither."""
    matched = _VERSION.search(said)
    if matched is None:
        raise SparkUnavailable(f"`java -version` does not say which Java it is: {' '.join(said.split())[:200]!r}. {_REMEDY}.")
    return matched[1], int(matched[2])


def _said_by(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailable(f"{program} cannot be run ({error}). {_REMEDY}.") from error
    return done.stdout + done.stderr


def cache_folder() -> Path:
    """FOREBAY_CACHE, else `forebay` in XDG_CACHE_HOME, else ~/.cache/forebay."""
    if given := os.environ.get("FOREBAY_CACHE"):
        return Path(given).absolute()
    elsewhere = os.environ.get("XDG_CACHE_HOME")
    return (Path(elsewhere).absolute() if elsewhere else Path("~/.cache").expanduser()) / "forebay"
