"""Reading by assignment against a consumer that hands out what the test gives it."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from forebay.commands.topic.consuming import BATCH_RECORDS, Consumed, Until, consume
from forebay.kafka_client.connection import Partition
from forebay.kafka_client.failures import EXIT_TIMED_OUT, ClientFailed

Step = Message | None


def record(topic: str, partition: int, offset: int) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, value=b"%d" % offset)


def end(topic: str, partition: int, offset: int) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


class FakeConsumer:
    """Messages in order; None is a silence, and behind them there is nothing but an error of the test."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self.assigned: dict[Partition, int] = {}
        self.paused: list[Partition] = []
        self.asked: list[int] = []

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned = {(at.topic, at.partition): at.offset for at in partitions}

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused += [(at.topic, at.partition) for at in partitions]

    def consume(self, count: int, timeout: float) -> list[Message]:
        assert timeout == 0
        self.asked.append(count)
        batch: list[Message] = []
        while len(batch) < count and self._steps and self._steps[0] is not None:
            batch.append(self._steps.pop(0))  # type: ignore[arg-type]
        return batch

    def poll(self, _: float) -> Message | None:
        return self._steps.pop(0)


class StillClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += 1
        return self.now_s

    def now_ms(self) -> int:
        return 0


class Read:
    def __init__(self, steps: Sequence[Step], offsets: dict[Partition, int], until: Until) -> None:
        self.consumer = FakeConsumer(steps)
        self.written: list[tuple[str | None, int | None, int | None]] = []
        self.flushed_at: list[int] = []
        consume(
            self.consumer,  # type: ignore[arg-type]
            offsets,
            until,
            Consumed(),
            write=lambda messages: self.written.extend((one.topic(), one.partition(), one.offset()) for one in messages),
            flush=lambda: self.flushed_at.append(len(self.written)),
            clock=StillClock(),
        )


def test_records_are_taken_many_at_a_time_and_flushed_before_there_is_a_wait() -> None:
    read = Read([record("a", 0, 0), record("a", 0, 1), None, record("a", 0, 2), end("a", 0, 3)], {("a", 0): 0}, Until(at_end=True))

    assert read.written == [("a", 0, 0), ("a", 0, 1), ("a", 0, 2)]
    assert read.flushed_at == [2, 3]
    assert set(read.consumer.asked) == {BATCH_RECORDS}


def test_no_more_is_taken_than_is_wanted() -> None:
    read = Read([record("a", 0, offset) for offset in range(9)], {("a", 0): 0}, Until(count=3))

    assert (len(read.written), read.consumer.asked) == (3, [3])


def test_each_partition_is_read_before_its_stop_and_no_further() -> None:
    steps = [record("a", 0, 0), record("b", 1, 7), record("a", 0, 1), record("a", 0, 2), record("b", 1, 8), record("b", 1, 9)]

    read = Read(steps, {("a", 0): 0, ("b", 1): 7}, Until(stops={("a", 0): 2, ("b", 1): 9}))

    assert read.written == [("a", 0, 0), ("b", 1, 7), ("a", 0, 1), ("b", 1, 8)]
    assert read.consumer.paused == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("behind", [record("a", 0, 12), end("a", 0, 10), end("a", 0, 30)])
def test_a_stop_is_reached_though_the_records_before_it_are_gone(behind: Message) -> None:
    read = Read([record("a", 0, 3), behind], {("a", 0): 0}, Until(stops={("a", 0): 10}))

    assert read.written == [("a", 0, 3)]


def test_a_stop_that_is_still_to_come_is_waited_for() -> None:
    read = Read([record("a", 0, 0), end("a", 0, 1), None, None, record("a", 0, 1)], {("a", 0): 0}, Until(stops={("a", 0): 2}))

    assert read.written == [("a", 0, 0), ("a", 0, 1)]


def test_what_has_its_stop_behind_it_is_not_read_at_all() -> None:
    read = Read([record("b", 0, 0)], {("a", 0): 5, ("b", 0): 0}, Until(stops={("a", 0): 5, ("b", 0): 1}))

    assert read.consumer.assigned == {("b", 0): 0}
    assert read.written == [("b", 0, 0)]


def test_ends_of_several_topics_are_told_apart() -> None:
    read = Read([end("a", 0, 0), record("b", 0, 0), end("b", 0, 1)], {("a", 0): 0, ("b", 0): 0}, Until(at_end=True))

    assert read.written == [("b", 0, 0)]


@pytest.mark.parametrize(
    ("offsets", "which"), [({("a", 0): 0, ("a", 1): 0}, 'of "a" came within 3 s'), ({("a", 0): 0, ("b", 0): 0}, "of 2 topics came")]
)
def test_silence_is_an_error_that_names_what_was_silent(offsets: dict[Partition, int], which: str) -> None:
    with pytest.raises(ClientFailed, match=which) as failed:
        Read([None] * 9, offsets, Until(silence_s=3))

    assert failed.value.exit_code == EXIT_TIMED_OUT
