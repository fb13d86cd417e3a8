"""`python -m bench.many_librdkafka HOST:PORT`: a thousand producers of librdkafka in this process, to one partition.

What they take depends on where the broker, Forebay or Apache Kafka, was started. With sequences librdkafka spins while a batch waits behind
five others, and many spinning threads leave little to a broker in their autogroup, that of the terminal (docs/performance.md).
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from bench.clients import create_served_topics
from runtime.clock import SystemClock

ROUNDS: Final = 20
ROUND_S: Final = 0.1
LOOK_S: Final = 0.05
SETTLED_WITHIN_S: Final = 200.0
_VALUE: Final = b"v" * 100

_clock = SystemClock()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.many_librdkafka", description="Creates a topic of its own, and leaves it.")
    parser.add_argument("bootstrap", metavar="HOST:PORT")
    parser.add_argument("--producers", type=int, default=1_000)
    parser.add_argument("--plain", action="store_true", help="without sequences")
    given = parser.parse_args(arguments)
    topic = f"many-{time.time_ns()}"
    create_served_topics(given.bootstrap, [topic], partitions=1)
    answers: Counter[str] = Counter()

    def delivered(error: KafkaError | None, _: Message) -> None:
        answers["acknowledged" if error is None else str(error.name())] += 1

    config = {
        "bootstrap.servers": given.bootstrap,
        "enable.idempotence": not given.plain,
        "linger.ms": 5,
        "delivery.timeout.ms": int(SETTLED_WITHIN_S * 1_000),
        "log_level": 0,
    }
    producers = [Producer(config) for _ in range(given.producers)]
    began_s = _clock.monotonic_s()
    for _ in range(ROUNDS):
        next_s = _clock.monotonic_s() + ROUND_S
        for producer in producers:
            producer.produce(topic, _VALUE, on_delivery=delivered)
        _poll(producers)
        time.sleep(max(0.0, next_s - _clock.monotonic_s()))
    while answers.total() < ROUNDS * len(producers):
        _poll(producers)
        time.sleep(LOOK_S)
    took_s = _clock.monotonic_s() - began_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.write(f"{dict(answers)} in {took_s:.1f} s; CPU of this process: user {used.ru_utime:.1f} s, sys {used.ru_stime:.1f} s\n")
    return 0


def _poll(producers: Sequence[Producer]) -> None:
    for producer in producers:
        producer.poll(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
