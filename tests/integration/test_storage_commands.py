"""`forebay storage` beside a broker that serves: one process appends, another looks into the same SQLite file and folder."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from forebay.cli import application
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from services.oxia import OxiaServer
from services.versitygw import S3Server
from storage.catalog.collections import accept_older
from storage.catalog.topic import decode_topic
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.metadata import keys
from storage.metadata.keys import early_page
from storage.metadata.port import ABSENT, Put, Record
from storage.opening import Stores, open_stores
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.early_entries import EarlyEntry, made_early
from tests.kit.serving import IN_OBJECTS, Served, get, serving

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
    """APPENDS records, each by itself and, whatever the client has to send twice, each there once."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for _ in range(APPENDS):
        producer.produce(topic, b"the same words", partition=0)
        assert producer.flush(20.0) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with serving(folder, settings=IN_OBJECTS) as served:
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
    assert only["found"] == "objects=1 bytes=5, stored less than 15 minutes ago"


def test_what_does_not_exist_is_not_found(cluster: Cluster) -> None:
    assert cluster.run("verify", "--topic", "ordres")[::2] == (4, 'Topic "ordres" does not exist. Nearest: "orders".\n')
    assert cluster.run("verify", "--topic", "orders", "-p", "7")[::2] == (4, 'Topic "orders" has no partition 7.\n')


@pytest.mark.parametrize("arguments", [("-p", "0"), ("--sample", "1"), ("--sample", "0%"), ("--sample", "101%"), ("--sample", "x%")])
def test_options_that_make_no_sense_are_usage(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    assert cluster.run("verify", *arguments)[0] == 2


def test_a_summary_counts_by_kind_and_by_topic(cluster: Cluster) -> None:
    totals = cluster.json("summary")
    code, data, talk = cluster.run("summary")

    sizes = [path.stat().st_size for path in cluster.wal_objects()]
    assert (totals["kinds"]["wal"]["objects"], totals["kinds"]["wal"]["size_bytes"]) == (len(sizes), sum(sizes))
    assert totals["live"]["wal"]["objects"] == 40
    assert totals["unreferenced"]["wal"]["objects"] == len(sizes) - 40
    assert totals["kinds"]["other"]["objects"] in (1, 2), "the one that says whose the store is, and perhaps a mark of commits"
    assert [(one["topic"], one["records"], one["entries"]) for one in totals["topics"]] == [("events", 20, 20), ("orders", 20, 20)]
    assert (code, talk) == (0, "")
    assert [line.split()[:2] for line in data.splitlines()[-2:]] == [["events", "1"], ["orders", "1"]]


def test_a_summary_of_a_topic_counts_what_each_partition_holds(cluster: Cluster) -> None:
    (found,) = cluster.json("summary", "--topic", "orders")
    code, data, talk = cluster.run("summary", "--topic", "orders", "-t", "events")

    assert (found["topic"], found["partition"], found["log_start"], found["log_end"], found["wal_objects"]) == ("orders", 0, 0, 20, 20)
    assert (code, talk) == (0, "")
    assert [line.split()[:5] for line in data.splitlines()[1:]] == [["events", "0", "0", "20", "20"], ["orders", "0", "0", "20", "20"]]
    assert cluster.run("summary", "--topic", "ordres")[::2] == (4, 'Topic "ordres" does not exist. Nearest: "orders".\n')


def test_objects_are_listed_by_prefix_age_and_number(cluster: Cluster) -> None:
    keys = [str(path.relative_to(cluster.folder / "objects")) for path in cluster.wal_objects()]

    assert [one["key"] for one in cluster.json("objects", "--prefix", "wal/")] == keys
    assert cluster.json("objects", "--older-than", "1h") == []
    code, data, talk = cluster.run("objects", "--prefix", "wal/", "--limit", "3")
    assert (code, len(data.splitlines())) == (0, 4)
    assert talk == "There are more than 3: --limit shows more, --prefix narrows them down.\n"
    assert cluster.run("objects", "--older-than", "soon")[0] == 2


def test_the_broker_tells_the_same_objects_by_http(cluster: Cluster) -> None:
    assert cluster.served is not None
    told: list[Any] = []
    after: str | None = ""
    while after is not None:
        status, page = get(cluster.served.http_port, f"/api/v1/objects?prefix=wal/&limit=7&after={after}")
        assert status == 200
        told += json.loads(page)["objects"]
        after = json.loads(page)["next"]

    assert told == cluster.json("objects", "--prefix", "wal/")


def test_an_object_is_decoded(cluster: Cluster) -> None:
    path = cluster.wal_objects()[0]
    key = str(path.relative_to(cluster.folder / "objects"))
    answer = cluster.json("object", key)
    code, data, _ = cluster.run("object", key)

    (part,) = answer["parts"]
    assert (part["topic"], part["partition"], part["end"]) == ("orders", 0, path.stat().st_size)
    assert [(one["records"], one["start"], one["end"]) for one in part["batches"]] == [(1, part["start"], part["end"])]
    assert code == 0
    assert f"key      {key}\n" in data
    assert f"orders/0  bytes [{part['start']}, {part['end']})\n" in data


def test_a_damaged_object_is_decoded_as_far_as_it_can_be_and_ends_with_6(copy: Cluster) -> None:
    path = copy.wal_objects()[0]
    key = str(path.relative_to(copy.folder / "objects"))
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)

    code, data, _ = copy.run("object", key)
    assert code == 6
    assert "problem  checksum mismatch: " in data
    body[20] ^= 1
    path.write_bytes(body)
    assert "part=header" in copy.json("object", key, code=6)["problem"]


def test_an_object_that_is_not_there_or_cannot_be_is_told_apart(cluster: Cluster) -> None:
    assert cluster.run("object", "wal/x")[::2] == (4, "There is no object wal/x. Which there are: forebay storage objects\n")
    assert cluster.run("object", "../x")[0] == 2
    assert cluster.json("object", "forebay-cluster.json")["kind"] == "other"


def test_a_cluster_on_oxia_and_s3_is_verified_with_the_settings_of_the_environment(
    tmp_path: Path, oxia_server: OxiaServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"metadata.url": oxia_server.url, "storage.url": s3_server.url()}
    for name, value in {
        **s3_server.environ,
        "FOREBAY_METADATA__URL": urls["metadata.url"],
        "FOREBAY_STORAGE__URL": urls["storage.url"],
    }.items():
        monkeypatch.setenv(name, value)

    with serving(tmp_path, settings={**urls, **IN_OBJECTS, "kafka.auto_create_topics": "true"}, environ=s3_server.environ) as served:
        append(served.bootstrap, "verified")
        result = CliRunner().invoke(application, ["storage", "verify", "--deep", "--config", os.devnull, "-t", "verified"])

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"Verified 1 partition, 0 segments, {APPENDS} entries; looked at {APPENDS} objects, read ")


def test_an_object_that_is_missing_is_accepted_as_lost_by_its_name_alone(copy: Cluster) -> None:
    missing, there, *_ = copy.wal_objects()
    key, other = (str(path.relative_to(copy.folder / "objects")) for path in (missing, there))
    missing.unlink()

    assert copy.run("accept-lost", other)[0] == 4
    assert copy.run("accept-lost", "../outside")[0] == 4
    assert copy.json("accept-lost", key) == {"key": key, "accepted_as_lost": True}


def test_what_older_metadata_do_not_name_is_listed_and_deleted_by_name_alone(copy: Cluster) -> None:
    named = str(copy.wal_objects()[0].relative_to(copy.folder / "objects"))
    assert copy.json("objects", "--kept") == []
    lost = asyncio.run(accepted(copy))

    assert [one["key"] for one in copy.json("objects", "--kept")] == [lost]
    code, _, talk = copy.run("delete-kept", lost, named)
    assert (code, named in talk) == (4, True)
    assert [one["key"] for one in copy.json("objects", "--kept")] == [lost], "nothing was deleted"
    assert copy.json("delete-kept", lost) == {"deleted": [lost]}
    assert copy.json("objects", "--kept") == []
    assert copy.run("verify")[0] == 0


def opened(cluster: Cluster, clock: Clock, ids: IdSource) -> AbstractAsyncContextManager[Stores]:
    return open_stores(
        storage_url=f"file://{cluster.folder}/objects",
        metadata_url=f"sqlite:///{cluster.folder}/meta.db",
        clock=clock,
        ids=ids,
        telemetry=Telemetry(),
    )


async def accepted(cluster: Cluster) -> str:
    """Accept the metadata as older, beside an object that they do not name. Return its name."""
    clock = SystemClock()
    ids = IdSource(clock=clock)
    async with opened(cluster, clock, ids) as stores:
        object_id = ObjectId(ids.next_ulid())
        partition = PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 0)
        header = encode_header(object_id, 1, [Slice(partition, header_bytes(1), 10)])
        await stores.objects.put_if_absent(object_key(object_id), [header, bytes(10)])
        await accept_older(stores.metadata, stores.objects, ids, clock)
    return object_key(object_id)


@pytest.fixture
def early(copy: Cluster) -> list[EarlyEntry]:
    """The pending entries of a partition, whose objects are not stored yet: early pages have their bytes."""
    return asyncio.run(put_early(copy))


async def put_early(cluster: Cluster) -> list[EarlyEntry]:
    clock = SystemClock()
    async with opened(cluster, clock, IdSource(clock=clock)) as stores:
        topic = decode_topic(only(await stores.metadata.get_many([keys.topic("orders")])))
        found = await made_early(stores.metadata, stores.objects, topic.partition(0))
        for one in found:
            await one.put_pages()
        await stores.metadata.write([Put(early_page(found[0].entry.object_id, 9_000, found[0].pages[0].partition_key), b"12345", ABSENT)])
    return found


def only(found: list[Record | None]) -> Record:
    (record,) = found
    assert record is not None
    return record


def test_entries_in_early_pages_are_verified_and_counted(copy: Cluster, early: list[EarlyEntry]) -> None:
    code, data, talk = copy.run("verify")
    (unnamed,) = copy.json("verify")["findings"]
    (_, topic), (partition,) = copy.json("summary")["topics"], copy.json("summary", "--topic", "orders")

    assert (code, f"looked at {40 - len(early)} objects and {len(early)} entries in early pages" in talk) == (0, True)
    assert (unnamed["kind"], unnamed["severity"], unnamed["found"]) == ("early_pages_unnamed", "info", "pages=1 bytes=5")
    assert "info  early_pages_unnamed" in data
    size_bytes = sum(len(one.data) for one in early)
    assert (
        (topic["early_entries"], topic["early_bytes"]) == (partition["early_entries"], partition["early_bytes"]) == (len(early), size_bytes)
    )
    assert "EARLY BYTES" in copy.run("summary")[1]
    assert "IN THE METADATA STORE" in copy.run("summary")[1]


def test_an_object_that_is_stored_later_is_neither_missing_nor_lost(copy: Cluster, early: list[EarlyEntry]) -> None:
    key = early[0].object_key

    code, _, talk = copy.run("object", key)
    assert (code, talk.startswith(f"The object {key} is not stored yet: early pages have its bytes.")) == (4, True)
    code, _, talk = copy.run("accept-lost", key)
    assert (code, talk) == (4, f"The object {key} is not lost: it is not stored yet, and early pages have its bytes.\n")
