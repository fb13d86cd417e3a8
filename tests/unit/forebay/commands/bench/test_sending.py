"""Sending against a producer that acknowledges as the test says."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from forebay.commands.bench.clients import Acknowledgements, LoadSender, not_stored
from forebay.kafka_client.failures import EXIT_REFUSED, EXIT_TIMED_OUT, EXIT_USAGE, ClientFailed

STEP_S = 0.000_5


class SteppingClock:
    """Each look takes some time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += STEP_S
        return self.now_s

    def now_ms(self) -> int:
        return 0


class Connection:
    timeout_s = 2.0

    def failure(self, error: KafkaError) -> ClientFailed:
        return ClientFailed(f"no answer ({error.code()})", exit_code=EXIT_TIMED_OUT)


class AcknowledgingProducer:
    """What is used of confluent_kafka's producer. `report` says what becomes of a record, by its number; None: nothing is heard of it."""

    def __init__(
        self,
        acknowledgements: Acknowledgements,
        clock: SteppingClock,
        report: Callable[[int], list[KafkaError | None]] = lambda _: [None],
        *,
        takes: int = 1_000_000,
    ) -> None:
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._report = report
        self._takes = takes
        self._queue: list[int] = []
        self.turns: list[tuple[int, list[bytes]]] = []
        self.sent_s: list[float] = []
        self.queued_max = 0

    def __len__(self) -> int:
        return len(self._queue)

    def produce_batch(self, _topic: str, messages: Sequence[dict[str, Any]], *, partition: int) -> int:
        for message in messages:
            if len(self.sent_s) == self._takes:
                message["_error"] = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
                return messages.index(message)
            self._queue.append(len(self.sent_s))
            self.sent_s.append(self._clock.now_s)
        self.turns.append((partition, [message["value"] for message in messages]))
        self.queued_max = max(self.queued_max, len(self._queue))
        return len(messages)

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self._clock.now_s += timeout_s
            for number in self._queue:
                for error in self._report(number):
                    self._acknowledgements.heard(error, Message(latency=timeout_s))
            self._queue.clear()


def sending(
    *, producers: int = 1, partitions: int = 3, turn_records: int = 2, room: int = 10, **options: Any
) -> tuple[LoadSender, list[AcknowledgingProducer]]:
    acknowledgements, clock = Acknowledgements(), SteppingClock()
    made = [AcknowledgingProducer(acknowledgements, clock, **options) for _ in range(producers)]
    connection: Any = Connection()
    library: list[Any] = [*made]
    values = [b"%02d" % number for number in range(7)]
    sender = LoadSender(
        connection, library, "t", values, acknowledgements, partitions=partitions, turn_records=turn_records, room=room, clock=clock
    )
    return sender, made


def nobody(_records: int, _size_bytes: int) -> None:
    """Nobody looks how far it is."""


def test_partitions_have_their_turns_and_each_goes_through_all_values() -> None:
    sender, (producer,) = sending()

    latencies_s = sender.send(25, per_s=None, moved=nobody)

    assert len(latencies_s) == 25
    assert [partition for partition, _ in producer.turns][:7] == [0, 1, 2, 0, 1, 2, 0]
    for partition in range(3):
        values = [value for at, turn in producer.turns if at == partition for value in turn]
        assert values == [b"%02d" % (number % 7) for number in range(len(values))]


def test_several_producers_share_the_records_and_begin_at_different_partitions() -> None:
    sender, producers = sending(producers=3)

    assert len(sender.send(31, per_s=None, moved=nobody)) == 31
    assert sum(len(producer.sent_s) for producer in producers) == 31
    assert [producer.turns[0][0] for producer in producers] == [0, 1, 2]
    assert all(len(producer.sent_s) >= 8 for producer in producers)


def test_no_more_waits_in_a_producer_than_there_is_room_for() -> None:
    sender, (producer,) = sending(room=5)

    sender.send(100, per_s=None, moved=nobody)

    assert producer.queued_max == 5


def test_at_a_rate_no_record_leaves_before_it_is_due() -> None:
    sender, (producer,) = sending(partitions=2)

    sender.send(50, per_s=100.0, moved=nobody)

    began_s = producer.sent_s[0]
    late_s = [sent_s - began_s - number / 100 for number, sent_s in enumerate(producer.sent_s)]
    assert min(late_s) > -20 * STEP_S
    assert max(late_s) < 0.02
    assert [partition for partition, _ in producer.turns][:4] == [0, 1, 0, 1]


def test_each_record_is_seen_to_move_once() -> None:
    sender, _ = sending()
    moved: list[tuple[int, int]] = []

    sender.send(40, per_s=None, moved=lambda records, size_bytes: moved.append((records, size_bytes)))

    assert (sum(records for records, _ in moved), sum(size_bytes for _, size_bytes in moved)) == (40, 80)


def test_a_warm_up_leaves_no_latency_behind() -> None:
    sender, _ = sending()

    assert len(sender.send(10, per_s=None, moved=nobody)) == 10
    assert len(sender.send(20, per_s=None, moved=nobody)) == 20
    assert len(sender.send(0, per_s=None, moved=nobody)) == 0


def test_a_record_that_is_refused_ends_the_load() -> None:
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    sender, _ = sending(report=lambda number: [refused if number == 17 else None])

    with pytest.raises(ClientFailed, match=r"^A record was not stored: ") as failed:
        sender.send(100, per_s=None, moved=nobody)

    assert failed.value.exit_code == EXIT_REFUSED


def test_a_record_that_the_library_does_not_take_ends_the_load() -> None:
    sender, _ = sending(takes=9)

    with pytest.raises(ClientFailed, match=r"^A record of 2 bytes is larger than the topic takes: give a smaller --record-bytes") as failed:
        sender.send(100, per_s=None, moved=nobody)

    assert failed.value.exit_code == EXIT_USAGE


def test_records_of_which_nothing_is_heard_are_not_waited_for_without_end() -> None:
    sender, _ = sending(report=lambda number: [] if number > 20 else [None])

    with pytest.raises(ClientFailed, match="no answer"):
        sender.send(100, per_s=None, moved=nobody)


def test_more_acknowledgements_than_records_mean_nothing() -> None:
    sender, _ = sending(report=lambda _: [None, None])

    with pytest.raises(ClientFailed, match=r"acknowledgements came for \d+ records: the result means nothing"):
        sender.send(15, per_s=None, moved=nobody)


def test_an_answer_that_never_came_has_its_cause_looked_for() -> None:
    connection: Any = Connection()

    assert str(not_stored(connection, KafkaError(KafkaError._MSG_TIMED_OUT), 10)) == f"no answer ({KafkaError._MSG_TIMED_OUT})"
