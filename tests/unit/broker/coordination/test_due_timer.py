"""A timer for what is due next: when it goes off, and what does not set it."""

import asyncio
from collections.abc import Iterator

import pytest

from broker.groups.group import TIMER_S_MIN, Timer
from runtime.clock import SystemClock

HOUR_S = 3_600.0
TIMEOUT_S = 25.0


class Due:
    """What a timer is for. `asked` counts how often it was asked when."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.at_s: float | None = None
        self.asked = 0
        self.went_off_s: list[float] = []
        self.timer = Timer(self._next_s, self._go_off, clock=self.clock)

    def _next_s(self) -> float | None:
        self.asked += 1
        return self.at_s

    def _go_off(self) -> None:
        self.went_off_s.append(self.clock.monotonic_s())
        self.at_s = None


@pytest.fixture
def due() -> Iterator[Due]:
    made = Due()
    yield made
    made.timer.stop()


async def went_off(due: Due) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not due.went_off_s:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_it_goes_off_when_something_is_due_and_never_before_and_is_not_set_then(due: Due) -> None:
    due.at_s = at_s = due.clock.monotonic_s() + 0.05
    due.timer.set()
    assert due.timer.is_set
    await went_off(due)

    assert due.went_off_s[0] >= at_s
    assert not due.timer.is_set


async def test_what_was_due_before_is_due_as_soon_as_may_be_and_not_within_the_call(due: Due) -> None:
    due.at_s = due.clock.monotonic_s() - HOUR_S
    began_s = due.clock.monotonic_s()
    due.timer.set()
    assert due.went_off_s == []
    await went_off(due)

    assert due.went_off_s[0] >= began_s + TIMER_S_MIN / 2


async def test_where_nothing_is_due_no_timer_is_set(due: Due) -> None:
    due.timer.set()

    assert not due.timer.is_set


async def test_what_is_put_off_costs_no_look_and_no_timer_until_the_old_one_goes_off(due: Due) -> None:
    due.at_s = due.clock.monotonic_s() + HOUR_S
    due.timer.set()
    handle, asked = due.timer._handle, due.asked
    for _ in range(100):
        due.at_s += 1.0
        due.timer.set()
    assert (due.timer._handle, due.asked) == (handle, asked)
    due.timer._look()

    assert due.went_off_s == []
    assert due.timer._handle not in (None, handle)


async def test_what_is_due_earlier_after_a_change_has_its_timer(due: Due) -> None:
    due.at_s = due.clock.monotonic_s() + HOUR_S
    due.timer.set()
    later = due.timer._handle
    due.at_s = due.clock.monotonic_s()
    due.timer.note_change()
    due.timer.set()
    await went_off(due)

    assert later is not None
    assert later.cancelled()
    assert not due.timer.is_set


async def test_a_change_that_makes_nothing_due_earlier_leaves_the_timer_as_it_is(due: Due) -> None:
    due.at_s = due.clock.monotonic_s() + HOUR_S
    due.timer.set()
    handle = due.timer._handle
    for at_s in (due.at_s + 1.0, due.at_s, None):
        due.at_s = at_s
        due.timer.note_change()
        due.timer.set()

    assert due.timer._handle is handle


async def test_one_that_was_stopped_does_not_go_off_and_stopping_again_does_nothing(due: Due) -> None:
    due.at_s = due.clock.monotonic_s()
    due.timer.set()
    due.timer.stop()
    due.timer.stop()
    await asyncio.sleep(3 * TIMER_S_MIN)

    assert (due.went_off_s, due.timer.is_set) == ([], False)
