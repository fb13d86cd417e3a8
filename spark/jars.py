"""Where `make jars` keeps the jars that Spark needs beside pyspark: its Kafka connector, Avro and Delta Lake (docs/adr/0023-spark-set.md).

Found without Maven and without a network. What is fetched and under which name it is kept is up to services/jars.py, of which this
knows the name alone: tests/spark/test_session.py compares the two.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from spark.errors import SparkUnavailable

PINNED: Final = Path(__file__).resolve().parent / "spark-connector"
"""The folder of pom.xml and jars.sha256."""
_DIGITS: Final = 8


def cache_folder() -> Path:
    """FOREBAY_CACHE, else `forebay` in XDG_CACHE_HOME, else ~/.cache/forebay."""
    if given := os.environ.get("FOREBAY_CACHE"):
        return Path(given).absolute()
    elsewhere = os.environ.get("XDG_CACHE_HOME")
    return (Path(elsewhere).absolute() if elsewhere else Path("~/.cache").expanduser()) / "forebay"


def kept_jars() -> tuple[Path, ...]:
    """Every jar of the set, in the order of their names. Raise `SparkUnavailable`."""
    folder = cache_folder() / "jars" / f"{PINNED.name}-{set_digest()}"
    jars = tuple(sorted(folder.glob("*.jar")))
    if not jars:
        raise SparkUnavailable(
            f"The jars of Spark's Kafka connector are not in {folder}: run `make jars` in the repository, once "
            "(it needs Maven), or let Spark fetch what `spark/README.md` lists: --conf spark.jars.packages=…."
        )
    return jars


def set_digest() -> str:
    """Of the versions and checksums that are pinned. Raise `SparkUnavailable` where the folder `spark` is not whole."""
    digest = hashlib.sha256()
    try:
        for part in ("pom.xml", "jars.sha256"):
            digest.update((PINNED / part).read_bytes())
    except OSError as error:
        raise SparkUnavailable(f"{PINNED} does not say which jars Spark needs ({error.strerror}): name them in the settings.") from error
    return digest.hexdigest()[:_DIGITS]
