"""What storage reports, sorted by what the caller should do about it.

Messages are lower case with the facts at the end: `checksum mismatch: object='wal/01J…' expected=… actual=…`.
"""

from typing import TypeVar


class StorageError(Exception):
    """One of the leaves below; never raised itself."""


class Unavailable(StorageError):
    """Nothing happened: retry later."""


class EndsEarly(Unavailable):
    """An object was found, and it is said to end before the bytes that were asked for."""


class PredecessorMissing(Unavailable):
    """Nothing happened: the producer is unknown, and a batch before this one may be on its way. Retry later."""


class OutcomeUnknown(StorageError):
    """It may have happened: read back before writing again, and never answer with a definite error."""


class Conflict(StorageError):
    """Someone else was first: read again and decide again."""


class AlreadyExists(Conflict):
    """The name is taken."""


class Fenced(StorageError):
    """The partition or the topic takes no more writes: stop."""


class OutOfOrderSequence(StorageError):
    """An idempotent producer's batch does not follow its last one: the producer must resend what is missing."""


class InvalidProducerEpoch(StorageError):
    """A newer incarnation of the producer has appended: this one must stop."""


class NotFound(StorageError):
    """No such object, topic or partition, as of a read made after the question was asked."""


class OffsetOutOfRange(StorageError):
    """The reader must reset: the offset is below log_start or above the high watermark."""

    def __init__(self, message: str, *, log_start: int, high_watermark: int) -> None:
        super().__init__(message)
        self.log_start = log_start
        self.high_watermark = high_watermark


class Corrupt(StorageError):
    """Bytes are not what was written: page somebody, never skip."""


class IncompatibleFormat(StorageError):
    """Written by a newer format than this program knows. Nothing was changed."""


E = TypeVar("E", bound=StorageError)


def without_frames(error: E) -> E:
    """`error` without traceback, cause and context, for errors that are kept as values: each frame of a traceback keeps its locals, and
    with them the bytes of requests that were answered long ago. The message must name the cause.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
