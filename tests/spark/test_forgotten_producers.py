"""Spark keeps the producer of its sink for ten minutes. One that is forgotten meanwhile, or whose broker is killed, writes on (T23)."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from runtime.clock import SystemClock
from services.oxia import running_oxia
from services.versitygw import running_s3
from tests.kit.serving import serving
from tests.spark.brokers import FOREBAY, Against, Brokers
from tests.spark.reading import read, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.long]

ROWS: Final = 200
EXPIRATION_S: Final = 1.0
SMALL_BATCHES: Final = {"kafka.batch.size": "200", "kafka.linger.ms": "0", "kafka.max.in.flight.requests.per.connection": "5"}


def test_t23_rows_are_written_once_by_a_producer_that_was_forgotten_and_whose_broker_was_killed(
    spark: "SparkSession", against: Against, tmp_path: Path
) -> None:
    if against == "kafka":
        pytest.skip("its expiration is looked for every ten minutes")
    clock = SystemClock()
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3, ExitStack() as lives:
        settings = FOREBAY | {"metadata.url": oxia.url, "storage.url": s3.url(), "kafka.producer_id_expiration": f"{EXPIRATION_S:.0f}s"}
        first = lives.enter_context(serving(tmp_path / "broker", settings=settings, environ=s3.environ))
        brokers = Brokers([first.bootstrap], served=[first])
        topic = brokers.create("forgotten", partitions=1)

        def write(begin: int) -> None:
            frame = spark.range(begin, begin + ROWS, 1, 1).selectExpr("cast(id as string) as value")
            frame.write.format("kafka").options(**SMALL_BATCHES, **{"kafka.bootstrap.servers": first.bootstrap, "topic": topic}).save()

        write(0)
        idle_until_s = clock.monotonic_s() + 2 * EXPIRATION_S
        wait_until(lambda: clock.monotonic_s() > idle_until_s)
        write(ROWS)
        first.kill9()
        lives.enter_context(serving(tmp_path / "broker", kafka_port=first.kafka_port, settings=settings, environ=s3.environ))
        write(2 * ROWS)

        found = sorted(read(spark, brokers, subscribe=topic), key=lambda row: row.offset)
        assert [int(row.value or b"") for row in found] == list(range(3 * ROWS))
