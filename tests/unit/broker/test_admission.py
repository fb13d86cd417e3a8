import pytest

from broker.admission import ADMITTED_BYTES, PAUSES, Admission
from broker.protocol.errors import ProtocolViolation
from runtime.telemetry import Telemetry

LIMIT = 1000


def admission(telemetry: Telemetry | None = None) -> Admission:
    return Admission(bytes_max=LIMIT, telemetry=telemetry or Telemetry())


def test_up_to_the_limit_everybody_reads() -> None:
    budget = admission()
    budget.take(LIMIT)

    assert not budget.is_over
    assert budget.held_bytes == LIMIT


def test_above_the_limit_everybody_stops_until_half_of_it_is_free() -> None:
    budget = admission()
    budget.take(LIMIT + 1)
    above = budget.is_over
    budget.give_back(LIMIT // 2)
    not_yet = budget.is_over
    budget.give_back(1)

    assert above
    assert not_yet
    assert not budget.is_over


def test_above_twice_the_limit_a_request_is_refused_and_not_counted() -> None:
    budget = admission()
    budget.take(2 * LIMIT)

    with pytest.raises(ProtocolViolation, match="no memory for another request: held_bytes=2000 wanted_bytes=1"):
        budget.take(1)
    assert budget.held_bytes == 2 * LIMIT


def test_a_request_larger_than_what_is_left_does_not_hinder_a_small_one() -> None:
    budget = admission()
    with pytest.raises(ProtocolViolation):
        budget.take(2 * LIMIT + 1)

    budget.take(LIMIT)
    assert not budget.is_over


def test_who_waits_is_called_once_when_there_is_room_again() -> None:
    budget = admission()
    calls: list[str] = []
    first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
    budget.take(LIMIT + 1)
    budget.when_free(first)
    budget.when_free(first)
    budget.when_free(second)
    budget.forget(second)
    budget.give_back(LIMIT + 1)
    budget.take(LIMIT + 1)
    budget.give_back(LIMIT + 1)

    assert calls == ["first"]


def test_who_is_called_may_use_up_the_room_and_wait_again() -> None:
    budget = admission()
    calls: list[str] = []

    def take_all() -> None:
        calls.append("called")
        budget.take(LIMIT + 1)
        budget.when_free(take_all)

    budget.take(LIMIT + 1)
    budget.when_free(take_all)
    budget.give_back(LIMIT + 1)

    assert calls == ["called"]
    assert budget.is_over


def test_giving_back_more_than_was_taken_is_a_bug() -> None:
    budget = admission()
    budget.take(5)

    with pytest.raises(AssertionError, match="gave back more than was taken"):
        budget.give_back(6)


def test_what_is_held_and_how_often_all_stopped_is_measured() -> None:
    telemetry = Telemetry()
    budget = admission(telemetry)
    budget.take(LIMIT + 1)
    budget.take(5)
    held = telemetry.registry.get_sample_value(ADMITTED_BYTES.name)
    budget.give_back(LIMIT + 6)
    budget.take(LIMIT + 1)

    assert held == LIMIT + 6
    assert telemetry.registry.get_sample_value(PAUSES.name) == 2
