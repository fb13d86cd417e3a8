"""Kafka's codes of storage errors, in one table (docs/internals/design/commit.md#what-clients-are-told), and a refusal as a value."""

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from storage.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    EndsEarly,
    Fenced,
    IncompatibleFormat,
    InvalidProducerEpoch,
    NotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    PredecessorMissing,
    StorageError,
    Unavailable,
)

WIRE_CODES: Final[dict[type[StorageError], ErrorCode]] = {
    # Nothing happened. Clients take it for a broker whose disk fails: they refresh their metadata and try again.
    Unavailable: ErrorCode.kafka_storage_error,
    EndsEarly: ErrorCode.kafka_storage_error,
    # Every client sends the batch again with its sequence. UNKNOWN_PRODUCER_ID and OUT_OF_ORDER_SEQUENCE_NUMBER make each of them begin
    # again, fail the batch, or stop for good (docs/internals/adr/0028-unknown-producers-begin-when-proved.md).
    PredecessorMissing: ErrorCode.not_leader_or_follower,
    # The one error that says neither yes nor no: idempotent producers resend with the same sequence, others decide for themselves.
    OutcomeUnknown: ErrorCode.request_timed_out,
    # Others were first as often as we tried. Retriable at once, and to clients as indefinite as a moved leader.
    Conflict: ErrorCode.not_leader_or_follower,
    # The only names that clients give to new things are those of topics.
    AlreadyExists: ErrorCode.topic_already_exists,
    # The partition stopped taking writes: as if its leader had moved. A refresh tells the client what became of the topic.
    Fenced: ErrorCode.not_leader_or_follower,
    NotFound: ErrorCode.unknown_topic_or_partition,
    OffsetOutOfRange: ErrorCode.offset_out_of_range,
    # Not CORRUPT_MESSAGE: that blames the client's batch, and some consumers skip what it names. Ours stay and wait.
    Corrupt: ErrorCode.kafka_storage_error,
    # The two refusals of an idempotent append. They are decided on a read made for this append, and nothing was written.
    OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
    # A newer release wrote it, and other brokers may well read it: clients refresh their metadata and try again.
    IncompatibleFormat: ErrorCode.kafka_storage_error,
}


def error_code_of(error: StorageError) -> ErrorCode:
    """The code for partitions and topics. A store's own kind of an error has the code of the kind it is of."""
    return next(WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES)


class Refusal(NamedTuple):
    error: ErrorCode
    message: str | None
