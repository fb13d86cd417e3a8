"""Spark keeps the producer of its sink for ten minutes. One whose broker was killed meanwhile writes on (T23, in part)."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from services.oxia import running_oxia
from services.versitygw import running_s3
from tests.kit.serving import serving
from tests.spark.brokers import FOREBAY, Against, Brokers
from tests.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.long]

ROWS: Final = 200
SMALL_BATCHES: Final = {"kafka.batch.size": "200", "kafka.linger.ms": "0", "kafka.max.in.flight.requests.per.connection": "5"}


def test_t23_rows_are_written_once_by_a_producer_whose_broker_was_killed(spark: "SparkSession", against: Against, tmp_path: Path) -> None:
    if against == "kafka":
        pytest.skip("it starts a broker of its own, to kill it")
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3, ExitStack() as lives:
        settings = FOREBAY | {"metadata.url": oxia.url, "storage.url": s3.url()}
        first = lives.enter_context(serving(tmp_path / "broker", settings=settings, environ=s3.environ))
        brokers = Brokers([first.bootstrap], served=[first])
        topic = brokers.create("forgotten", partitions=1)

        def write(begin: int) -> None:
            frame = spark.range(begin, begin + ROWS, 1, 1).selectExpr("cast(id as string) as value")
            frame.write.format("kafka").options(**SMALL_BATCHES, **{"kafka.bootstrap.servers": first.bootstrap, "topic": topic}).save()

        write(0)
        write(ROWS)
        first.kill9()
        lives.enter_context(serving(tmp_path / "broker", kafka_port=first.kafka_port, settings=settings, environ=s3.environ))
        write(2 * ROWS)

        found = sorted(read(spark, brokers, subscribe=topic), key=lambda row: row.offset)
        assert [int(row.value or b"") for row in found] == list(range(3 * ROWS))
