"""Many records at once as the bytes that a format makes of them."""

from collections.abc import Callable, Sequence

from confluent_kafka import Message

from forebay.commands.topic.record_format import ConsumedRecord, after_values, as_it_is, record_format

BatchFormat = Callable[[Sequence[Message]], bytes]


def batch_format(text: str, *, shown: Callable[[bytes], bytes] = as_it_is) -> BatchFormat:
    """As `record_format`, also in what it raises. Values alone are written without a look at the other parts of their records."""
    one = record_format(text, shown=shown)
    end = after_values(text) if shown is as_it_is else None
    if end is None:
        return lambda messages: b"".join([one(record_of(message)) for message in messages])
    # The empty value behind the last one has the last end written, too.
    return lambda messages: end.join([*_values(messages), b""])


def _values(messages: Sequence[Message]) -> Sequence[bytes]:
    values = list(map(Message.value, messages))
    return values if all(values) else [value or b"" for value in values]  # type: ignore[return-value]


def record_of(message: Message) -> ConsumedRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a topic"
    assert partition is not None, "a record has a partition"
    assert offset is not None, "a record has an offset"
    headers: Sequence[tuple[str, str | bytes | None]] = message.headers() or ()  # type: ignore[assignment]
    return ConsumedRecord(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple((name, held.encode() if isinstance(held, str) else held) for name, held in headers) if headers else (),
    )
