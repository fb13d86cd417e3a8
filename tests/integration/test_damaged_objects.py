"""Objects that somebody removed, cut or changed: who asks for those records is refused, the rest goes on, and nothing more is deleted."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.async_client import AsyncClient, Read
from tests.kit.memory_watch import SOON_S
from tests.kit.serving import IN_OBJECTS, ROOT, Served, serving

TOPIC = "orders"
MISSING, CUT, CHANGED, WHOLE = range(4)
DAMAGED = (MISSING, CUT, CHANGED)
ROUNDS = 6
STORAGE_ERROR = 56


def forebay(folder: Path, *words: str) -> tuple[int, Any]:
    stores = [f"--set=storage.url=file://{folder}/objects", f"--set=metadata.url=sqlite:///{folder}/meta.db"]
    command = [sys.executable, "-m", "forebay", *words, "-o", "json", "--config", os.devnull, *stores]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def collect_nothing(folder: Path) -> str:
    """Try to collect while an object that is named is missing. Return the line that refuses it."""
    stores = [f"--set=storage.url=file://{folder}/objects", f"--set=metadata.url=sqlite:///{folder}/meta.db"]
    words = ["storage", "gc", "--delete", "--set=compactor.delete_grace=0ms", "--config", os.devnull, *stores]
    ended = subprocess.run([sys.executable, "-m", "forebay", *words], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (ended.returncode != 0, ended.stdout) == (True, "")
    return ended.stderr


def produce(served: Served, partitions: range = range(4), *, begin: int = 0) -> None:
    """One object for each partition and round."""
    producer = Producer({"bootstrap.servers": served.bootstrap, "linger.ms": 0})
    for number in range(begin, begin + ROUNDS):
        for partition in partitions:
            producer.produce(TOPIC, b"%d" % number + bytes(300), partition=partition)
            assert producer.flush(SOON_S) == 0


def create_topic(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(SOON_S)


def read(served: Served, offsets: dict[int, int]) -> dict[int, Read]:
    async def ask() -> dict[int, Read]:
        async with await AsyncClient.connect(served.kafka_port) as client:
            return {partition: (await client.fetch(TOPIC, {partition: offset}))[partition] for partition, offset in offsets.items()}

    return asyncio.run(ask())


def damage(path: Path, manner: int) -> None:
    held = path.read_bytes()
    middle = len(held) // 3
    if manner == MISSING:
        path.unlink()
    elif manner == CUT:
        path.write_bytes(held[:middle])
    elif manner == CHANGED:
        path.write_bytes(held[:middle] + bytes([held[middle] ^ 1]) + held[middle + 1 :])


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in (folder / "objects" / kind).rglob("*") if path.is_file())


def alarms(served: Served) -> set[tuple[str, str]]:
    """What the log says, and of which object."""
    found = [event for event in served.events() if event.get("event") in ("data_missing", "data_damaged")]
    return {(str(event["event"]), str(event["object"]).rpartition("/")[2]) for event in found}


def test_damaged_segments_are_refused_named_and_kept_and_the_rest_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        create_topic(served)
        produce(served)
    assert forebay(tmp_path, "compactor", "run-once", "--now")[1]["segments"] == 4
    forebay(tmp_path, "storage", "gc", "--delete", "--set=compactor.delete_grace=0ms")
    segments = {int(path.parent.name): path for path in files(tmp_path, "segments")}
    whole = {partition: path.read_bytes() for partition, path in segments.items()}
    for partition, path in segments.items():
        damage(path, partition)

    with serving(tmp_path, settings=IN_OBJECTS) as served:
        first = read(served, dict.fromkeys(range(4), 0))
        produce(served, begin=ROUNDS)
        later = read(served, dict.fromkeys(range(4), ROUNDS))
        told = alarms(served)
        code, verified = forebay(tmp_path, "storage", "verify", "--deep")
        compacted = forebay(tmp_path, "compactor", "run-once", "--now")
        refused = collect_nothing(tmp_path)
        after = {path: path.read_bytes() for path in files(tmp_path, "segments")}
    for partition, path in segments.items():
        path.write_bytes(whole[partition])
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        healed = read(served, dict.fromkeys(range(4), 0))
        tails = read(served, dict.fromkeys(range(4), ROUNDS))
    sound, still = forebay(tmp_path, "storage", "verify", "--deep")

    assert (first[MISSING].error, first[CUT].error, first[WHOLE].error) == (STORAGE_ERROR, STORAGE_ERROR, 0)
    assert first[WHOLE].offsets == list(range(ROUNDS))
    # One byte is wrong: what is before it may be served, what has it may not.
    assert first[CHANGED].offsets == list(range(len(first[CHANGED].offsets)))
    assert (first[CHANGED].error == STORAGE_ERROR) == (not first[CHANGED].offsets)
    assert len(first[CHANGED].offsets) < ROUNDS
    assert all(one.error == 0 and one.offsets == list(range(ROUNDS, 2 * ROUNDS)) for one in later.values())
    assert {("data_missing", segments[MISSING].name), ("data_damaged", segments[CUT].name)} <= told
    assert segments[WHOLE].name not in {name for _, name in told}
    assert code == 6
    found = {(one["partition"], one["object"].rpartition("/")[2]) for one in verified["findings"] if one["severity"] == "error"}
    assert found == {(partition, segments[partition].name) for partition in DAMAGED}
    assert (compacted[0], compacted[1]["segments"], compacted[1]["failed"]) == (0, 4, [])
    assert segments[MISSING].name in refused
    assert [path for partition, path in segments.items() if partition != MISSING and path not in after] == []
    assert all(one.error == 0 and one.offsets[:ROUNDS] == list(range(ROUNDS)) for one in healed.values())
    assert all(one.error == 0 and one.offsets == list(range(ROUNDS, 2 * ROUNDS)) for one in tails.values())
    assert sound == 0, still


def test_a_partition_whose_pieces_are_damaged_is_not_compacted_and_keeps_its_objects(tmp_path: Path) -> None:
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        create_topic(served)
        produce(served)
    objects = [path for path in files(tmp_path, "wal") if path.name.startswith("01")]
    assert len(objects) == 4 * ROUNDS
    for manner in DAMAGED:  # rounds go through the partitions: the second round has one object for each
        damage(objects[4 + manner], manner)

    code, compacted = forebay(tmp_path, "compactor", "run-once", "--now")
    refused = collect_nothing(tmp_path)
    left = {path.name for path in files(tmp_path, "wal")}
    with serving(tmp_path, settings=IN_OBJECTS) as served:
        before, behind = read(served, dict.fromkeys(range(4), 0)), read(served, dict.fromkeys(DAMAGED, 2))
        damaged = read(served, dict.fromkeys(DAMAGED, 1))

    assert code == 6
    assert {one["partition"] for one in compacted["failed"]} == set(DAMAGED)
    assert compacted["segments"] == 1
    assert objects[4 + MISSING].name in refused
    assert {path.name for number, path in enumerate(objects) if number != 4 + MISSING} == left, "nothing is deleted, not even garbage"
    assert before[WHOLE].offsets == list(range(ROUNDS))
    assert all(before[partition].offsets[:1] == [0] for partition in DAMAGED)
    assert all(one.error == STORAGE_ERROR for one in damaged.values())
    assert all(one.error == 0 and one.offsets == list(range(2, ROUNDS)) for one in behind.values())
