"""`forebay serve` looks after its cluster: a compactor in a process of its own, which comes, goes and dies without anybody noticing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from forebay.processes.compactor import NICE
from runtime.clock import SystemClock
from tests.kit.memory_watch import SOON_S
from tests.kit.serving import HOST, IN_OBJECTS, ROOT, Served, events, get, serving

UPKEEP = {
    "compactor.run": "true",
    "compactor.interval": "100ms",
    "compactor.segment_age": "0ms",
    "compactor.listen": f"{HOST}:0",
    "compactor.delete_interval": "100ms",
    "compactor.delete_grace": "0ms",
}
TOPIC = "t"
PARTITIONS = 3
WITHIN_S = 240.0
"""Long: compactors are at nice 10, and the machine may be busy."""
clock = SystemClock()
pytestmark = pytest.mark.timeout(2 * WITHIN_S)


def until(is_so: Callable[[], object], what: str) -> None:
    give_up_s = clock.monotonic_s() + WITHIN_S
    while not is_so():
        assert clock.monotonic_s() < give_up_s, f"not within {WITHIN_S:.0f} s: {what}"
        time.sleep(0.05)


def produce(bootstrap: str, begin: int, count: int, *, topic: str = TOPIC, records_per_flush: int = 10) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(begin, begin + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        if number % records_per_flush == 0:
            producer.flush(SOON_S)
    assert producer.flush(SOON_S) == 0


def consumed(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g{clock.now_ms()}", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[int] = []
    give_up_s = clock.monotonic_s() + WITHIN_S
    try:
        while len(found) < count and clock.monotonic_s() < give_up_s:
            found += [int(message.value() or b"") for message in consumer.consume(1_000, 0.2) if message.error() is None]
    finally:
        consumer.close()
    return sorted(found)


def pids_of(served: Served) -> list[int]:
    return [int(str(event["pid"])) for event in served.events() if event.get("event") == "compactor_started"]


def compacted(served: Served) -> int:
    return sum(int(str(event["entries"])) for event in served.events() if event.get("event") == "compacted")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, settings=UPKEEP | IN_OBJECTS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        yield broker


def files_below(folder: Path) -> int:
    """Folders may go while they are looked at."""
    return sum([len(files) for _, _, files in os.walk(folder)])


def segments(folder: Path) -> int:
    return files_below(folder / "objects" / "segments")


def folders(folder: Path) -> int:
    """With a file somewhere below."""
    _, there, _ = next(os.walk(folder), ("", (), ()))
    return sum(1 for name in there if files_below(folder / name))


def objects(folder: Path, kind: str) -> int:
    return files_below(folder / "objects" / kind)


def test_objects_that_nobody_needs_leave_the_store_and_so_does_a_deleted_topic(served: Served, tmp_path: Path) -> None:
    produce(served.bootstrap, 0, 300)
    until(lambda: segments(tmp_path) >= PARTITIONS and objects(tmp_path, "wal") == 0, "no WAL objects")
    found = consumed(served.bootstrap, 300)
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.delete_topics([TOPIC])[TOPIC].result(SOON_S)
    until(lambda: segments(tmp_path) == 0, "no segments")

    assert found == list(range(300))
    assert [event for event in served.events() if event.get("event") in ("objects_kept", "partition_not_compacted")] == []


def test_three_brokers_that_were_told_nothing_look_after_what_they_share(tmp_path: Path) -> None:
    """Objects become few, a deleted topic leaves the store, also its keys, and each broker has a compactor of its own.

    Each record is an object. Even if each becomes a segment, merging leaves at most seven of about each size, and the newest: below 20 of a
    partition that had 100.
    """
    with contextlib.ExitStack() as closing:
        brokers = [closing.enter_context(serving(tmp_path, settings=UPKEEP | IN_OBJECTS)) for _ in range(3)]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for name in (TOPIC, "gone"):
            admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SOON_S)
        produce(bootstrap, 0, 300, records_per_flush=1)
        produce(bootstrap, 0, 60, topic="gone")
        written = sum(broker.metrics().get('forebay_object_store_requests_total{op="put",outcome="ok"}', 0) for broker in brokers)
        admin.delete_topics(["gone"])["gone"].result(SOON_S)
        until(lambda: all(pids_of(broker) for broker in brokers), "three compactors")
        until(lambda: objects(tmp_path, "wal") == 0, "no WAL objects")
        until(lambda: folders(tmp_path / "objects" / "segments") == 1, "no segments of the deleted topic")
        until(lambda: segments(tmp_path) < written / 4, "objects that became few")
        stores = [f"--set=storage.url=file://{tmp_path}/objects", f"--set=metadata.url=sqlite:///{tmp_path}/meta.db"]
        verified = forebay("storage", "verify", "--deep", *stores)
        found = consumed(bootstrap, 300)

    assert found == list(range(300))
    assert written > 300
    assert verified.returncode == 0, verified.stdout
    assert [event for broker in brokers for event in broker.events() if event.get("level") == "error"] == []


def test_entries_become_segments_without_anybody_being_told(served: Served, tmp_path: Path) -> None:
    produce(served.bootstrap, 0, 300)
    until(lambda: compacted(served) > 0 and segments(tmp_path) >= PARTITIONS, "segments")
    produce(served.bootstrap, 300, 300)
    found = consumed(served.bootstrap, 600)
    (address,) = [str(event["address"]) for event in served.events() if event.get("event") == "http listening" and "process" in event]
    port = int(address.rpartition(":")[2])
    until(lambda: get(port, "/readyz")[0] == 200, "a compactor that says it is ready")
    status, body = get(port, "/metrics.json")
    niceness = os.getpriority(os.PRIO_PROCESS, pids_of(served)[-1])
    facts = json.loads(get(port, "/api/v1/compactor")[1])
    series = {sample["name"]: sample["value"] for sample in json.loads(body)["series"] if sample["name"].startswith("forebay_compactor")}

    assert found == list(range(600))
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    assert status == 200
    assert series["forebay_compactor_entries_total"] > 0
    assert series["forebay_compactor_partitions"] == PARTITIONS
    assert series["forebay_compactor_segment_age_seconds"] == 0
    assert facts["pid"] == pids_of(served)[0]


def test_a_compactor_that_is_killed_comes_back_and_one_whose_broker_is_killed_goes(served: Served, tmp_path: Path) -> None:
    until(lambda: pids_of(served), "a compactor")
    (first,) = pids_of(served)
    os.kill(first, signal.SIGKILL)
    until(lambda: len(pids_of(served)) == 2, "another compactor")
    produce(served.bootstrap, 0, 60)
    until(lambda: segments(tmp_path) >= PARTITIONS, "segments")
    died = [event for event in served.events() if event.get("event") == "compactor_died"]
    second = pids_of(served)[1]
    served.kill9()
    until(lambda: not is_alive(second), "the end of the compactor")

    assert [event["manner"] for event in died] == ["killed by SIGKILL"]


def test_a_broker_that_stops_takes_its_compactor_along(served: Served) -> None:
    until(lambda: any(event.get("event") == "compactor_ready" for event in served.events()), "a compactor")
    (pid,) = pids_of(served)
    exit_code = served.terminate()

    assert exit_code == 0
    assert not is_alive(pid)
    assert [event["signal"] for event in served.events() if event.get("event") == "stopping"] == ["SIGTERM", "SIGTERM"]


def forebay(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", *words], capture_output=True, text=True, timeout=WITHIN_S, cwd=ROOT, check=False
    )


@pytest.mark.slow
def test_upkeep_can_be_done_once_and_looked_at(tmp_path: Path) -> None:
    stores = [f"--set=storage.url=file://{tmp_path}/objects", f"--set=metadata.url=sqlite:///{tmp_path}/meta.db"]
    nothing = forebay("compactor", "status", *stores)
    with serving(tmp_path, settings=IN_OBJECTS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        produce(broker.bootstrap, 0, 90)
        before = json.loads(forebay("compactor", "status", "-o", "json", *stores).stdout)
        table = forebay("compactor", "status", *stores)
        not_due = json.loads(forebay("compactor", "run-once", "-o", "json", *stores).stdout)
        one = json.loads(forebay("compactor", "run-once", TOPIC, "1", "--now", "-o", "json", *stores).stdout)
        rest = json.loads(forebay("compactor", "run-once", "--now", "-o", "json", *stores).stdout)
        after = json.loads(forebay("compactor", "status", "-o", "json", *stores).stdout)
        unknown = forebay("compactor", "run-once", "nowhere", *stores)
        memory = forebay("compactor", "serve", "--set=storage.url=memory://", "--set=metadata.url=memory://")
        grace = "--set=compactor.delete_grace=0ms"
        unused = json.loads(forebay("storage", "gc", "-o", "json", grace, *stores).stdout)
        young = json.loads(forebay("storage", "gc", "--delete", "-o", "json", *stores).stdout)
        gone = json.loads(forebay("storage", "gc", "--delete", "-o", "json", grace, *stores).stdout)
        words = forebay("storage", "gc", grace, *stores)
        left = objects(tmp_path, "wal")
        found = consumed(broker.bootstrap, 90)

    assert unused["unused"] == gone["unused"] > 0
    assert (unused["deleted"], gone["deleted"], young["looked_at"]) == (False, True, 0)
    assert left == 0
    assert "looked at  3" in words.stdout
    assert nothing.returncode != 0
    assert "does not exist" in nothing.stderr
    assert before["compactors"] == []
    assert before["backlog"]["waiting"] == PARTITIONS
    assert "none runs" in table.stdout
    assert "% of a segment; due in" in table.stdout
    assert not_due["segments"] == 0
    assert (one["partitions"], one["segments"]) == (1, 1)
    assert rest["segments"] == PARTITIONS - 1
    assert after["backlog"]["waiting"] == 0
    assert unknown.returncode != 0
    assert unknown.stderr.strip() == "no such topic: nowhere"
    assert "cannot be" in memory.stderr
    assert found == list(range(90))
    assert not [event for event in events(broker.log_path) if event.get("level") == "error"]


def test_retention_of_a_topic_moves_the_beginning_of_its_partitions(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    limits = {"retention.bytes": "3000", "retention.ms": "-1"}
    admin.create_topics([NewTopic("short", 1, 1, config=limits)])["short"].result(SOON_S)
    producer = Producer({"bootstrap.servers": served.bootstrap, "linger.ms": 0})
    for number in range(60):
        producer.produce("short", b"%03d" % number + bytes(500), partition=0)
        producer.flush(SOON_S)
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    partition = TopicPartition("short", 0)
    try:
        until(lambda: consumer.get_watermark_offsets(partition, timeout=SOON_S)[0] >= 50, "a beginning that moves up")
        low, high = consumer.get_watermark_offsets(partition, timeout=SOON_S)
        consumer.assign([partition])
        found = [int((message.value() or b"")[:3]) for message in consumer.consume(high - low, SOON_S) if message.error() is None]
    finally:
        consumer.close()

    assert high == 60
    assert low < 56, "what has 3,000 bytes stays"
    assert found == list(range(low, 60))
