"""Whether requests to the stores succeed, by kind: the source for readiness, the log and alerts.

A kind that fails gets one line when it begins, in one line every ten seconds while it goes on, and in one line when it is over.
Nothing is said per request, however failure and success take turns.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry

SAY_EVERY_S: Final = 10.0
BAD_AFTER_S: Final = 5.0
"""A kind is bad when one failed and none succeeded for so long: a request that is repeated, or one shard of many, does not make it so."""
GIVEN_UP_AFTER_S: Final = 10.0
"""A request cancelled earlier had another reason; later, the store did not answer."""

BELIEVED_AGAIN_AFTER_S: Final = 30.0
"""A probe that a real request has contradicted is believed again when no other has failed for so long."""

FAILING: Final = Metric(
    "forebay_store_failing",
    "1 while no request of this kind has succeeded since one failed: put and get of the object_store, write of the metadata store.",
    ("store", "op"),
    aggregation="max",
)

_log = structlog.get_logger("stores")


@dataclass(frozen=True, slots=True)
class Failing:
    """Report that it fails. `failed` counts since the last report."""

    is_first: bool
    failed: int
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """Report that it succeeds again. `failed` counts from the first failure on."""

    failed: int
    lasted_s: float


class Streak:
    """Failures without a success between them, and what to report of them. Plain state, without a clock of its own.

    A streak that begins within SAY_EVERY_S of the last line is reported after that time, or never if it ends by then.
    """

    __slots__ = ("_failed", "_is_told", "_told_s", "_untold", "since_s")

    def __init__(self) -> None:
        self.since_s: float | None = None
        """When it began: no success was seen since. None while all is well."""
        self._failed = self._untold = 0
        self._is_told = False
        self._told_s: float | None = None

    def failed(self, *, since_s: float, now_s: float) -> Failing | None:
        """One more. `since_s` counts if it is the first of a streak."""
        if self.since_s is None:
            self.since_s, self._failed = since_s, 0
        self._failed += 1
        self._untold += 1
        if self._told_s is not None and now_s < self._told_s + SAY_EVERY_S:
            return None
        told = Failing(not self._is_told, self._untold, now_s - self.since_s)
        self._is_told, self._told_s, self._untold = True, now_s, 0
        return told

    def ended(self, *, now_s: float) -> Recovered | None:
        """A success."""
        if self.since_s is None:
            return None
        recovered = Recovered(self._failed, now_s - self.since_s) if self._is_told else None
        self.since_s, self._is_told = None, False
        return recovered


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked of which store, and what it means to clients when it fails."""

    store: str
    op: str
    meaning: str
    fix: str


PUT: Final = Kind(
    "object_store",
    "put",
    "Produce is answered with errors that clients retry; what was acknowledged is safe",
    "mend what error names: room and permissions of storage.url, or the way to it",
)
GET: Final = Kind(
    "object_store",
    "get",
    "Fetch waits for records that are not in memory, or is answered with errors that clients retry",
    "mend what error names: the permissions of storage.url, or the way to it",
)
WRITE: Final = Kind(
    "metadata",
    "write",
    "Produce, commits of offsets and changes of topics are answered with errors that clients retry; what was acknowledged is safe",
    "mend what error names: room and permissions of metadata.url, or the way to it",
)


class Outcomes:
    """The outcomes of one kind of request. On the loop."""

    def __init__(self, kind: Kind, *, clock: Clock, telemetry: Telemetry) -> None:
        self._kind = kind
        self._clock = clock
        self._gauge = telemetry.gauge(FAILING).labels(kind.store, kind.op)
        self._streak = Streak()
        self.began_s = clock.monotonic_s()
        self.last_ok_s: float | None = None
        """When the last success was; None if there was none."""
        self.good_since_s: float | None = None
        """The first success, or the end of the last streak that was bad."""
        self.error: str | None = None
        """The error of the last failure, while no request has succeeded since."""
        self.failures = 0
        self.failed_bytes = 0
        """The largest request of this streak."""
        self._shown_s: float | None = None
        """When a probe ended a streak that no real request has succeeded since."""
        self._last_failed_s = 0.0
        self._is_contradicted = False

    @property
    def failing_since_s(self) -> float | None:
        """None unless one failed and none has succeeded since."""
        return self._streak.since_s

    @property
    def bad_since_s(self) -> float | None:
        """The same, once it has lasted for BAD_AFTER_S."""
        since_s = self._streak.since_s
        return since_s if since_s is not None and self._clock.monotonic_s() - since_s >= BAD_AFTER_S else None

    def ok(self, now_s: float) -> None:
        """One succeeded. Also one whose condition failed: the store did what it was asked."""
        self._shown_s, self._is_contradicted = None, False
        self._succeeded(now_s)

    def probed(self, now_s: float) -> None:
        """One succeeded that was made to see whether they do.

        It is believed unless real ones have failed again after the last that was: the store may refuse what is larger, of another name, or
        of another shard.
        """
        if self._streak.since_s is not None:
            if self._is_contradicted and now_s < self._last_failed_s + BELIEVED_AGAIN_AFTER_S:
                return
            self._shown_s, self._is_contradicted = now_s, False
        self._succeeded(now_s)

    def _succeeded(self, now_s: float) -> None:
        if self.last_ok_s is None:
            self.good_since_s = now_s
        self.last_ok_s = now_s
        if self._streak.since_s is not None:
            self._end(now_s)

    def raised(self, error: BaseException, *, began_s: float, now_s: float, size_bytes: int = 0, is_probe: bool = False) -> None:
        """One ended in `error`, of which nothing is kept but its words."""
        if not isinstance(error, asyncio.CancelledError):
            self.failed(str(error) or repr(error), began_s=began_s, now_s=now_s, size_bytes=size_bytes, is_probe=is_probe)
        elif now_s - began_s >= GIVEN_UP_AFTER_S and (self.last_ok_s is None or self.last_ok_s < began_s):
            # A store that tried more than once notes what it met.
            cause = "; ".join([f"no answer within {now_s - began_s:.0f} s", *getattr(error, "__notes__", ())])
            self.failed(cause, began_s=began_s, now_s=now_s, size_bytes=size_bytes, is_probe=is_probe)

    def failed(self, cause: str, *, began_s: float, now_s: float, size_bytes: int = 0, is_probe: bool = False) -> None:
        """One that was asked at `began_s` did not succeed."""
        if not is_probe:
            self._last_failed_s = now_s
            self._is_contradicted |= self._shown_s is not None and began_s >= self._shown_s
        since_s = began_s if self.last_ok_s is None else max(began_s, self.last_ok_s)
        if self._streak.since_s is None:
            self._gauge.set(1)
        self.error = cause
        self.failures += 1
        self.failed_bytes = max(self.failed_bytes, size_bytes)
        told = self._streak.failed(since_s=since_s, now_s=now_s)
        if told is None:
            return
        kind = self._kind
        if told.is_first:
            _log.warning("store_failing", store=kind.store, op=kind.op, error=cause, failed=told.failed, meaning=kind.meaning, fix=kind.fix)
        else:
            _log.error(
                "store_still_failing", store=kind.store, op=kind.op, error=cause, failed=told.failed, lasted_s=round(told.lasted_s, 1)
            )

    def _end(self, now_s: float) -> None:
        if self.bad_since_s is not None:
            self.good_since_s = now_s
        self.error, self.failed_bytes = None, 0
        self._gauge.set(0)
        told = self._streak.ended(now_s=now_s)
        if told is not None:
            _log.info("store_recovered", store=self._kind.store, op=self._kind.op, failed=told.failed, lasted_s=round(told.lasted_s, 1))


class StoreOutcomes:
    """The outcomes of the kinds that clients notice: both stores are watched by these."""

    __slots__ = ("gets", "puts", "writes")

    def __init__(self, *, clock: Clock, telemetry: Telemetry) -> None:
        self.puts = Outcomes(PUT, clock=clock, telemetry=telemetry)
        self.gets = Outcomes(GET, clock=clock, telemetry=telemetry)
        self.writes = Outcomes(WRITE, clock=clock, telemetry=telemetry)
