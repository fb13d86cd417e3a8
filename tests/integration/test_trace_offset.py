"""`forebay debug trace-offset` beside a broker that serves: one process appends, another looks into the same SQLite file and folder."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from typer.testing import CliRunner

from forebay.commands.debug import debug
from services.oxia import OxiaServer
from services.versitygw import S3Server
from storage.log.limits import DEFAULT_LIMITS
from tests.kit.serving import IN_OBJECTS, Served, serving

TOPIC = "orders"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_PER_APPEND = 3
ANSWER_WITHIN_S = 20.0


@dataclass(frozen=True)
class Cluster:
    folder: Path
    served: Served

    def trace(self, topic: str, partition: int, offset: int, *options: str) -> tuple[int, str, str]:
        stores = (f"storage.url=file://{self.folder}/objects", f"metadata.url=sqlite:///{self.folder}/meta.db")
        arguments = ["trace-offset", topic, str(partition), str(offset), "--config", os.devnull, *options]
        result = CliRunner().invoke(debug, [*arguments, *(word for url in stores for word in ("--set", url))])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    def traced(self, offset: int) -> dict[str, Any]:
        code, data, talk = self.trace(TOPIC, 0, offset, "-o", "json")
        assert (code, talk) == (0, "")
        found: dict[str, Any] = json.loads(data)
        return found

    def records(self) -> list[tuple[Any, ...]]:
        """All that the metadata store holds."""
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/meta.db?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT k, version, value FROM records ORDER BY k").fetchall()

    def objects(self) -> dict[str, int]:
        root = self.folder / "objects"
        return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def append(bootstrap: str, *, codec: str, idempotent: bool) -> list[int]:
    """The offsets of one batch of records."""
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 50, "acks": "all"}
    )
    for number in range(RECORDS_PER_APPEND):
        producer.produce(TOPIC, b"the same words again and again " * 8 + str(number).encode(), partition=0, on_delivery=delivered)
    assert producer.flush(ANSWER_WITHIN_S) == 0
    return offsets


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Appends of each codec, with and without sequences, and enough of them that the first ones stand in an index chunk."""
    folder = tmp_path_factory.mktemp("cluster")
    with serving(folder, settings=IN_OBJECTS) as served:
        for number in range(DEFAULT_LIMITS.pending_entries_max + 4):
            append(served.bootstrap, codec=CODECS[number % len(CODECS)], idempotent=number % 2 == 1)
        yield Cluster(folder, served)


def test_every_offset_is_found_while_the_broker_serves(cluster: Cluster) -> None:
    end = cluster.traced(0)["control"]["sequence_counter"]
    assert end == (DEFAULT_LIMITS.pending_entries_max + 4) * RECORDS_PER_APPEND

    found = [cluster.traced(offset) for offset in range(end)]

    for offset, trace in enumerate(found):
        batch, entry = trace["batch"], trace["entry"]
        assert entry["base_offset"] <= batch["base_offset"] <= offset <= batch["last_offset"] <= entry["last_offset"]
        assert batch["crc_ok"]
        assert trace["problem"] is None
    assert {trace["entry"]["source"] for trace in found} == {"index", "pending"}
    assert {trace["batch"]["codec"] for trace in found} == set(CODECS)
    assert {trace["batch"]["producer_id"] >= 0 for trace in found} == {True, False}


def test_the_bytes_named_are_those_a_consumer_is_sent(cluster: Cluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.served.bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        message = consumer.poll(ANSWER_WITHIN_S)
    finally:
        consumer.close()
    trace = cluster.traced(0)
    body = (cluster.folder / "objects" / trace["entry"]["object_key"]).read_bytes()

    assert message is not None
    value = message.value()
    assert isinstance(value, bytes)
    assert trace["batch"]["codec"] == "none"
    assert value in body[trace["batch"]["start"] : trace["batch"]["end"]]
    assert len(body) == trace["object"]["size_bytes"]


def test_an_idempotent_batch_shows_its_producer(cluster: Cluster) -> None:
    first, *_ = append(cluster.served.bootstrap, codec="zstd", idempotent=True)

    batch = cluster.traced(first)["batch"]

    assert batch["producer_id"] >= 0
    assert (batch["producer_epoch"], batch["base_sequence"]) == (0, 0)


def test_the_table_names_the_same_object_and_range(cluster: Cluster) -> None:
    trace = cluster.traced(1)

    code, table, talk = cluster.trace(TOPIC, 0, 1)

    assert (code, talk) == (0, "")
    assert trace["entry"]["object_key"] in table
    assert f"bytes [{trace['batch']['start']}, {trace['batch']['end']})" in table
    assert f"from index  {trace['entry']['source_key']}" in table


def test_tracing_leaves_records_and_objects_as_they_are(cluster: Cluster) -> None:
    before = cluster.records(), cluster.objects()

    cluster.traced(0)
    cluster.trace("ordres", 0, 0)

    assert (cluster.records(), cluster.objects()) == before


def test_an_unknown_topic_a_partition_and_offsets_outside_are_one_line_and_not_found(cluster: Cluster) -> None:
    end = cluster.traced(0)["control"]["sequence_counter"]
    expected = {
        ("ordres", 0, 0): 'Nearest: "orders".',
        (TOPIC, 1, 0): "It has 1: 0..0.",
        (TOPIC, 0, end): f"is at the end of the log, {end}",
        (TOPIC, 0, end + 5): f"is past the end of the log, {end}",
    }
    for (topic, partition, offset), words in expected.items():
        code, _, talk = cluster.trace(topic, partition, offset)

        assert code == 4
        assert words in talk
        assert talk.count("\n") == 1


def test_damage_and_loss_of_an_object_are_told_after_the_broker_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        offsets = append(served.bootstrap, codec="none", idempotent=False)
        served.kill9()
        cluster = Cluster(tmp_path, served)
        trace = cluster.traced(offsets[0])
        path = tmp_path / "objects" / trace["entry"]["object_key"]

        body = bytearray(path.read_bytes())
        body[trace["batch"]["end"] - 1] ^= 1
        path.write_bytes(body)
        damaged = cluster.trace(TOPIC, 0, offsets[0], "-o", "json")
        path.unlink()
        missing = cluster.trace(TOPIC, 0, offsets[0], "-o", "json")

    assert (damaged[0], missing[0]) == (1, 1)
    assert damaged[2].startswith("Checksum mismatch")
    assert json.loads(damaged[1])["batch"]["crc_ok"] is False
    assert "of a live entry is missing" in missing[2]
    assert json.loads(missing[1])["problem"] == missing[2].strip()


def test_a_record_on_oxia_and_s3_is_traced_with_the_settings_of_the_environment(
    tmp_path: Path, oxia_server: OxiaServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"FOREBAY_METADATA__URL": oxia_server.url, "FOREBAY_STORAGE__URL": s3_server.url()}
    for name, value in (s3_server.environ | urls).items():
        monkeypatch.setenv(name, value)
    settings = {
        "metadata.url": urls["FOREBAY_METADATA__URL"],
        "storage.url": urls["FOREBAY_STORAGE__URL"],
        "kafka.auto_create_topics": "true",
    }

    with serving(tmp_path, settings=settings | IN_OBJECTS, environ=s3_server.environ) as served:
        first, *_ = append(served.bootstrap, codec="lz4", idempotent=True)
        result = CliRunner().invoke(debug, ["trace-offset", TOPIC, "0", str(first), "--config", os.devnull, "-o", "json"])
    trace = json.loads(result.stdout)

    assert (result.exit_code, result.stderr) == (0, "")
    assert trace["batch"]["crc_ok"]
    assert trace["batch"]["codec"] == "lz4"
    assert trace["batch"]["base_offset"] == first
    assert trace["object"]["size_bytes"] >= trace["batch"]["end"]
