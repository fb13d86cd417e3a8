"""`forebay serve` on stores that are not those of one cluster: one line that names both, and an exit code; and on those that are."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from runtime.clock import SystemClock
from services.oxia import OxiaServer, running_oxia
from services.versitygw import running_s3
from storage.catalog.identity import MARKER_KEY
from tests.kit.serving import HOST, IN_OBJECTS, Served, events, get, last_lines, serving

WITHIN_S = 60.0
ASK_EVERY_S = 0.05
EXIT_USAGE = 2
TOPIC = "t"
ACCEPT = "--accept-new-store"
clock = SystemClock()

AUTO = {"kafka.auto_create_topics": "true"}


def urls(folder: Path, *, objects: Path | None = None) -> dict[str, str]:
    return {"metadata.url": f"sqlite:///{folder}/meta.db", "storage.url": f"file://{objects or folder / 'objects'}"}


def forebay(*arguments: str, settings: Mapping[str, str], environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [sys.executable, "-m", "forebay", *arguments, "--config", os.devnull]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=kept | dict(environ or {}), check=False)


def refused(settings: Mapping[str, str], *options: str, environ: Mapping[str, str] | None = None) -> str:
    """The message that a start ends with."""
    given = {"kafka.listeners": f"PLAINTEXT://{HOST}:0", "http.listen": f"{HOST}:0", **settings}
    ended = forebay("serve", "--log-format", "json", *options, settings=given, environ=environ)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    said = [str(line["message"]) for line in lines if line["event"] == "cannot_serve"]
    assert (ended.returncode, len(said)) == (EXIT_USAGE, 1), ended.stderr
    return said[0]


def append(served: Served, count: int = 3) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap, "log_level": 0})
    failed: list[object] = []
    for number in range(count):
        producer.produce(TOPIC, str(number), on_delivery=lambda error, _: failed.append(error) if error else None)
    assert (producer.flush(WITHIN_S), failed) == (0, [])


def consumed(served: Served, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, WITHIN_S)]
    finally:
        consumer.close()


def missed(served: Served) -> dict[str, object]:
    """The first line about records that cannot be read, while a consumer asks for them."""
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    give_up_s = clock.monotonic_s() + WITHIN_S
    try:
        while clock.monotonic_s() < give_up_s:
            consumer.poll(0.2)
            for event in served.events():
                if event.get("event") == "data_missing":
                    return event
    finally:
        consumer.close()
    raise AssertionError("not told")


def cluster_id(served: Served) -> object:
    return next(event["cluster_id"] for event in served.events() if event["event"] == "ready")


def marked(objects: Path) -> object:
    return json.loads((objects / MARKER_KEY).read_bytes())["cluster_id"]


def begun(folder: Path, *, settings: Mapping[str, str] = IN_OBJECTS, is_killed: bool = False) -> object:
    """The id of a cluster with records in `folder`, whose broker has ended. One that `is_killed` has not stored what went early."""
    with serving(folder, settings=AUTO | settings) as served:
        append(served)
        if is_killed:
            served.kill9()
    return cluster_id(served)


def test_a_new_cluster_bears_its_id_in_both_stores_and_goes_on(tmp_path: Path) -> None:
    first = begun(tmp_path)
    with serving(tmp_path) as served:
        assert consumed(served, 3) == [b"0", b"1", b"2"]

    assert cluster_id(served) == first == marked(tmp_path / "objects")


def test_an_objects_folder_that_was_moved_away_is_missed_until_the_operator_means_it(tmp_path: Path) -> None:
    ours = begun(tmp_path)
    objects = tmp_path / "objects"
    objects.rename(tmp_path / "aside")

    said = refused(urls(tmp_path))
    again = refused(urls(tmp_path))
    with serving(tmp_path, options=[ACCEPT]) as accepting:
        (warning,) = [event for event in accepting.events() if event["event"] == "new_store_accepted"]
        missing = missed(accepting)
        metrics = accepting.metrics()
    with serving(tmp_path) as after:
        append(after)

    assert again == said
    assert f'storage.url "file://{objects}" holds nothing of cluster {ours}' in said
    assert f'metadata.url "sqlite:///{tmp_path}/meta.db" name objects like wal/' in said
    assert ACCEPT in said
    assert (warning["level"], warning["cluster_id"]) == ("warning", ours)
    assert str(warning["named_by_metadata"]).startswith("wal/")
    assert (missing["level"], missing["object"], missing["offset"]) == ("error", warning["named_by_metadata"], 0)
    assert metrics['forebay_corrupt_reads_total{cause="missing"}'] >= 2
    assert metrics['forebay_clock_difference_seconds{store="object_store"}'] == 0
    assert (cluster_id(after), marked(objects)) == (ours, ours)


def test_an_objects_folder_that_was_moved_away_is_missed_though_it_held_no_records(tmp_path: Path) -> None:
    ours = begun(tmp_path, settings={}, is_killed=True)
    (tmp_path / "objects").rename(tmp_path / "aside")

    said = refused(urls(tmp_path))
    with serving(tmp_path, options=[ACCEPT]) as accepting:
        records = consumed(accepting, 3)

    assert f"holds nothing of cluster {ours}" in said
    assert f"name objects like {MARKER_KEY}" in said
    assert records == [b"0", b"1", b"2"]


def test_an_objects_folder_that_is_moved_back_is_taken_without_a_word(tmp_path: Path) -> None:
    begun(tmp_path)
    objects = tmp_path / "objects"
    objects.rename(tmp_path / "aside")
    refused(urls(tmp_path))
    for path in (objects / ".tmp", objects):
        path.rmdir()
    (tmp_path / "aside").rename(objects)

    with serving(tmp_path) as served:
        assert consumed(served, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("options", [[], [ACCEPT]])
def test_the_store_of_another_cluster_is_never_taken(tmp_path: Path, options: Sequence[str]) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    id_of_one, id_of_other = begun(one), begun(other)

    swapped = refused(urls(one, objects=other / "objects"), *options)
    mistyped = refused(urls(tmp_path / "new", objects=other / "objects"), *options)
    looked = forebay("debug", "trace-offset", TOPIC, "0", "0", settings=urls(one, objects=other / "objects"))

    for said in (swapped, looked.stderr):
        assert f'storage.url "file://{other}/objects" is the object store of cluster {id_of_other}' in said
        assert f'metadata.url "sqlite:///{one}/meta.db" holds cluster {id_of_one}' in said
    assert looked.returncode == EXIT_USAGE
    assert f"is the object store of cluster {id_of_other}" in mistyped
    assert "holds no cluster" in mistyped
    assert (ACCEPT in swapped) == (ACCEPT in mistyped) == bool(options)
    assert marked(other / "objects") == id_of_other


@pytest.mark.parametrize("has_records", [True, False])
def test_a_data_folder_of_a_release_without_markers_gets_one(tmp_path: Path, has_records: bool) -> None:
    if has_records:
        ours = begun(tmp_path)
    else:
        with serving(tmp_path) as served:
            ours = cluster_id(served)
    (tmp_path / "objects" / MARKER_KEY).unlink()

    with serving(tmp_path) as served:
        pass

    assert (cluster_id(served), marked(tmp_path / "objects")) == (ours, ours)


def test_brokers_that_start_at_once_on_new_stores_are_one_cluster(tmp_path: Path) -> None:
    def start(_: int) -> object:
        with serving(tmp_path) as served:
            return cluster_id(served)

    with ThreadPoolExecutor(3) as pool:
        ids = set(pool.map(start, range(3)))

    assert ids == {marked(tmp_path / "objects")}


@contextmanager
def workers(folder: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "forebay", "serve", "--workers", "2", "--log-format", "json", "--config", os.devnull, *options]
    for key, value in {"kafka.listeners": f"PLAINTEXT://{HOST}:0", "http.listen": f"{HOST}:0", **urls(folder)}.items():
        command += ["--set", f"{key}={value}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    try:
        yield process
        process.terminate()
        assert process.wait(WITHIN_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WITHIN_S)


def test_workers_are_told_what_is_accepted(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "objects").rename(tmp_path / "aside")
    log = tmp_path / "workers.log"

    refused(urls(tmp_path), "--workers", "2")
    with workers(tmp_path, log, ACCEPT) as process:
        give_up_s = clock.monotonic_s() + WITHIN_S
        while [event.get("event") for event in events(log)].count("ready") < 2:
            assert clock.monotonic_s() < give_up_s, last_lines(log)
            assert process.poll() is None, last_lines(log)
            time.sleep(ASK_EVERY_S)

    assert [event["worker"] for event in events(log) if event.get("event") == "new_store_accepted"] == [0]


def test_a_mistyped_bucket_and_a_mistyped_oxia_are_told_by_their_ids(tmp_path: Path) -> None:
    with running_s3(tmp_path / "s3") as s3, running_oxia(tmp_path / "oxia") as one, running_oxia(tmp_path / "oxia-2") as other:

        def settings(oxia: OxiaServer, prefix: str) -> dict[str, str]:
            return {**AUTO, "metadata.url": oxia.url, "storage.url": s3.url(prefix)}

        ids = []
        for oxia, prefix in ((one, "one"), (other, "other")):
            with serving(tmp_path / prefix, settings=settings(oxia, prefix), environ=s3.environ) as served:
                append(served)
            ids.append(cluster_id(served))
        anothers = refused(settings(one, "other"), environ=s3.environ)
        empty = refused(settings(one, "oen"), environ=s3.environ)
        with serving(tmp_path / "one", settings=settings(one, "one"), environ=s3.environ) as served:
            append(served)

    assert f"/other?endpoint={s3.endpoint}" in anothers
    assert f"is the object store of cluster {ids[1]}" in anothers
    assert f'"{one.url}" holds cluster {ids[0]}' in anothers
    assert f"holds nothing of cluster {ids[0]}" in empty
    assert s3.secret_key not in anothers + empty


def test_a_folder_that_is_replaced_under_a_broker_by_another_cluster_s_stops_it(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    with serving(others, settings=AUTO) as served:
        append(served)
    with serving(ours, settings=AUTO) as served:
        append(served)
        (ours / "objects").rename(ours / "objects.away")
        (others / "objects").rename(ours / "objects")
        marked = json.loads((ours / "objects" / MARKER_KEY).read_text())["cluster_id"]
        give_up_s = clock.monotonic_s() + WITHIN_S
        while (answered := get(served.http_port, "/readyz"))[0] == HTTPStatus.OK:
            assert clock.monotonic_s() < give_up_s, "it says that it is ready"
            time.sleep(ASK_EVERY_S)
        producer = Producer({"bootstrap.servers": served.bootstrap, "log_level": 0, "message.timeout.ms": 3_000})
        errors: list[object] = []
        producer.produce(TOPIC, b"lost", on_delivery=lambda error, _: errors.append(error))
        producer.flush(WITHIN_S)

    check = json.loads(answered[1])["checks"]["object_store"]
    assert answered[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert f"is the object store of cluster {marked}" in check["error"]
    assert [error is None for error in errors] == [False]
    assert [event["store"] for event in events(served.log_path) if event.get("event") == "store_replaced"] == ["object_store"]
