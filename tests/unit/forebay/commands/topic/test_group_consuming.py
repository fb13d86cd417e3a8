"""A member of a group against a consumer that the test drives: what is committed, and when."""

import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay.commands.topic.consuming import COMMIT_EVERY_S, Consumed, GroupReader, Until
from forebay.kafka_client.connection import interrupted_between_calls
from forebay.kafka_client.failures import ClientFailed


class Message:
    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None:
        return None

    def error(self) -> KafkaError | None:
        return self._error


class Meanwhile(NamedTuple):
    """While messages are gathered."""

    happens: Callable[[], object]


class FakeConsumer:
    """`steps` are messages, silences (None) or things to do, in order; behind them there is an interruption."""

    def __init__(self, steps: list[Any], *, refusals: list[Any] | None = None) -> None:
        self.steps = steps
        self._refusals = refusals or []
        self.commits: list[dict[int, int]] = []
        self.callbacks: dict[str, Callable[..., object]] = {}

    def subscribe(self, topics: list[str], **callbacks: Callable[..., object]) -> None:
        self.callbacks = callbacks

    def consume(self, count: int, _: float) -> list[Message]:
        batch: list[Message] = []
        while len(batch) < count and self.steps and isinstance(self.steps[0], Message | Meanwhile):
            step = self.steps.pop(0)
            if isinstance(step, Meanwhile):
                step.happens()
            else:
                batch.append(step)
        return batch

    def poll(self, _: float) -> Message | None:
        if not self.steps:
            raise KeyboardInterrupt
        step = self.steps.pop(0)
        if callable(step):
            step()
            return None
        return step

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        if self._refusals:
            raise KafkaException(KafkaError(self._refusals.pop(0)))
        self.commits.append({at.partition: at.offset for at in offsets})
        return offsets


class StillClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0


class Member:
    def __init__(self, steps: list[Any], *, refusals: list[Any] | None = None, flush: Callable[[], object] = lambda: None) -> None:
        self.consumer = FakeConsumer(steps, refusals=refusals)
        self.clock = StillClock()
        self.reader = GroupReader(self.consumer, ["t"], flush=flush, clock=self.clock)
        self.written: list[int] = []
        self.consumed = Consumed()

    def read(self, until: Until | None = None) -> None:
        """As the command does it."""
        try:
            self.reader.read(until or Until(), self.consumed, self._write)
        except KeyboardInterrupt:
            pass
        finally:
            self.reader.settle()

    def _write(self, messages: Sequence[Message]) -> None:
        self.written += [message.offset() for message in messages]

    def told(self, callback: str, *partitions: int) -> Callable[[], object]:
        return lambda: self.consumer.callbacks[callback](self.consumer, [TopicPartition("t", at) for at in partitions])

    def later(self) -> None:
        self.clock.now_s += COMMIT_EVERY_S


def test_what_was_written_is_committed_when_it_is_interrupted() -> None:
    member = Member([Message(0, 7), Message(1, 3), Message(0, 8)])

    member.read()

    assert member.consumer.commits == [{0: 9, 1: 4}]


def test_an_interruption_by_whoever_saw_a_record_comes_when_all_that_was_written_is_counted() -> None:
    def interrupt(messages: Sequence[Message]) -> None:
        member.written += [message.offset() for message in messages]
        signal.raise_signal(signal.SIGINT)

    member = Member([Message(0, 7), Message(0, 8)])
    with pytest.raises(KeyboardInterrupt), interrupted_between_calls():
        member.reader.read(Until(), member.consumed, interrupt)
    member.reader.settle()

    assert (member.written, member.consumed.records, member.consumer.commits) == ([7, 8], 2, [{0: 9}])


def test_only_what_was_wanted_is_committed_however_much_there_is() -> None:
    member = Member([Message(0, offset) for offset in range(5)])

    member.read(Until(count=2))

    assert (member.written, member.consumer.commits) == ([0, 1], [{0: 2}])


def test_a_long_read_commits_again_and_again_but_nothing_twice() -> None:
    member = Member([])
    member.consumer.steps = [Message(0, 0), member.later, None, Message(0, 1), member.later, None, member.later, None]

    member.read()

    assert member.consumer.commits == [{0: 1}, {0: 2}]


def test_partitions_that_go_to_another_member_are_committed_first() -> None:
    member = Member([])
    member.consumer.steps = [Message(0, 0), Message(1, 0), member.told("on_revoke", 0, 1), None, Message(1, 1)]

    member.read()

    assert member.consumer.commits == [{0: 1, 1: 1}, {1: 2}]


def test_records_of_a_partition_that_went_while_they_were_gathered_are_left_to_its_next_reader() -> None:
    member = Member([])
    member.consumer.steps = [Message(0, 0), Message(1, 5), Meanwhile(member.told("on_revoke", 0)), None]

    member.read()

    assert (member.written, member.consumer.commits) == ([5], [{1: 6}])


def test_records_of_a_partition_that_came_back_while_they_were_gathered_are_written() -> None:
    member = Member([])
    back = [Meanwhile(member.told("on_revoke", 0)), Meanwhile(member.told("on_assign", 0)), Message(0, 3)]
    member.consumer.steps = [*back, None]

    member.read()

    assert (member.written, member.consumer.commits) == ([3], [{0: 4}])


def test_partitions_that_were_lost_are_not_committed_any_more() -> None:
    member = Member([])
    member.consumer.steps = [Message(0, 0), Message(1, 0), member.told("on_lost", 0), None]

    member.read()

    assert member.consumer.commits == [{1: 1}]


def test_output_that_cannot_be_flushed_is_not_committed() -> None:
    def flush() -> None:
        raise BrokenPipeError

    member = Member([Message(0, 0)], flush=flush)

    with pytest.raises(BrokenPipeError):
        member.read()
    assert member.consumer.commits == []


@pytest.mark.parametrize("code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS])
def test_a_commit_that_comes_too_late_is_left_to_those_who_read_on(code: int) -> None:
    member = Member([], refusals=[code])
    member.consumer.steps = [Message(0, 0), member.later, None, Message(0, 1)]

    member.read()

    assert member.consumer.commits == [{0: 2}]


def test_a_commit_that_is_refused_ends_it_and_is_not_tried_for_ever() -> None:
    member = Member([], refusals=[KafkaError.GROUP_AUTHORIZATION_FAILED] * 2)
    member.consumer.steps = [Message(0, 0), member.later, None, Message(0, 1)]

    with pytest.raises(ClientFailed, match=r"^What was written last was not committed, and will be written again: ") as failed:
        member.read()

    assert failed.value.exit_code == 5
    assert member.consumer._refusals == [KafkaError.GROUP_AUTHORIZATION_FAILED]


def test_a_group_that_may_not_be_joined_is_5() -> None:
    member = Member([Message(0, 0, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))])

    with pytest.raises(ClientFailed, match=r"^The group may not be joined: ") as failed:
        member.read()

    assert failed.value.exit_code == 5


def test_a_reader_that_paused_for_too_long_joins_again() -> None:
    member = Member([Message(0, 0, KafkaError(KafkaError._MAX_POLL_EXCEEDED)), Message(0, 4)])

    member.read()

    assert member.consumer.commits == [{0: 5}]


def test_reading_to_the_end_ends_when_every_partition_that_was_given_is_read() -> None:
    member = Member([])
    end = KafkaError(KafkaError._PARTITION_EOF)
    member.consumer.steps = [
        member.told("on_assign", 0, 1),
        None,
        Message(0, 0),
        Message(0, 1, end),
        Message(1, 0, end),
        None,
        Message(0, 9),
    ]

    member.read(Until(at_end=True))

    assert (member.written, member.consumer.commits) == ([0], [{0: 1}])


def test_a_member_without_partitions_is_at_its_end_at_once() -> None:
    member = Member([])
    member.consumer.steps = [None, None, member.told("on_assign"), None, Message(0, 0)]

    member.read(Until(at_end=True))

    assert (member.written, member.consumer.commits) == ([], [])


def test_silence_for_too_long_is_124_and_what_was_written_is_committed() -> None:
    member = Member([])
    member.consumer.steps = [Message(0, 0), member.later, None, member.later, None]

    with pytest.raises(ClientFailed, match="No record of") as failed:
        member.read(Until(silence_s=2 * COMMIT_EVERY_S))

    assert failed.value.exit_code == 124
    assert member.consumer.commits == [{0: 1}]
