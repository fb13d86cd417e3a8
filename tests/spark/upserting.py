"""What `changelog` does to a table of Delta Lake: `python -m tests.spark.upserting merges|conflict|show FOLDER` prints a JSON object.

`merges` writes batches of static frames, some again; `conflict` has another writer change the table under a batch; `show` prints a table.
"""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark.decoding import Decoding
from spark.jobs.changelog import merge, widened
from spark.queries import explain
from spark.session import SessionSettings, open_session
from spark.tables import Table, TableBatch
from spark.upserts import changes, columns_of, judged
from tests.spark.test_job_changelog import Given, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW: Final = Decoding(layout="raw")
WITHIN_S: Final = 120.0


def main(arguments: Sequence[str]) -> int:
    which, given = arguments
    folder = Path(given)
    with open_session(SessionSettings(name="upserting", is_brief=True, has_delta=True, log_level="ERROR")) as spark:
        found = {"merges": merges, "conflict": conflict, "show": show}[which](spark, folder)
    print(json.dumps(found))
    return 0


def merges(spark: "SparkSession", folder: Path) -> dict[str, Any]:
    table = Table(path=str(folder / "table"))
    batches: list[Sequence[Given]] = [
        [(b"a", b"a1", 0, 0, 0), (b"b", b"b1", 0, 1, 0), (b"c", b"c1", 1, 0, 0)],
        [(b"a", None, 0, 2, 0), (b"b", b"b2", 0, 3, 0), (b"d", None, 1, 1, 0)],
        [(b"a", b"a3", 0, 4, 0)],
    ]
    widened(spark, table, of(spark, batches[0]).drop("forebay_deletes").limit(0))

    def write(number: int, writer: str = "one", given: Sequence[Given] = ()) -> dict[str, Any]:
        merge(of(spark, given or batches[number]), table, TableBatch(writer=writer, number=number))
        return rows_of(spark, table)

    found: dict[str, Any] = {"first": write(0), "deleted": write(1), "deleted again": write(1), "came back": write(2)}
    before = len(versions(folder))
    found["deletion done again"] = [write(1), write(2)][1]
    found["versions of batches done again"] = len(versions(folder)) - before
    found["older"] = write(0, "two", [(b"a", b"a1", 0, 0, 99), (b"b", None, 0, 1, 99)])
    found["other partition"] = write(1, "two", [(b"a", b"a5", 1, 8, -1), (b"b", b"b5", 1, 9, 1)])
    # As if the schema had lost `value` and won `fresh`.
    fresh = of(spark, [(b"a", b"a6", 0, 10, 5)]).selectExpr("* except (headers)", "'new' as fresh")
    widened(spark, table, fresh.drop("forebay_deletes").limit(0))
    merge(fresh, table, TableBatch(writer="two", number=2))
    rows = table.read(spark).collect()
    found["widened"] = {bytes(row.kafka_key).decode(): [bytes(row.value).decode(), row.headers, row.fresh] for row in rows}
    return found


def conflict(spark: "SparkSession", folder: Path) -> dict[str, Any]:
    """The other writer deletes b between the moment when the batch has read the table's version and its commit."""
    from pyspark.sql import functions as sql

    table = Table(path=str(folder / "table"))
    first = of(spark, [(b"a", b"a1", 0, 0, 0), (b"b", b"b1", 0, 1, 0)])
    widened(spark, table, first.drop("forebay_deletes").limit(0))
    merge(first, table, TableBatch(writer="one", number=0))
    started, go = str(folder / "started"), str(folder / "go")

    def waiting(value: bytearray) -> bytearray:
        Path(started).touch()
        wait_for(Path(go))
        return value

    def delete() -> None:
        wait_for(Path(started))
        # Of a session of its own: what `merge` sets for its statement is set for all that its session runs.
        spark.newSession().sql(f"DELETE FROM {table.in_sql(spark)} WHERE cast(kafka_key as string) = 'b'")
        Path(go).touch()

    second = of(spark, [(b"a", b"a2", 0, 2, 0), (b"c", b"c1", 0, 3, 0)])
    slow = second.withColumn("value", sql.udf(waiting, "binary")("value"))
    other = threading.Thread(target=delete)
    other.start()
    said = ""
    try:
        merge(slow, table, TableBatch(writer="one", number=1))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is printed
        said = explain(error)
    other.join(WITHIN_S)
    found = {"said": said, "after the failure": rows_of(spark, table)}
    merge(second, table, TableBatch(writer="one", number=1))
    return found | {"done again": rows_of(spark, table)}


def show(spark: "SparkSession", folder: Path) -> dict[str, Any]:
    return rows_of(spark, Table(path=str(folder / "table")))


def of(spark: "SparkSession", given: Sequence[Given]) -> "DataFrame":
    found = changes(judged(records(spark, *given), RAW, "bytes"), RAW, "bytes")
    assert "forebay_deletes" not in columns_of(found).names
    return found


def rows_of(spark: "SparkSession", table: Table) -> dict[str, Any]:
    """Value, partition and offset by key. A key that has two rows is named as one that has."""
    found: dict[str, Any] = {}
    for row in table.read(spark).collect():
        key = row.kafka_key if isinstance(row.kafka_key, str) else bytes(row.kafka_key).decode()
        found[f"{key}, twice" if key in found else key] = [bytes(row.value).decode(), row.kafka_partition, row.kafka_offset]
    return found


def versions(folder: Path) -> list[Path]:
    return list((folder / "table" / "_delta_log").glob("*.json"))


def wait_for(path: Path) -> None:
    give_up_s = time.monotonic() + WITHIN_S  # noqa: TID251  # it runs in Python workers, too
    while not path.exists():
        assert time.monotonic() < give_up_s, f"no {path}"  # noqa: TID251  # as above
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
