from collections.abc import Callable

import pytest

from broker.admission import ADMITTED_BYTES, PAUSES, Admission
from broker.protocol.errors import ProtocolViolation
from runtime.frames import FRAME_OVERHEAD_BYTES, Account, Frame
from runtime.telemetry import Telemetry
from storage.limits import KIB, MIB
from tests.unit.broker.connecting import cost

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


@pytest.fixture
def budget(loop: Loop, telemetry: Telemetry) -> Admission:
    return Admission(bytes_max=LIMIT, telemetry=telemetry, soon=loop.soon)


def admitted(budget: Admission, size_bytes: int) -> Frame:
    frame = budget.admit(memoryview(bytes(size_bytes)))
    assert frame is not None
    return frame


def begun(budget: Admission, size_bytes: int) -> Frame:
    frame = budget.begin(memoryview(b"x"), size_bytes)
    assert frame is not None
    return frame


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
    assert budget.begin(memoryview(b"x"), 10 * KIB) is None
    assert budget.held_bytes == frame.cost_bytes


def test_a_begun_frame_that_grows_needs_room_for_the_difference_and_keeps_what_it_has(budget: Admission) -> None:
    small = begun(budget, LIMIT // 4)
    others = admitted(budget, LIMIT // 2 - FRAME_OVERHEAD_BYTES)
    larger = budget.begin(small, LIMIT // 2 - 2 * FRAME_OVERHEAD_BYTES)
    assert larger is not None
    del small
    budget.end(larger)

    assert larger[:1] == b"x"
    assert budget.held_bytes == larger.cost_bytes + others.cost_bytes


def test_who_waits_for_reading_to_go_on_is_called_once(budget: Admission, loop: Loop) -> None:
    calls: list[str] = []
    first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
    frames = [admitted(budget, LIMIT * 7 // 8)]
    budget.when_free(first)
    budget.when_free(first)
    budget.when_free(second)
    budget.forget(second, lambda _: None)
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
    budget.when_room(LIMIT * 3 // 8, lambda _: calls.append("large"))
    budget.when_room(LIMIT // 8, lambda _: calls.append("small"))
    loop.turn()
    at_first = list(calls)
    frames.pop()
    loop.turn()

    assert at_first == []
    assert calls == ["large", "small"]


def test_begun_frames_that_wait_only_for_each_other_lose_who_waited_last(budget: Admission, loop: Loop) -> None:
    heard: list[tuple[str, ProtocolViolation | None]] = []
    first, last = begun(budget, LIMIT * 5 // 8), [begun(budget, LIMIT // 4)]

    def lose(refusal: ProtocolViolation | None) -> None:
        heard.append(("last", refusal))
        budget.end(last.pop())

    budget.when_room(LIMIT // 4, lambda refusal: heard.append(("first", refusal)))
    budget.when_room(LIMIT // 4, lose)
    loop.turn()

    assert [(name, refusal is None) for name, refusal in heard] == [("last", False), ("first", True)]
    assert "no memory for another request" in str(heard[0][1])
    assert budget.held_bytes == first.cost_bytes


def test_a_frame_larger_than_the_budget_is_refused(budget: Admission, loop: Loop) -> None:
    heard: list[ProtocolViolation | None] = []
    budget.when_room(2 * LIMIT, heard.append)
    loop.turn()

    assert len(heard) == 1
    assert isinstance(heard[0], ProtocolViolation)


def test_senders_who_stop_half_way_do_not_keep_others_from_reading_when_there_is_room_beside_them(budget: Admission, loop: Loop) -> None:
    stopped = begun(budget, LIMIT // 2)
    answered = [admitted(budget, LIMIT * 3 // 8)]
    over = budget.is_over
    answered.clear()
    loop.turn()

    assert over
    assert not budget.is_over
    assert budget.held_bytes == stopped.cost_bytes


def test_who_left_is_not_called(budget: Admission, loop: Loop) -> None:
    heard: list[object] = ["nothing"]
    frames = [admitted(budget, LIMIT * 7 // 8)]
    budget.when_free(heard.clear)
    budget.when_room(LIMIT // 4, heard.append)
    budget.forget(heard.clear, heard.append)
    frames.clear()
    loop.turn()

    assert heard == ["nothing"]


def test_ending_more_than_was_begun_is_a_bug(budget: Admission) -> None:
    frame = admitted(budget, 5)

    with pytest.raises(AssertionError, match="ended more than was begun"):
        budget.end(frame)


def test_a_frame_that_dies_after_the_loop_was_closed_is_counted_all_the_same(telemetry: Telemetry) -> None:
    def closed(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    budget = Admission(bytes_max=LIMIT, telemetry=telemetry, soon=closed)
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
