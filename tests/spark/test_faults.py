"""Queries while S3 refuses, is slow or breaks off, while Oxia hangs or starts anew, and while brokers are killed (T7, T20, T24)."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import StreamingQueryException

from services.faults.plan import Fault, Rule
from tests.kit.native import Native, native_services
from tests.kit.serving import Served
from tests.spark.acks import Row, assert_exact, producing
from tests.spark.brokers import FOREBAY, Brokers
from tests.spark.reading import read, stream_of, streaming, wait_until
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

FAULTY_S: Final = 6.0
KILL_EVERY_S: Final = 5.0
KILLS: Final = 6
RETRIABLE: Final = {
    "OFFSET_OUT_OF_RANGE",
    "NOT_LEADER_OR_FOLLOWER",
    "REPLICA_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "UNKNOWN_TOPIC_ID",
    "INCONSISTENT_TOPIC_ID",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_SERVER_ERROR",
}
"""What a fetch may be answered with: any other error ends the client. None of them may be about a record that is there."""
WRONG: Final = {"OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    with native_services(tmp_path_factory.mktemp("faults")) as native:
        yield native


def brokers_of(served: Sequence[Served]) -> Brokers:
    return Brokers([one.bootstrap for one in served], served=served)


@contextlib.contextmanager
def s3_answers(native: Native, status: int, code: str) -> Iterator[None]:
    native.s3_proxy.plan.add(Rule(Fault.ANSWER, methods={"GET"}, status=status, code=code))
    yield
    native.s3_proxy.plan.clear()


@contextlib.contextmanager
def s3_is_slow(native: Native) -> Iterator[None]:
    native.s3_proxy.plan.add(Rule(Fault.DELAY, methods={"GET"}, delay_s=5.0))
    yield
    native.s3_proxy.plan.clear()


@contextlib.contextmanager
def s3_breaks_off(native: Native) -> Iterator[None]:
    native.s3_proxy.plan.add(Rule(Fault.CUT_REPLY, methods={"GET"}, every=2, body_bytes=100))
    yield
    native.s3_proxy.plan.clear()


@contextlib.contextmanager
def oxia_hangs(native: Native) -> Iterator[None]:
    native.oxia.pause()
    try:
        yield
    finally:
        native.oxia.resume()


@contextlib.contextmanager
def oxia_starts_anew(native: Native) -> Iterator[None]:
    native.oxia.kill9()
    yield
    native.oxia.start()


FAULTS: Final = {
    "s3_has_an_error_of_its_own": lambda native: s3_answers(native, 500, "InternalError"),
    "s3_is_overloaded": lambda native: s3_answers(native, 503, "SlowDown"),
    "s3_takes_five_seconds": s3_is_slow,
    "s3_breaks_off": s3_breaks_off,
    "oxia_hangs": oxia_hangs,
    "oxia_starts_anew": oxia_starts_anew,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_t20_a_query_gets_through_what_the_stores_do(spark: "SparkSession", native: Native, now_ms: int, fault: str) -> None:
    topic = fault.replace("_", "-")
    with native.broker(settings=FOREBAY) as writer:
        mine = brokers_of([writer])
        mine.create(topic, partitions=2)
        acked = [
            *produce_all(mine, topic, now_ms, partition=0),
            *produce_all(mine, topic, now_ms, partition=1),
        ]
    # Nothing of it is in the memory of a broker that has just started.
    with native.broker(settings=FOREBAY) as reader, ThreadPoolExecutor(1) as pool:
        mine = brokers_of([reader])
        with FAULTS[fault](native):
            reading = pool.submit(read, spark, mine, subscribe=topic)
            time.sleep(FAULTY_S)  # how long the fault lasts, not a wait for anything
        assert_exact(reading.result(), acked)
        time.sleep(1.1)  # metrics are up to a second old
        refused = mine.refusals("Fetch")
        assert set(refused) <= RETRIABLE - WRONG, refused


def produce_all(brokers: Brokers, topic: str, now_ms: int, *, partition: int) -> list[Row]:
    from tests.spark.acks import produce

    return produce(brokers.bootstrap, topic, numbered(2_000, now_ms, partition=partition))


def test_t7_brokers_are_killed_and_oxia_starts_anew_under_a_query_which_misses_and_repeats_nothing(
    spark: "SparkSession", native: Native, now_ms: int, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with contextlib.ExitStack() as closing:
        served = [closing.enter_context(native.broker(settings=FOREBAY)) for _ in range(3)]
        brokers = brokers_of(served)
        brokers.create("hunted", partitions=3)
        given = {"partitions": 3, "since_ms": now_ms, "per_second": 200, "enable_idempotence": True}
        found: dict[int, list[Row]] = {}
        with querying(spark, brokers, tmp_path, found):
            with producing(brokers.bootstrap, "hunted", **given) as acked:
                hunt(native, served, closing, chance)
            wait_until(lambda: sum(map(len, found.values())) >= len(acked))
    assert_exact([row for number in sorted(found) for row in found[number]], acked)


def hunt(native: Native, served: list[Served], closing: contextlib.ExitStack, chance: random.Random) -> None:
    for number in range(KILLS):
        time.sleep(KILL_EVERY_S)  # the pace of the kills
        victim = chance.randrange(len(served))
        port = served[victim].kafka_port
        served[victim].kill9()
        if number == KILLS // 2:
            native.oxia.kill9()
            native.oxia.start()
        served[victim] = closing.enter_context(native.broker(kafka_port=port, settings=FOREBAY))


@contextlib.contextmanager
def querying(spark: "SparkSession", brokers: Brokers, folder: Path, found: dict[int, list[Row]]) -> Iterator[None]:
    """A query that goes on from its checkpoint if it ends. What a batch gave is what it gave last."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            with streaming(spark, brokers, folder / "checkpoint", subscribe="hunted") as (query, streamed):
                with contextlib.suppress(StreamingQueryException):
                    while not ended.wait(0.1) and not query.awaitTermination(1):
                        found.update(streamed.batches)
                found.update(streamed.batches)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
            running.result(120)


REAL_TIME_S: Final = 60.0


def test_t24_a_query_in_real_time_passes_every_record_on_though_a_broker_is_killed(
    spark: "SparkSession", native: Native, now_ms: int, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as closing:
        served = [closing.enter_context(native.broker(settings=FOREBAY)) for _ in range(2)]
        brokers = brokers_of(served)
        brokers.create("events", partitions=2)
        brokers.create("passed-on", partitions=2)
        rows = stream_of(spark, brokers, subscribe="events").selectExpr("key", "value", "partition")
        query = (
            rows.writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": brokers.bootstrap, "topic": "passed-on"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode("update")
            .trigger(realTime="10 seconds")
            .start()
        )
        try:
            given = {"partitions": 2, "since_ms": now_ms, "per_second": 100, "enable_idempotence": True}
            with producing(brokers.bootstrap, "events", **given) as acked:
                time.sleep(REAL_TIME_S / 2)  # half of what the test lasts
                port = served[1].kafka_port
                served[1].kill9()
                served[1] = closing.enter_context(native.broker(kafka_port=port, settings=FOREBAY))
                time.sleep(REAL_TIME_S / 2)
            wanted = Counter(row.key for row in acked)
            wait_until(lambda: sum(brokers.end("passed-on", partition) for partition in range(2)) >= len(acked))
            assert query.exception() is None
        finally:
            query.stop()
        passed_on = Counter(row.key for row in read(spark, brokers, subscribe="passed-on"))
        assert not wanted - passed_on, f"{sum((wanted - passed_on).values())} of {len(acked)} were not passed on"


def test_t24_a_continuous_query_reads_what_comes(spark: "SparkSession", native: Native, now_ms: int, tmp_path: Path) -> None:
    with native.broker(settings=FOREBAY) as one:
        brokers = brokers_of([one])
        brokers.create("continuous", partitions=1)
        brokers.create("continued", partitions=1)
        query = (
            stream_of(spark, brokers, subscribe="continuous")
            .selectExpr("key", "value")
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": brokers.bootstrap, "topic": "continued"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(continuous="1 second")
            .start()
        )
        try:
            acked = produce_all(brokers, "continuous", now_ms, partition=0)
            wait_until(lambda: brokers.end("continued", 0) >= len(acked))
        finally:
            query.stop()
        assert [row.value for row in read(spark, brokers, subscribe="continued")] == [row.value for row in acked]
