"""Every request to S3 is counted where it is sent: why, whether it repeats another, and how S3 answered. S3 bills by these.

The cause is a context variable, set where a piece of work begins: tasks that the work starts inherit it. Calls of the object store are
counted elsewhere (metered.py); one call may be many requests, or none. `CountedAsS3` counts, for a disk or memory, the requests that S3
would be sent in its place: a trial shows what a load would cost there.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeVar

from prometheus_client import Counter

from runtime.telemetry import Metric, Telemetry
from storage.errors import AlreadyExists, EndsEarly, NotFound, Unavailable
from storage.limits import MIB
from storage.objects.port import MARKERS, PROBES, ObjectStat, ObjectStore, UnfinishedUpload
from storage.vocabulary import Buffer

RequestKind = Literal["put", "get", "ranged_get", "head", "list", "delete", "upload_begin", "upload_part", "upload_finish", "abort"]
RequestCause = Literal[
    "flush",
    "early",
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
_PROBE: Final[tuple[tuple[RequestKind, RequestAnswer], ...]] = (
    ("put", "2xx"),
    ("put", "4xx"),
    ("ranged_get", "2xx"),
    ("delete", "2xx"),
    ("ranged_get", "4xx"),
)

T = TypeVar("T")


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


class CountedAsS3:
    """An `ObjectStore` that adds nothing but counts. Each call is what S3 would be sent if it answered at once."""

    def __init__(self, inner: ObjectStore, meter: RequestMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        size_bytes = sum(map(len, parts))
        pieces = math.ceil(size_bytes / UPLOAD_PART_BYTES)
        if pieces > 1:
            self._meter.count("upload_begin", key, "2xx")
            self._meter.count("upload_part", key, "2xx", times=pieces)
        with self._counted("upload_finish" if pieces > 1 else "put", key):
            await self._inner.put_if_absent(key, parts)
        self._meter.stored(size_bytes)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        with self._counted("ranged_get" if start < end else "head", key):
            found = await self._inner.get_range(key, start, end)
        self._meter.read(len(found))
        return found

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        with self._counted("ranged_get" if start < end else "head", key):
            found = await self._inner.get_parts(key, start, end, part_bytes=part_bytes)
        self._meter.read(sum(map(len, found)))
        return found

    async def stat(self, key: str) -> ObjectStat:
        try:
            with self._counted("head", key):
                return await self._inner.stat(key)
        except NotFound:
            # S3 answers a HEAD alike where the bucket is gone: a GET tells the two apart.
            self._meter.count("ranged_get", key, "4xx")
            raise

    async def delete_many(self, keys: Sequence[str]) -> None:
        if len(keys) > KEYS_PER_REQUEST:
            self._meter.count("delete", "", "2xx", times=math.ceil(len(keys) / KEYS_PER_REQUEST) - 1)
        if keys:
            with self._counted("delete", ""):
                await self._inner.delete_many(keys)

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        return self._listed(self._inner.list(prefix, start_after=start_after))

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return self._listed(self._inner.unfinished_uploads(prefix, start_after=start_after))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with self._counted("abort", key):
            await self._inner.abort_upload(key, upload_id)

    async def probe(self) -> None:
        """As the inner store, and as S3's does: put, put again, read, delete, and miss it."""
        await self._inner.probe()
        for request, answer in _PROBE:
            self._meter.count(request, PROBES, answer)

    async def close(self) -> None:
        await self._inner.close()

    async def _listed(self, found: AsyncIterator[T]) -> AsyncIterator[T]:
        count = 0
        with self._counted("list", ""):
            first = await anext(found, None)
        if first is None:
            return
        yield first
        async for one in found:
            count += 1
            if not count % KEYS_PER_REQUEST:
                self._meter.count("list", "", "2xx")
            yield one

    @contextmanager
    def _counted(self, request: RequestKind, key: str) -> Iterator[None]:
        answer: RequestAnswer = "none"
        try:
            yield
            answer = "2xx"
        except (AlreadyExists, NotFound):
            answer = "4xx"
            raise
        except EndsEarly:
            answer = "2xx"  # S3 gives what there is of the range
            raise
        except Unavailable:
            answer = "5xx"
            raise
        finally:
            self._meter.count(request, key, answer)
