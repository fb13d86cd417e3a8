"""`python -m spark.warming_up FILE`: a JVM that does what every job does and, when it ends, keeps the classes it has loaded in FILE."""

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark.session import SessionSettings, open_session

END_WITHIN_S: Final = 120
_NOBODY: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.default.api.timeout.ms": "1500",
    "kafka.request.timeout.ms": "1000",
    "subscribe": "none",
    "fetchOffset.numRetries": "1",
}


def main(arguments: Sequence[str]) -> int:
    (given,) = arguments
    options = f'"-XX:ArchiveClassesAtExit={Path(given).absolute()}"'
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(SessionSettings(name="warming up", has_delta=True, conf={"spark.driver.extraJavaOptions": options})) as spark,
    ):
        rows = spark.range(1_000).selectExpr("id % 7 as key", "cast(id as string) as value")
        rows.groupBy("key").count().orderBy("key").collect()
        rows.write.format("delta").save(folder + "/table")
        stream = spark.readStream.format("delta").load(folder + "/table").writeStream.format("delta")
        writing = stream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
        writing.start(folder + "/copied").awaitTermination(END_WITHIN_S)
        # Nobody answers there: its classes are loaded all the same.
        with contextlib.suppress(Exception):
            spark.read.format("kafka").options(**_NOBODY).load().collect()
        gateway = spark.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    # It ends when nobody writes to it any more.
    process = gateway.proc
    process.stdin.close()
    return int(process.wait(END_WITHIN_S) != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
