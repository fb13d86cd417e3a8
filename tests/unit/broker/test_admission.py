from collections.abc import Callable

import pytest

from broker.admission import ADMITTED_BYTES, CROWDED, PAUSES, ROUNDS_PER_TURN, STALLED, Admission
from broker.half_sent import BEHIND_LOOKS_MIN, FINISH_S, LOOK_S, SMALL_BYTES, WATCHED_SHARE
from runtime.frames import FRAME_OVERHEAD_BYTES, Account, Frame
from runtime.telemetry import Telemetry
from storage.limits import KIB, MIB
from tests.unit.broker.connecting import Timers, cost

LIMIT = 1 * MIB


class Loop:
    """An event loop whose turns a test takes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


class Half:
    """A connection that has sent a part of a request."""

    def __init__(self, budget: Admission, *, whole_bytes: int = LIMIT) -> None:
        self.budget = budget
        self.whole_bytes = whole_bytes
        self.arrived_bytes = 1
        self.is_starved = False
        self.evicted_for: str | None = None
        self.frame: Frame | None = None

    def begin(self, room_bytes: int) -> bool:
        before = self.frame
        frame = self.budget.begin(before if before is not None else memoryview(b"x"), room_bytes, self)
        self.frame = frame if frame is not None else before
        return frame is not None

    def wait(self, wanted_bytes: int, on_room: Callable[[], None] = lambda: None, *, room_bytes: int = 0) -> None:
        self.is_starved = True
        self.budget.when_room(wanted_bytes, self, on_room, room_bytes=room_bytes)

    def evict(self, reason: str) -> None:
        self.evicted_for = reason
        self.budget.forget(lambda: None, self)
        if self.frame is not None:
            self.frame = None
            self.budget.end(self)


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def budget(loop: Loop, timers: Timers, telemetry: Telemetry) -> Admission:
    return Admission(bytes_max=LIMIT, telemetry=telemetry, soon=loop.soon, later=timers.later)


def admitted(budget: Admission, size_bytes: int) -> Frame:
    frame = budget.admit(memoryview(bytes(size_bytes)))
    assert frame is not None
    return frame


def begun(budget: Admission, size_bytes: int, *, whole_bytes: int = LIMIT) -> Half:
    half = Half(budget, whole_bytes=whole_bytes)
    assert half.begin(size_bytes)
    return half


def test_a_frame_counts_until_the_last_view_of_it_is_gone_whoever_holds_it(budget: Admission) -> None:
    frame = admitted(budget, 1000)
    view = memoryview(frame)[10:20]
    part = view[:5].toreadonly()
    held = [budget.held_bytes]
    del frame
    held.append(budget.held_bytes)
    del view
    held.append(budget.held_bytes)
    del part
    held.append(budget.held_bytes)

    assert held == [cost(1000), cost(1000), cost(1000), 0]


def test_a_frame_that_somebody_takes_over_counts_there(budget: Admission) -> None:
    other = Account()
    frame = admitted(budget, 1000)
    frame.move_to(other)
    moved = budget.held_bytes, other.held_bytes
    del frame

    assert moved == (0, cost(1000))
    assert (budget.held_bytes, other.held_bytes) == (0, 0)


def test_up_to_three_quarters_everybody_reads_and_above_it_nobody_until_half_of_that_is_free(budget: Admission, loop: Loop) -> None:
    frames = [admitted(budget, LIMIT // 4 - FRAME_OVERHEAD_BYTES) for _ in range(3)]
    at_the_mark = budget.is_over
    frames.append(admitted(budget, LIMIT // 8 - FRAME_OVERHEAD_BYTES))
    above = budget.is_over
    frames.pop(0)
    loop.turn()
    not_yet = budget.is_over
    frames.pop(0)
    loop.turn()

    assert not at_the_mark
    assert above
    assert not_yet
    assert not budget.is_over


def test_above_the_limit_nothing_is_allocated(budget: Admission) -> None:
    frame = admitted(budget, LIMIT - 10 * KIB)

    assert budget.admit(memoryview(bytes(10 * KIB))) is None
    assert not Half(budget).begin(10 * KIB)
    assert budget.held_bytes == frame.cost_bytes


def test_a_begun_frame_that_grows_needs_room_for_the_difference_and_keeps_what_it_has(budget: Admission) -> None:
    half = begun(budget, LIMIT // 4)
    others = admitted(budget, LIMIT // 2 - FRAME_OVERHEAD_BYTES)
    is_larger = half.begin(LIMIT // 2 - 2 * FRAME_OVERHEAD_BYTES)
    assert half.frame is not None
    budget.end(half)

    assert is_larger
    assert half.frame[:1] == b"x"
    assert budget.held_bytes == half.frame.cost_bytes + others.cost_bytes


def test_who_waits_for_reading_to_go_on_is_called_once(budget: Admission, loop: Loop) -> None:
    calls: list[str] = []
    first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
    frames = [admitted(budget, LIMIT * 7 // 8)]
    budget.when_free(first)
    budget.when_free(first)
    budget.when_free(second)
    budget.forget(second, Half(budget))
    frames.clear()
    in_the_middle_of_it = list(calls)
    loop.turn()
    frames.append(admitted(budget, LIMIT * 7 // 8))
    frames.clear()
    loop.turn()

    assert in_the_middle_of_it == []
    assert calls == ["first"]


def test_who_is_called_may_use_up_the_room_and_wait_again(budget: Admission, loop: Loop) -> None:
    frames = [admitted(budget, LIMIT * 7 // 8)]
    calls: list[str] = []

    def take_all() -> None:
        calls.append("called")
        frames.append(admitted(budget, LIMIT * 7 // 8))
        budget.when_free(take_all)

    budget.when_free(take_all)
    frames.clear()
    loop.turn()

    assert calls == ["called"]
    assert budget.is_over


def test_begun_frames_get_room_in_the_order_in_which_they_asked(budget: Admission, loop: Loop) -> None:
    calls: list[str] = []
    frames = [admitted(budget, LIMIT // 4) for _ in range(3)]
    Half(budget).wait(LIMIT * 3 // 8, lambda: calls.append("large"))
    Half(budget).wait(LIMIT // 8, lambda: calls.append("small"))
    loop.turn()
    at_first = list(calls)
    frames.pop()
    loop.turn()

    assert at_first == []
    assert calls == ["large", "small"]


def test_begun_frames_that_wait_only_for_each_other_lose_the_one_that_holds_most(budget: Admission, loop: Loop) -> None:
    called: list[str] = []
    large, small = begun(budget, LIMIT * 5 // 8), begun(budget, LIMIT // 4)
    large.wait(LIMIT // 4, lambda: called.append("large"))
    small.wait(LIMIT // 4, lambda: called.append("small"))
    loop.turn()

    assert (large.evicted_for, small.evicted_for) == (CROWDED, None)
    assert called == ["small"]
    assert small.frame is not None
    assert budget.held_bytes == small.frame.cost_bytes


def test_a_frame_larger_than_the_budget_is_refused(budget: Admission, loop: Loop) -> None:
    half = Half(budget)
    half.wait(2 * LIMIT)
    loop.turn()

    assert half.evicted_for == CROWDED


def test_senders_who_stop_half_way_do_not_keep_others_from_reading_when_there_is_room_beside_them(budget: Admission, loop: Loop) -> None:
    stopped = begun(budget, LIMIT // 2)
    answered = [admitted(budget, LIMIT * 3 // 8)]
    over = budget.is_over
    answered.clear()
    loop.turn()

    assert over
    assert not budget.is_over
    assert stopped.frame is not None
    assert budget.held_bytes == stopped.frame.cost_bytes


def test_who_left_is_not_called(budget: Admission, loop: Loop) -> None:
    heard: list[object] = ["nothing"]
    half = Half(budget)
    frames = [admitted(budget, LIMIT * 7 // 8)]
    budget.when_free(heard.clear)
    half.wait(LIMIT // 4, heard.clear)
    budget.forget(heard.clear, half)
    frames.clear()
    loop.turn()

    assert heard == ["nothing"]


def test_who_stopped_half_way_stays_while_nobody_waits(budget: Admission, timers: Timers) -> None:
    stopped = begun(budget, LIMIT // 2)
    timers.go_off(1000)

    assert stopped.evicted_for is None


def test_who_stopped_half_way_goes_at_once_when_somebody_waits_who_came_later(budget: Admission, loop: Loop, timers: Timers) -> None:
    called: list[str] = []
    stopped = [begun(budget, LIMIT // 4) for _ in range(2)]
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    small = Half(budget, whole_bytes=LIMIT // 2)
    others = admitted(budget, LIMIT // 16)
    small.wait(LIMIT // 2, lambda: called.append("served"))
    loop.turn()

    assert called == ["served"]
    assert {one.evicted_for for one in stopped} == {STALLED, None}, "no more of them than are in the way"
    del others


@pytest.mark.parametrize(
    ("progress_bytes", "is_evicted"), [(1, True), (int(LIMIT * LOOK_S / FINISH_S) + 1, False)], ids=["trickle", "slow"]
)
def test_it_is_how_long_the_rest_would_take_that_counts(
    budget: Admission, loop: Loop, timers: Timers, progress_bytes: int, is_evicted: bool
) -> None:
    sender = begun(budget, LIMIT * 7 // 8)
    Half(budget).wait(LIMIT // 2)
    for _ in range(BEHIND_LOOKS_MIN + 1):
        sender.arrived_bytes += progress_bytes
        timers.go_off()
        loop.turn()

    assert (sender.evicted_for == STALLED) is is_evicted


def test_of_those_who_came_too_slowly_the_largest_goes_first(budget: Admission, loop: Loop, timers: Timers) -> None:
    small, large = begun(budget, LIMIT // 8), begun(budget, LIMIT // 2)
    Half(budget).wait(LIMIT // 2)
    timers.go_off(BEHIND_LOOKS_MIN + 1)

    assert (small.evicted_for, large.evicted_for) == (None, STALLED)


def test_who_waits_for_room_is_not_taken_for_slow(budget: Admission, loop: Loop, timers: Timers) -> None:
    waiting = begun(budget, LIMIT // 2)
    others = [admitted(budget, LIMIT // 4)]
    waiting.wait(LIMIT // 2)
    timers.go_off(10 * BEHIND_LOOKS_MIN)
    loop.turn()
    evicted_for = waiting.evicted_for
    others.clear()

    assert evicted_for is None


def test_half_sent_requests_that_keep_all_from_reading_go_and_those_beside_whole_ones_that_do_stay(
    budget: Admission, loop: Loop, timers: Timers
) -> None:
    stopped, whole = begun(budget, LIMIT // 4), [admitted(budget, LIMIT * 5 // 8)]
    over_for_whole_ones = budget.is_over
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    evicted_beside_whole_ones = stopped.evicted_for
    whole.clear()
    whole.append(admitted(budget, LIMIT // 4))
    more = begun(budget, LIMIT // 4)
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    loop.turn()

    assert over_for_whole_ones
    assert evicted_beside_whole_ones is None
    assert (stopped.evicted_for, more.evicted_for) == (STALLED, STALLED), "reading goes on below three eighths"
    assert not budget.is_over


def test_a_large_request_claims_its_length_and_waits_while_others_claim_half_without_keeping_anybody_from_reading(
    loop: Loop, timers: Timers, telemetry: Telemetry
) -> None:
    budget = Admission(bytes_max=16 * SMALL_BYTES, telemetry=telemetry, soon=loop.soon, later=timers.later)
    called: list[str] = []
    first, second = begun(budget, 2 * KIB, whole_bytes=6 * SMALL_BYTES), begun(budget, 2 * KIB, whole_bytes=6 * SMALL_BYTES)
    has_claimed = first.begin(2 * SMALL_BYTES)
    may_claim_beside_it = second.begin(2 * SMALL_BYTES)
    second.wait(2 * SMALL_BYTES, lambda: called.append("second"), room_bytes=2 * SMALL_BYTES)
    small = Half(budget)
    is_begun = small.begin(SMALL_BYTES)
    loop.turn()
    called_early = list(called)
    first.evict("its client left")
    loop.turn()

    assert has_claimed
    assert not may_claim_beside_it
    assert is_begun
    assert not budget.is_over
    assert called_early == []
    assert called == ["second"]


def test_who_claims_and_stops_goes_when_somebody_waits_for_the_claim(loop: Loop, timers: Timers, telemetry: Telemetry) -> None:
    budget = Admission(bytes_max=16 * SMALL_BYTES, telemetry=telemetry, soon=loop.soon, later=timers.later)
    called: list[str] = []
    stopped = begun(budget, 2 * SMALL_BYTES, whole_bytes=6 * SMALL_BYTES)
    second = begun(budget, 2 * KIB, whole_bytes=6 * SMALL_BYTES)
    second.wait(2 * SMALL_BYTES, lambda: called.append("second"), room_bytes=2 * SMALL_BYTES)
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    loop.turn()

    assert stopped.evicted_for == STALLED
    assert called == ["second"]


def test_those_who_wait_long_for_room_while_somebody_else_goes_on_do_not_keep_all_from_reading(
    budget: Admission, loop: Loop, timers: Timers
) -> None:
    heard: list[str] = []
    waiting = [begun(budget, LIMIT // 16 - FRAME_OVERHEAD_BYTES, whole_bytes=LIMIT // 4) for _ in range(14)]
    trickling = begun(budget, LIMIT // 16, whole_bytes=LIMIT // 16)
    for half in waiting:
        half.wait(LIMIT // 4, room_bytes=LIMIT // 4)
    budget.when_free(lambda: heard.append("reading goes on"))

    def wait_for_looks(count: int) -> None:
        for _ in range(count):
            trickling.arrived_bytes += (LIMIT // 16 - trickling.arrived_bytes) // 10
            timers.go_off()
            loop.turn()

    wait_for_looks(int(FINISH_S / LOOK_S) - 1)
    evicted_early = [half.evicted_for for half in waiting if half.evicted_for]
    wait_for_looks(BEHIND_LOOKS_MIN)

    assert evicted_early == []
    assert heard == ["reading goes on"]
    assert trickling.evicted_for is None


def test_who_waits_for_no_more_than_whole_requests_will_free_is_not_evicted(budget: Admission, loop: Loop, timers: Timers) -> None:
    called: list[str] = []
    half = begun(budget, LIMIT // 2, whole_bytes=LIMIT)
    whole = [admitted(budget, LIMIT // 16)]
    half.wait(LIMIT // 2 - FRAME_OVERHEAD_BYTES, lambda: called.append("room"))
    loop.turn()
    timers.go_off(BEHIND_LOOKS_MIN - 1)
    whole.clear()
    loop.turn()

    assert half.evicted_for is None
    assert called == ["room"]


def test_what_is_not_answered_soon_is_not_waited_for(budget: Admission, loop: Loop, timers: Timers) -> None:
    half = begun(budget, LIMIT // 2, whole_bytes=LIMIT)
    whole = [admitted(budget, LIMIT // 16)]
    half.wait(LIMIT // 2 - FRAME_OVERHEAD_BYTES)
    timers.go_off(BEHIND_LOOKS_MIN)

    assert whole
    assert half.evicted_for == CROWDED


def test_of_those_who_came_too_slowly_those_that_are_nearly_done_go_last(budget: Admission, loop: Loop, timers: Timers) -> None:
    nearly, hardly = begun(budget, LIMIT // 2, whole_bytes=LIMIT // 2), begun(budget, LIMIT // 8, whole_bytes=LIMIT // 2)
    nearly.arrived_bytes = LIMIT // 4
    timers.go_off()
    Half(budget).wait(LIMIT // 2 - 3 * FRAME_OVERHEAD_BYTES)
    for _ in range(BEHIND_LOOKS_MIN):
        for half in (nearly, hardly):
            half.arrived_bytes += 10
        timers.go_off()

    assert (nearly.evicted_for, hardly.evicted_for) == (None, STALLED)


def test_who_claimed_its_length_stays_when_those_who_did_not_make_enough_room(loop: Loop, timers: Timers, telemetry: Telemetry) -> None:
    budget = Admission(bytes_max=16 * SMALL_BYTES, telemetry=telemetry, soon=loop.soon, later=timers.later)
    called: list[str] = []
    claiming = begun(budget, 6 * SMALL_BYTES, whole_bytes=8 * SMALL_BYTES)
    small = [begun(budget, SMALL_BYTES, whole_bytes=2 * SMALL_BYTES) for _ in range(9)]
    claiming.wait(2 * SMALL_BYTES, lambda: called.append("claiming"))
    for half in small:
        half.wait(SMALL_BYTES)
    loop.turn()

    assert claiming.evicted_for is None
    assert called[:1] == ["claiming"]


def test_many_who_wait_get_room_in_turns_that_others_can_come_between(budget: Admission, loop: Loop) -> None:
    called: list[int] = []
    whole = [admitted(budget, LIMIT // 2)]
    for number in range(200):
        Half(budget).wait(LIMIT * 3 // 4, lambda number=number: called.append(number))  # type: ignore[misc]
    loop.turn()
    whole.clear()
    per_turn = []
    while loop.calls:
        before = len(called)
        loop.turn()
        per_turn.append(len(called) - before)

    assert called == list(range(200))
    assert max(per_turn) <= ROUNDS_PER_TURN


def test_no_timer_runs_for_what_holds_little_while_nobody_waits(budget: Admission, timers: Timers) -> None:
    half = begun(budget, LIMIT // WATCHED_SHARE - FRAME_OVERHEAD_BYTES)
    of_little = len(timers.calls)
    half.begin(LIMIT // 2)

    assert of_little == 0
    assert len(timers.calls) == 1


def test_a_frame_that_dies_after_the_loop_was_closed_is_counted_all_the_same(telemetry: Telemetry) -> None:
    def closed(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    budget = Admission(bytes_max=LIMIT, telemetry=telemetry, soon=closed, later=Timers().later)
    admitted(budget, LIMIT * 7 // 8)

    assert budget.held_bytes == 0


def test_what_is_held_and_how_often_all_stopped_is_measured(budget: Admission, loop: Loop, telemetry: Telemetry) -> None:
    frames = [admitted(budget, LIMIT * 7 // 8), admitted(budget, 5)]
    held = telemetry.registry.get_sample_value(ADMITTED_BYTES.name)
    frames.clear()
    loop.turn()
    admitted(budget, LIMIT * 7 // 8)

    assert held == cost(LIMIT * 7 // 8, 5)
    assert telemetry.registry.get_sample_value(PAUSES.name) == 2
