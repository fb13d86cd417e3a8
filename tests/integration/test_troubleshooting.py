"""What docs/guides/troubleshooting.md shows is what happens: its transcripts are run again, beside clients that lose nothing."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from services.oxia import running_oxia
from services.ports import free_port
from services.versitygw import S3Server
from tests.integration.command_line import following, forebay, interrupted, soon
from tests.integration.transcripts import Shell, part
from tests.kit.serving import HOST, IN_OBJECTS, ROOT, Served, serving

PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
WITHIN_S = 60.0
PRODUCE_EVERY_S = 0.1
UNANSWERED_MAX = 5
"""What librdkafka has in flight of an idempotent producer; while it has more to send, it takes a whole processor to wait."""
DISK = "1160M"
"""A tenth more than what a broker calls low, and what it writes itself. While the disk is full, all of it is memory."""
BACKUP = "200M"
"""What brings it below."""
DISK_OF_ITS_OWN = "FOREBAY_TEST_DISK"
AS_ROOT = ["unshare", "--mount", "--propagation", "private"]
AS_ANYBODY = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
NO_DISK = f"""no file system can be mounted here, not even in a namespace of its own. Do one of these:
run the tests as root, in a container with --cap-add SYS_ADMIN --security-opt apparmor=unconfined;
allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0;
mount one yourself (mount -t tmpfs -o size={DISK} tmpfs FOLDER, docker --tmpfs FOLDER:size={DISK}) and set {DISK_OF_ITS_OWN}=FOLDER"""
FEW_OPEN_FILES = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh"]
SETTINGS = """
storage:
  url: file:///srv/forebay/objects
metadata:
  url: sqlite:////srv/forebay/meta.db
"""
AND_NOW_IT_SERVES = """
```console
$ forebay serve 2>> forebay.log &
$ forebay topic consume orders --exit -q
order-1
order-2
```
"""

pytestmark = pytest.mark.timeout(400)


class Producing:
    """An idempotent producer of 0, 1, 2, … in a thread, which gives up nothing."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked: list[int] = []
        self.failed: list[object] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(WITHIN_S) == 0
        assert self.failed == []

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PRODUCE_EVERY_S):
            if number - len(self.acked) - len(self.failed) >= UNANSWERED_MAX:
                self._producer.poll(0)
                continue
            self._producer.produce(self._topic, str(number), partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: object, message: Any) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acked.append(int(message.value()))


def produce(bootstrap: str, topic: str, records: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for record in records:
        producer.produce(topic, record, partition=0)
    assert producer.flush(WITHIN_S) == 0


def stored(bootstrap: str, topic: str) -> list[int]:
    """The numbers in partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), WITHIN_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [int(message.value()) for message in consumer.consume(end, WITHIN_S)]
    finally:
        consumer.close()


def more_acked(producing: Producing) -> Callable[[], bool]:
    known = len(producing.acked)
    return lambda: len(producing.acked) > known


def assert_nothing_was_lost_or_invented(producing: Producing, bootstrap: str, topic: str) -> None:
    assert stored(bootstrap, topic) == producing.acked == list(range(len(producing.acked)))


@contextlib.contextmanager
def on_a_small_disk(tmp_path: Path) -> Iterator[tuple[Path, Served, list[str]]]:
    """A folder that is a disk, a broker on it, and the words before a command that has to see it as well."""
    disk, mounting, namespaces = tmp_path / "disk", [], []
    if DISK_OF_ITS_OWN in os.environ:
        disk = Path(os.environ[DISK_OF_ITS_OWN])
    else:
        unshare, namespaces = (AS_ROOT, ["-m"]) if os.geteuid() == 0 else (AS_ANYBODY, ["-U", "--preserve-credentials", "-m"])
        disk.mkdir()
        mounting = [*unshare, "sh", "-c", f'mount -t tmpfs -o size={DISK} tmpfs {disk} && exec "$@"', "sh"]
        assert can_run([*mounting, "true"]), NO_DISK
    stores = {"storage.url": f"file://{disk}/objects", "metadata.url": f"sqlite:///{disk}/meta.db", "kafka.auto_create_topics": "true"}
    with serving(tmp_path, settings=stores, entering=mounting) as served:
        yield disk, served, ["nsenter", "-t", str(served.pid), *namespaces] if namespaces else []


def can_run(words: Sequence[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def fill_what_sqlite_has_left(bootstrap: str) -> None:
    """Its log begins anew after a checkpoint, and a full disk has room for as much as was in it before."""
    number = 0
    while forebay(bootstrap, "topic", "create", f"filling-{number}")[0] == 0:
        number += 1


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    with on_a_small_disk(tmp_path) as (disk, served, entering):
        names = {"/srv/forebay": str(disk), "localhost:8070": f"{HOST}:{served.http_port}", "forebay.log": str(served.log_path)}
        shell = Shell(tmp_path, names, {"FOREBAY_BOOTSTRAP": served.bootstrap}, entering)
        produce(served.bootstrap, "orders", ["order-1", "order-2"])
        with Producing(served.bootstrap, "payments") as producing:
            subprocess.run([*entering, "sh", "-c", f"head -c {BACKUP} /dev/zero > {disk}/backup-1.tar"], check=True)
            shell.replay(part(PAGE, "The disk fills up"))
            soon(more_acked(producing))
            subprocess.run([*entering, "sh", "-c", f"! cat /dev/zero > {disk}/backup-2.tar"], check=True, stderr=subprocess.DEVNULL)
            fill_what_sqlite_has_left(served.bootstrap)
            shell.replay(part(PAGE, "The disk is full"))
            shell.replay(part(PAGE, "There is room again"))
            soon(more_acked(producing))
        assert_nothing_was_lost_or_invented(producing, served.bootstrap, "payments")


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as closing:
        oxia = closing.enter_context(running_oxia(tmp_path / "oxia"))
        stores = {"metadata.url": oxia.url, "storage.url": f"file://{tmp_path}/objects", "kafka.auto_create_topics": "true"}
        first = closing.enter_context(serving(tmp_path / "1", settings=stores))
        other = closing.enter_context(serving(tmp_path / "2", settings=stores))
        both = f"{first.bootstrap},{other.bootstrap}"
        names = {"127.0.0.1:9092": first.bootstrap, "127.0.0.1:9093": other.bootstrap, "forebay.log": str(other.log_path)}
        shell = Shell(tmp_path, names, {"FOREBAY_BOOTSTRAP": both})
        with Producing(both, "orders") as producing:
            soon(more_acked(producing))
            consumer = following(both, "topic", "consume", "orders", "-g", "reports", "-q")
            closing.callback(consumer.kill)
            shell.replay(part(PAGE, "All brokers are there"))
            first.kill9()
            shell.replay(part(PAGE, "One of them is gone"))
            soon(more_acked(producing))
        assert interrupted(consumer)[0] == 0
        assert_nothing_was_lost_or_invented(producing, other.bootstrap, "orders")


def cluster_in(
    folder: Path, *, records: Sequence[str] = (), settings: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """Make a cluster with these records, in objects. Its broker has ended; return its id."""
    with serving(folder, settings={"kafka.auto_create_topics": "true", **IN_OBJECTS, **(settings or {})}, environ=environ) as served:
        produce(served.bootstrap, "orders", records)
    return next(str(event["cluster_id"]) for event in served.events() if event["event"] == "ready")


@pytest.mark.slow
def test_what_keeps_a_broker_from_starting_and_from_serving(tmp_path: Path, s3_server: S3Server) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    kafka_port, http_port = free_port(), free_port()
    names = {
        "<A>": cluster_in(data, records=["order-1", "order-2"]),
        "<B>": cluster_in(tmp_path / "other", settings={"storage.url": s3_server.url("payments")}, environ=s3_server.environ),
        "/srv/forebay": str(data),
        "/mnt/old": str(aside),
        "s3://payments/forebay": s3_server.url("payments"),
        "127.0.0.1:9092": f"{HOST}:{kafka_port}",
        "127.0.0.1:9192": f"{HOST}:{kafka_port + 100}",
        "Port 9092": f"Port {kafka_port}",
        "localhost:8070": f"{HOST}:{http_port}",
    }
    environ = {
        "FOREBAY_BOOTSTRAP": f"{HOST}:{kafka_port}",
        "FOREBAY_KAFKA__LISTENERS": f"PLAINTEXT://{HOST}:{kafka_port}",
        "FOREBAY_HTTP__LISTEN": f"{HOST}:{http_port}",
        **s3_server.environ,
    }
    aside.mkdir()
    (data / "objects").rename(aside / "objects")
    with Shell(tmp_path, names, environ) as shell:
        (tmp_path / "forebay.yaml").write_text(shell.as_it_is(SETTINGS))
        for title in (
            "The folder of the objects is not there",
            "The folder is put back",
            "The bucket is another cluster's",
            "The port is taken",
        ):
            shell.replay(part(PAGE, title))
        shell.stop()
        (tmp_path / "forebay.log").unlink()
        with Shell(tmp_path, names, environ, entering=FEW_OPEN_FILES) as limited:
            limited.replay(part(PAGE, "A broker may open too few files"))
            limited.stop()
        shell.replay(AND_NOW_IT_SERVES)
        for suffix in ("", "-wal", "-shm"):
            (data / f"meta.db{suffix}").unlink(missing_ok=True)
        shell.replay(part(PAGE, "The metadata file is gone"))
        shell.replay(part(PAGE, "The metadata file is brought back"))


def test_an_object_that_is_missing(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    cluster_in(data, records=["order-1"])
    (wal_object,) = [path for path in (data / "objects" / "wal").rglob("*") if path.is_file()]
    with Shell(tmp_path, {"/srv/forebay": str(data)}) as shell:
        (tmp_path / "forebay.yaml").write_text(shell.as_it_is(SETTINGS))
        wal_object.rename(aside)
        shell.replay(part(PAGE, "An object is gone"))
        aside.rename(wal_object)
        shell.replay(part(PAGE, "The object is restored"))
