"""Classes of Spark as the JVM has them in memory, kept in a file: a session starts in half the time (AppCDS).

`python -m spark.class_archive`, the last step of `make jars`, makes it. It is of no consequence but for speed: without one, or with one
that the JVM does not like, a session starts as slowly as Spark does everywhere.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark.errors import SparkUnavailable
from spark.requirements import Java, PySpark, cache_folder, found_java, found_pyspark

MAKE_WITHIN_S: Final = 300.0
_DIGITS: Final = 8
_MADE_BY: Final = "spark.warming_up"
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is passed over without a word."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """It may not be there."""

    path: Path

    def options(self) -> list[str]:
        """Of the JVM; none where there is no archive."""
        return [f'"-XX:SharedArchiveFile={self.path}"', "-Xshare:auto", _QUIET] if self.path.is_file() else []


def archive_for(java: Java, pyspark: PySpark) -> ClassArchive:
    """The one that was made from both: the JVM takes it for the same class path only."""
    made_of = "\0".join((str(java.program.resolve()), java.version, str(pyspark.folder), pyspark.version))
    return ClassArchive(cache_folder() / "spark" / f"classes-{hashlib.sha256(made_of.encode()).hexdigest()[:_DIGITS]}.jsa")


def make_archive(archive: ClassArchive) -> str:
    """Start Spark once, do what every job does, and keep its classes. Return what went wrong in a line, or nothing."""
    try:
        archive.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{archive.path.name}.", dir=archive.path.parent) as scratch:
            fresh = Path(scratch) / "classes.jsa"
            done = subprocess.run(
                [sys.executable, "-m", _MADE_BY, str(fresh)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MAKE_WITHIN_S,
                check=False,
            )
            if done.returncode != 0 or not fresh.is_file():
                return " ".join((done.stderr or "the JVM wrote none").split())[-200:]
            fresh.replace(archive.path)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


def main() -> int:
    try:
        archive = archive_for(found_java(), found_pyspark())
    except SparkUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_UNAVAILABLE
    if not archive.path.is_file() and (wrong := make_archive(archive)):
        sys.stderr.write(f"Spark will start slowly: its classes could not be kept ({wrong})\n")
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
