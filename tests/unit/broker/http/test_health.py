import asyncio

import pytest
import structlog

from broker.http.health import METADATA, OBJECT_STORE, PROBE_RETRY_S, REGISTRATION, Check, Probes, Readiness
from storage.errors import Unavailable
from tests.unit.broker.http.manual_clock import ManualClock

BEGAN_MS = 1_700_000_000_000


class Store:
    """A store that answers, refuses or hangs."""

    def __init__(self) -> None:
        self.probes = 0
        self.error: Exception | None = None
        self.hangs = False

    async def probe(self) -> None:
        self.probes += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def ready(clock: ManualClock) -> Readiness:
    readiness = Readiness(clock=clock)
    readiness.note_listening()
    readiness.note_ok(METADATA)
    readiness.note_ok(OBJECT_STORE)
    return readiness


def test_a_broker_is_ready_once_it_listens_and_both_stores_have_answered() -> None:
    clock = ManualClock()
    readiness = Readiness(clock=clock)

    first = readiness.verdict()
    readiness.note_listening()
    readiness.note_ok(METADATA)
    second = readiness.verdict()
    readiness.note_ok(OBJECT_STORE)

    assert (first.status, second.status, readiness.verdict().status) == ("degraded", "degraded", "ready")
    assert first.checks["listeners"] == Check(False, "not listening yet", BEGAN_MS)
    assert second.checks["object_store"] == Check(False, "not tried yet", BEGAN_MS)


@pytest.mark.parametrize(("name", "age_max_s"), [(METADATA, 10.0), (OBJECT_STORE, 30.0)])
def test_a_success_is_good_for_so_long_and_no_longer(name: str, age_max_s: float) -> None:
    clock = ManualClock()
    readiness = ready(clock)

    clock.advance(age_max_s - 0.1)
    before = readiness.verdict().checks[name]
    clock.advance(0.1)
    after = readiness.verdict().checks[name]

    assert before == Check(True, None, BEGAN_MS)
    assert after == Check(False, f"no success for {age_max_s:.0f} s", BEGAN_MS + int(age_max_s * 1000))
    assert readiness.verdict().status == "degraded"


def test_an_error_is_told_at_once_but_counts_only_when_the_last_success_is_old() -> None:
    clock = ManualClock()
    readiness = ready(clock)

    readiness.note_error(METADATA, "connection refused")
    young = readiness.verdict()
    clock.advance(10.0)
    old = readiness.verdict()

    assert young.is_ready
    assert young.checks[METADATA] == Check(True, "connection refused", BEGAN_MS)
    assert not old.is_ready
    assert old.checks[METADATA] == Check(False, "connection refused", BEGAN_MS + 10_000)


def test_a_recovery_is_dated_and_clears_the_error() -> None:
    clock = ManualClock()
    readiness = ready(clock)
    readiness.note_error(OBJECT_STORE, "403 AccessDenied")
    clock.advance(40.0)

    readiness.note_ok(METADATA)
    readiness.note_ok(OBJECT_STORE)
    clock.advance(5.0)
    readiness.note_ok(OBJECT_STORE)

    assert readiness.verdict().is_ready
    assert readiness.verdict().checks[OBJECT_STORE] == Check(True, None, BEGAN_MS + 40_000)


def test_a_store_that_is_lost_is_bad_at_once_and_for_good() -> None:
    clock = ManualClock()
    readiness = ready(clock)
    clock.advance(1.0)

    readiness.note_lost(METADATA, "the metadata file was removed")
    clock.advance(1.0)
    readiness.note_ok(METADATA)
    readiness.note_error(METADATA, "something else")
    readiness.note_lost(METADATA, "told twice")

    assert readiness.verdict().status == "degraded"
    assert readiness.verdict().checks[METADATA] == Check(False, "the metadata file was removed", BEGAN_MS + 1000)
    assert not readiness.is_ok(METADATA)


def test_a_draining_broker_is_not_ready_however_well_it_is() -> None:
    clock = ManualClock()
    readiness = ready(clock)
    clock.advance(1.0)

    readiness.note_draining()

    assert readiness.verdict().status == "draining"
    assert readiness.verdict().checks["draining"] == Check(False, "shutting down", BEGAN_MS + 1000)


async def test_an_idle_store_is_probed_and_a_busy_one_is_not() -> None:
    clock, metadata, objects = ManualClock(), Store(), Store()
    readiness = Readiness(clock=clock)
    probes = Probes(metadata=metadata, objects=objects, readiness=readiness)

    first_wait_s = await probes.step(METADATA)
    clock.advance(4.0)
    readiness.note_ok(METADATA)
    clock.advance(2.0)
    busy_wait_s = await probes.step(METADATA)
    clock.advance(busy_wait_s)
    await probes.step(METADATA)

    assert (first_wait_s, busy_wait_s) == (5.0, 3.0)
    assert metadata.probes == 2
    assert objects.probes == 0


async def test_a_probe_that_fails_is_repeated_soon_and_told_once() -> None:
    clock, objects = ManualClock(), Store()
    readiness = ready(clock)
    probes = Probes(metadata=Store(), objects=objects, readiness=readiness)
    objects.error = Unavailable("403 AccessDenied")
    clock.advance(30.0)

    with structlog.testing.capture_logs() as logs:
        waits = [await probes.step(OBJECT_STORE), await probes.step(OBJECT_STORE)]
        degraded = readiness.verdict().checks[OBJECT_STORE]
        objects.error = None
        waits.append(await probes.step(OBJECT_STORE))

    assert waits == [PROBE_RETRY_S, PROBE_RETRY_S, 15.0]
    assert (degraded.ok, degraded.error) == (False, "403 AccessDenied")
    assert readiness.is_ok(OBJECT_STORE)
    assert [log["event"] for log in logs] == ["probe_failed", "probe_recovered"]


async def test_a_store_that_does_not_answer_fails_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metadata = ManualClock(), Store()
    readiness = Readiness(clock=clock)
    metadata.hangs = True
    monkeypatch.setattr("broker.http.health.METADATA_AGE_MAX_S", 0.02)
    probes = Probes(metadata=metadata, objects=Store(), readiness=readiness)

    wait_s = await probes.step(METADATA)

    assert wait_s == PROBE_RETRY_S
    assert readiness.verdict().checks[METADATA].error == "no answer within 0 s"


async def test_both_stores_are_probed_until_cancelled() -> None:
    clock, metadata, objects = ManualClock(), Store(), Store()
    readiness = Readiness(clock=clock)
    readiness.note_listening()
    probes = Probes(metadata=metadata, objects=objects, readiness=readiness)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(probes.run())
        while not readiness.verdict().is_ready:  # noqa: ASYNC110 - the loop runs until both probes had their turn
            await asyncio.sleep(0)
        running.cancel()

    assert (metadata.probes, objects.probes) == (1, 1)


def test_a_broker_that_lost_its_registration_is_degraded_until_it_has_one_again() -> None:
    clock = ManualClock()
    readiness = ready(clock)
    readiness.note_registration(None)
    before = readiness.verdict()
    clock.advance(1)
    readiness.note_registration("the session was lost")
    lost_ms = clock.now_ms()
    clock.advance(1)
    readiness.note_registration("the session was lost")
    lost = readiness.verdict()
    readiness.note_registration(None)

    assert before.status == "ready"
    assert (lost.status, lost.checks[REGISTRATION]) == ("degraded", Check(False, "the session was lost", lost_ms))
    assert readiness.verdict().status == "ready"
