"""Readiness: is this broker worth sending clients to, judged by whether its writes succeed.

A check of a store is good while its last write succeeded, and that was not too long ago. Real traffic counts, and so does what
process/http/probes.py writes when there is none; reads do not, since a store that is full or locked goes on answering them.
A store that is lost, and says so itself, is bad at once and for good.
"""

from dataclasses import dataclass
from typing import Final

from runtime.clock import Clock
from storage.outcomes import Outcomes, StoreOutcomes

LISTENERS: Final = "listeners"
METADATA: Final = "metadata"
OBJECT_STORE: Final = "object_store"
REGISTRATION: Final = "registration"
DRAINING: Final = "draining"

METADATA_AGE_MAX_S: Final = 20.0
OBJECT_STORE_AGE_MAX_S: Final = 60.0
"""Twice what a store may be idle before it is probed: a good one is never older."""


@dataclass(frozen=True, slots=True)
class Check:
    """`error` may stand beside ok: it failed since, but not for long enough to matter. `since_ms`: when it became so."""

    ok: bool
    error: str | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class Health:
    """`status` is `ready`, `degraded` or `draining`; only the first takes clients."""

    status: str
    checks: dict[str, Check]

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


class _Writes:
    """The writes of one store as a check."""

    def __init__(self, outcomes: Outcomes, *, age_max_s: float, clock: Clock) -> None:
        self._outcomes = outcomes
        self._age_max_s = age_max_s
        self._clock = clock
        self._lost: Check | None = None

    def note_lost(self, message: str) -> None:
        if self._lost is None:
            self._lost = Check(False, message, self._clock.now_ms())

    def check(self) -> Check:
        if self._lost is not None:
            return self._lost
        found, now_s = self._outcomes, self._clock.monotonic_s()
        if found.bad_since_s is not None:
            return Check(False, found.error, self._ms(found.bad_since_s))
        if found.last_ok_s is None or found.good_since_s is None:
            return Check(False, found.error or "not tried yet", self._ms(found.began_s))
        age_s = now_s - found.last_ok_s
        if age_s >= self._age_max_s:
            return Check(False, found.error or f"no write succeeded for {age_s:.0f} s", self._ms(found.last_ok_s + self._age_max_s))
        return Check(True, found.error, self._ms(found.good_since_s))

    def _ms(self, at_s: float) -> int:
        """When that was, by the wall's clock of now."""
        return self._clock.now_ms() - round((self._clock.monotonic_s() - at_s) * 1000)


class Readiness:
    """The checks of one broker. Cheap to ask; call it from the loop."""

    def __init__(self, *, outcomes: StoreOutcomes, clock: Clock) -> None:
        self._clock = clock
        self._stores = {
            METADATA: _Writes(outcomes.writes, age_max_s=METADATA_AGE_MAX_S, clock=clock),
            OBJECT_STORE: _Writes(outcomes.puts, age_max_s=OBJECT_STORE_AGE_MAX_S, clock=clock),
        }
        self._listeners = Check(False, "not listening yet", clock.now_ms())
        self._registration: Check | None = None
        self._draining = Check(True, None, clock.now_ms())

    def note_lost(self, name: str, message: str) -> None:
        """It is of no use any more for as long as this process lives, whatever else becomes of its requests."""
        self._stores[name].note_lost(message)

    def note_listening(self) -> None:
        """All listeners are bound."""
        self._listeners = Check(True, None, self._clock.now_ms())

    def note_registration(self, lost: str | None) -> None:
        """Whether this broker is registered: None, or why not. Unregistered it serves on, but clients learn of the others only."""
        if self._registration is None or self._registration.error != lost:
            self._registration = Check(lost is None, lost, self._clock.now_ms())

    def note_draining(self) -> None:
        """From now on, until the process ends, send clients elsewhere."""
        if self._draining.ok:
            self._draining = Check(False, "shutting down", self._clock.now_ms())

    def sum_up(self) -> Health:
        checks = {LISTENERS: self._listeners} | {name: store.check() for name, store in self._stores.items()}
        if self._registration is not None:
            checks[REGISTRATION] = self._registration
        checks[DRAINING] = self._draining
        if not self._draining.ok:
            return Health("draining", checks)
        return Health("ready" if all(check.ok for check in checks.values()) else "degraded", checks)
