"""`python -m spark.warming_up FILE`: a JVM that does what every job does and, when it ends, keeps the classes it has loaded in FILE."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark.session import SessionSettings, open_session

END_WITHIN_S: Final = 240.0


def main(arguments: Sequence[str]) -> int:
    (given,) = arguments
    options = f'"-XX:ArchiveClassesAtExit={Path(given).absolute()}"'
    with open_session(SessionSettings(name="warming up", conf={"spark.driver.extraJavaOptions": options})) as spark:
        stage = spark.range(1_000).selectExpr("id % 7 as key", "cast(id as string) as value")
        stage.groupBy("key").count().orderBy("key").collect()
        gateway = spark.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    # It ends when nobody writes to it any more.
    process = gateway.proc
    process.stdin.close()
    return int(process.wait(END_WITHIN_S) != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
