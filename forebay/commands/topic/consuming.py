"""Records as they are read: by assignment from given offsets on (`consume`), or as a member of a group (`GroupReader`).

By assignment no group is joined and no offset committed. A member commits only what was written and flushed: each record is written at
least once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay.kafka_client.connection import NO_ANSWER, UNKNOWN_TOPIC, Partition, exit_code_of, message_of, uninterrupted
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
COMMIT_EVERY_S: Final = 1.0
SESSION_MS: Final = 10_000
"""A member that dies without a word keeps its partitions for so long; a commit waits for a coordinator no longer than this, either."""
_MOVED_ON: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
        KafkaError._NO_OFFSET,  # noqa: SLF001
    }
)
"""Other members read the partitions now, from the last commit on: they write again what was not committed."""

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


def partition_of(message: Message) -> Partition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None, "a record has a topic"
    assert partition is not None, "a record has a partition"
    return topic, partition


def _before_stops(
    consumer: Consumer, records: Sequence[Message], stops: Mapping[Partition, int], unread: dict[Partition, int]
) -> list[Message]:
    wanted = []
    for message in records:
        where, offset = partition_of(message), message.offset()
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
    where, end = partition_of(message), message.offset()
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


def group_config(group: str, *, from_start: bool) -> Mapping[str, Any]:
    return {
        **READING,
        "group.id": group,
        "auto.offset.reset": "earliest" if from_start else "latest",
        "session.timeout.ms": SESSION_MS,
    }


class GroupReader:
    """One member. `written` is what the next commit says: by topic and partition, the offset behind the last record that was written."""

    def __init__(self, consumer: Consumer, topics: Sequence[str], *, flush: Callable[[], object], clock: Clock) -> None:
        self._consumer = consumer
        self._topics = topics
        self._flush = flush
        self._clock = clock
        self._written: dict[Partition, int] = {}
        self._unread: set[Partition] | None = None
        self._gone: set[Partition] = set()
        self._committed_s = clock.monotonic_s()
        self._gave_up = False

    def read(self, until: Until, consumed: Consumed, write: WriteMessages) -> None:
        """Raise `ClientFailed`; whatever ends it, `settle` has to follow."""
        self._consumer.subscribe(list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        heard_s = self._clock.monotonic_s()
        while consumed.records != until.count and not (until.at_end and self._unread is not None and not self._unread):
            self._gone.clear()
            batch = next_batch(self._consumer, until.wanted(consumed.records), self._flush)
            if self._clock.monotonic_s() - self._committed_s >= COMMIT_EVERY_S:
                self.settle()
            if not batch:
                if until.silence_s is not None and self._clock.monotonic_s() - heard_s >= until.silence_s:
                    raise ClientFailed(silence(self._topics, until), exit_code=EXIT_TIMED_OUT)
                continue
            records = [message for message in batch if message.error() is None]
            if self._gone:
                # They went while the batch was gathered; whoever has them now reads on from the commit.
                records = [message for message in records if partition_of(message) not in self._gone]
            if records:
                # Ctrl-C comes as soon as somebody has seen a record: what was written is what is counted and what is committed.
                with uninterrupted():
                    write(records)
                    self._written |= {partition_of(message): (message.offset() or 0) + 1 for message in records}
                    consumed.records += len(records)
                heard_s = self._clock.monotonic_s()
            for message in batch if len(records) < len(batch) else ():
                self._noted(message)

    def _noted(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if self._unread is not None:
                self._unread.discard(partition_of(message))
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
            # Whoever reads us has paused for longer than the group waits; the library joins again.
            return
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise ClientFailed(f"The group may not be joined: {message_of(error)}", exit_code=exit_code_of(error))
        else:
            judge(error, message.topic() or "", message.partition())

    def settle(self) -> None:
        """Flush, and commit what is not committed. Raise `ClientFailed`, once, if that is not known to have been done."""
        self._flush()
        self._committed_s = self._clock.monotonic_s()
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(self._written.items())]
        if not offsets or self._gave_up:
            return
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            self._refused(error.args[0])
        else:
            for answer in answers:
                if answer.error is not None:
                    self._refused(answer.error)
        self._written.clear()

    def _refused(self, error: KafkaError) -> None:
        if error.code() not in _MOVED_ON:
            self._gave_up = True
            raise ClientFailed(
                f"What was written last was not committed, and will be written again: {message_of(error)}",
                exit_code=exit_code_of(error),
            )

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        given = {(one.topic, one.partition) for one in partitions}
        self._unread = (self._unread or set()) | given
        self._gone -= given

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.settle()
        self._forget(partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            where = one.topic, one.partition
            self._gone.add(where)
            self._written.pop(where, None)
            if self._unread is not None:
                self._unread.discard(where)
