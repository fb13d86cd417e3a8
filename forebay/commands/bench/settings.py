"""What a load is, and what it asks of librdkafka. The library is not imported here, so that help does not wait for it."""

import enum
from dataclasses import dataclass
from typing import Any, Final

RECORDS_MAX: Final = 50_000_000
"""The latency of each is kept until the end: 8 bytes, and 32 while they are put in order."""
RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
RECORDS: Final = 1_000_000
RECORD_BYTES: Final = 1_024
SMALL_RECORDS: Final = 20_000
SMALL_RECORD_BYTES: Final = 100
PARTITIONS: Final = 12
TOKEN_BYTES: Final = 8
NUMBER_BYTES: Final = 8
STAMP_BYTES: Final = TOKEN_BYTES + NUMBER_BYTES
"""The least that a record has on its way from end to end: whose it is, and its number."""
CLIENTS_MAX: Final = 100
NUMBER_MAX: Final = 10_000_000
"""Records a second, or seconds."""

PRODUCE_LINGER_MS: Final = 5
BATCH_BYTES: Final = 1_000_000
BATCH_RECORDS: Final = 10_000
"""The library's own defaults, written out because results name them."""
IN_FLIGHT: Final = 5
"""The most requests that an idempotent producer has under way on a connection."""

QUEUE_BYTES: Final = 32 * 1024 * 1024
QUEUES_BYTES_MAX: Final = 256 * 1024 * 1024
QUEUE_RECORDS_MAX: Final = 100_000
TURN_BYTES: Final = 64 * 1024
TURN_RECORDS_MAX: Final = 100

assert TURN_BYTES <= QUEUES_BYTES_MAX // CLIENTS_MAX, "every producer has room for a turn of small records"

_ENVELOPE_BYTES: Final = 64 * 1024
_DELIVERED_WITHIN_MS: Final = 300_000
"""A record may wait long in a full queue; silence of a broker ends a load much sooner."""


class Compression(enum.StrEnum):
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"


class Acks(enum.StrEnum):
    ALL = "all"
    LEADER = "1"
    NOBODY = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceLoad:
    records: int
    record_bytes: int
    partitions: int
    producers: int
    compression: Compression
    acks: Acks
    rate: float | None
    warm_up: int
    linger_ms: int = PRODUCE_LINGER_MS
    batch_bytes: int = BATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeLoad:
    """`record_bytes` and `compression` are None where somebody else has written the topic."""

    records: int
    record_bytes: int | None
    partitions: int
    consumers: int
    compression: Compression | None
    warm_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShares:
    """The records that are read before the clock starts, and those that are measured."""

    warm_up: int
    measured: int


def shares(there: int, *, records: int | None, warm_up: int | None) -> ReadShares:
    """By default everything that is there is read, the first tenth as a warm-up. `measured` is 0 or less where nothing is left for it."""
    first = warm_up_records(there if records is None else records) if warm_up is None else warm_up
    return ReadShares(warm_up=first, measured=there - first if records is None else min(records, there - first))


def warm_up_records(records: int) -> int:
    return records // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEndLoad:
    rate: float
    record_bytes: int
    seconds: float
    warm_up: int
    partitions: int = 1
    linger_ms: int = 0

    @property
    def records(self) -> int:
        """The number that is measured, one at least."""
        return max(1, round(self.rate * self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsLoad:
    records: int
    record_bytes: int
    partitions: int
    warm_up: int
    in_flight: int = IN_FLIGHT


def produce_config(load: ProduceLoad) -> dict[str, Any]:
    """Idempotent with acks=all, as clients are by default."""
    return {
        **_PRODUCER,
        "acks": load.acks.value,
        "enable.idempotence": load.acks is Acks.ALL,
        "compression.type": load.compression.value,
        "linger.ms": load.linger_ms,
        "batch.size": load.batch_bytes,
        "batch.num.messages": BATCH_RECORDS,
    }


def requests_config(load: RequestsLoad) -> dict[str, Any]:
    """Each record is a request."""
    return {
        **_PROMPT,
        "batch.num.messages": 1,
        "max.in.flight": load.in_flight,
    }


def prompt_producer_config() -> dict[str, Any]:
    """Each record leaves at once."""
    return dict(_PROMPT)


def reading_config() -> dict[str, Any]:
    return dict(_CONSUMER)


def queue_records(record_bytes: int, *, producers: int) -> int:
    """The number of records that a producer has at a time, waiting and under way."""
    room_bytes = min(QUEUE_BYTES, QUEUES_BYTES_MAX // producers)
    return max(1, min(QUEUE_RECORDS_MAX, room_bytes // record_bytes))


def turn_records(record_bytes: int) -> int:
    """The number of records that are handed to a partition before the next one has its turn."""
    return max(1, min(TURN_RECORDS_MAX, TURN_BYTES // record_bytes))


_PRODUCER: Final[dict[str, Any]] = {
    "allow.auto.create.topics": False,
    "message.max.bytes": RECORD_BYTES_MAX + _ENVELOPE_BYTES,
    "message.timeout.ms": _DELIVERED_WITHIN_MS,
    # More than what is handed over at a time: the loads bound it.
    "queue.buffering.max.messages": 10 * QUEUE_RECORDS_MAX,
    "queue.buffering.max.kbytes": 2 * QUEUES_BYTES_MAX // 1024,
    "socket.nagle.disable": True,
}
_PROMPT: Final[dict[str, Any]] = {**_PRODUCER, "acks": Acks.ALL.value, "enable.idempotence": True, "linger.ms": 0}
_CONSUMER: Final[dict[str, Any]] = {
    "group.id": "forebay-bench",  # the library wants one; by assignment it is never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "auto.offset.reset": "error",
    # The library pauses so long when it has read far ahead; by default it is a second.
    "fetch.queue.backoff.ms": 1,
    "socket.nagle.disable": True,
}
