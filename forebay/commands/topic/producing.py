"""Lines of a stream as records of a topic, in order, each stored before it counts.

They are handed to the library many at a time, and it reports those alone that were not stored: a million reports take seconds.
"""

import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.commands.topic.formats import Parse, RecordLine
from forebay.kafka_client.connection import uninterrupted
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from runtime.clock import Clock

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_POLL_S: Final = 0.1
QUEUED_MAX: Final = 100_000
"""Records that the library has at a time, its own default."""
_TOGETHER_BYTES_MAX: Final = 8 * 1024
"""The largest record handed over together with others: a full queue of these stays below the library's default of 1 GiB."""

CONFIG: Final = {
    "enable.idempotence": True,
    "linger.ms": 50,  # fewer and larger requests; the last ones do not wait for it
    "partitioner": "murmur2_random",  # that of Java clients: a key goes where their records with this key are
    "allow.auto.create.topics": False,
    "message.max.bytes": LINE_BYTES_MAX,
    "queue.buffering.max.messages": QUEUED_MAX,
}
FAILURES_ONLY: Final = {"delivery.report.only.error": True}
"""For those who do not ask for `ProducedLines.by_partition`."""

DeliveryCallback = Callable[[KafkaError | None, Message], None]
Messages = list[dict[str, Any]]


class ByteSource(Protocol):
    def read1(self, size_bytes: int, /) -> bytes: ...


@dataclass(slots=True)
class ProducedLines:
    """The outcome of the lines so far. `refused` is the first that was not stored: its number from 1, and why."""

    taken: int = 0
    """By the library: each is stored, failed or queued."""
    failed: int = 0
    by_partition: dict[int, int] = field(default_factory=dict)
    """The records stored, if they are reported."""
    refused: tuple[int, KafkaError] | None = None

    def reported(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition = message.partition()
            assert partition is not None, "a record that was stored is in a partition"
            self.by_partition[partition] = self.by_partition.get(partition, 0) + 1
        else:
            self.failed += 1
            self.refuse(number, error)

    def refuse(self, number: int, error: KafkaError) -> None:
        if self.refused is None or number < self.refused[0]:
            self.refused = number, error

    def stored(self, queued: int) -> int:
        """The number of records stored, when the library still holds `queued` whose reports were not served."""
        return max(0, self.taken - self.failed - queued)


@dataclass(frozen=True, slots=True)
class Values:
    """Lines that are values; `rest` is what else all of them have."""

    values: Sequence[bytes]
    rest: RecordLine
    empty_is_null: bool = False

    @property
    def partition(self) -> int:
        """The partition that all records go to; -1: each goes where its key says."""
        return self.rest.partition

    def size_bytes(self) -> int:
        return len(self.values) + sum(map(len, self.values))

    def records(self) -> Sequence[RecordLine]:
        return [self.rest._replace(value=None if self.empty_is_null and not value else value) for value in self.values]

    def together(self, reports: Iterator[DeliveryCallback]) -> Messages | None:
        """As the library takes many at a time; None where it cannot."""
        rest = self.rest
        longest = max(map(len, self.values), default=0) + len(rest.key or b"")
        if rest.headers or rest.timestamp_ms or longest > _TOGETHER_BYTES_MAX:
            return None
        if self.empty_is_null or rest.key is not None:
            return _together(self.records(), reports)
        return [{"value": value, "callback": report} for value, report in zip(self.values, reports, strict=False)]


@dataclass(frozen=True, slots=True)
class Parsed:
    """Lines with keys and more of their own."""

    lines: Sequence[RecordLine]
    partition: ClassVar[int] = -1

    def size_bytes(self) -> int:
        return sum(1 + len(line.value or b"") + len(line.key or b"") for line in self.lines)

    def records(self) -> Sequence[RecordLine]:
        return self.lines

    def together(self, reports: Iterator[DeliveryCallback]) -> Messages | None:
        """As `Values`."""
        return None if any(map(_is_alone, self.lines)) else _together(self.lines, reports)


Block = Values | Parsed


def _is_alone(line: RecordLine) -> bool:
    # Given many messages at once, the library takes one partition for all and ignores those of the messages.
    return bool(
        line.headers or line.timestamp_ms or line.partition >= 0 or len(line.value or b"") + len(line.key or b"") > _TOGETHER_BYTES_MAX
    )


def _together(lines: Sequence[RecordLine], reports: Iterator[DeliveryCallback]) -> Messages:
    return [{"value": line.value, "key": line.key, "callback": report} for line, report in zip(lines, reports, strict=False)]


def lines(stream: ByteSource) -> Iterator[list[bytes]]:
    """As many at a time as are there, without what ends them; a last line that nothing ends counts.

    Raise `ClientFailed` for one that is longer than a record may be, behind those before it.
    """
    number = begun_bytes = 0
    begun: list[bytes] = []
    while read := stream.read1(min(_READ_BYTES, LINE_BYTES_MAX + 1 - begun_bytes)):
        *ended, rest = read.split(b"\n")
        if ended:
            ended[0] = b"".join((*begun, ended[0]))
            number += len(ended)
            yield ended
            begun, begun_bytes = [], 0
        if rest:
            begun.append(rest)
            begun_bytes += len(rest)
        if begun_bytes > LINE_BYTES_MAX:
            raise ClientFailed(f"Line {number + 1} is longer than {LINE_BYTES_MAX // 2**20} MiB.", exit_code=EXIT_USAGE)
    if begun:
        yield [b"".join(begun)]


def values(stream: ByteSource, rest: RecordLine, *, empty_is_null: bool = False) -> Iterator[Block]:
    """Raise as `lines`."""
    for block in lines(stream):
        yield Values(block, rest, empty_is_null)


def records(stream: ByteSource, parse: Parse) -> Iterator[Block]:
    """As `lines`; raise also for a line that `parse` refuses."""
    number = 0
    for block in lines(stream):
        parsed = []
        for line in block:
            number += 1
            try:
                parsed.append(parse(line))
            except ValueError as error:
                yield Parsed(parsed)
                text = f"Line {number} {error}. It was not stored, nor was any behind it."
                raise ClientFailed(text, exit_code=EXIT_USAGE) from error
        yield Parsed(parsed)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Records make no cycles, and to look for some among those that are queued takes a fifth of all."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def produce(
    producer: Producer,
    topic: str,
    given: Iterator[Block],
    produced: ProducedLines,
    *,
    moved: Callable[[int, int], object],
    queued_max: int = QUEUED_MAX,
) -> None:
    """Hand over every record, or stop at the first that is known to be refused; a full queue, of `queued_max` records, is waited for.

    `moved` hears now and then how many more were handed over, and how many bytes of lines they were.
    """
    number = 1
    for block in given:
        _hand_over(producer, topic, block, number, produced, queued_max)
        if produced.refused is not None:
            return
        moved(produced.taken + 1 - number, block.size_bytes())
        number = produced.taken + 1
        producer.poll(0)


def _hand_over(producer: Producer, topic: str, block: Block, number: int, produced: ProducedLines, queued_max: int) -> None:
    """The first of the block is the line of that number."""
    messages = block.together(map(functools.partial, itertools.repeat(produced.reported), itertools.count(number)))
    if messages is not None:
        _hand_over_together(producer, topic, messages, block.partition, number, produced, queued_max)
        return
    left = block.records()
    while left and produced.refused is None:
        with uninterrupted():
            before = produced.taken
            _hand_over_singly(producer, topic, left, number, produced)
        number += produced.taken - before
        left = left[produced.taken - before :]
        if left and produced.refused is None:
            producer.poll(_POLL_S)


def _hand_over_together(
    producer: Producer, topic: str, messages: Messages, partition: int, number: int, produced: ProducedLines, queued_max: int
) -> None:
    at = 0
    while at < len(messages) and produced.refused is None:
        # With no room for some, the library would go on behind them when there is room again.
        room = queued_max - len(producer)
        if room <= 0:
            producer.poll(_POLL_S)
            continue
        some = messages[at : at + room] if at or room < len(messages) else messages
        with uninterrupted():
            taken = producer.produce_batch(topic, some, partition=partition)
            produced.taken += taken
        if taken < len(some):
            first = next(place for place, message in enumerate(some) if "_error" in message)
            produced.refuse(number + at + first, some[first]["_error"])
        at += len(some)


def _hand_over_singly(producer: Producer, topic: str, lines: Sequence[RecordLine], number: int, produced: ProducedLines) -> None:
    """As many as the queue has room for, or to the first that is refused."""
    for at, line in enumerate(lines, start=number):
        try:
            producer.produce(
                topic,
                line.value,
                key=line.key,
                headers=list(line.headers) if line.headers else None,
                partition=line.partition,
                timestamp=line.timestamp_ms,
                on_delivery=functools.partial(produced.reported, at),
            )
        except BufferError:
            return
        except KafkaException as error:
            produced.refuse(at, error.args[0])
            return
        produced.taken += 1


def settle(producer: Producer, *, within_s: float, clock: Clock) -> int:
    """Wait until everything that was handed over was stored or refused; how many are neither."""
    give_up_s = clock.monotonic_s() + within_s
    while (left := producer.flush(_POLL_S)) and clock.monotonic_s() < give_up_s:
        pass
    return left
