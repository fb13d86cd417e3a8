"""Errors in the words of the HTTP API: Kafka's names in PascalCase, but for those that mean something else here."""

from typing import Final

from kio.schema.errors import ErrorCode

_OWN_NAMES: Final = {
    ErrorCode.not_leader_or_follower: "Conflict",
    ErrorCode.request_timed_out: "OutcomeUnknown",
    ErrorCode.kafka_storage_error: "StorageUnavailable",
    ErrorCode.coordinator_load_in_progress: "CoordinatorNotAvailable",
    ErrorCode.coordinator_not_available: "CoordinatorNotAvailable",
    ErrorCode.not_coordinator: "CoordinatorNotAvailable",
    ErrorCode.illegal_generation: "UnknownConsumer",
    ErrorCode.unknown_member_id: "UnknownConsumer",
    ErrorCode.out_of_order_sequence_number: "OutOfOrderSequence",
    ErrorCode.topic_authorization_failed: "NotAuthorized",
    ErrorCode.group_authorization_failed: "NotAuthorized",
    ErrorCode.cluster_authorization_failed: "NotAuthorized",
}
BACK_PRESSURE: Final = "BackPressureRejected"
_TEXTS: Final = {
    ErrorCode.unknown_topic_or_partition: "there is no such topic, or it has no such partition",
    ErrorCode.invalid_topic_exception: "that is no name of a topic that clients may write",
    ErrorCode.not_leader_or_follower: "nothing was written, others were first: send it again",
    ErrorCode.request_timed_out: "nobody knows whether it was written: send it again with its sequence, or read before you do",
    ErrorCode.kafka_storage_error: "a store cannot be reached now, and nothing was done: try again",
}


class HttpError(Exception):
    """An answer that is an error as a whole. `status` and `error_type` are for programs, the message is for people."""

    def __init__(self, status: int, error_type: str, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.headers = headers or {}


def invalid(message: str) -> HttpError:
    return HttpError(400, "InvalidRequest", message)


def too_busy(message: str) -> HttpError:
    """Nothing was done, and it may be asked again after a second."""
    return HttpError(503, BACK_PRESSURE, message, headers={"Retry-After": "1"})


def type_of(code: int) -> str:
    """The name of one of Kafka's error codes."""
    error = ErrorCode(code)
    if error in _OWN_NAMES:
        return _OWN_NAMES[error]
    return "".join(word.capitalize() for word in error.name.removesuffix("_exception").split("_"))


def is_retriable(code: int, *, is_sequenced: bool) -> bool:
    """Whether the same request may succeed later, and writes nothing twice: where the outcome is unknown, only with a sequence."""
    error = ErrorCode(code)
    return is_sequenced if error is ErrorCode.request_timed_out else error.retriable


def text_of(code: int) -> str:
    """A sentence for those errors that come without one."""
    error = ErrorCode(code)
    return _TEXTS.get(error, error.name.replace("_", " "))
