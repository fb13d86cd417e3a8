"""Records of chosen partitions, from given offsets on, by assignment: no group is joined and no offset committed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from forebay.kafka_client.codes import NO_ANSWER, UNKNOWN_TOPIC, exit_code_of
from forebay.kafka_client.connection import said
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_TIMED_OUT, ClientFailed
from forebay.topic.record_format import Record
from runtime.clock import Clock

_POLL_S: Final = 0.2

CONFIG: Final[Mapping[str, Any]] = {
    "group.id": "forebay-consume",  # the library wants one; by assignment it is never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When to end: after `count` records, when every partition was once read to its end, or not at all.

    `silence_s` is how long to wait for the next record before that is an error.
    """

    count: int | None = None
    at_end: bool = False
    silence_s: float | None = None

    @property
    def follows(self) -> bool:
        return self.count is None and not self.at_end


@dataclass(slots=True)
class Consumed:
    records: int = 0


def consume(
    consumer: Consumer,
    topic: str,
    offsets: Mapping[int, int],
    until: Until,
    consumed: Consumed,
    *,
    write: Callable[[Record], object],
    flush: Callable[[], object],
    clock: Clock,
) -> None:
    """Raise `ClientFailed`; `consumed` counts what was written, also then."""
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    unread = set(offsets)
    heard_s = clock.monotonic_s()
    while consumed.records != until.count and not (until.at_end and not unread):
        message = consumer.poll(0)
        if message is None:
            # Before waiting, whoever reads us gets what there is.
            flush()
            message = consumer.poll(_POLL_S)
        if message is None:
            if until.silence_s is not None and clock.monotonic_s() - heard_s >= until.silence_s:
                raise ClientFailed(silence(topic, until), exit_code=EXIT_TIMED_OUT)
            continue
        error = message.error()
        if error is None:
            write(record_of(message))
            consumed.records += 1
            heard_s = clock.monotonic_s()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            unread.discard(message.partition())
        else:
            judge(error, topic, message.partition())
    flush()


def silence(topic: str, until: Until) -> str:
    return f'No record of "{topic}" came within {until.silence_s:g} s. Wait longer with --timeout, or leave it out.'


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
    raise ClientFailed(f"Reading {topic}/{partition}: {said(error)}", exit_code=exit_code_of(error))


def record_of(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a topic"
    assert partition is not None, "a record has a partition"
    assert offset is not None, "a record has an offset"
    headers: Sequence[tuple[str, str | bytes | None]] = message.headers() or ()  # type: ignore[assignment]
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(held)) for name, held in headers),
    )


def _bytes(held: str | bytes | None) -> bytes | None:
    return held.encode() if isinstance(held, str) else held
