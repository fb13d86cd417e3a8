"""What both proxies stand on: rules that count, and a loop in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.faults.plan import HANG_S_MAX, Fault, Plan, Rule
from tests.kit.faults.in_thread import in_thread


def struck(plan: Plan, *calls: str) -> list[int]:
    """Which of these calls meet a fault, from 1."""
    return [nth for nth, method in enumerate(calls, 1) if plan.arrived(method) is not None]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(Fault.REFUSE), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Rule(Fault.REFUSE, every=3), [3, 6, 9]),
        (Rule(Fault.REFUSE, every=3, times=2), [3, 6]),
        (Rule(Fault.REFUSE, every=3, after=1), [4, 7]),
        (Rule(Fault.REFUSE, after=4, times=2), [5, 6]),
        (Rule(Fault.REFUSE, times=0), []),
        (Rule(Fault.REFUSE, methods={"Read"}), []),
    ],
)
def test_a_rule_strikes_by_counting(rule: Rule, expected: list[int]) -> None:
    plan = Plan()
    plan.add(rule)

    assert struck(plan, *["Write"] * 9) == expected
    assert plan.counts.calls == {"Write": 9}
    assert plan.counts.struck(Fault.REFUSE) == len(expected)


@given(every=st.integers(1, 5), after=st.integers(0, 7), times=st.none() | st.integers(0, 4), calls=st.integers(0, 40))
def test_a_rule_strikes_each_nth_after_the_first_ones_and_then_no_more(every: int, after: int, times: int | None, calls: int) -> None:
    plan = Plan()
    plan.add(Rule(Fault.REFUSE, every=every, after=after, times=times))

    assert struck(plan, *["Write"] * calls) == list(range(after + every, calls + 1, every))[:times]


def test_a_rule_counts_the_calls_of_its_methods_only() -> None:
    plan = Plan()
    plan.add(Rule(Fault.REFUSE, methods={"Write"}, every=2))

    assert struck(plan, "Write", "Read", "Read", "Write", "Write", "Read", "Write") == [4, 7]


def test_a_rule_may_want_a_part_of_the_subject() -> None:
    plan = Plan()
    plan.add(Rule(Fault.REFUSE, containing="/wal/"))

    assert plan.arrived("PUT", "/bucket/segments/1") is None
    assert plan.arrived("PUT", "/bucket/wal/1") is not None


def test_of_two_rules_whose_turn_it_is_the_first_added_strikes_and_both_count() -> None:
    first, second = Rule(Fault.REFUSE, every=2), Rule(Fault.DROP_REPLY, every=3)
    plan = Plan()
    plan.add(first, second)

    assert [plan.arrived("Write") for _ in range(6)] == [None, first, second, first, None, first]
    assert plan.counts.faults == {(Fault.REFUSE, "Write"): 3, (Fault.DROP_REPLY, "Write"): 1}


def test_a_rule_that_is_added_again_counts_anew_and_one_that_is_removed_does_not_strike() -> None:
    rule = Rule(Fault.REFUSE, times=1)
    plan = Plan()
    plan.add(rule)
    before = struck(plan, "Write", "Write")
    plan.add(rule)
    after = struck(plan, "Write", "Write")
    plan.add(rule)
    plan.remove(rule)
    plan.clear()

    assert (before, after, struck(plan, "Write")) == ([1], [1], [])
    assert plan.counts.calls["Write"] == 5


def test_the_counts_are_a_copy() -> None:
    plan = Plan()
    before = plan.counts
    plan.arrived("Write")
    plan.forwarded("Write")
    plan.answered("Write")

    assert (before.calls["Write"], plan.counts.calls["Write"]) == (0, 1)
    assert (plan.counts.forwarded["Write"], plan.counts.answered["Write"]) == (1, 1)


def test_calls_from_many_threads_are_each_counted_once() -> None:
    plan = Plan()
    plan.add(Rule(Fault.REFUSE, every=4))
    found: list[int] = []

    threads = [threading.Thread(target=lambda: found.append(len(struck(plan, *["Write"] * 1_000)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(found) == 2_000 == plan.counts.struck(Fault.REFUSE)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"delay_s": HANG_S_MAX}])
def test_a_rule_that_makes_no_sense_cannot_be_made(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        Rule(Fault.DELAY, **wrong)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _opened(log: list[str], error: Exception | None = None) -> AsyncIterator[str]:
    if error is not None:
        raise error
    log.append(threading.current_thread().name)
    try:
        yield "proxy"
    finally:
        log.append(threading.current_thread().name)


def test_what_runs_in_a_thread_is_entered_called_and_left_there() -> None:
    log: list[str] = []

    async def call() -> None:
        log.append(threading.current_thread().name)

    with in_thread(_opened(log)) as (proxy, run):
        run(call())

    assert proxy == "proxy"
    assert len(log) == 3
    assert set(log) == {"fault proxy_0"}


def test_an_error_of_the_thread_is_raised_where_it_was_asked_for() -> None:
    async def fail() -> None:
        raise ValueError("as asked")

    with pytest.raises(OSError, match="no port"), in_thread(_opened([], OSError("no port"))):
        raise AssertionError("unreachable")
    with in_thread(_opened([])) as (_, run), pytest.raises(ValueError, match="as asked"):
        run(fail())


def test_a_test_that_fails_leaves_no_thread_behind() -> None:
    log: list[str] = []

    with pytest.raises(RuntimeError), in_thread(_opened(log)):
        raise RuntimeError("the test")

    assert len(log) == 2
    assert not [thread for thread in threading.enumerate() if thread.name in log]


async def test_a_loop_that_is_blocked_does_not_hold_up_the_thread() -> None:
    served = threading.Event()

    async def serve() -> None:
        await asyncio.sleep(0)
        served.set()

    with in_thread(_opened([])) as (_, run):
        run(serve())

    assert served.is_set()
