"""Somebody who produces beside a load, in a process of its own: how long each request takes there, and at a broker without a load.

    with watching(served, quiet, topic="calm") as bystander: ...
    bystander.latencies, bystander.control

The quiet broker is on the same machine and disk, and asked in turns with the other: whoever else keeps them busy delays it as well.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runtime.clock import SystemClock
from tests.integration.test_bad_input import produce
from tests.kit.raw_client import RawClient, frame_of
from tests.kit.record_batches import record_batch
from tests.kit.serving import Served

ROOT = Path(__file__).parents[2]
PAUSE_S = 0.01
END_WITHIN_S = 60.0


@dataclass
class Bystander:
    """Seconds of each request, at the broker with the load and at the one without; there when the load is over."""

    latencies: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


@contextmanager
def watching(loaded: Served, quiet: Served, *, topic: str) -> Iterator[Bystander]:
    """Both have the topic. Raises AssertionError if a request was refused or not answered."""
    command = [sys.executable, "-m", "tests.integration.bystander", topic, str(loaded.kafka_port), str(quiet.kafka_port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    found = Bystander()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield found
        said, _ = process.communicate(b"\n", END_WITHIN_S)
        assert process.returncode == 0, "the bystander was not served"
        found.latencies, found.control = json.loads(said)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _ask(client: RawClient, topic: str, clock: SystemClock) -> float:
    request = produce(topic, record_batch(b"calm", base_timestamp=clock.now_ms()))
    frame = frame_of(request)
    began_s = clock.monotonic_s()
    assert client.send(frame)
    answer = client.answer_to(request)
    taken_s = clock.monotonic_s() - began_s
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return taken_s


def main(topic: str, loaded_port: int, quiet_port: int) -> None:
    clock = SystemClock()
    latencies: list[float] = []
    control: list[float] = []
    os.set_blocking(sys.stdin.fileno(), False)
    with RawClient(loaded_port) as loaded, RawClient(quiet_port) as quiet:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not sys.stdin.buffer.read(1):
            latencies.append(_ask(loaded, topic, clock))
            control.append(_ask(quiet, topic, clock))
            time.sleep(PAUSE_S)
    sys.stdout.write(json.dumps([latencies, control]))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
