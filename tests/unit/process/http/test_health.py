import pytest

from process.http.health import METADATA, METADATA_AGE_MAX_S, OBJECT_STORE, OBJECT_STORE_AGE_MAX_S, REGISTRATION, Check, Readiness
from process.http.probes import METADATA_DEADLINE_S, METADATA_IDLE_S, OBJECT_STORE_DEADLINE_S, OBJECT_STORE_IDLE_S
from runtime.telemetry import Telemetry
from storage.outcomes import Outcomes, StoreOutcomes
from tests.unit.process.http.manual_clock import ManualClock

BEGAN_MS = 1_700_000_000_000


class Judged:
    """A readiness, and the outcomes that it judges by."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        outcomes = StoreOutcomes(clock=self.clock, telemetry=Telemetry())
        self.gets = outcomes.gets
        self.written = {METADATA: outcomes.writes, OBJECT_STORE: outcomes.puts}
        self.readiness = Readiness(outcomes=outcomes, clock=self.clock)

    def ok(self, name: str) -> None:
        self.written[name].ok(self.clock.monotonic_s())

    def failed(self, written: Outcomes, cause: str) -> None:
        now_s = self.clock.monotonic_s()
        written.failed(cause, began_s=now_s, now_s=now_s)

    def check(self, name: str) -> Check:
        return self.readiness.sum_up().checks[name]


@pytest.fixture
def ready() -> Judged:
    judged = Judged()
    judged.readiness.note_listening()
    judged.ok(METADATA)
    judged.ok(OBJECT_STORE)
    return judged


def test_a_broker_is_ready_once_it_listens_and_both_stores_were_written_to() -> None:
    judged = Judged()

    first = judged.readiness.sum_up()
    judged.readiness.note_listening()
    judged.ok(METADATA)
    second = judged.readiness.sum_up()
    judged.ok(OBJECT_STORE)

    assert (first.status, second.status, judged.readiness.sum_up().status) == ("degraded", "degraded", "ready")
    assert first.checks["listeners"] == Check(False, "not listening yet", BEGAN_MS)
    assert second.checks["object_store"] == Check(False, "not tried yet", BEGAN_MS)


@pytest.mark.parametrize("name", [METADATA, OBJECT_STORE])
def test_writes_that_fail_for_five_seconds_are_named_with_cause_and_time_until_one_succeeds(ready: Judged, name: str) -> None:
    ready.clock.advance(1.0)
    ready.failed(ready.written[name], "no space left on device")
    ready.clock.advance(4.9)
    young = ready.readiness.sum_up()
    ready.clock.advance(0.1)
    old = ready.readiness.sum_up()
    ready.ok(name)

    assert young.is_ready
    assert young.checks[name] == Check(True, "no space left on device", BEGAN_MS)
    assert old.status == "degraded"
    assert old.checks[name] == Check(False, "no space left on device", BEGAN_MS + 1_000)
    assert ready.readiness.sum_up().is_ready
    assert ready.check(name) == Check(True, None, BEGAN_MS + 6_000)


def test_a_failure_among_successes_does_not_turn_a_check(ready: Judged) -> None:
    verdicts = []
    for _ in range(10):
        ready.clock.advance(3.0)
        ready.failed(ready.written[OBJECT_STORE], "500 InternalError")
        verdicts.append(ready.readiness.sum_up().is_ready)
        ready.clock.advance(3.0)
        verdicts.append(ready.readiness.sum_up().is_ready)
        ready.ok(METADATA)
        ready.ok(OBJECT_STORE)

    assert verdicts == [True] * 20
    assert ready.check(OBJECT_STORE) == Check(True, None, BEGAN_MS)


def test_a_store_that_is_lost_is_bad_at_once_and_for_good(ready: Judged) -> None:
    ready.clock.advance(1.0)

    ready.readiness.note_lost(METADATA, "the metadata file was removed")
    ready.clock.advance(1.0)
    ready.ok(METADATA)
    ready.readiness.note_lost(METADATA, "told twice")

    assert ready.readiness.sum_up().status == "degraded"
    assert ready.check(METADATA) == Check(False, "the metadata file was removed", BEGAN_MS + 1000)


def test_reads_make_nobody_ready_or_unready(ready: Judged) -> None:
    ready.failed(ready.written[OBJECT_STORE], "no space left on device")
    ready.gets.ok(ready.clock.monotonic_s())
    ready.clock.advance(5.0)
    ready.gets.ok(ready.clock.monotonic_s())
    full = ready.check(OBJECT_STORE)
    ready.ok(OBJECT_STORE)
    ready.failed(ready.gets, "403 AccessDenied")
    ready.clock.advance(10.0)

    assert not full.ok
    assert ready.check(OBJECT_STORE).ok


@pytest.mark.parametrize(("name", "age_max_s"), [(METADATA, METADATA_AGE_MAX_S), (OBJECT_STORE, OBJECT_STORE_AGE_MAX_S)])
def test_a_success_is_good_for_so_long_and_no_longer(ready: Judged, name: str, age_max_s: float) -> None:
    ready.clock.advance(age_max_s - 0.1)
    before = ready.check(name)
    ready.clock.advance(0.1)

    assert before == Check(True, None, BEGAN_MS)
    assert ready.check(name) == Check(False, f"no write succeeded for {age_max_s:.0f} s", BEGAN_MS + int(age_max_s * 1000))
    assert ready.readiness.sum_up().status == "degraded"


def test_a_store_that_is_idle_and_well_never_looks_old() -> None:
    assert METADATA_IDLE_S + METADATA_DEADLINE_S < METADATA_AGE_MAX_S
    assert OBJECT_STORE_IDLE_S + OBJECT_STORE_DEADLINE_S < OBJECT_STORE_AGE_MAX_S


def test_a_draining_broker_is_not_ready_however_well_it_is(ready: Judged) -> None:
    ready.clock.advance(1.0)

    ready.readiness.note_draining()

    assert ready.readiness.sum_up().status == "draining"
    assert ready.check("draining") == Check(False, "shutting down", BEGAN_MS + 1000)


def test_a_broker_that_lost_its_registration_is_degraded_until_it_has_one_again(ready: Judged) -> None:
    ready.readiness.note_registration(None)
    before = ready.readiness.sum_up()
    ready.clock.advance(1)
    ready.readiness.note_registration("the session was lost")
    lost_ms = ready.clock.now_ms()
    ready.clock.advance(1)
    ready.readiness.note_registration("the session was lost")
    lost = ready.readiness.sum_up()
    ready.readiness.note_registration(None)

    assert before.status == "ready"
    assert (lost.status, lost.checks[REGISTRATION]) == ("degraded", Check(False, "the session was lost", lost_ms))
    assert ready.readiness.sum_up().status == "ready"
