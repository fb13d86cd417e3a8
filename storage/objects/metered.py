"""Counts what goes through an object store. Put it right around the store itself, so that every attempt counts."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

from prometheus_client import Counter, Histogram

from runtime.clock import Clock
from runtime.telemetry import FEWER_SECONDS_BUCKETS, Children, Metric, Telemetry
from storage.errors import AlreadyExists, EndsEarly, NotFound, Unavailable
from storage.objects.port import MARKER, PROBES, ObjectStat, ObjectStore, UnfinishedUpload
from storage.outcomes import Outcomes, StoreOutcomes
from storage.vocabulary import Buffer

REQUESTS: Final = Metric(
    "forebay_object_store_requests_total",
    "Calls of the object store; a listing is one. outcome=unknown: it may have happened, or the caller gave up.",
    ("op", "outcome"),
)
DURATION: Final = Metric(
    "forebay_object_store_request_duration_seconds",
    "Time inside the object store per call; of a listing, without what its reader takes.",
    ("op",),
    buckets=FEWER_SECONDS_BUCKETS,
)
BYTES: Final = Metric("forebay_object_store_bytes_total", "Bytes of objects sent (put) and received (get).", ("op",))

T = TypeVar("T")
Op = Literal["put", "get", "stat", "list", "delete"]
RequestOutcome = Literal["ok", "not_found", "exists", "unavailable", "unknown"]

OUTCOMES: Final[tuple[RequestOutcome, ...]] = ("ok", "not_found", "exists", "unavailable", "unknown")

_ANSWERS: Final = (NotFound, AlreadyExists, EndsEarly)
"""Errors by which a store that is well says how things are."""


class MeteredObjectStore:
    """An `ObjectStore` that adds nothing but figures."""

    def __init__(self, inner: ObjectStore, telemetry: Telemetry, clock: Clock, *, outcomes: StoreOutcomes | None = None) -> None:
        """`outcomes` hears what became of every put and get."""
        self._inner = inner
        self._puts = None if outcomes is None else outcomes.puts
        self._gets = None if outcomes is None else outcomes.gets
        self._clock = clock
        requests, durations = telemetry.counter(REQUESTS), telemetry.histogram(DURATION)
        # All outcomes of an op exist from its first use on, so that the first error is an increase.
        self._requests = Children[Op, dict[RequestOutcome, Counter]](
            lambda op: {outcome: requests.labels(op, outcome) for outcome in OUTCOMES}
        )
        self._durations = Children[Op, Histogram](durations.labels)
        self._bytes_put = telemetry.counter(BYTES).labels("put")
        self._bytes_got = telemetry.counter(BYTES).labels("get")

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._measured("put", self._puts, parts, is_probe=key.startswith(PROBES)):
            await self._inner.put_if_absent(key, parts)
        self._bytes_put.inc(sum(map(len, parts)))

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        # The marker is read to see whose the store is: that it can be read says as little of other objects as a probe does.
        with self._measured("get", self._gets, is_probe=key.startswith((PROBES, MARKER))):
            body = await self._inner.get_range(key, start, end)
        self._bytes_got.inc(len(body))
        return body

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        with self._measured("get", self._gets, is_probe=key.startswith((PROBES, MARKER))):
            parts = await self._inner.get_parts(key, start, end, part_bytes=part_bytes)
        self._bytes_got.inc(sum(map(len, parts)))
        return parts

    async def stat(self, key: str) -> ObjectStat:
        with self._measured("stat"):
            return await self._inner.stat(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        with self._measured("delete"):
            await self._inner.delete_many(keys)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with self._measured("delete"):
            await self._inner.abort_upload(key, upload_id)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        return self._listed(self._inner.list(prefix, start_after=start_after))

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return self._listed(self._inner.unfinished_uploads(prefix, start_after=start_after))

    async def _listed(self, found: AsyncIterator[T]) -> AsyncIterator[T]:
        spent_s = 0.0
        outcome: RequestOutcome = "unknown"
        try:
            while True:
                began_s = self._clock.monotonic_s()
                try:
                    one = await anext(found, None)
                finally:
                    spent_s += self._clock.monotonic_s() - began_s
                if one is None:
                    break
                # A reader that has seen enough closes the iterator here.
                outcome = "ok"
                yield one
                outcome = "unknown"
            outcome = "ok"
        except Unavailable:
            outcome = "unavailable"
            raise
        finally:
            self._requests["list"][outcome].inc()
            self._durations["list"].observe(spent_s)

    @contextmanager
    def _measured(
        self, op: Op, outcomes: Outcomes | None = None, parts: Sequence[Buffer] = (), *, is_probe: bool = False
    ) -> Iterator[None]:
        began_s = self._clock.monotonic_s()
        try:
            yield
        except BaseException as error:
            now_s = self._clock.monotonic_s()
            self._count(op, _outcome_of(error), now_s - began_s)
            if outcomes is not None:
                if isinstance(error, _ANSWERS):
                    (outcomes.probed if is_probe else outcomes.ok)(now_s)
                else:
                    outcomes.raised(error, began_s=began_s, now_s=now_s, size_bytes=sum(map(len, parts)), is_probe=is_probe)
            raise
        now_s = self._clock.monotonic_s()
        self._count(op, "ok", now_s - began_s)
        if outcomes is not None:
            (outcomes.probed if is_probe else outcomes.ok)(now_s)

    def _count(self, op: Op, outcome: RequestOutcome, seconds: float) -> None:
        self._requests[op][outcome].inc()
        self._durations[op].observe(seconds)


def _outcome_of(error: BaseException) -> RequestOutcome:
    match error:
        case NotFound():
            return "not_found"
        case AlreadyExists():
            return "exists"
        case Unavailable():
            return "unavailable"
        case _:
            return "unknown"
