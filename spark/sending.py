"""Sending rows to partitions of a topic, on executors. Spark's Kafka sink cannot set timestamps, so this is librdkafka's producer.

A partition holds at any moment a prefix of the rows that it gets: the producer is idempotent, stops forever at what
could leave a hole, and gives up no single record. Where nobody else may write, every acknowledgement must name the next offset.
"""

import itertools
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from spark.errors import JobFailed
from spark.replaying import ORIGIN

FIXED: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    # A record that times out by itself leaves a hole before the next one: either all are given up, or none.
    "message.timeout.ms": 0,
}
"""What a user cannot set otherwise."""
DEFAULTS: Final = {
    "linger.ms": 20,
    "queue.buffering.max.messages": 50_000,
    "queue.buffering.max.kbytes": 65_536,
    "message.max.bytes": 104_857_600,  # the topic's own limit decides
    "log_level": 0,
}
GIVE_UP_AFTER_S: Final = 60.0
AGAIN: Final = "What is there is in order and without holes as far as this job wrote it: start it again, and it says whether it can go on."
_POLL_S: Final = 0.1
_LAG_S: Final = 0.1
"""What a pace may catch up: waits are not exact."""


class RecordPace:
    """Records at a rate, never faster, but for a tenth of a second's worth."""

    def __init__(self, per_second: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._each_s = 1 / per_second
        self._now_s = now_s
        self._next_s = now_s()

    def wait_s(self) -> float:
        """How long the next record has to wait. Counts it."""
        now_s = self._now_s()
        wait_s = max(0.0, self._next_s - now_s)
        self._next_s = max(self._next_s, now_s - _LAG_S) + self._each_s
        return wait_s


@dataclass(slots=True)
class Acknowledged:
    """Of one partition. `first`: the offset that its first record must get; None where others write, too."""

    first: int | None
    count: int = 0
    wrong: str = ""
    """Why nothing more may be sent."""

    def take(self, error: object | None, offset: int | None) -> None:
        """The producer calls this in the order of the records."""
        if error is not None:
            self.wrong = self.wrong or f"the broker does not take it: {error}"
            return
        # No offset: an acknowledgement was lost, and the broker had the record when it came again.
        is_known = offset is not None and offset >= 0
        if is_known and self.first is not None and offset != self.first + self.count:
            self.wrong = self.wrong or f"its record {self.first + self.count} got offset {offset}: somebody else writes there"
        self.count += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """`client`: settings of librdkafka. `firsts`: by partition, the offset of the first record, where nobody else may write.
    `rates`: records a second, by the task's number."""

    topic: str
    client: Mapping[str, Any]
    firsts: Mapping[int, int] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)
    give_up_after_s: float = GIVE_UP_AFTER_S

    def run(self, task: int, rows: Iterable[Any]) -> Iterator[tuple[int, int]]:
        """Partitions, and how many records each was sent. Raise `JobFailed`: the partition has some of the rows, and those in order."""
        producing = self._producing(task)
        try:
            for partition, records in itertools.groupby(rows, lambda row: int(row.partition)):
                yield partition, producing.send(partition, records)
        except BaseException:
            producing.give_up()
            raise

    def _producing(self, task: int) -> "_Producing":
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise JobFailed(
                f"confluent-kafka is not installed on the executor {platform.node()}: Spark's own sink cannot set timestamps. Install it "
                "for the Python that runs there (pip install confluent-kafka), or ship it with --archives."
            ) from error
        rate = self.rates.get(task)
        return _Producing(self, Producer({**DEFAULTS, **self.client, **FIXED}), RecordPace(rate) if rate else None)


class _Producing:
    def __init__(self, sending: Sending, producer: Any, pace: RecordPace | None) -> None:
        self._topic = sending.topic
        self._sending = sending
        self._producer = producer
        self._pace = pace

    def send(self, partition: int, records: Iterable[Any]) -> int:
        acknowledged = Acknowledged(self._sending.firsts.get(partition))
        if acknowledged.first is not None:
            self._look(partition, acknowledged.first)

        def delivered(error: object | None, message: Any) -> None:
            acknowledged.take(error, message.offset())

        sent = 0
        for row in records:
            if self._pace is not None and (wait_s := self._pace.wait_s()):
                self._serve(wait_s)
            self._until(partition, acknowledged, partial(self._is_queued, row, delivered))
            sent += 1
        self._until(partition, acknowledged, lambda: acknowledged.count == sent)
        return sent

    def give_up(self) -> None:
        """Nothing is sent any more that was not sent yet."""
        self._producer.purge(in_queue=True, in_flight=True)
        self._producer.flush(_POLL_S)

    def _look(self, partition: int, first: int) -> None:
        """Before anything is written to where somebody else has written meanwhile."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs lack it

        asked = TopicPartition(self._topic, partition)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        client = AdminClient({**self._sending.client, "log_level": 0})
        end = client.list_offsets({asked: latest})[asked].result(self._sending.give_up_after_s).offset
        if end != first:
            raise JobFailed(f"{self._topic}-{partition} had {first} records, and has {end} now: somebody else writes there. {AGAIN}")

    def _is_queued(self, row: Any, delivered: Callable[[object | None, Any], None]) -> bool:
        from confluent_kafka import KafkaException

        origin = f"{row.topic}/{row.partition}/{row.offset}"
        headers = [(one.key, _bytes(one.value)) for one in row.headers or ()]
        try:
            self._producer.produce(
                self._topic,
                _bytes(row.value),
                _bytes(row.key),
                partition=row.partition,
                timestamp=row.timestamp_ms,
                headers=[*headers, (ORIGIN, origin.encode())],
                on_delivery=delivered,
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise JobFailed(f"The record {origin} cannot be sent to {self._topic}: {error}. {AGAIN}") from error
        return True

    def _until(self, partition: int, acknowledged: Acknowledged, holds: Callable[[], bool]) -> None:
        """Raise `JobFailed` once something is wrong, or nothing more is acknowledged."""
        self._producer.poll(0)
        seen, since_s = acknowledged.count, time.monotonic()
        while not acknowledged.wrong and not holds():
            self._producer.poll(_POLL_S)
            if acknowledged.count != seen:
                seen, since_s = acknowledged.count, time.monotonic()
            elif time.monotonic() - since_s > self._sending.give_up_after_s:
                acknowledged.wrong = f"the broker acknowledged nothing for {self._sending.give_up_after_s:g} s"
        if acknowledged.wrong:
            raise JobFailed(f"{self._topic}-{partition}: {acknowledged.wrong}. {AGAIN}")

    def _serve(self, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._producer.poll(left_s)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
