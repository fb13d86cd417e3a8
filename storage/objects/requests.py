"""Every request to S3 is counted where it is sent: why, whether it repeats another, and how S3 answered. S3 bills by these.

The cause is a context variable, set where a piece of work begins: tasks that the work starts inherit it. Calls of the object store are
counted elsewhere (metered.py); one call may be many requests, or none.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, Literal

from prometheus_client import Counter

from runtime.telemetry import Metric, Telemetry
from storage.limits import MIB
from storage.objects.port import MARKERS, PROBES

RequestKind = Literal["put", "get", "ranged_get", "head", "list", "delete", "upload_begin", "upload_part", "upload_finish", "abort"]
RequestCause = Literal[
    "flush",
    "recommit",
    "read_back",
    "fetch",
    "read_ahead",
    "time_search",
    "repair",
    "compaction",
    "merge",
    "collection",
    "purge",
    "probe",
    "clock",
    "marker",
    "start",
    "check",
]
RequestAttempt = Literal["first", "retry", "hedge"]
RequestAnswer = Literal["2xx", "4xx", "4xx_free", "5xx", "none"]
KeyClass = Literal["wal", "segment", "probe", "marker", "other"]

S3_REQUESTS: Final = Metric(
    "forebay_s3_requests_total",
    "HTTP requests sent to S3, or that S3 would have been sent in place of a disk or of memory; retries, pages and parts are requests. "
    "answer=4xx_free: refused, and not billed; none: sent, and no answer came. key=other: a listing, a request for many objects.",
    ("request", "cause", "key", "attempt", "answer"),
)
S3_BYTES: Final = Metric(
    "forebay_s3_bytes_total", "Bytes of objects in requests that S3 answered: in (stored) and out (read).", ("direction", "cause")
)

UPLOAD_PART_BYTES: Final = 16 * MIB
"""A longer object is stored in parts of this size; S3 takes 5 MiB to 5 GiB, and 10,000 parts."""
KEYS_PER_REQUEST: Final = 1_000
"""Keys in an answer to a listing, and in a request that deletes."""

CAUSE: Final[ContextVar[RequestCause]] = ContextVar("s3_cause", default="check")
"""Why requests are sent by what runs now. Set it where a task begins; elsewhere use `caused_by`."""
ATTEMPT: Final[ContextVar[RequestAttempt]] = ContextVar("s3_attempt", default="first")

_PREFIXES: Final[tuple[tuple[str, KeyClass], ...]] = (
    ("wal/", "wal"),
    ("segments/", "segment"),
    (PROBES, "probe"),
    (MARKERS, "marker"),
)


@contextlib.contextmanager
def caused_by(cause: RequestCause) -> Iterator[None]:
    """Requests of the work within have this cause."""
    token = CAUSE.set(cause)
    try:
        yield
    finally:
        CAUSE.reset(token)


@contextlib.contextmanager
def attempted(attempt: RequestAttempt) -> Iterator[None]:
    """Requests sent within repeat, or do not repeat, one that was sent before. A hedge stays one until it is repeated itself."""
    if attempt == "first":
        yield
        return
    token = ATTEMPT.set(attempt)
    try:
        yield
    finally:
        ATTEMPT.reset(token)


class RequestMeter:
    """Counts requests of one process to one store. Each series is made at its first request, and found by a tuple afterwards."""

    def __init__(self, telemetry: Telemetry, *, root: str = "") -> None:
        """`root` is what all names begin with, in front of the keys."""
        self._root = root
        self._requests, self._bytes = telemetry.counter(S3_REQUESTS), telemetry.counter(S3_BYTES)
        self._counted: dict[tuple[str, ...], Counter] = {}
        self._moved: dict[tuple[str, ...], Counter] = {}

    def count(self, request: RequestKind, name: str, answer: RequestAnswer, *, times: int = 1) -> None:
        """`name` is the object's, or empty where the request names none or several."""
        labels = request, CAUSE.get(), self.key_class(name), ATTEMPT.get(), answer
        if (counter := self._counted.get(labels)) is None:
            counter = self._counted[labels] = self._requests.labels(*labels)
        counter.inc(times)

    def stored(self, size_bytes: int) -> None:
        """Bytes of an object were sent, and answered."""
        self._move("in", size_bytes)

    def read(self, size_bytes: int) -> None:
        """Bytes of an object came."""
        self._move("out", size_bytes)

    def key_class(self, name: str) -> KeyClass:
        key = name.removeprefix(self._root)
        return next((kind for prefix, kind in _PREFIXES if key.startswith(prefix)), "other")

    def _move(self, direction: str, size_bytes: int) -> None:
        labels = direction, CAUSE.get()
        if (counter := self._moved.get(labels)) is None:
            counter = self._moved[labels] = self._bytes.labels(*labels)
        counter.inc(size_bytes)
