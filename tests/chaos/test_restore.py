"""Metadata that are put back to an older copy: a start says so and ends, and what is accepted loses nothing more.

Ages and graces are so low that seconds do the upkeep of days. Tests wait for what is to happen, never for a time.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.oxia import OxiaServer, running_oxia
from services.versitygw import running_s3
from tests.chaos.group_load import wait_until
from tests.kit.async_client import AsyncClient
from tests.kit.record_batches import record_batch
from tests.kit.serving import HOST, ROOT, Served, events, get, serving

WITHIN_S: Final = 100.0
pytestmark = pytest.mark.timeout(400)
ACCEPT: Final = "--accept-older-metadata"
REFUSED: Final = 2
RETRIABLE: Final = {7, 56}
"""REQUEST_TIMED_OUT and KAFKA_STORAGE_ERROR."""
TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
UPKEEP: Final = {
    "compactor.listen": f"{HOST}:0",
    "compactor.interval": "100ms",
    "compactor.segment_age": "100ms",
    "compactor.delete_interval": "100ms",
    "compactor.delete_grace": "100ms",
}
IN_OBJECTS: Final = {"storage.early_bytes_per_second": "0B"}
WRITES: Final = 5
LIVES: Final = 3
CYCLES: Final = 5
"""Looks at all objects, after which a collector that was to delete one has done it."""


def stores(folder: Path) -> dict[str, str]:
    return {"storage.url": f"file://{folder.resolve()}/objects", "metadata.url": f"sqlite:///{folder.resolve()}/meta.db"}


def forebay(folder: Path, *words: str, settings: dict[str, str]) -> list[str]:
    given = [f"--set={key}={value}" for key, value in (stores(folder) | settings).items()]
    return [sys.executable, "-m", "forebay", *words, "--config", os.devnull, *given]


@dataclass(frozen=True)
class Compactor:
    log: Path

    def metrics(self) -> dict[str, float]:
        (address,) = [str(event["address"]) for event in events(self.log) if event.get("event") == "http listening"]
        status, body = get(int(address.rpartition(":")[2]), "/metrics.json")
        assert status == HTTPStatus.OK, body
        found: dict[str, float] = {}
        for sample in json.loads(body)["series"]:
            found[sample["name"]] = found.get(sample["name"], 0.0) + sample.get("value", 0.0)
        return found

    def cycles(self) -> float:
        return self.metrics().get("forebay_compactor_cycles_total", 0.0)

    def is_ready(self) -> bool:
        return any(event.get("event") == "ready" for event in events(self.log))


@contextlib.contextmanager
def compacting(folder: Path) -> Iterator[Compactor]:
    """A compactor that has begun. It is stopped in the end."""
    log = folder / "compactor.log"
    with log.open("wb") as out:
        process = subprocess.Popen(forebay(folder, "compactor", "serve", settings=UPKEEP), stdout=out, stderr=out, cwd=ROOT)
    try:
        found = Compactor(log)
        wait_until(found.is_ready, within_s=WITHIN_S, what="a compactor that is ready")
        yield found
    finally:
        process.terminate()
        code = process.wait(WITHIN_S)
    assert code == 0, log.read_text()


def create(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(20)


def write(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    """Send records one after the other, each in a flush of its own."""
    failed: list[KafkaError] = []

    def heard(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": False, "linger.ms": 0, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=heard)
        assert producer.flush(WITHIN_S) == 0
    assert failed == []


def read(bootstrap: str, topic: str) -> list[int]:
    """Every record from the beginning to the end of the log."""
    found: list[int] = []
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.auto.commit": False, "log_level": 0})) as consumer:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])

        def is_all() -> bool:
            for message in consumer.consume(1_000, 0.2):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                found.append(int(message.value() or b""))
            return len(found) >= end

        wait_until(is_all, within_s=WITHIN_S, what=f"all {end} records of {topic} are read")
    return found


def objects(folder: Path, kind: str) -> set[str]:
    """What the object store holds of `kind`, by key. Folders may go while they are looked at."""
    return {os.path.join(below, name) for below, _, names in os.walk(folder / "objects" / kind) for name in names}


def back_up(folder: Path, copy: Path) -> None:
    """Do what `sqlite3 meta.db ".backup copy.db"` does, beside a broker that runs."""
    with closing(sqlite3.connect(folder / "meta.db")) as source, closing(sqlite3.connect(copy / "meta.db")) as target:
        source.backup(target)


def files_of(folder: Path) -> list[Path]:
    return [path for name in ("meta.db", "meta.db-wal", "meta.db-shm") if (path := folder / name).exists()]


def copy_files(folder: Path, copy: Path) -> None:
    for path in files_of(folder):
        shutil.copy2(path, copy)


def put_back(folder: Path, copy: Path) -> None:
    for path in files_of(folder):
        path.unlink()
    copy_files(copy, folder)


def refusal(folder: Path) -> str:
    """What a start says, in one line, before it ends."""
    settings = {"kafka.listeners": f"PLAINTEXT://{HOST}:0", "http.listen": f"{HOST}:0", "compactor.run": "false"}
    command = forebay(folder, "serve", settings=settings)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, cwd=ROOT, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == REFUSED, said
    (line,) = [line for line in said.splitlines() if ACCEPT in line]
    assert "Traceback" not in said
    return str(json.loads(line)["message"])


def went_back(served: Served) -> list[dict[str, object]]:
    return [event for event in served.events() if event.get("event") == "metadata_went_back"]


def wait_for_cycles(compactor: Compactor, count: int) -> None:
    """Return when that many looks have begun and ended."""
    before = compactor.cycles()
    wait_until(lambda: compactor.cycles() > before + count, within_s=WITHIN_S, what="more cycles")


def assert_never_refused(served: Served) -> None:
    assert [event for event in served.events() if event.get("event") in {"metadata_went_back", "older_metadata_accepted"}] == []


@pytest.mark.parametrize("way", ["backup", pytest.param("files", marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_copy_from_before_a_collection_is_refused_and_once_accepted_loses_nothing_more(tmp_path: Path, way: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        create(served.bootstrap, "compacted", "gone")
        write(served.bootstrap, "compacted", range(WRITES))
        with compacting(tmp_path):
            wait_until(lambda: not objects(tmp_path, "wal"), within_s=WITHIN_S, what="one segment instead of WAL objects")
        write(served.bootstrap, "gone", range(WRITES))
        if way == "backup":
            back_up(tmp_path, copy)
    if way == "files":
        copy_files(tmp_path, copy)
    named = objects(tmp_path, "segments")

    with serving(tmp_path, settings=IN_OBJECTS) as served:
        assert_never_refused(served)
        write(served.bootstrap, "gone", range(WRITES, 2 * WRITES))
        with compacting(tmp_path):
            wait_until(lambda: not objects(tmp_path, "wal"), within_s=WITHIN_S, what="the objects that the copy names are deleted")
        assert read(served.bootstrap, "gone") == list(range(2 * WRITES))
    there = objects(tmp_path, "wal") | objects(tmp_path, "segments")
    assert named < there
    put_back(tmp_path, copy)

    line = refusal(tmp_path)
    assert len(re.findall(TIME, line)) == 2, line
    assert "objects were deleted" in line
    with serving(tmp_path, settings=IN_OBJECTS, options=[ACCEPT]) as served:
        assert [event["level"] for event in served.events() if event["event"] == "older_metadata_accepted"] == ["warning"]
        with compacting(tmp_path) as compactor:
            wait_until(lambda: compactor.metrics().get("forebay_gc_missing_objects"), within_s=WITHIN_S, what="an object is missed")
            missing = compactor.metrics()["forebay_gc_missing_objects"]
            create(served.bootstrap, "later")
            write(served.bootstrap, "later", range(WRITES))
            wait_until(lambda: len(objects(tmp_path, "segments")) > len(there), within_s=WITHIN_S, what="others are compacted")
            wait_for_cycles(compactor, CYCLES)
            assert there <= objects(tmp_path, "wal") | objects(tmp_path, "segments")
        assert [read(served.bootstrap, topic) for topic in ("compacted", "later")] == [list(range(WRITES))] * 2
    assert missing == WRITES
    with serving(tmp_path) as served:
        assert_never_refused(served)


def test_a_copy_from_before_the_last_commits_is_refused_where_nothing_was_deleted(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with serving(tmp_path) as served:
        create(served.bootstrap, "t")
        write(served.bootstrap, "t", range(WRITES))
    copy_files(tmp_path, copy)
    with serving(tmp_path) as served:
        write(served.bootstrap, "t", [WRITES])
    put_back(tmp_path, copy)

    line = refusal(tmp_path)
    with serving(tmp_path, options=[ACCEPT]) as served:
        before = read(served.bootstrap, "t")
        write(served.bootstrap, "t", [WRITES])
    with serving(tmp_path) as served:
        assert_never_refused(served)
        after = read(served.bootstrap, "t")

    assert re.search(TIME, line), line
    assert "nothing that was ever deleted" in line
    assert "committed" in line
    assert before == list(range(WRITES))
    assert after == list(range(WRITES + 1))


def test_a_start_on_the_newest_metadata_is_never_refused(tmp_path: Path) -> None:
    """After kill -9 of the broker and after a stop in order, while objects are compacted and collected."""
    written = 0
    with contextlib.ExitStack() as closing_last:
        compactors: list[Compactor] = []
        for life in range(LIVES):
            with serving(tmp_path, settings=IN_OBJECTS if life % 2 else {}) as served:
                assert_never_refused(served)
                if not life:
                    create(served.bootstrap, "t")
                    compactors.append(closing_last.enter_context(compacting(tmp_path)))
                write(served.bootstrap, "t", range(written, written + WRITES))
                written += WRITES
                wait_for_cycles(compactors[0], 1)
                if life % 2 == 0:
                    served.kill9()
        with serving(tmp_path) as served:
            assert_never_refused(served)
            assert read(served.bootstrap, "t") == list(range(written))
    assert [event for event in events(compactors[0].log) if event.get("level") == "error"] == []
    assert objects(tmp_path, "forebay-collections")


def readiness(served: Served) -> int:
    return get(served.http_port, "/readyz")[0]


def put_oxia_back(oxia: OxiaServer, folder: Path, copy: Path) -> None:
    oxia.kill9()
    for name in ("db", "wal"):
        shutil.rmtree(folder / name)
        shutil.copytree(copy / name, folder / name)
    oxia.start()


async def refusals(served: Served) -> set[int]:
    """Errors of a produce and of a fetch from the beginning, which this broker has in memory."""
    async with await AsyncClient.connect(served.kafka_port) as client:
        appended = await client.produce("t", {0: bytes(record_batch(b"x"))})
        fetched = await client.fetch("t", {0: 0})
    return {appended[0].error, fetched[0].error}


def test_oxia_that_is_put_back_under_a_broker_is_noticed_and_nothing_is_answered_any_more(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3:
        settings = {"metadata.url": oxia.url, "storage.url": s3.url()}
        with serving(tmp_path, settings=settings, environ=s3.environ) as served:
            create(served.bootstrap, "t")
            write(served.bootstrap, "t", range(WRITES))
            oxia.kill9()
            shutil.copytree(tmp_path / "oxia", copy)
            oxia.start()
            write(served.bootstrap, "t", range(WRITES, 2 * WRITES))
            assert read(served.bootstrap, "t") == list(range(2 * WRITES))
            assert_never_refused(served)
            put_oxia_back(oxia, tmp_path / "oxia", copy)
            errors: set[int] = set()

            def is_noticed() -> bool:
                errors.update(asyncio.run(refusals(served)))
                return readiness(served) == HTTPStatus.SERVICE_UNAVAILABLE and bool(went_back(served))

            wait_until(is_noticed, within_s=WITHIN_S, what="it is noticed")
            assert 0 not in asyncio.run(refusals(served))
            said = went_back(served)
        with pytest.raises(AssertionError), serving(tmp_path, settings=settings, environ=s3.environ):
            pass
        with serving(tmp_path, settings=settings, environ=s3.environ, options=[ACCEPT]) as served:
            assert read(served.bootstrap, "t") == list(range(WRITES))

    assert [event["level"] for event in said] == ["error"]
    assert errors <= RETRIABLE | {0}
