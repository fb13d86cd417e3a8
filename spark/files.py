"""Small files wherever Spark keeps its own: through Hadoop's file systems, so that a path means what it means to a query."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_MB: Final = 1e6


def read_text(spark: SparkSession, path: str) -> str | None:
    """None where there is no such file. Raise `OSError` where it cannot be read."""
    system, place = _located(spark, path)
    try:
        if not system.exists(place):
            return None
        stream = system.open(place)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
    except Py4JJavaError as error:
        raise OSError(f"{path} cannot be read: {error.java_exception.getMessage()}") from error


def write_text(spark: SparkSession, path: str, text: str, *, is_new: bool = False) -> None:
    """In the place of what is there, at once or not at all. Raise `OSError` where it cannot be written, or, if new, where a file is."""
    system, place = _located(spark, path)
    jvm: Any = spark._jvm  # noqa: SLF001
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    whole = place.makeQualified(system.getUri(), system.getWorkingDirectory())
    fresh = jvm.org.apache.hadoop.fs.Path(whole.getParent(), f".{whole.getName()}.{uuid.uuid4()}")
    try:
        stream = system.create(fresh, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        over = gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 1)
        over[0] = getattr(jvm.org.apache.hadoop.fs.Options.Rename, "NONE" if is_new else "OVERWRITE")
        jvm.org.apache.hadoop.fs.FileContext.getFileContext(whole.toUri(), system.getConf()).rename(fresh, whole, over)
    except Py4JJavaError as error:
        raise OSError(f"{path} cannot be written: {error.java_exception.getMessage()}") from error


def qualified(spark: SparkSession, path: str) -> str:
    """As it is named from any folder."""
    system, place = _located(spark, path)
    return str(place.makeQualified(system.getUri(), system.getWorkingDirectory()).toString())


def has_data(spark: SparkSession, path: str, suffix: str) -> bool:
    """Whether a file of this suffix lies in the folder, however deep, and not below a name that begins with `_` or a point."""
    system, place = _located(spark, path)
    if not system.exists(place):
        return False
    root = str(place.makeQualified(system.getUri(), system.getWorkingDirectory()).toUri().getPath())
    files = system.listFiles(place, True)
    while files.hasNext():
        name = str(files.next().getPath().toUri().getPath()).removeprefix(root).strip("/")
        if name.endswith(suffix) and not any(part.startswith(("_", ".")) for part in name.split("/")):
            return True
    return False


def delete_folder(spark: SparkSession, path: str) -> None:
    """With all that is in it. Raise `OSError` if it stays."""
    system, place = _located(spark, path)
    try:
        system.delete(place, True)
    except Py4JJavaError as error:
        raise OSError(f"{path} cannot be deleted: {error.java_exception.getMessage()}") from error


def names_in(spark: SparkSession, path: str) -> list[str]:
    """Of files and folders; none where there is no such folder."""
    system, place = _located(spark, path)
    if not system.exists(place):
        return []
    return sorted(str(one.getPath().getName()) for one in system.listStatus(place))


@dataclass(frozen=True, slots=True)
class Occupied:
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.files:,} file{'' if self.files == 1 else 's'} of {self.bytes / _MB:,.1f} MB"


def occupied(spark: SparkSession, path: str) -> Occupied:
    """By all that is in a folder, however deep."""
    system, place = _located(spark, path)
    summary = system.getContentSummary(place)
    return Occupied(files=int(summary.getFileCount()), bytes=int(summary.getLength()))


def _located(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    jvm: Any = spark._jvm  # noqa: SLF001
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(context._jsc.hadoopConfiguration()), place  # noqa: SLF001
