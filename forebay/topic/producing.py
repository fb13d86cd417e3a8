"""Lines of a stream as records of a topic, in order, each stored before it counts."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from runtime.clock import Clock

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.1

CONFIG: Final = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # that of Java clients: a key goes where their records with this key are
    "allow.auto.create.topics": False,
    "message.max.bytes": LINE_BYTES_MAX,
}

Headers = Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class Produced:
    """What became of the lines so far. `refused` is the first that was not stored: its number from 1, and why."""

    by_partition: dict[int, int] = field(default_factory=dict)
    refused: tuple[int, KafkaError] | None = None

    @property
    def stored(self) -> int:
        return sum(self.by_partition.values())

    def delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition = message.partition()
            assert partition is not None, "a record that was stored is in a partition"
            self.by_partition[partition] = self.by_partition.get(partition, 0) + 1
        elif self.refused is None or number < self.refused[0]:
            self.refused = number, error


def lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Without what ends them; a last line that nothing ends counts. Raise `ClientFailed` for one that is longer than a record may be."""
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise ClientFailed(f"Line {number} is longer than {LINE_BYTES_MAX // 2**20} MiB.", exit_code=EXIT_USAGE)
        yield line.removesuffix(b"\n")


def produce(
    producer: Producer,
    topic: str,
    values: Iterator[bytes],
    produced: Produced,
    *,
    key: bytes | None,
    headers: Headers,
    partition: int,
) -> None:
    """Hand over every value, or stop at the first that is known to be refused; a full queue is waited for."""
    for number, value in enumerate(values, start=1):
        delivered = functools.partial(produced.delivered, number)
        while produced.refused is None:
            try:
                producer.produce(topic, value, key=key, headers=list(headers), partition=partition, on_delivery=delivered)
            except BufferError:
                producer.poll(_POLL_S)
                continue
            except KafkaException as error:
                produced.refused = number, error.args[0]
            break
        producer.poll(0)
        if produced.refused is not None:
            return


def settle(producer: Producer, *, within_s: float, clock: Clock) -> int:
    """Wait until everything that was handed over was stored or refused; how many are neither."""
    give_up_s = clock.monotonic_s() + within_s
    while (left := producer.flush(_POLL_S)) and clock.monotonic_s() < give_up_s:
        pass
    return left
