import asyncio

from structlog.testing import capture_logs

from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.outcomes import (
    BAD_AFTER_S,
    GET,
    GIVEN_UP_AFTER_S,
    PUT,
    SAY_EVERY_S,
    WRITE,
    Failing,
    Outcomes,
    Recovered,
    StoreOutcomes,
    Streak,
)
from tests.unit.process.http.manual_clock import ManualClock


class Watched:
    """Requests of one kind that take no time, on a clock that a test moves."""

    def __init__(self) -> None:
        self.clock, self.telemetry = ManualClock(), Telemetry()
        self.outcomes = Outcomes(PUT, clock=self.clock, telemetry=self.telemetry)

    def ok(self, *, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        self.outcomes.ok(self.clock.monotonic_s())

    def failed(self, *, after_s: float = 0.0, took_s: float = 0.0, size_bytes: int = 0) -> None:
        self.raised(Unavailable("no space left on device"), after_s=after_s, took_s=took_s, size_bytes=size_bytes)

    def raised(self, error: BaseException, *, after_s: float = 0.0, took_s: float = 0.0, size_bytes: int = 0) -> None:
        self.clock.advance(after_s)
        now_s = self.clock.monotonic_s()
        self.outcomes.raised(error, began_s=now_s - took_s, now_s=now_s, size_bytes=size_bytes)

    @property
    def gauge(self) -> float | None:
        return self.telemetry.registry.get_sample_value("forebay_store_failing", {"store": "object_store", "op": "put"})


def test_the_first_failure_is_told_then_those_of_every_ten_seconds_then_the_end() -> None:
    streak = Streak()
    told = [streak.failed(since_s=100.0, now_s=100.0 + tenth / 10) for tenth in range(250)]
    end = streak.ended(now_s=130.0)

    assert {number: line for number, line in enumerate(told) if line is not None} == {
        0: Failing(is_first=True, failed=1, lasted_s=0.0),
        100: Failing(is_first=False, failed=100, lasted_s=10.0),
        200: Failing(is_first=False, failed=100, lasted_s=20.0),
    }
    assert end == Recovered(failed=250, lasted_s=30.0)


def test_a_success_without_a_failure_before_it_is_not_told() -> None:
    streak = Streak()
    first = streak.ended(now_s=1.0)
    streak.failed(since_s=2.0, now_s=2.0)
    streak.ended(now_s=3.0)

    assert (first, streak.ended(now_s=4.0), streak.since_s) == (None, None, None)


def test_failures_and_successes_that_take_turns_are_two_lines_in_ten_seconds() -> None:
    streak = Streak()
    told: list[Failing | Recovered | None] = []
    for tenth in range(200):
        told += [streak.failed(since_s=tenth / 10, now_s=tenth / 10), streak.ended(now_s=tenth / 10)]

    assert [line for line in told if line is not None] == [
        Failing(is_first=True, failed=1, lasted_s=0.0),
        Recovered(failed=1, lasted_s=0.0),
        # Those that were too soon after a line are told with the next one.
        Failing(is_first=True, failed=100, lasted_s=0.0),
        Recovered(failed=1, lasted_s=0.0),
    ]


def test_a_streak_that_begins_soon_after_a_line_is_told_when_it_lasts() -> None:
    streak = Streak()
    streak.failed(since_s=0.0, now_s=0.0)
    streak.ended(now_s=1.0)

    assert streak.failed(since_s=2.0, now_s=2.0) is None
    assert streak.failed(since_s=9.0, now_s=SAY_EVERY_S) == Failing(is_first=True, failed=2, lasted_s=8.0)
    assert streak.ended(now_s=11.0) == Recovered(failed=2, lasted_s=9.0)


def test_the_lines_say_which_store_fails_why_what_it_means_and_what_to_do() -> None:
    watched = Watched()
    with capture_logs() as logs:
        watched.ok()
        watched.failed()
        for _ in range(11):
            watched.failed(after_s=1.0)
        watched.ok(after_s=1.0)

    which = {"store": "object_store", "op": "put"}
    error = "no space left on device"
    assert logs == [
        {"event": "store_failing", "log_level": "warning", **which, "error": error, "failed": 1, "meaning": PUT.meaning, "fix": PUT.fix},
        {"event": "store_still_failing", "log_level": "error", **which, "error": error, "failed": 10, "lasted_s": 10.0},
        {"event": "store_recovered", "log_level": "info", **which, "failed": 12, "lasted_s": 12.0},
    ]


def test_the_gauge_is_one_from_the_first_failure_to_the_next_success() -> None:
    watched = Watched()
    seen = [watched.gauge]
    watched.failed()
    seen.append(watched.gauge)
    watched.ok()
    seen.append(watched.gauge)

    assert seen == [0.0, 1.0, 0.0]


def test_a_kind_is_bad_when_it_failed_and_nothing_succeeded_for_five_seconds() -> None:
    watched = Watched()
    watched.ok()
    watched.failed(after_s=1.0)
    since_s = watched.clock.monotonic_s()
    watched.clock.advance(BAD_AFTER_S - 0.1)
    before = watched.outcomes.bad_since_s
    watched.clock.advance(0.1)

    assert (before, watched.outcomes.bad_since_s, watched.outcomes.error) == (None, since_s, "no space left on device")
    watched.ok()
    assert (watched.outcomes.bad_since_s, watched.outcomes.error) == (None, None)
    assert watched.outcomes.good_since_s == watched.clock.monotonic_s()


def test_failures_with_successes_between_them_are_never_bad() -> None:
    watched = Watched()
    watched.ok()
    good_since_s = watched.outcomes.good_since_s
    bad = []
    for _ in range(20):
        watched.failed(after_s=2.0)
        bad.append(watched.outcomes.bad_since_s)
        watched.ok(after_s=2.0)

    assert bad == [None] * 20
    assert watched.outcomes.good_since_s == good_since_s


def test_a_request_that_failed_after_long_waiting_is_bad_at_once_unless_another_succeeded_meanwhile() -> None:
    alone, one_of_many = Watched(), Watched()
    alone.failed(after_s=30.0, took_s=20.0)
    one_of_many.ok(after_s=29.0)
    one_of_many.failed(after_s=1.0, took_s=20.0)

    assert alone.outcomes.bad_since_s == alone.clock.monotonic_s() - 20.0
    assert one_of_many.outcomes.failing_since_s == one_of_many.clock.monotonic_s() - 1.0
    assert one_of_many.outcomes.bad_since_s is None


def test_a_cancelled_request_is_no_failure_unless_the_store_had_long_to_answer_and_answered_nobody() -> None:
    soon, late, beside_others = Watched(), Watched(), Watched()
    soon.raised(asyncio.CancelledError(), took_s=GIVEN_UP_AFTER_S - 0.1)
    late.raised(asyncio.CancelledError(), took_s=15.0)
    beside_others.ok()
    beside_others.raised(asyncio.CancelledError(), after_s=5.0, took_s=15.0)

    assert [watched.outcomes.failures for watched in (soon, late, beside_others)] == [0, 1, 0]
    assert late.outcomes.error == "no answer within 15 s"


def test_what_a_store_noted_when_it_was_given_up_is_told() -> None:
    watched = Watched()
    given_up = asyncio.CancelledError()
    given_up.add_note("object not stored: tries=9 cause=connection refused")
    watched.raised(given_up, took_s=15.0)

    assert watched.outcomes.error == "no answer within 15 s; object not stored: tries=9 cause=connection refused"


def test_an_error_without_words_is_told_by_its_name() -> None:
    watched = Watched()
    watched.raised(RuntimeError())

    assert watched.outcomes.error == "RuntimeError()"


def test_the_largest_request_of_a_streak_is_known_until_one_succeeds() -> None:
    watched = Watched()
    watched.failed(size_bytes=300)
    watched.failed(size_bytes=200)
    largest = watched.outcomes.failed_bytes
    watched.ok()

    assert (largest, watched.outcomes.failed_bytes) == (300, 0)


def test_every_kind_is_a_series_before_anything_happened() -> None:
    telemetry = Telemetry()
    StoreOutcomes(clock=ManualClock(), telemetry=telemetry)

    labels = [{"store": kind.store, "op": kind.op} for kind in (PUT, GET, WRITE)]
    assert [telemetry.registry.get_sample_value("forebay_store_failing", one) for one in labels] == [0.0, 0.0, 0.0]
