"""Records of chosen partitions, from given offsets on, by assignment: no group is joined and no offset committed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from forebay.kafka_client.connection import NO_ANSWER, UNKNOWN_TOPIC, Partition, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_TIMED_OUT, ClientFailed
from runtime.clock import Clock

BATCH_RECORDS: Final = 1_000
POLL_S: Final = 0.2

READING: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    # When the library has read far enough ahead, it looks whether there is room again after a second, which we need a tenth of to make it.
    "fetch.queue.backoff.ms": 10,
}
CONFIG: Final[Mapping[str, Any]] = {
    **READING,
    "group.id": "forebay-consume",  # the library wants one; by assignment it is never joined
    "auto.offset.reset": "error",
}

WriteMessages = Callable[[Sequence[Message]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When to end: after `count` records, when every partition was once read to its end or to its stop, or not at all.

    A stop is the first offset that is not read any more. `silence_s` is how long to wait for the next record before that is an error.
    """

    count: int | None = None
    at_end: bool = False
    stops: Mapping[Partition, int] = field(default_factory=dict)
    silence_s: float | None = None

    @property
    def follows(self) -> bool:
        return self.count is None and not self.at_end and not self.stops

    def wanted(self, so_far: int) -> int:
        """So many records at most may be asked for next."""
        return BATCH_RECORDS if self.count is None else min(BATCH_RECORDS, self.count - so_far)


@dataclass(slots=True)
class Consumed:
    records: int = 0


def consume(
    consumer: Consumer,
    offsets: Mapping[Partition, int],
    until: Until,
    consumed: Consumed,
    *,
    write: WriteMessages,
    flush: Callable[[], object],
    clock: Clock,
) -> None:
    """Raise `ClientFailed`; `consumed` counts what was written, also then. An interruption may leave the last batch half written."""
    unread = {at: offset for at, offset in offsets.items() if at not in until.stops or offset < until.stops[at]}
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in unread.items()])
    ends = until.at_end or bool(until.stops)
    heard_s = clock.monotonic_s()
    while consumed.records != until.count and (unread or not ends):
        batch = next_batch(consumer, until.wanted(consumed.records), flush)
        # One call of C for all: a record costs a microsecond here.
        records = [message for message in batch if message.error() is None] if any(map(Message.error, batch)) else batch
        wanted = _before_stops(consumer, records, until.stops, unread) if until.stops else records
        if wanted:
            # Before they are written: Ctrl-C comes as soon as somebody has seen them.
            consumed.records += len(wanted)
            write(wanted)
        if records:
            heard_s = clock.monotonic_s()
        elif not batch and until.silence_s is not None and clock.monotonic_s() - heard_s >= until.silence_s:
            raise ClientFailed(silence((topic for topic, _ in offsets), until), exit_code=EXIT_TIMED_OUT)
        if len(records) < len(batch):
            for message in batch:
                _noted(message, until, unread)
    flush()


def next_batch(consumer: Consumer, records: int, flush: Callable[[], object]) -> list[Message]:
    """What has come, or comes within a poll's time."""
    batch = consumer.consume(records, 0)
    if batch:
        return batch
    # Before waiting, whoever reads us gets what there is.
    flush()
    message = consumer.poll(POLL_S)
    return [] if message is None else [message]


def at(message: Message) -> Partition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None, "a record has a topic"
    assert partition is not None, "a record has a partition"
    return topic, partition


def _before_stops(
    consumer: Consumer, records: Sequence[Message], stops: Mapping[Partition, int], unread: dict[Partition, int]
) -> list[Message]:
    wanted = []
    for message in records:
        where, offset = at(message), message.offset()
        assert offset is not None, "a record has an offset"
        if offset < stops[where]:
            wanted.append(message)
        if offset + 1 >= stops[where] and unread.pop(where, None) is not None:
            consumer.pause([TopicPartition(*where)])
    return wanted


def _noted(message: Message, until: Until, unread: dict[Partition, int]) -> None:
    error = message.error()
    if error is None:
        return
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
        judge(error, message.topic() or "", message.partition())
        return
    where, end = at(message), message.offset()
    # The last records before a stop may be gone: then the end is behind it, and no record says so.
    if until.at_end or (end is not None and where in until.stops and end >= until.stops[where]):
        unread.pop(where, None)


def silence(topics: Iterable[str], until: Until) -> str:
    names = sorted(set(topics))
    which = f'"{names[0]}"' if len(names) == 1 else f"{len(names)} topics"
    return f"No record of {which} came within {until.silence_s:g} s. Wait longer with --timeout, or leave it out."


def judge(error: KafkaError, topic: str, partition: int | None) -> None:
    """Raise for what will not pass by itself."""
    if error.code() in UNKNOWN_TOPIC:
        raise ClientFailed(f'Topic "{topic}" was deleted while it was read.', exit_code=EXIT_NOT_FOUND)
    if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
        raise ClientFailed(
            f"The next records of {topic}/{partition} were deleted before they were read. Go on with -o start.", exit_code=EXIT_FAILED
        )
    if error.code() in NO_ANSWER or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        # The library connects again by itself; and it asks for the group, which is never joined.
        return
    raise ClientFailed(f"Reading {topic}/{partition}: {message_of(error)}", exit_code=exit_code_of(error))
