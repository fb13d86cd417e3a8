"""Events of a load: each happens once, at its moment, and ends when it has lasted."""

from typing import Any

from forebay.commands.bench.load.scenario import SENT_AHEAD_PERCENT, EventSchedule, LoadEvent, Moment


def event(do: str = "kill", *, lasts_s: float | None = None, **at: Any) -> LoadEvent:
    return LoadEvent(at=Moment(**at), do=do, target=1, lasts_s=lasts_s)


def test_an_event_is_due_once_after_its_time() -> None:
    schedule = EventSchedule([event(after_s=5.0)], records=100)

    assert schedule.due(4.9, 100) == []
    assert [one.do for one in schedule.due(5.0, 0)] == ["kill"]
    assert schedule.due(9.0, 100) == []
    assert schedule.pending == []


def test_an_event_is_due_with_its_share_of_the_records_acknowledged() -> None:
    schedule = EventSchedule([event(acked_percent=40), event("stop", acked_percent=80)], records=1_000)

    assert schedule.due(1e6, 399) == []
    assert [one.do for one in schedule.due(0.0, 400)] == ["kill"]
    assert [one.do for one in schedule.pending] == ["stop"]


def test_two_equal_events_both_happen() -> None:
    schedule = EventSchedule([event(after_s=1.0), event(after_s=1.0)], records=1)

    assert len(schedule.due(1.0, 0)) == 2


def test_an_event_that_lasts_is_over_after_its_duration_and_once() -> None:
    schedule = EventSchedule([], records=1)
    schedule.happened(event("pause", after_s=0.0, lasts_s=3.0), 10.0)
    schedule.happened(event("kill", after_s=0.0), 10.0)

    assert schedule.is_undoing
    assert schedule.over(12.9) == []
    assert [one.do for one in schedule.over(13.0)] == ["pause"]
    assert (schedule.over(99.0), schedule.is_undoing) == ([], False)


def test_producers_wait_a_share_ahead_of_the_next_event_that_counts_acknowledgements() -> None:
    schedule = EventSchedule([event(acked_percent=40), event(acked_percent=60), event(after_s=1.0)], records=1_000)

    assert schedule.until(1_000) == (40 + SENT_AHEAD_PERCENT) * 10
    schedule.due(0.0, 400)
    assert schedule.until(1_000) == (60 + SENT_AHEAD_PERCENT) * 10
    schedule.due(0.0, 600)
    assert schedule.until(1_000) == 1_000
