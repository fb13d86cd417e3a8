"""Lines of a stream as records of a topic, in order, each stored before it counts."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.topic.line_format import Line, Parse
from runtime.clock import Clock

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.1
_SERVED_EVERY_S: Final = 0.05

CONFIG: Final = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # that of Java clients: a key goes where their records with this key are
    "allow.auto.create.topics": False,
    "message.max.bytes": LINE_BYTES_MAX,
}


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


def records(stream: IO[bytes], parse: Parse) -> Iterator[Line]:
    """As `lines`; also for a line that `parse` refuses."""
    for number, line in enumerate(lines(stream), start=1):
        try:
            yield parse(line)
        except ValueError as error:
            raise ClientFailed(f"Line {number} {error}. It was not stored, nor was any behind it.", exit_code=EXIT_USAGE) from error


def produce(
    producer: Producer, topic: str, given: Iterator[Line], produced: Produced, *, moved: Callable[[int, int], object], clock: Clock
) -> None:
    """Hand over every record, or stop at the first that is known to be refused; a full queue is waited for.

    `moved` hears now and then how many more were handed over, and how many bytes of lines they were.
    """
    served_s = clock.monotonic_s()
    count = size_bytes = 0
    for number, line in enumerate(given, start=1):
        delivered = functools.partial(produced.delivered, number)
        while produced.refused is None:
            try:
                producer.produce(
                    topic,
                    line.value,
                    key=line.key,
                    headers=list(line.headers) if line.headers else None,
                    partition=line.partition,
                    timestamp=line.timestamp_ms,
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(_POLL_S)
                continue
            except KafkaException as error:
                produced.refused = number, error.args[0]
            break
        count += 1
        size_bytes += 1 + len(line.value or b"") + len(line.key or b"")
        now_s = clock.monotonic_s()
        if now_s - served_s >= _SERVED_EVERY_S:
            # Not for every record: that costs more than handing it over.
            served_s = now_s
            producer.poll(0)
            moved(count, size_bytes)
            count = size_bytes = 0
        if produced.refused is not None:
            return
    moved(count, size_bytes)


def settle(producer: Producer, *, within_s: float, clock: Clock) -> int:
    """Wait until everything that was handed over was stored or refused; how many are neither."""
    give_up_s = clock.monotonic_s() + within_s
    while (left := producer.flush(_POLL_S)) and clock.monotonic_s() < give_up_s:
        pass
    return left
