"""What is made of the figures of a case."""

from dataclasses import replace

from bench.results import CaseResult, Run, Work, goals_table


def result(*puts: float, goals: dict[str, float]) -> CaseResult:
    work = Work(records=1, value_bytes=2**30, requests=1, seconds=1.0, user_s=1.0, system_s=0.5, loop_s=1.0)
    return CaseResult("produce", "memory", "", {}, [Run(work, None, 1, {"puts": put, "codec": "none"}) for put in puts], goals)


def test_a_goal_is_met_by_the_median() -> None:
    found = result(10.0, 200.0, 20.0, goals={"puts": 20.0, "cpu_s_per_gib": 1.4}).against_goals()

    assert found["puts"] == {"most": 20.0, "median": 20.0, "min": 10.0, "max": 200.0, "is_met": True}
    assert not found["cpu_s_per_gib"]["is_met"]


def test_a_goal_may_be_the_least_a_figure_should_be() -> None:
    made = replace(result(10.0, 30.0, 20.0, goals={}), least={"puts": 20.0, "client_requests_per_s": 2.0})
    found = made.against_goals()

    assert found["puts"] == {"least": 20.0, "median": 20.0, "min": 10.0, "max": 30.0, "is_met": True}
    assert not found["client_requests_per_s"]["is_met"]
    assert ">= 20" in goals_table([made])


def test_a_goal_about_a_figure_nobody_measured_is_left_out() -> None:
    assert result(10.0, goals={"oxia_write_ops_per_slice": 1.3}).against_goals() == {}


def test_facts_that_are_no_numbers_have_no_median() -> None:
    assert set(result(10.0, goals={}).facts()) == {"puts"}


def test_the_table_of_goals_has_a_line_for_each() -> None:
    table = goals_table([result(10.0, goals={"puts": 20.0, "cpu_s_per_gib": 1.4}), result(10.0, goals={})])

    assert len(table.splitlines()) == 3
    assert goals_table([result(10.0, goals={})]) == ""
