"""Brokers and compactors are killed while they compact, merge, trim and collect: nothing acked is lost, and nothing unused stays.

Twenty seconds of it here, with a grace of a second; `make soak` makes it ten minutes, with a grace of half a minute (SOAK_S).
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from runtime.clock import SystemClock
from tests.chaos.streams import PARTITIONS, Stream, create_topics, judge, read_all, running, wait_for_progress
from tests.kit.serving import ROOT, Served, serving

SOAK_S = float(os.environ.get("SOAK_S", "20"))
SEED = 20_261_123
BROKERS, COMPACTORS = 3, 2
GRACE = "1s" if SOAK_S < 120 else "30s"
OVER_LIVE_MAX = 1.2
UPKEEP = {
    "compactor.interval": "200ms",
    "compactor.segment_age": "500ms",
    "compactor.segment_entries": "20",
    "compactor.delete_interval": "300ms",
    "compactor.delete_grace": GRACE,
}
RETAINED_BYTES = 20_000
SETTLED_WITHIN_S = 60.0
_clock = SystemClock()


def stores(folder: Path) -> dict[str, str]:
    return {"storage.url": f"file://{folder.resolve()}/objects", "metadata.url": f"sqlite:///{folder.resolve()}/meta.db"}


def forebay(folder: Path, *words: str, settings: Mapping[str, str] | None = None) -> list[str]:
    given = stores(folder) | dict(settings or {})
    return [sys.executable, "-m", "forebay", *words, "--config", os.devnull, *[f"--set={key}={value}" for key, value in given.items()]]


@dataclass
class Cluster:
    """Processes that may be killed, and started again in their place."""

    folder: Path
    brokers: list[contextlib.ExitStack] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    compactors: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: int = 0

    def start(self) -> None:
        for number in range(BROKERS):
            self.brokers.append(contextlib.ExitStack())
            self.served.append(self.brokers[number].enter_context(self._broker(number)))
        self.compactors = [self._compactor() for _ in range(COMPACTORS)]

    def _broker(self, number: int, kafka_port: int | None = None) -> AbstractContextManager[Served]:
        """One of the three carries small batches in its commits."""
        return serving(self.folder, kafka_port=kafka_port, settings={"storage.early_bytes_per_second": "0B"} if number else {})

    def kill_one(self, chance: random.Random) -> None:
        self.kills += 1
        number = chance.randrange(BROKERS + COMPACTORS)
        if number < BROKERS:
            served = self.served[number]
            served.kill9()
            self.brokers[number].close()
            self.served[number] = self.brokers[number].enter_context(self._broker(number, served.kafka_port))
            return
        number -= BROKERS
        self.compactors[number].kill()
        self.compactors[number].wait()
        self.compactors[number] = self._compactor()

    def stop(self) -> None:
        for process in self.compactors:
            process.kill()
            process.wait()
        for broker in self.brokers:
            broker.close()

    def _compactor(self) -> subprocess.Popen[bytes]:
        settings = UPKEEP | {"compactor.listen": "127.0.0.1:0"}
        with (self.folder / "compactors.log").open("ab") as log:
            return subprocess.Popen(forebay(self.folder, "compactor", "serve", settings=settings), stdout=log, stderr=log, cwd=ROOT)


@dataclass
class History:
    """Reads a topic from its beginning, again and again, and compares with what was acknowledged."""

    stream: Stream
    wrong: list[str] = field(default_factory=list)
    passes: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopping.is_set():
            acked = dict(self.stream.acked)
            with contextlib.suppress(KafkaException, AssertionError):  # a broker was killed: read again
                found = read_all(self.stream.bootstrap, self.stream.topic)
                self.passes += 1
                for partition, records in found.items():
                    if [offset for offset, _ in records] != list(range(len(records))):
                        self.wrong.append(f"offsets of {partition} are not dense")
                    at = dict(records)
                    self.wrong += [f"{key}: {number}" for key, number in acked.items() if key[0] == partition and at.get(key[1]) != number]
            self.stopping.wait(0.2)


@dataclass
class Tail:
    """One consumer that follows a topic through everything: each offset once, in order, with what was acknowledged there."""

    stream: Stream
    wrong: list[str] = field(default_factory=list)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.stream.bootstrap, "group.id": "tail", "enable.auto.commit": False, "log_level": 0})
        consumer.assign([TopicPartition(self.stream.topic, partition, 0) for partition in range(PARTITIONS)])
        next_offsets = [0] * PARTITIONS
        while not self.stopping.is_set() or self.stream.acked.keys() - self.seen.keys():
            for message in consumer.consume(1_000, 0.2):
                if message.error() is not None:  # a broker was killed: the client goes on
                    continue
                partition, offset = message.partition(), message.offset() or 0
                if offset != next_offsets[partition]:
                    self.wrong.append(f"partition {partition}: {offset} after {next_offsets[partition] - 1}")
                next_offsets[partition] = offset + 1
                self.seen[partition, offset] = int(message.value() or b"")
        self.wrong += [f"{key}: {number}" for key, number in self.stream.acked.items() if self.seen[key] != number]
        consumer.close()


@contextlib.contextmanager
def reading(reader: History | Tail) -> Iterator[None]:
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        reader.stopping.set()
        thread.join(SETTLED_WITHIN_S)
        assert not thread.is_alive(), "a reader does not come to the end"


def what_is_left(stream: Stream) -> None:
    """Of a topic that is trimmed: dense from its beginning, and what was acknowledged there is there."""
    consumer = Consumer({"bootstrap.servers": stream.bootstrap, "group.id": "short", "enable.auto.commit": False, "log_level": 0})
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(stream.topic, partition), timeout=20)
        consumer.assign([TopicPartition(stream.topic, partition, low)])
        found: dict[int, int] = {}
        give_up_s = _clock.monotonic_s() + SETTLED_WITHIN_S
        while not found.keys() >= set(range(low, high)):
            assert _clock.monotonic_s() < give_up_s, "not every record could be read"
            for message in consumer.consume(1_000, 0.5):
                assert message.error() is None
                found[message.offset() or 0] = int(message.value() or b"")
            begin, _ = consumer.get_watermark_offsets(TopicPartition(stream.topic, partition), timeout=20)
            if begin != low:  # upkeep goes on: what is below may be gone before it was read, and the client be sent to the end
                low = begin
                consumer.assign([TopicPartition(stream.topic, partition, low)])
        assert low > 0, "retention has moved the beginning"
        assert sorted(offset for offset in found if offset >= low) == list(range(low, high))
        assert {o: n for (p, o), n in stream.acked.items() if p == partition and o >= low and found[o] != n} == {}
    consumer.close()


def asked(folder: Path, *words: str) -> tuple[int, object]:
    done = subprocess.run(forebay(folder, *words, "-o", "json"), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(int(SOAK_S * 2 + 240))
def test_a_cluster_whose_brokers_and_compactors_are_killed_loses_nothing_and_keeps_nothing_for_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    cluster = Cluster(tmp_path)
    with contextlib.ExitStack() as closing:
        closing.callback(cluster.stop)
        cluster.start()
        bootstrap = ",".join(served.bootstrap for served in cluster.served)
        create_topics(bootstrap, "kept")
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        configs = {"retention.bytes": str(RETAINED_BYTES), "retention.ms": "-1"}
        admin.create_topics([NewTopic("short", PARTITIONS, 1, config=configs)])["short"].result(20)
        settings = {"linger.ms": 20}
        kept = Stream(bootstrap, "kept", idempotent=True, settings=settings)
        short = Stream(bootstrap, "short", idempotent=True, settings=settings)
        history, tail = History(kept), Tail(kept)
        with reading(tail), reading(history), running([kept, short]):
            end_s = _clock.monotonic_s() + SOAK_S
            while _clock.monotonic_s() < end_s:
                wait_for_progress([kept, short], within_s=60)
                time.sleep(chance.uniform(0, 1.5))  # the moment of the kill is what is drawn by chance
                cluster.kill_one(chance)
        judge(kept, bootstrap)
        what_is_left(short)
        give_up_s = _clock.monotonic_s() + SETTLED_WITHIN_S
        while True:
            _, unused = asked(tmp_path, "storage", "gc", "--set=compactor.delete_grace=0ms")
            assert isinstance(unused, dict)
            if unused["unused"] == 0 and not list((tmp_path / "objects" / "wal").rglob("01*")):
                break
            assert _clock.monotonic_s() < give_up_s, f"unused objects stay: {unused}"
            time.sleep(0.5)
        code, verified = asked(tmp_path, "storage", "verify", "--deep")
        _, summary = asked(tmp_path, "storage", "summary")

    said = (tmp_path / "compactors.log").read_text()
    stored_bytes = sum(path.stat().st_size for path in (tmp_path / "objects").rglob("*") if path.is_file())
    assert isinstance(summary, dict)
    live_bytes = sum(kind["size_bytes"] for kind in summary["live"].values())
    print(f"stored_bytes={stored_bytes} live_bytes={live_bytes} tail={len(tail.seen)}")
    print(f"kills={cluster.kills} passes={history.passes} acked={len(kept.acked)} objects={unused}")
    assert code == 0, verified
    assert history.wrong == tail.wrong == []
    assert 0 < live_bytes <= stored_bytes <= OVER_LIVE_MAX * live_bytes
    assert history.passes > 0
    assert "Traceback" not in said, said[-3_000:]
    assert all(word in said for word in ('"compacted"', '"objects_deleted"', '"retention"'))
