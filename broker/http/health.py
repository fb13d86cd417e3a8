"""Readiness: is this broker worth sending clients to, judged by what lately succeeded.

A check of a store is good while its last success is young enough. Real traffic counts as success (`note_ok`); a probe
is made only when there was none for a while, so health costs an idle object store little and a busy one nothing.
A store that is lost, and says so itself, is bad at once and for good.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import structlog

from runtime.clock import Clock
from storage.errors import StorageError

LISTENERS: Final = "listeners"
METADATA: Final = "metadata"
OBJECT_STORE: Final = "object_store"
REGISTRATION: Final = "registration"
DRAINING: Final = "draining"

METADATA_AGE_MAX_S: Final = 10.0
OBJECT_STORE_AGE_MAX_S: Final = 30.0
PROBE_RETRY_S: Final = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """`error` may stand beside ok: it failed since, but not for long enough to matter. `since_ms`: when it became so."""

    ok: bool
    error: str | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`status` is `ready`, `degraded` or `draining`; only the first takes clients."""

    status: str
    checks: dict[str, Check]

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


class _Freshness:
    """When something last succeeded, and since when that has been good or bad."""

    def __init__(self, *, age_max_s: float, clock: Clock) -> None:
        self._age_max_s = age_max_s
        self._clock = clock
        self._error: str | None = None
        self._lost: Check | None = None
        self._last_ok_s: float | None = None
        self._last_ok_ms = self._ok_since_ms = self._began_ms = clock.now_ms()

    def note_ok(self) -> None:
        now_ms = self._clock.now_ms()
        if not self.is_ok():
            self._ok_since_ms = now_ms
        self._last_ok_s, self._last_ok_ms, self._error = self._clock.monotonic_s(), now_ms, None

    def note_error(self, message: str) -> None:
        self._error = message

    def note_lost(self, message: str) -> None:
        if self._lost is None:
            self._lost = Check(False, message, self._clock.now_ms())

    def age_s(self) -> float | None:
        return None if self._last_ok_s is None else self._clock.monotonic_s() - self._last_ok_s

    def is_ok(self) -> bool:
        age_s = self.age_s()
        return self._lost is None and age_s is not None and age_s < self._age_max_s

    def check(self) -> Check:
        if self._lost is not None:
            return self._lost
        age_s = self.age_s()
        if age_s is None:
            return Check(False, self._error or "not tried yet", self._began_ms)
        if age_s < self._age_max_s:
            return Check(True, self._error, self._ok_since_ms)
        stale = f"no success for {age_s:.0f} s"
        return Check(False, self._error or stale, self._last_ok_ms + int(self._age_max_s * 1000))


class Readiness:
    """The checks of one broker. Cheap to note and to ask; call it from the loop."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._stores = {
            METADATA: _Freshness(age_max_s=METADATA_AGE_MAX_S, clock=clock),
            OBJECT_STORE: _Freshness(age_max_s=OBJECT_STORE_AGE_MAX_S, clock=clock),
        }
        self._listeners = Check(False, "not listening yet", clock.now_ms())
        self._registration: Check | None = None
        self._draining = Check(True, None, clock.now_ms())

    def note_ok(self, name: str) -> None:
        """A call of METADATA or OBJECT_STORE succeeded: a commit, a flush, a probe."""
        self._stores[name].note_ok()

    def note_error(self, name: str, message: str) -> None:
        """It failed. What succeeded a moment ago is not bad yet: only the age of the last success decides."""
        self._stores[name].note_error(message)

    def note_lost(self, name: str, message: str) -> None:
        """It is of no use any more for as long as this process lives, whatever else is noted of it."""
        self._stores[name].note_lost(message)

    def note_listening(self) -> None:
        """All listeners are bound."""
        self._listeners = Check(True, None, self._clock.now_ms())

    def note_registration(self, lost: str | None) -> None:
        """Whether this broker is registered: None, or why not. Unregistered it serves on, but clients are told of the others only."""
        if self._registration is None or self._registration.error != lost:
            self._registration = Check(lost is None, lost, self._clock.now_ms())

    def note_draining(self) -> None:
        """From now on, until the process ends, send clients elsewhere."""
        self._draining = Check(False, "shutting down", self._clock.now_ms())

    def age_s(self, name: str) -> float | None:
        """Seconds since the last success; None if there was none."""
        return self._stores[name].age_s()

    def is_ok(self, name: str) -> bool:
        return self._stores[name].is_ok()

    def verdict(self) -> Verdict:
        checks = {LISTENERS: self._listeners} | {name: store.check() for name, store in self._stores.items()}
        if self._registration is not None:
            checks[REGISTRATION] = self._registration
        checks[DRAINING] = self._draining
        if not self._draining.ok:
            return Verdict("draining", checks)
        return Verdict("ready" if all(check.ok for check in checks.values()) else "degraded", checks)


class Probed(Protocol):
    """A metadata or object store, as far as health is concerned."""

    async def probe(self) -> None:
        """Raise a `StorageError` with cause and fix in the message."""
        ...


@dataclass(frozen=True, slots=True)
class _Probe:
    name: str
    store: Probed
    idle_s: float
    deadline_s: float


class Probes:
    """Keeps the checks of both stores fed: one probe each when there was no success for half the time allowed."""

    def __init__(self, *, metadata: Probed, objects: Probed, readiness: Readiness) -> None:
        self._readiness = readiness
        self._probes = (
            _Probe(METADATA, metadata, idle_s=METADATA_AGE_MAX_S / 2, deadline_s=METADATA_AGE_MAX_S / 2),
            _Probe(OBJECT_STORE, objects, idle_s=OBJECT_STORE_AGE_MAX_S / 2, deadline_s=OBJECT_STORE_AGE_MAX_S / 2),
        )
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as loops:
            for probe in self._probes:
                loops.create_task(self._repeat(probe), name=f"probe {probe.name}")

    async def step(self, name: str) -> float:
        """Probe if it is due. Return the seconds until it may be due again."""
        return await self._step(next(probe for probe in self._probes if probe.name == name))

    async def _repeat(self, probe: _Probe) -> NoReturn:
        # A timer is meant: there is no event to wait for, stores do not tell that they stopped working.
        while True:  # noqa: ASYNC110
            await asyncio.sleep(await self._step(probe))

    async def _step(self, probe: _Probe) -> float:
        age_s = self._readiness.age_s(probe.name)
        if age_s is not None and age_s < probe.idle_s:
            return probe.idle_s - age_s
        try:
            async with asyncio.timeout(probe.deadline_s):
                await probe.store.probe()
        except TimeoutError:
            self._note_failure(probe.name, f"no answer within {probe.deadline_s:.0f} s")
            return PROBE_RETRY_S
        except StorageError as error:
            self._note_failure(probe.name, str(error))
            return PROBE_RETRY_S
        self._readiness.note_ok(probe.name)
        if probe.name in self._failing:
            self._failing.discard(probe.name)
            _log.info("probe_recovered", check=probe.name)
        return probe.idle_s

    def _note_failure(self, name: str, message: str) -> None:
        self._readiness.note_error(name, message)
        if name not in self._failing:
            self._failing.add(name)
            _log.warning("probe_failed", check=name, error=message)
