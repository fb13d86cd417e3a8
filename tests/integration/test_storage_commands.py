"""`forebay storage` beside a broker that serves: one process appends, another looks into the same SQLite file and folder."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from forebay.cli import application
from tests.kit.serving import Served, serving

APPENDS = 20


@dataclass(frozen=True)
class Cluster:
    folder: Path
    served: Served | None

    def run(self, *arguments: str) -> tuple[int, str, str]:
        stores = (f"storage.url=file://{self.folder}/objects", f"metadata.url=sqlite:///{self.folder}/meta.db")
        options = ["--config", os.devnull, *(word for url in stores for word in ("--set", url))]
        result = CliRunner().invoke(application, ["storage", *arguments, *options])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        found, data, talk = self.run(*arguments, "-o", "json", "-q")
        assert (found, talk) == (code, "")
        return json.loads(data)

    def wal_objects(self) -> list[Path]:
        return sorted(path for path in (self.folder / "objects" / "wal").rglob("*") if path.is_file())


def append(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for _ in range(APPENDS):
        producer.produce(topic, b"the same words", partition=0)
        assert producer.flush(20.0) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with serving(folder) as served:
        append(served.bootstrap, "orders")
        append(served.bootstrap, "events")
        yield Cluster(folder, served)


@pytest.fixture
def copy(cluster: Cluster, tmp_path: Path) -> Cluster:
    """What the broker has stored, to be damaged."""
    shutil.copytree(cluster.folder, tmp_path / "copy")
    return Cluster(tmp_path / "copy", None)


def test_a_cluster_that_serves_is_sound(cluster: Cluster) -> None:
    code, data, talk = cluster.run("verify", "--deep")

    assert (code, data) == (0, "")
    assert talk.startswith("Verified 2 partitions, 0 segments, 40 entries; looked at 40 objects, read ")
    assert talk.endswith(" bytes. Nothing is wrong.\n")


def test_one_partition_can_be_verified_alone(cluster: Cluster) -> None:
    answer = cluster.json("verify", "--topic", "orders", "--partition", "0")

    assert answer["sound"] is True
    assert (answer["checked"]["partitions"], answer["checked"]["entries"]) == (1, 20)
    assert answer["findings"] == []


def test_what_is_wrong_is_said_with_what_to_do_and_ends_with_6(copy: Cluster) -> None:
    missing, flipped = copy.wal_objects()[:2]
    missing.unlink()
    body = bytearray(flipped.read_bytes())
    body[-1] ^= 1
    flipped.write_bytes(body)

    code, data, talk = copy.run("verify", "--deep")
    answer = copy.json("verify", "--deep", code=6)

    assert code == 6
    assert talk.endswith("2 errors, 0 warnings.\n")
    assert f"error  object_missing  orders/0  offsets 0..0\n  key     {answer['findings'][0]['key']}\n" in data
    assert f"  object  wal/{missing.parent.name}/{missing.name}\n" in data
    assert "  do      Check storage.url. Restore the object" in data
    assert [(one["kind"], one["topic"], one["first_offset"]) for one in answer["findings"]] == [
        ("object_missing", "orders", 0),
        ("batch_damaged", "orders", 1),
    ]
    assert answer["counts"] == {"object_missing": 1, "batch_damaged": 1}
    assert answer["severities"] == {"error": 2, "warning": 0, "info": 0}


def test_objects_that_no_entry_names_are_counted_and_nothing_is_wrong(copy: Cluster) -> None:
    first = copy.wal_objects()[0]
    (first.parent / f"{first.name[:-1]}{'0' if first.name[-1] != '0' else '1'}").write_bytes(b"12345")

    (only,) = copy.json("verify")["findings"]
    assert (only["kind"], only["severity"]) == ("unreferenced", "info")
    assert only["found"] == "1 objects of 5 bytes, stored less than 15 minutes ago"


def test_what_does_not_exist_is_not_found(cluster: Cluster) -> None:
    assert cluster.run("verify", "--topic", "ordres")[::2] == (4, 'Topic "ordres" does not exist. Nearest: "orders".\n')
    assert cluster.run("verify", "--topic", "orders", "-p", "7")[::2] == (4, 'Topic "orders" has no partition 7.\n')


@pytest.mark.parametrize("arguments", [("-p", "0"), ("--sample", "1"), ("--sample", "0%"), ("--sample", "101%"), ("--sample", "x%")])
def test_options_that_make_no_sense_are_usage(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    assert cluster.run("verify", *arguments)[0] == 2
