"""Reading against consumers that hand out what the test gives them."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from forebay.commands.bench.clients import Reading, read_records
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_TIMED_OUT, ClientFailed


def record(partition: int, offset: int) -> Message:
    return Message(topic="t", partition=partition, offset=offset, value=b"value", key=b"not counted")


def problem(code: int, partition: int = 0, offset: int = 0) -> Message:
    return Message(topic="t", partition=partition, offset=offset, error=KafkaError(code))


def end(partition: int, offset: int) -> Message:
    return problem(KafkaError._PARTITION_EOF, partition, offset)


class Handing:
    """What is used of confluent_kafka's consumer: `batches` one after the other, and then silence."""

    def __init__(self, *batches: Sequence[Message]) -> None:
        self._batches = list(batches)
        self.assigned: list[tuple[int, int]] = []

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned = [(at.partition, at.offset) for at in partitions]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        assert timeout_s == 0
        if not self._batches:
            return []
        batch = list(self._batches[0][:count])
        self._batches[0] = self._batches[0][count:]
        if not self._batches[0]:
            del self._batches[0]
        return batch

    def poll(self, _: float) -> Message | None:
        found = self.consume(1, 0)
        return found[0] if found else None


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += 0.1
        return self.now_s

    def now_ms(self) -> int:
        return 0


class Connection:
    timeout_s = 3.0

    def failure(self, error: KafkaError) -> ClientFailed:
        return ClientFailed("silence", exit_code=EXIT_TIMED_OUT)


def read_all(consumers: Sequence[Handing], offsets: dict[int, int], count: int, positions: dict[int, int] | None = None) -> Reading:
    connection: Any = Connection()
    library: list[Any] = [*consumers]
    return read_records(
        connection, library, "t", offsets, count, moved=lambda _records, _size_bytes: None, clock=Clock(), positions=positions
    )


def test_consumers_are_given_the_partitions_in_turns() -> None:
    consumers = [Handing([end(partition, 0) for partition in range(5)]), Handing()]

    read_all(consumers, dict.fromkeys(range(5), 7), 1)

    assert [consumer.assigned for consumer in consumers] == [[(0, 7), (2, 7), (4, 7)], [(1, 7), (3, 7)]]


def test_no_more_is_read_than_was_asked_for() -> None:
    consumers = [Handing([record(0, offset) for offset in range(10)]), Handing([record(1, offset) for offset in range(10)])]

    found = read_all(consumers, {0: 0, 1: 0}, 13)

    assert (found.records, found.size_bytes) == (13, 13 * len(b"value"))


def test_reading_ends_where_all_partitions_do() -> None:
    consumer = Handing([record(0, 0), end(0, 1)], [record(0, 1), end(0, 2)], [record(1, 0), record(1, 1), end(1, 2)])

    assert read_all([consumer], {0: 0, 1: 0}, 100).records == 4


def test_positions_are_behind_what_was_read() -> None:
    positions = {0: 5, 1: 0, 2: 3}
    consumer = Handing([record(0, 5), record(1, 0), record(0, 6), record(1, 4), record(0, 7)])

    read_all([consumer], dict(positions), 4, positions)

    assert positions == {0: 7, 1: 5, 2: 3}


def test_silence_is_not_waited_for_without_end() -> None:
    with pytest.raises(ClientFailed, match="silence"):
        read_all([Handing([record(0, 0)])], {0: 0}, 2)


def test_brokers_that_are_gone_for_a_moment_are_waited_for() -> None:
    consumer = Handing([problem(KafkaError._TRANSPORT)], [record(0, 0)])

    assert read_all([consumer], {0: 0}, 1).records == 1


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_records_that_are_deleted_meanwhile_end_it(code: int) -> None:
    with pytest.raises(ClientFailed, match=r"^The next records of t/3 were deleted while they were read\. Run it again\."):
        read_all([Handing([problem(code, 3)])], {3: 0}, 1)


def test_a_topic_that_is_deleted_meanwhile_ends_it() -> None:
    with pytest.raises(ClientFailed, match='Topic "t" was deleted while it was read') as failed:
        read_all([Handing([problem(KafkaError.UNKNOWN_TOPIC_OR_PART)])], {0: 0}, 1)

    assert failed.value.exit_code == EXIT_NOT_FOUND
