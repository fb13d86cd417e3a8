"""Drivers with tables of Delta Lake, for the tests of upkeep.

`python -m tests.spark.tidying alone FOLDER` runs upkeep with one setting after the other over a table that it makes. After each it prints a
line of JSON: the exit code, how many files the table has and how many are in its folder, and what its rows are.

`python -m tests.spark.tidying beside BOOTSTRAP TOPIC FOLDER` writes the topic to a table and puts the table in order, both until it is
killed. `… finish BOOTSTRAP TOPIC FOLDER` writes what is left, puts the table in order, and prints its rows.
"""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from spark.jobs import materialize, upkeep
from spark.jobs.materialize import MaterializeSettings
from spark.jobs.upkeep import UpkeepSettings
from spark.session import SessionSettings, open_session
from spark.settings import Duration
from spark.stopping import Stopping

NOTHING: Final = Duration(0)
PAUSE_S: Final = 0.5
"""The writer gets on, too."""
HOUR: Final = Duration(3_600)


def main(arguments: Sequence[str]) -> int:
    how, *others = arguments
    options = ("-XX:ReservedCodeCacheSize=128m",)
    with open_session(SessionSettings(name=how, is_brief=True, has_delta=True, log_level="ERROR", java_options=options)) as spark:
        if how == "alone":
            alone(spark, Path(others[0]))
        else:
            beside(spark, *others, is_last=how == "finish")
    return 0


def alone(spark: SparkSession, folder: Path) -> None:
    table = folder / "table"

    def append(times: int) -> None:
        for number in range(times):
            rows = spark.range(10 * number, 10 * number + 10, numPartitions=2).selectExpr("id", "cast(id as string) as name")
            rows.write.format("delta").mode("append").save(str(table))

    def tidied(step: str, **given: Any) -> None:
        code = upkeep.run(spark, UpkeepSettings(tables=(str(table),), **given), Stopping())
        (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()
        (rows,) = (
            spark.read.format("delta")
            .load(str(table))
            .selectExpr("count(*) as count", "cast(sum(cast(xxhash64(id, name) as decimal(38, 0))) as string) as mark")
            .collect()
        )
        files = len(list(table.glob("*.parquet")))
        print(json.dumps({"step": step, "code": code, "live": detail.numFiles, "files": files, "rows": [rows["count"], rows["mark"]]}))

    append(4)
    tidied("nothing", optimize=False)
    tidied("too short", keep=HOUR, delete=True)
    tidied("by default")
    tidied("forced, and dry", keep=NOTHING, force=True)
    tidied("forced", keep=NOTHING, force=True, delete=True)
    append(2)
    tidied("near", zorder_by=("name",))
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.deletedFileRetentionDuration = 'interval 0 hours')")
    tidied("longer than the table says", keep=HOUR, delete=True)
    tidied("as the table says", keep=NOTHING, delete=True)


def beside(spark: SparkSession, bootstrap: str, topic: str, folder: str, *, is_last: bool) -> None:
    table = f"{folder}/table"
    writes = MaterializeSettings(
        bootstrap_servers=bootstrap,
        topics=(topic,),
        table=table,
        checkpoint=f"{folder}/checkpoint",
        offsets_per_batch=None if is_last else 20,
        interval=None if is_last else Duration(0.1),
    )
    tidies = UpkeepSettings(tables=(table,), delete=True)
    if is_last:
        materialize.run(spark, writes, Stopping())
        assert upkeep.run(spark, tidies, Stopping()) == 0
        for row in spark.read.format("delta").load(table).collect():
            print(json.dumps([row.partition, row.offset, (row.value or b"").decode()]))
        return
    threading.Thread(target=materialize.run, args=(spark, writes, Stopping()), daemon=True).start()
    while True:
        # Before the first batch there is no table.
        upkeep.run(spark, tidies, Stopping())
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
