"""What chance has spoilt: frames, conversations, HTTP. Each ends in a reply or a closed connection, the broker lives, others go on."""

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from storage.limits import KIB, MIB
from tests.integration.bystander import p99, watching
from tests.integration.fuzzing import Fuzz
from tests.kit.raw_client import is_serving
from tests.kit.serving import Served, serving

SEED = 20_261_123
STROKES = 250
"""Half a minute of a machine that is busy with other things."""
SLOW_SECONDS = 600.0
FUZZED_TOPIC, GOOD_TOPIC, CALM_TOPIC = "fuzzed", "well-behaved", "calm"
SETTINGS = {
    "kafka.auto_create_topics": "false",
    "kafka.max_request_bytes": "8MiB",
    "storage.max_buffer_bytes": "32MiB",
    "storage.cache_bytes": "32MiB",
    "groups.session_timeout_max": "30s",
}
CONNECTIONS_OPEN = 64
RSS_BYTES_MAX = 32 * MIB + 32 * MIB + 192 * MIB + CONNECTIONS_OPEN * 64 * KIB
"""As docs/reference/settings.md promises of these settings."""
P99_S = 0.1
MACHINE = 8
"""A machine that is busy with other things delays who works by so much more than who rests."""
clock = SystemClock()


class Customers:
    """A producer and a consumer of the ordinary kind, at work all the time."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping, self._all_sent = threading.Event(), threading.Event()
        self.failed: list[str] = []
        self.sent = 0
        self.read: list[int] = []
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Self:
        create_topic(self._bootstrap, GOOD_TOPIC)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
        while not self._stopping.wait(0.005):
            producer.produce(GOOD_TOPIC, str(self.sent).encode(), on_delivery=self._heard)
            self.sent += 1
            producer.poll(0)
        self._all_sent.set()
        assert producer.flush(30) == 0

    def _heard(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0})
        consumer.assign([TopicPartition(GOOD_TOPIC, 0, 0)])
        give_up_s = clock.monotonic_s() + SLOW_SECONDS + 120
        while clock.monotonic_s() < give_up_s and not (self._all_sent.is_set() and len(self.read) == self.sent):
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.failed.append(str(KafkaException(message.error())))
                continue
            self.read.append(int(message.value() or b"-1"))
            if self._all_sent.is_set():
                give_up_s = min(give_up_s, clock.monotonic_s() + 30)
        consumer.close()


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # On disk: what spoilt requests create is no part of its memory.
    with serving(tmp_path / "loaded", settings=SETTINGS, afresh=True) as broker:
        for name in (FUZZED_TOPIC, CALM_TOPIC):
            create_topic(broker.bootstrap, name)
        yield broker


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Served]:
    """Another broker on the same machine and disk, that nobody harms."""
    with serving(tmp_path / "quiet", settings=SETTINGS, afresh=True) as broker:
        create_topic(broker.bootstrap, CALM_TOPIC)
        yield broker


@pytest.mark.timeout(300)
def test_chance_ends_in_a_reply_or_a_closed_connection_and_harms_nobody(served: Served, quiet: Served) -> None:
    outcomes = harmless(served, quiet, seed=SEED, is_over=lambda strokes, _: strokes >= STROKES, judges_time=False)
    assert {"frame answered", "frame closed", "frame closed after its end", "conversation answered"} <= set(outcomes)
    assert {"conversation closed", "HTTP answered", "HTTP closed", "half"} <= set(outcomes), outcomes


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_ten_minutes_of_chance_harm_nobody(served: Served, quiet: Served) -> None:
    seed = int(os.environ.get("FOREBAY_FUZZ_SEED", SEED + 1))
    harmless(served, quiet, seed=seed, is_over=lambda _, seconds: seconds >= SLOW_SECONDS, judges_time=True)


def harmless(served: Served, quiet: Served, *, seed: int, is_over: Callable[[int, float], bool], judges_time: bool) -> Counter[str]:
    """Three oracles: others are served all the same, memory stays within what is promised, and nothing unforeseen is in the log.

    That others hardly wait is judged where nothing else runs. On a busy machine it is the turns of the broker's loop that count, which
    `serving` looks at.
    """
    began_s, strokes, peak_bytes = clock.monotonic_s(), 0, 0
    with contextlib.ExitStack() as closing:
        customers = closing.enter_context(Customers(served.bootstrap))
        bystander = closing.enter_context(watching(served, quiet, topic=CALM_TOPIC))
        fuzz = closing.enter_context(contextlib.closing(Fuzz(served, seed=seed, topic=FUZZED_TOPIC)))
        while not is_over(strokes, clock.monotonic_s() - began_s):
            fuzz.stroke()
            strokes += 1
            if strokes % 20 == 0:
                assert served.is_alive, f"the broker is gone: seed={seed} strokes={strokes}"
                peak_bytes = max(peak_bytes, served.rss_bytes())

    assert max(peak_bytes, served.rss_bytes()) < RSS_BYTES_MAX
    waited_s, elsewhere_s = p99(bystander.latencies), p99(bystander.control)
    assert not judges_time or waited_s < P99_S + MACHINE * elsewhere_s, (
        f"others wait: p99={waited_s:.3f} s, at a quiet broker {elsewhere_s:.3f} s, seed={seed}"
    )
    assert unforeseen(served) == []
    assert is_serving(served.kafka_port)
    assert customers.failed == []
    assert customers.sent > 0
    assert customers.read == list(range(customers.sent))
    metrics = served.metrics()
    assert metrics["forebay_unexpected_errors_total"] == 0
    assert metrics["forebay_protocol_violations_total"] > 0
    return fuzz.outcomes


def unforeseen(served: Served) -> list[str]:
    """Lines of the log that are no events, or tell of an error."""
    found = []
    for line in served.log_path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            found.append(line)
            continue
        if "exception" in event or event["level"] in ("error", "critical"):
            found.append(line)
    return found
