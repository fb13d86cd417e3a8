"""Counts what goes through an object store. Put it right around the store itself, so that every attempt counts."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.errors import AlreadyExists, NotFound, Unavailable
from storage.objects.port import ObjectStat, ObjectStore
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
)
BYTES: Final = Metric("forebay_object_store_bytes_total", "Bytes of objects sent (put) and received (get).", ("op",))

Op = Literal["put", "get", "stat", "list", "delete"]
Outcome = Literal["ok", "not_found", "exists", "unavailable", "unknown"]

OPS: Final[tuple[Op, ...]] = ("put", "get", "stat", "list", "delete")
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "not_found", "exists", "unavailable", "unknown")


class MeteredObjectStore:
    """An `ObjectStore` that adds nothing but figures."""

    def __init__(self, inner: ObjectStore, telemetry: Telemetry, clock: Clock, *, on_ok: Callable[[], None] | None = None) -> None:
        """`on_ok` is called after every call that succeeded: what health is told by real traffic."""
        self._inner = inner
        self._on_ok = on_ok
        self._clock = clock
        requests, durations = telemetry.counter(REQUESTS), telemetry.histogram(DURATION)
        self._requests = {(op, outcome): requests.labels(op, outcome) for op in OPS for outcome in OUTCOMES}
        self._durations = {op: durations.labels(op) for op in OPS}
        self._bytes_put = telemetry.counter(BYTES).labels("put")
        self._bytes_got = telemetry.counter(BYTES).labels("get")

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._measured("put"):
            await self._inner.put_if_absent(key, parts)
        self._bytes_put.inc(sum(map(len, parts)))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._measured("get"):
            body = await self._inner.get_range(key, start, end)
        self._bytes_got.inc(len(body))
        return body

    async def stat(self, key: str) -> ObjectStat:
        with self._measured("stat"):
            return await self._inner.stat(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        with self._measured("delete"):
            await self._inner.delete_many(keys)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        found = self._inner.list(prefix, start_after=start_after)
        spent_s = 0.0
        outcome: Outcome = "unknown"
        try:
            while True:
                began_s = self._clock.monotonic_s()
                try:
                    stat = await anext(found, None)
                finally:
                    spent_s += self._clock.monotonic_s() - began_s
                if stat is None:
                    break
                # A reader that has seen enough closes the iterator here.
                outcome = "ok"
                yield stat
                outcome = "unknown"
            outcome = "ok"
        except Unavailable:
            outcome = "unavailable"
            raise
        finally:
            self._requests["list", outcome].inc()
            self._durations["list"].observe(spent_s)

    @contextmanager
    def _measured(self, op: Op) -> Iterator[None]:
        began_s = self._clock.monotonic_s()
        outcome: Outcome = "unknown"
        try:
            yield
            outcome = "ok"
        except NotFound:
            outcome = "not_found"
            raise
        except AlreadyExists:
            outcome = "exists"
            raise
        except Unavailable:
            outcome = "unavailable"
            raise
        finally:
            self._requests[op, outcome].inc()
            self._durations[op].observe(self._clock.monotonic_s() - began_s)
            if outcome == "ok" and self._on_ok is not None:
                self._on_ok()
