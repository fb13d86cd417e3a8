"""Records of a topic as a member of a group. Only what was written and flushed is committed: each record is written at least once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay.commands.topic.consuming import READING, Consumed, Until, WriteMessages, at, judge, next_batch, silence
from forebay.kafka_client.connection import Partition, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_TIMED_OUT, ClientFailed
from forebay.kafka_client.interrupts import uninterrupted
from runtime.clock import Clock

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
                records = [message for message in records if at(message) not in self._gone]
            if records:
                # Ctrl-C comes as soon as somebody has seen a record: what was written is what is counted and what is committed.
                with uninterrupted():
                    write(records)
                    self._written |= {at(message): (message.offset() or 0) + 1 for message in records}
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
                self._unread.discard(at(message))
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
