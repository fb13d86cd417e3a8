"""Counts and times the requests to any metadata store."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, Literal, TypeVar

from prometheus_client import Counter, Histogram

from runtime.clock import Clock
from runtime.telemetry import Children, Metric, Telemetry
from storage.errors import StorageError
from storage.metadata.keys import PROBES_PREFIX
from storage.metadata.port import (
    Applied,
    Key,
    MetadataStore,
    NotApplied,
    OnChange,
    Put,
    Record,
    Session,
    Subscription,
    Unknown,
    WriteOp,
    WriteOutcome,
)
from storage.outcomes import StoreOutcomes

REQUESTS: Final = Metric(
    "forebay_metadata_requests_total",
    "Requests to the metadata store. One whose conditions failed is ok: it was carried out.",
    ("op", "outcome"),
)
REQUEST_DURATION: Final = Metric(
    "forebay_metadata_request_duration_seconds",
    "Time that requests to the metadata store took, whatever came of them; of a scan, without the time its reader took.",
    ("op",),
)
CallOutcome = Literal["ok", "not_applied", "unknown", "error"]
_OUTCOMES: Final[tuple[CallOutcome, ...]] = ("ok", "not_applied", "unknown", "error")

T = TypeVar("T")


class _Op:
    """The children of one op, bound when it is used first: all its outcomes, so that the first error is an increase."""

    __slots__ = ("_duration", "_outcomes")

    def __init__(self, requests: Counter, duration: Histogram, op: str) -> None:
        self._outcomes = {outcome: requests.labels(op, outcome) for outcome in _OUTCOMES}
        self._duration = duration.labels(op)

    def count(self, outcome: CallOutcome, seconds: float) -> None:
        self._outcomes[outcome].inc()
        self._duration.observe(seconds)


class MeteredMetadataStore:
    """Adds counting to `inner` and changes nothing else. A cancelled write counts as unknown, a cancelled read not at all."""

    def __init__(self, inner: MetadataStore, telemetry: Telemetry, clock: Clock, *, outcomes: StoreOutcomes | None = None) -> None:
        """`outcomes` hears what became of every write."""
        self._inner = inner
        self._writes = None if outcomes is None else outcomes.writes
        self._clock = clock
        requests, duration = telemetry.counter(REQUESTS), telemetry.histogram(REQUEST_DURATION)
        self._ops = Children[str, _Op](lambda op: _Op(requests, duration, op))

    def shard_of(self, partition_key: str) -> int:
        return self._inner.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        is_probe = len(ops) > 0 and isinstance(ops[0], Put) and ops[0].key.path.startswith(PROBES_PREFIX)
        began_s = self._clock.monotonic_s()
        try:
            outcome = await self._inner.write(ops)
        except BaseException as error:
            now_s = self._clock.monotonic_s()
            self._ops["write"].count("unknown", now_s - began_s)
            if self._writes is not None:
                self._writes.raised(error, began_s=began_s, now_s=now_s, is_probe=is_probe)
            raise
        now_s = self._clock.monotonic_s()
        match outcome:
            case Applied():
                self._ops["write"].count("ok", now_s - began_s)
                if self._writes is not None:
                    (self._writes.probed if is_probe else self._writes.ok)(now_s)
            case NotApplied(reason):
                self._ops["write"].count("not_applied", now_s - began_s)
                if self._writes is not None:
                    self._writes.failed(reason, began_s=began_s, now_s=now_s, is_probe=is_probe)
            case Unknown(reason):
                self._ops["write"].count("unknown", now_s - began_s)
                if self._writes is not None:
                    self._writes.failed(reason, began_s=began_s, now_s=now_s, is_probe=is_probe)
        return outcome

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return await self._count("get_many", self._inner.get_many(keys))

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        return await self._count("get_ceiling", self._inner.get_ceiling(key, within=within))

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        scan = self._inner.range_scan(start, end)
        spent_s = 0.0
        try:
            while True:
                started_s = self._clock.monotonic_s()
                record = await anext(scan, None)
                spent_s += self._clock.monotonic_s() - started_s
                if record is None:
                    break
                yield record
        except StorageError:
            self._ops["range_scan"].count("error", spent_s)
            raise
        except GeneratorExit:
            # Left early: all that was asked for was answered.
            self._ops["range_scan"].count("ok", spent_s)
            raise
        self._ops["range_scan"].count("ok", spent_s)

    async def list(self, start: Key, end: str) -> list[str]:
        return await self._count("list", self._inner.list(start, end))

    async def open_session(self, *, timeout_ms: int) -> Session:
        return await self._count("open_session", self._inner.open_session(timeout_ms=timeout_ms))

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        return self._inner.subscribe(callback, prefix=prefix)

    async def probe(self) -> None:
        await self._count("probe", self._inner.probe())

    async def close(self) -> None:
        await self._inner.close()

    async def _count(self, op: str, request: Awaitable[T]) -> T:
        started_s = self._clock.monotonic_s()
        try:
            answer = await request
        except StorageError:
            self._ops[op].count("error", self._clock.monotonic_s() - started_s)
            raise
        self._ops[op].count("ok", self._clock.monotonic_s() - started_s)
        return answer
