"""Records of a topic as a member of a group. Only what was written and flushed is committed: each record is written at least once."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay.kafka_client.codes import exit_code_of
from forebay.kafka_client.connection import said
from forebay.kafka_client.failures import EXIT_TIMED_OUT, ClientFailed
from forebay.topic.consuming import Consumed, Until, judge, record_of, silence
from forebay.topic.record_format import Record
from runtime.clock import Clock

COMMIT_EVERY_S: Final = 1.0
SESSION_MS: Final = 10_000
"""A member that dies without a word keeps its partitions for so long; a commit waits for a coordinator no longer than this, either."""

_POLL_S: Final = 0.2

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
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest" if from_start else "latest",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "session.timeout.ms": SESSION_MS,
    }


class GroupReader:
    """One member. `written` is what the next commit says: by partition, the offset behind the last record that was written."""

    def __init__(self, consumer: Consumer, topic: str, *, flush: Callable[[], object], clock: Clock) -> None:
        self._consumer = consumer
        self._topic = topic
        self._flush = flush
        self._clock = clock
        self._written: dict[int, int] = {}
        self._unread: set[int] | None = None
        self._committed_s = clock.monotonic_s()
        self._gave_up = False

    def read(self, until: Until, consumed: Consumed, write: Callable[[Record], object]) -> None:
        """Raise `ClientFailed`; whatever ends it, `settle` has to follow."""
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        heard_s = self._clock.monotonic_s()
        while consumed.records != until.count and not (until.at_end and self._unread is not None and not self._unread):
            message = self._consumer.poll(0)
            if message is None:
                # Before waiting, whoever reads us gets what there is.
                self._flush()
                message = self._consumer.poll(_POLL_S)
            if self._clock.monotonic_s() - self._committed_s >= COMMIT_EVERY_S:
                self.settle()
            if message is None:
                if until.silence_s is not None and self._clock.monotonic_s() - heard_s >= until.silence_s:
                    raise ClientFailed(silence(self._topic, until), exit_code=EXIT_TIMED_OUT)
                continue
            error = message.error()
            if error is None:
                record = record_of(message)
                write(record)
                self._written[record.partition] = record.offset + 1
                consumed.records += 1
                heard_s = self._clock.monotonic_s()
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                if self._unread is not None:
                    self._unread.discard(message.partition() or 0)
            elif error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
                # Whoever reads us has paused for longer than the group waits; the library joins again.
                continue
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise ClientFailed(f"The group may not be joined: {said(error)}", exit_code=exit_code_of(error))
            else:
                judge(error, self._topic, message.partition())

    def settle(self) -> None:
        """Flush, and commit what is not committed. Raise `ClientFailed`, once, if that is not known to have been done."""
        self._flush()
        self._committed_s = self._clock.monotonic_s()
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in sorted(self._written.items())]
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
                f"What was written last was not committed, and will be written again: {said(error)}",
                exit_code=exit_code_of(error),
            )

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._unread = (self._unread or set()) | {at.partition for at in partitions}

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.settle()
        self._forget(partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            self._written.pop(at.partition, None)
            if self._unread is not None:
                self._unread.discard(at.partition)
