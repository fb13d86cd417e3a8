"""`materialize` into Delta Lake while brokers, the compactor and the driver itself are killed with kill -9: the table is exact."""

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from runtime.clock import SystemClock
from services.oxia import running_oxia
from services.versitygw import S3Server, running_s3
from tests.kit.serving import Served, serving
from tests.spark.acks import Row, assert_exact, producing
from tests.spark.brokers import FOREBAY, UPKEEP, Against, Brokers
from tests.spark.drivers import driver
from tests.spark.reading import read, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

BROKERS: Final = 3
PARTITIONS: Final = 3
PER_SECOND: Final = 300
PAUSE_S: Final = (1.0, 4.0)
ENDED_WITHIN_S: Final = 300.0
VERDICT: Final = re.compile(r"audit: (\d+) of (\d+) records, no gap, no duplicate$")

_clock = SystemClock()


class Cluster:
    """Brokers that come back on their ports after kill -9, the first with a compactor beside it."""

    def __init__(self, folder: Path, stores: dict[str, str], s3: S3Server, closing: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stores = stores
        self._s3 = s3
        self._closing = closing
        self.served = [self._start(number) for number in range(BROKERS)]

    @property
    def brokers(self) -> Brokers:
        return Brokers([one.bootstrap for one in self.served], served=self.served)

    def kill_and_start(self, number: int) -> None:
        port = self.served[number].kafka_port
        self.served[number].kill9()
        self.served[number] = self._start(number, port)

    def kill_compactor(self) -> None:
        """The broker starts another."""
        (pid,) = wait_for_children(self.served[0].pid)
        os.kill(pid, signal.SIGKILL)

    def _start(self, number: int, port: int | None = None) -> Served:
        settings = FOREBAY | (UPKEEP if number == 0 else {}) | self._stores
        return self._closing.enter_context(
            serving(self._folder / f"broker-{number}", kafka_port=port, settings=settings, environ=self._s3.environ)
        )


def wait_for_children(pid: int) -> Sequence[int]:
    found: list[int] = []

    def are_there() -> bool:
        found[:] = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return bool(found)

    wait_until(are_there)
    return found


def batches(folder: Path) -> int:
    return len([one for one in folder.glob("checkpoint/commits/*") if one.name.isdigit()])


def await_batches(running: "subprocess.Popen[str]", folder: Path, *, more: int) -> None:
    before = batches(folder)
    wait_until(lambda: running.poll() is not None or batches(folder) >= before + more)
    assert running.poll() is None, "the driver ended by itself: see driver.log"


def test_brokers_compactor_and_driver_are_killed_and_the_table_is_exact(
    against: Against, spark: "SparkSession", tmp_path: Path, now_ms: int
) -> None:
    chance = random.Random(1_414)
    materialize = [
        *("materialize", "--topics", "killed", "--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")),
    ]
    with contextlib.ExitStack() as closing:
        oxia = closing.enter_context(running_oxia(tmp_path / "oxia"))
        s3 = closing.enter_context(running_s3(tmp_path / "s3"))
        cluster = Cluster(tmp_path, {"metadata.url": oxia.url, "storage.url": s3.url()}, s3, closing)
        brokers = cluster.brokers
        where = ("--bootstrap-servers", brokers.bootstrap)
        brokers.create("killed", partitions=PARTITIONS)
        acked: list[Row]
        given = {"partitions": PARTITIONS, "since_ms": now_ms, "per_second": PER_SECOND, "enable_idempotence": True}
        with producing(brokers.bootstrap, "killed", **given) as acked:
            for broker in (chance.randrange(BROKERS), None):
                with driver(
                    "spark.jobs", *materialize, *where, "--interval", "500ms", "--offsets-per-batch", "1000", folder=tmp_path
                ) as running:
                    await_batches(running, tmp_path, more=3)
                    if broker is None:
                        cluster.kill_compactor()
                        await_batches(running, tmp_path, more=3)
                    for number in (broker, chance.randrange(BROKERS)) if broker is not None else (chance.randrange(BROKERS),):
                        time.sleep(chance.uniform(*PAUSE_S))
                        cluster.kill_and_start(number)
                        await_batches(running, tmp_path, more=2)
                    time.sleep(chance.uniform(0, 1))
                    # Leaving kills the driver, at whatever it is.
        with driver("spark.jobs", *materialize, *where, folder=tmp_path) as running:
            printed, _ = running.communicate(timeout=ENDED_WITHIN_S)
            assert running.returncode == 0, (tmp_path / "driver.log").read_text()[-2_000:]
        with driver(
            "spark.jobs", "audit", "--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"), *where, folder=tmp_path
        ) as running:
            printed, _ = running.communicate(timeout=ENDED_WITHIN_S)
        assert_exact(read(spark, cluster.brokers, subscribe="killed"), acked)
        verdict = VERDICT.search(printed.strip())
        assert verdict is not None, printed
        assert (int(verdict[1]), int(verdict[2])) == (len(acked), len(acked))
