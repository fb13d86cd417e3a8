"""Spark keeps the producer of its sink for ten minutes. One whose broker was killed meanwhile writes on, and so does one that was forgotten
(T23)."""

import asyncio
import os
import struct
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import msgspec
import pytest
from confluent_kafka import TopicCollection

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from services.oxia import running_oxia
from services.versitygw import running_s3
from storage.formats.manifest import decode_manifest, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Put
from storage.opening import open_stores
from storage.vocabulary import PartitionId, TopicId
from tests.kit.serving import serving
from tests.spark.brokers import FOREBAY, WITHIN_S, Against, Brokers
from tests.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.long]

ROWS: Final = 200
SMALL_BATCHES: Final = {"kafka.batch.size": "200", "kafka.linger.ms": "0", "kafka.max.in.flight.requests.per.connection": "5"}


def write(spark: "SparkSession", brokers: Brokers, topic: str, begin: int) -> None:
    """ROWS numbers from `begin` on, by the producer that Spark keeps for these options."""
    frame = spark.range(begin, begin + ROWS, 1, 1).selectExpr("cast(id as string) as value")
    frame.write.format("kafka").options(**SMALL_BATCHES, **{"kafka.bootstrap.servers": brokers.bootstrap, "topic": topic}).save()


def values(spark: "SparkSession", brokers: Brokers, topic: str) -> list[int]:
    """All of them, in their order in the log."""
    return [int(row.value or b"") for row in sorted(read(spark, brokers, subscribe=topic), key=lambda row: row.offset)]


def topic_id_of(brokers: Brokers, topic: str) -> TopicId:
    """As it is written in keys of the metadata store."""
    described = brokers.admin.describe_topics(TopicCollection([topic]))[topic].result(WITHIN_S)
    packed = described.topic_id.get_most_significant_bits(), described.topic_id.get_least_significant_bits()
    return TopicId(str(uuid.UUID(bytes=struct.pack(">qq", *packed))))


async def forget_producers(topic_id: TopicId, *, metadata_url: str, storage_url: str) -> int:
    """As if all had expired, of partition 0. Returns how many there were. (`kafka.producer_id_expiration` is ten minutes at least.)"""
    clock = SystemClock()
    async with open_stores(
        storage_url=storage_url, metadata_url=metadata_url, clock=clock, ids=IdSource(clock=clock), telemetry=Telemetry()
    ) as stores:
        key = PartitionKeys(PartitionId(topic_id, 0)).manifest
        (record,) = await stores.metadata.get_many([key])
        assert record is not None
        manifest = decode_manifest(record.value, path=key.path)
        forgetful = msgspec.structs.replace(manifest, producers={}, pages=())
        assert isinstance(await stores.metadata.write([Put(key, encode(forgetful), record.version)]), Applied)
        return len(manifest.producers)


def test_t23_rows_are_written_once_by_a_producer_that_was_forgotten(spark: "SparkSession", against: Against, tmp_path: Path) -> None:
    """Its next batch waits, for 35 s at most: another broker might have had one before it (ADR 28)."""
    if against == "kafka":
        pytest.skip("Apache Kafka forgets no producer before ten minutes are over, either")
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3, ExitStack() as lives:
        settings = FOREBAY | {"metadata.url": oxia.url, "storage.url": s3.url()}
        served = lives.enter_context(serving(tmp_path / "broker", settings=settings, environ=s3.environ))
        brokers = Brokers([served.bootstrap], served=[served])
        topic = brokers.create("forgotten", partitions=1)

        write(spark, brokers, topic, 0)
        with mock.patch.dict(os.environ, s3.environ):
            count = asyncio.run(forget_producers(topic_id_of(brokers, topic), metadata_url=oxia.url, storage_url=s3.url()))
        write(spark, brokers, topic, ROWS)
        write(spark, brokers, topic, 2 * ROWS)

        assert count == 1
        assert values(spark, brokers, topic) == list(range(3 * ROWS))


def test_t23_rows_are_written_once_by_a_producer_whose_broker_was_killed(spark: "SparkSession", against: Against, tmp_path: Path) -> None:
    if against == "kafka":
        pytest.skip("it starts a broker of its own, to kill it")
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3, ExitStack() as lives:
        settings = FOREBAY | {"metadata.url": oxia.url, "storage.url": s3.url()}
        first = lives.enter_context(serving(tmp_path / "broker", settings=settings, environ=s3.environ))
        brokers = Brokers([first.bootstrap], served=[first])
        topic = brokers.create("forgotten", partitions=1)

        write(spark, brokers, topic, 0)
        write(spark, brokers, topic, ROWS)
        first.kill9()
        lives.enter_context(serving(tmp_path / "broker", kafka_port=first.kafka_port, settings=settings, environ=s3.environ))
        write(spark, brokers, topic, 2 * ROWS)

        assert values(spark, brokers, topic) == list(range(3 * ROWS))
