"""One session of Spark, and the brokers that it reads from, for all tests of this folder, which one worker runs (tests/kit/workers.py)."""

import contextlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from runtime.clock import SystemClock
from services.build import OXIA, VERSITYGW, BuildError, built
from services.jars import assembled
from services.kafka import POM as KAFKA
from spark.session import PINNED, SessionSettings, open_session
from tests.spark.acks import Record, Row, produce
from tests.spark.brokers import Against, Brokers, running_brokers

if TYPE_CHECKING:
    from py4j.clientserver import ClientServerConnection
    from pyspark.sql import SparkSession

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS, PARTITIONS, EACH = 3, 4, 6
_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",  # plans of a few rows gain nothing by being made anew
    "spark.sql.streaming.noDataProgressEventInterval": "200",
}

_LOG: Final = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fetch and build before the first test: it may take longer than a test may. What cannot be had fails the tests, with the reason."""
    if session.config.option.collectonly or not any(Path(__file__).parent in item.path.parents for item in session.items):
        return
    with contextlib.suppress(BuildError):
        assembled(PINNED)
    with contextlib.suppress(BuildError):
        if session.config.getoption("against") == "kafka":
            assembled(KAFKA)
        else:
            built(OXIA)
            built(VERSITYGW)


@pytest.fixture(scope="session")
def against(pytestconfig: pytest.Config) -> Against:
    chosen: Against = pytestconfig.getoption("against")
    return chosen


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark warns of. It grows as long as the session lasts."""
    return tmp_path_factory.mktemp("spark") / "spark.log"


@contextlib.contextmanager
def answers_kept_apart() -> Iterator[None]:
    """Close a connection to the JVM that a test left in the middle of an answer, as at its timeout.

    py4j does so at Ctrl-C alone. Otherwise the next question gets that answer, and all later tests of this session fail.
    """
    from py4j.clientserver import ClientServerConnection

    send_command = ClientServerConnection.send_command

    def send_or_close(connection: "ClientServerConnection", command: str) -> str:
        try:
            return str(send_command(connection, command))
        except BaseException:
            connection.close()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", send_or_close)
        yield


@pytest.fixture(scope="session")
def spark(spark_log: Path) -> Iterator["SparkSession"]:
    log_settings = spark_log.with_name("log4j2.properties")
    log_settings.write_text(_LOG.format(file=spark_log))
    options = (f"-Dlog4j2.configurationFile={log_settings}",)
    settings = SessionSettings(name="tests", is_brief=True, java_options=options, conf=_CONF)
    with answers_kept_apart(), open_session(settings) as session:
        yield session


@pytest.fixture(scope="session")
def brokers(against: Against, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with running_brokers(against, tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture(scope="session")
def now_ms() -> int:
    """An hour ago: records of a test lie between then and now, which no retention reaches."""
    return SystemClock().now_ms() - 3_600_000


@pytest.fixture(scope="session")
def deliveries(brokers: Brokers, now_ms: int) -> list[Row]:
    """Records of each codec in four partitions of three topics, with every kind of key, value and headers that there is."""
    chance = random.Random(14)
    rows = []
    for number in range(TOPICS):
        topic = brokers.create(f"deliveries-{number}", partitions=PARTITIONS)
        for codec in CODECS:
            records = [
                Record(
                    partition=partition,
                    key=chance.choice([None, b"", b"key-%d" % one]),
                    value=chance.choice([None, b"", b"value " * 40 + b"%d" % one]),
                    headers=chance.choice([(), (("origin", b"a"), ("empty", b""), ("null", None), ("origin", b"b"))]),
                    timestamp_ms=now_ms + 1_000 * one,
                )
                for partition, one in itertools.product(range(PARTITIONS), range(EACH))
            ]
            rows += produce(brokers.bootstrap, topic, records, compression_type=codec)
    return rows
