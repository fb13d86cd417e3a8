"""An object whose bytes were changed fails the read of its records and of no others: nothing is passed over in silence (T21)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from py4j.protocol import Py4JJavaError

from services.oxia import running_oxia
from services.versitygw import running_s3
from tests.kit.serving import serving
from tests.spark.acks import Record, Row, assert_exact, produce
from tests.spark.brokers import FOREBAY, Against, Brokers
from tests.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.long]

TOPIC: Final = "damaged"
MARK: Final = b"the bytes of this record are changed "
BATCHES, DAMAGED = 6, 3
IMPATIENT: Final = {"kafkaConsumer.pollTimeoutMs": "3000"}
"""Instead of two minutes, for which the client asks again after each KAFKA_STORAGE_ERROR."""


@pytest.fixture(scope="module")
def damaged(against: Against, tmp_path_factory: pytest.TempPathFactory, now_ms: int) -> Iterator[tuple[Brokers, list[Row]]]:
    """One batch of one record for each offset, one of them damaged while no broker remembers it."""
    if against == "kafka":
        pytest.skip("it is about objects")
    folder = tmp_path_factory.mktemp("damage")
    with running_oxia(folder / "oxia") as oxia, running_s3(folder / "s3") as s3:
        settings = FOREBAY | {"metadata.url": oxia.url, "storage.url": s3.url()}
        with serving(folder / "before", settings=settings, environ=s3.environ) as served:
            brokers = Brokers([served.bootstrap])
            brokers.create(TOPIC)
            records = [Record(value=MARK + b"%d" % number, timestamp_ms=now_ms) for number in range(BATCHES)]
            rows = [row for record in records for row in produce(brokers.bootstrap, TOPIC, [record], linger_ms=0)]
        (changed,) = (
            path for path in (folder / "s3" / "data").rglob("*") if path.is_file() and MARK + b"%d" % DAMAGED in path.read_bytes()
        )
        changed.write_bytes(changed.read_bytes().replace(MARK, MARK.upper()))
        with serving(folder / "after", settings=settings, environ=s3.environ) as served:
            yield Brokers([served.bootstrap], served=[served]), rows


def test_t21_records_before_and_behind_a_damaged_object_are_read(spark: "SparkSession", damaged: tuple[Brokers, list[Row]]) -> None:
    brokers, rows = damaged

    before = read(spark, brokers, subscribe=TOPIC, endingOffsets={TOPIC: {"0": DAMAGED}}, **IMPATIENT)
    behind = read(spark, brokers, subscribe=TOPIC, startingOffsets={TOPIC: {"0": DAMAGED + 1}}, **IMPATIENT)
    assert_exact(before + behind, [row for row in rows if row.offset != DAMAGED])


@pytest.mark.parametrize("is_strict", ["true", "false"])
def test_t21_a_read_of_damaged_records_fails(spark: "SparkSession", damaged: tuple[Brokers, list[Row]], is_strict: str) -> None:
    brokers, _ = damaged

    with pytest.raises(Py4JJavaError, match=f"Cannot fetch record for offset {DAMAGED} in"):
        read(spark, brokers, subscribe=TOPIC, failOnDataLoss=is_strict, **IMPATIENT)
    assert any(event.get("event") == "data_damaged" for event in brokers.served[0].events())
