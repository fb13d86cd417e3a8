import weakref
from collections.abc import Callable

import pytest

from broker.addresses import Addresses
from broker.admission import (
    ADMITTED_BYTES,
    BEHIND_LOOKS_MIN,
    FAIR_SHARE,
    FINISH_S,
    LOOK_S,
    LOOKED_AT_PER_STEP,
    PATIENT_LOOKS,
    PAUSES,
    ROUNDS_PER_TURN,
    STALLED,
    WATCHED_SHARE,
    Admission,
)
from runtime.frames import FRAME_OVERHEAD_BYTES, Account, Frame
from runtime.telemetry import Telemetry
from storage.limits import KIB, MIB, REQUEST_SHARE_MAX
from tests.unit.broker.connecting import Timers, cost, occupied

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
    """A connection that sends a request of this size."""

    def __init__(self, budget: Admission, *, whole_bytes: int = LIMIT, address: Account | None = None, unanswered_bytes: int = 0) -> None:
        self.budget = budget
        self.address = address or Account(budget)
        self.whole_bytes = whole_bytes
        self.unanswered_bytes = unanswered_bytes
        self.arrived_bytes = 1
        self.is_resting = False
        self.evicted_for: str | None = None
        self.frame: Frame | None = None

    def begin(self, room_bytes: int | None = None) -> bool:
        self.frame = self.budget.begin(memoryview(b"x"), self.whole_bytes if room_bytes is None else room_bytes, self)
        return self.frame is not None

    def wait(self, on_room: Callable[[], None] = lambda: None) -> None:
        self.budget.when_room(self.whole_bytes, self, on_room)

    def wait_and_begin(self) -> None:
        self.wait(self.begin_or_fail)

    def begin_or_fail(self) -> None:
        assert self.begin()

    def finish(self) -> Frame:
        """All of it has arrived; the request that somebody holds from now on."""
        assert self.frame is not None
        frame, self.frame = self.frame, None
        self.budget.end(self)
        return frame

    def evict(self, reason: str) -> None:
        self.evicted_for = reason
        self.budget.forget(self)
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
    frame = budget.admit(memoryview(bytes(size_bytes)), Half(budget))
    assert frame is not None
    return frame


def begun(budget: Admission, size_bytes: int, *, address: Account | None = None) -> Half:
    half = Half(budget, whole_bytes=size_bytes, address=address)
    assert half.begin()
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


def addresses(budget: Admission) -> Addresses:
    return Addresses(requests=budget, replies=Account())


def test_what_an_address_holds_is_known_while_somebody_holds_it_also_when_its_connections_are_gone(budget: Admission) -> None:
    known = addresses(budget)

    def send() -> Frame | None:
        return budget.admit(memoryview(bytes(1000)), Half(budget, address=known.of("10.0.0.1")))

    frames = [send(), send()]
    held = [known.of("10.0.0.1").held_bytes, known.of("10.0.0.2").held_bytes, budget.held_bytes]
    frames.clear()

    assert held == [2 * cost(1000), 0, 2 * cost(1000)]
    assert known.of("10.0.0.1").held_bytes == 0


def test_alone_a_client_may_use_all_but_a_reserve_and_then_waits_for_itself(budget: Admission, loop: Loop) -> None:
    address = addresses(budget).of("10.0.0.1")
    requests = []
    while (half := Half(budget, whole_bytes=LIMIT // 16, address=address)).begin():
        requests.append(half.finish())
    half.wait_and_begin()
    loop.turn()
    at_first = half.frame
    requests.pop()
    loop.turn()

    assert LIMIT * REQUEST_SHARE_MAX - LIMIT // 16 <= address.held_bytes <= LIMIT
    assert at_first is None
    assert half.frame is not None


def test_the_smaller_a_request_and_the_less_its_connection_has_under_way_the_later_it_waits(budget: Admission) -> None:
    others = occupied(budget, int(LIMIT * REQUEST_SHARE_MAX))
    left_bytes = LIMIT - budget.held_bytes
    fair_bytes = left_bytes // (FAIR_SHARE + 1)

    assert Half(budget, whole_bytes=fair_bytes).begin()
    assert not Half(budget, whole_bytes=2 * fair_bytes).begin()
    assert not Half(budget, whole_bytes=fair_bytes, unanswered_bytes=fair_bytes).begin()
    assert budget.admit(memoryview(bytes(100)), Half(budget)) is not None
    assert budget.held_bytes <= LIMIT
    del others


def test_above_the_limit_nothing_is_allocated_however_many_ask(budget: Admission) -> None:
    others = [occupied(budget, LIMIT - 100 * KIB)]
    while (frame := budget.admit(memoryview(bytes(100)), Half(budget))) is not None:
        others.append(frame)

    assert len(others) > 10
    assert budget.held_bytes <= LIMIT + FRAME_OVERHEAD_BYTES


def test_what_has_begun_may_grow_to_its_length_and_that_is_set_aside_for_it(budget: Admission) -> None:
    half = Half(budget, whole_bytes=LIMIT * 5 // 8)
    assert half.begin(1 * KIB)
    held_bytes = budget.held_bytes
    beside_it = Half(budget, whole_bytes=LIMIT // 4).begin()
    assert half.frame is not None
    half.frame = budget.grow(half.frame, half.whole_bytes, half)
    grown_bytes, first = budget.held_bytes, bytes(half.frame[:1])
    half.evict("its client left")

    assert held_bytes == cost(1 * KIB), "it takes memory as it arrives"
    assert not beside_it
    assert grown_bytes == cost(LIMIT * 5 // 8)
    assert first == b"x"
    assert budget.held_bytes == 0
    assert Half(budget, whole_bytes=LIMIT // 4).begin()


def test_those_who_wait_get_room_in_the_order_in_which_they_asked(budget: Admission, loop: Loop) -> None:
    calls: list[str] = []
    frames = [occupied(budget, LIMIT // 4) for _ in range(3)]
    Half(budget, whole_bytes=LIMIT * 3 // 8).wait(lambda: calls.append("large"))
    Half(budget, whole_bytes=LIMIT // 8).wait(lambda: calls.append("small"))
    loop.turn()
    at_first = list(calls)
    frames.pop()
    loop.turn()
    with_less = list(calls)
    frames.pop()
    loop.turn()

    assert at_first == []
    assert with_less == [], "who came later does not overtake"
    assert calls == ["large", "small"]


def test_who_comes_later_does_not_take_the_room_that_the_first_waits_for(budget: Admission, loop: Loop) -> None:
    frames = [occupied(budget, LIMIT // 4) for _ in range(3)]
    first = Half(budget, whole_bytes=LIMIT // 2 - 16 * KIB)
    first.wait_and_begin()
    frames.pop()
    later = Half(budget, whole_bytes=LIMIT // 8).begin()
    frames.pop()
    loop.turn()

    assert not later
    assert first.frame is not None


def test_the_longer_the_first_waits_the_less_others_get_before_it(budget: Admission, loop: Loop, timers: Timers) -> None:
    frames = [occupied(budget, LIMIT * 3 // 4)]
    Half(budget, whole_bytes=LIMIT // 2).wait()
    small_bytes = (LIMIT - budget.held_bytes) // (FAIR_SHARE + 2)

    def begins() -> bool:
        half = Half(budget, whole_bytes=small_bytes)
        is_begun = half.begin()
        if is_begun:
            half.finish()
        return is_begun

    at_first = begins()
    timers.go_off(10)

    assert at_first
    assert not begins()
    assert budget.admit(memoryview(bytes(100)), Half(budget)) is not None
    assert frames


def test_of_two_addresses_the_one_that_holds_less_goes_first_whoever_came_first(budget: Admission, loop: Loop) -> None:
    known, order = addresses(budget), []
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    requests = [begun(budget, LIMIT // 8, address=many).finish() for _ in range(5)]
    for number in range(20):
        Half(budget, whole_bytes=LIMIT // 4, address=many).wait(lambda number=number: order.append(f"many {number}"))  # type: ignore[misc]
    loop.turn()
    lone = Half(budget, whole_bytes=LIMIT // 4, address=one)
    lone.wait(lambda: order.append("one"))
    while len(order) < 3 and requests:
        requests.pop()
        loop.turn()

    assert "one" in order[:2], "at most the one that was first in line when it came goes before it"


def test_the_largest_request_begins_though_small_ones_are_under_way_all_the_time(budget: Admission, loop: Loop, timers: Timers) -> None:
    large = Half(budget, whole_bytes=int(LIMIT * REQUEST_SHARE_MAX))
    small = [admitted(budget, KIB)]
    is_begun = large.begin()
    large.wait_and_begin()
    for _ in range(PATIENT_LOOKS):
        small.append(admitted(budget, KIB))
        del small[0]
        timers.go_off()
        loop.turn()

    assert not is_begun
    assert large.frame is not None
    assert admitted(budget, KIB), "and small ones go on"


def test_who_left_is_not_called(budget: Admission, loop: Loop) -> None:
    heard: list[object] = ["nothing"]
    half = Half(budget, whole_bytes=LIMIT // 4)
    frames = [occupied(budget, LIMIT * 7 // 8)]
    half.wait(heard.clear)
    budget.forget(half)
    frames.clear()
    loop.turn()

    assert heard == ["nothing"]
    assert not budget.is_short


def test_who_stopped_half_way_stays_while_nobody_waits(budget: Admission, timers: Timers) -> None:
    stopped = begun(budget, LIMIT // 2)
    timers.go_off(1000)

    assert stopped.evicted_for is None


def test_who_stopped_half_way_goes_at_once_when_somebody_waits_who_came_later(budget: Admission, loop: Loop, timers: Timers) -> None:
    called: list[str] = []
    stopped = [begun(budget, LIMIT // 4) for _ in range(2)]
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    Half(budget, whole_bytes=LIMIT // 3).wait(lambda: called.append("served"))
    loop.turn()

    assert called == ["served"]
    assert {one.evicted_for for one in stopped} == {STALLED, None}, "no more of them than are in the way"


def test_who_stopped_half_way_stays_when_those_who_wait_are_of_an_address_that_holds_more(
    budget: Admission, loop: Loop, timers: Timers
) -> None:
    known = addresses(budget)
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    stopped = begun(budget, LIMIT // 8, address=one)
    requests = [begun(budget, LIMIT // 2, address=many).finish()]
    Half(budget, whole_bytes=LIMIT // 2, address=many).wait()
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    loop.turn()

    assert stopped.evicted_for is None
    assert requests


def test_bytes_set_aside_count_for_the_address_that_claimed_them(budget: Admission, loop: Loop, timers: Timers) -> None:
    known, called = addresses(budget), []
    stopped = Half(budget, whole_bytes=LIMIT * 5 // 8, address=known.of("10.0.0.1"))
    assert stopped.begin(room_bytes=KIB)
    busy = known.of("10.0.0.2")
    requests = [begun(budget, 16 * KIB, address=busy).finish()]
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    Half(budget, whole_bytes=LIMIT // 4, address=busy).wait(lambda: called.append("served"))
    loop.turn()

    assert stopped.evicted_for == STALLED, "a claim of most of the budget is more than a small request"
    assert called == ["served"]
    assert requests


def test_an_address_that_claimed_much_goes_behind_one_that_holds_little(budget: Admission, loop: Loop) -> None:
    known, order = addresses(budget), []
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    claimed = Half(budget, whole_bytes=LIMIT // 2, address=many)
    assert claimed.begin(room_bytes=KIB)
    frames = [occupied(budget, LIMIT * 3 // 8)]
    requests = [begun(budget, 2 * KIB, address=one).finish()]
    Half(budget, whole_bytes=LIMIT // 16, address=many).wait(lambda: order.append("many"))
    Half(budget, whole_bytes=LIMIT // 16, address=one).wait(lambda: order.append("one"))
    frames.clear()
    loop.turn()

    assert order == ["one", "many"]
    assert requests


def test_a_small_request_that_waits_is_read_before_a_large_one_as_soon_as_it_would_not_have_to_wait(
    budget: Admission, loop: Loop, timers: Timers
) -> None:
    called: list[str] = []
    frames = [occupied(budget, LIMIT * 3 // 4), occupied(budget, LIMIT // 4 - 8 * KIB)]
    Half(budget, whole_bytes=LIMIT // 2).wait(lambda: called.append("large"))
    loop.turn()
    small = Half(budget, whole_bytes=KIB)
    is_begun = small.begin()
    small.wait(lambda: called.append("small"))
    loop.turn()
    at_first = list(called)
    frames.pop()
    timers.go_off()

    assert not is_begun
    assert at_first == []
    assert called == ["small"]
    assert frames


SERVED_LOOKS_MAX = 4 * (BEHIND_LOOKS_MIN + 2)


@pytest.mark.parametrize("sent", ["the beginning", "nearly all"])
@pytest.mark.parametrize(
    "shares", [[2 / 5], [1 / 16], [2 / 5, 1 / 16, 1 / 64, 1 / 512], [1 / 512, 1 / 64, 2 / 5]], ids=["large", "many", "mixed", "mixed too"]
)
@pytest.mark.parametrize("count", [50, 500])
def test_who_goes_on_is_served_soon_however_many_of_its_address_stop_half_way(
    budget: Admission, loop: Loop, timers: Timers, count: int, shares: list[float], sent: str
) -> None:
    address = addresses(budget).of("10.0.0.1")
    halves = [Half(budget, whole_bytes=int(LIMIT * shares[number % len(shares)]), address=address) for number in range(count)]
    for half in halves:
        half.arrived_bytes = half.whole_bytes - 1 if sent == "nearly all" else 1
        if not half.begin():
            half.wait_and_begin()
    waited_looks = []
    for _ in range(20):
        served: list[Frame] = []
        honest = Half(budget, whole_bytes=LIMIT // 256, address=address)

        def begin(honest: Half = honest, served: list[Frame] = served) -> None:
            if honest.begin():
                served.append(honest.finish())

        begin()
        looks = 0
        if not served:
            honest.wait(begin)
        while not served:
            timers.go_off()
            loop.turn()
            looks += 1
            assert looks <= SERVED_LOOKS_MAX, f"it waited behind who stopped: {waited_looks}"
        waited_looks.append(looks)
        timers.go_off()  # it sends the next one a while later


@pytest.mark.parametrize(
    ("progress_bytes", "is_evicted"), [(1, True), (int(LIMIT * LOOK_S / FINISH_S) + 1, False)], ids=["trickle", "slow"]
)
def test_it_is_how_long_the_rest_would_take_that_counts(
    budget: Admission, loop: Loop, timers: Timers, progress_bytes: int, is_evicted: bool
) -> None:
    sender = begun(budget, LIMIT * 3 // 4)
    Half(budget, whole_bytes=LIMIT // 2).wait()
    for _ in range(BEHIND_LOOKS_MIN + 1):
        sender.arrived_bytes += progress_bytes
        timers.go_off()
        loop.turn()

    assert (sender.evicted_for == STALLED) is is_evicted


def test_who_is_not_read_from_because_others_have_their_turn_is_not_taken_for_slow(budget: Admission, loop: Loop, timers: Timers) -> None:
    sender = begun(budget, LIMIT * 3 // 4)
    sender.is_resting = True
    Half(budget, whole_bytes=LIMIT // 2).wait()
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    loop.turn()

    assert sender.evicted_for is None


def test_of_those_who_came_too_slowly_the_largest_goes_first(budget: Admission, timers: Timers) -> None:
    small, large = begun(budget, LIMIT // 8), begun(budget, LIMIT // 2)
    Half(budget, whole_bytes=LIMIT // 2).wait()
    timers.go_off(BEHIND_LOOKS_MIN + 1)

    assert (small.evicted_for, large.evicted_for) == (None, STALLED)


def test_of_those_who_came_too_slowly_those_that_are_nearly_done_go_last(budget: Admission, timers: Timers) -> None:
    nearly, hardly = begun(budget, LIMIT // 4), begun(budget, LIMIT // 4)
    nearly.arrived_bytes = LIMIT // 8
    timers.go_off()
    Half(budget, whole_bytes=LIMIT // 2 - 16 * KIB).wait()
    for _ in range(BEHIND_LOOKS_MIN):
        for half in (nearly, hardly):
            half.arrived_bytes += 10
        timers.go_off()

    assert (nearly.evicted_for, hardly.evicted_for) == (None, STALLED)


def test_who_was_behind_and_has_left_is_not_kept(budget: Admission, timers: Timers) -> None:
    stopped = begun(budget, LIMIT // 2)
    timers.go_off(BEHIND_LOOKS_MIN + 1)
    stopped.finish()
    kept = weakref.ref(stopped)
    del stopped

    assert kept() is None


class Looked(Half):
    """Counts how often somebody looks at what has arrived of it."""

    def __init__(self, budget: Admission, looks: list[int]) -> None:
        self.looks = looks
        super().__init__(budget, whole_bytes=17 * KIB)

    @property
    def arrived_bytes(self) -> int:
        self.looks[-1] += 1
        return 1

    @arrived_bytes.setter
    def arrived_bytes(self, size_bytes: int) -> None:
        pass


def test_a_look_at_many_is_taken_in_turns_that_others_can_come_between(loop: Loop, timers: Timers, telemetry: Telemetry) -> None:
    budget = Admission(bytes_max=64 * MIB, telemetry=telemetry, soon=loop.soon, later=timers.later)
    looks = [0]
    halves = [Looked(budget, looks) for _ in range(4 * LOOKED_AT_PER_STEP)]
    for half in halves:
        assert half.begin(room_bytes=KIB)
    large = Half(budget, whole_bytes=60 * MIB)
    large.wait()
    for _ in range(BEHIND_LOOKS_MIN + 1):
        looks.append(0)
        timers.go_off()
        while loop.calls:
            looks.append(0)
            loop.turn()

    assert max(looks) <= 3 * LOOKED_AT_PER_STEP
    assert sum(one.evicted_for == STALLED for one in halves) > 0


def test_many_who_wait_get_room_in_turns_that_others_can_come_between(budget: Admission, loop: Loop) -> None:
    called: list[int] = []
    address = addresses(budget).of("10.0.0.1")
    whole = [occupied(budget, LIMIT // 2)]
    for number in range(200):
        Half(budget, whole_bytes=LIMIT // 2, address=address).wait(lambda number=number: called.append(number))  # type: ignore[misc]
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
    begun(budget, LIMIT // WATCHED_SHARE)
    of_little = len(timers.calls)
    begun(budget, LIMIT // 8)

    assert of_little == 0
    assert len(timers.calls) == 1


def test_a_frame_that_dies_after_the_loop_was_closed_is_counted_all_the_same(telemetry: Telemetry) -> None:
    def closed(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    budget = Admission(bytes_max=LIMIT, telemetry=telemetry, soon=closed, later=Timers().later)
    frames = [occupied(budget, LIMIT * 7 // 8)]
    Half(budget).wait()
    frames.clear()

    assert budget.held_bytes == 0


def test_what_is_held_and_how_often_requests_began_to_wait_is_measured(budget: Admission, loop: Loop, telemetry: Telemetry) -> None:
    frames = [occupied(budget, LIMIT * 7 // 8), admitted(budget, 5)]
    held = telemetry.registry.get_sample_value(ADMITTED_BYTES.name)
    for _ in range(2):
        Half(budget, whole_bytes=LIMIT // 2).wait()
    frames.clear()
    loop.turn()
    frames = [occupied(budget, LIMIT * 7 // 8)]
    Half(budget, whole_bytes=LIMIT // 2).wait()

    assert held == cost(LIMIT * 7 // 8, 5)
    assert telemetry.registry.get_sample_value(PAUSES.name) == 2
    assert frames
