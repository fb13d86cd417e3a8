"""Scaling by simulation, but for its long runs: laws, walls, the table and the page; and one small cluster in virtual time."""

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.beside.page import NoPlace
from bench.scale import __main__ as scale
from bench.scale import costs, documents, memory, page, report
from bench.scale.cluster import RefusedBatch, check_appended, measure, observe, plans
from bench.scale.laws import LAWS, Fitted, LawMissed, Observed, ScaleLaw, check, fit, flow
from bench.scale.loads import ANY_BROKER, LEADERS, LOADS, ONE_LEADER, SETTINGS, ScaleLoad, Shape
from bench.scale.report import BROKERS_MIN, RESOURCES, SCHEMA, CostsReport, MeasuredCosts, Resource, ScaleReport, case_report, table
from sim.loop import VirtualLoop
from storage.errors import Unavailable
from storage.log.batch import Append
from storage.log.flush import ON_OXIA

SPARSE, MEDIUM, FULL = LOADS
COSTS = MeasuredCosts(message_cpu_s=25e-6, hint_cpu_s=1e-6, partition_bytes=5_000, writers_max=600)
SMALL = ScaleLoad("small", "a test's", 4_096, 20, broker_batches_per_s=400.0)


def shape(load: ScaleLoad = MEDIUM, leader: str = ONE_LEADER, brokers: int = 10, partitions: int = 1_000) -> Shape:
    return Shape(load, leader, brokers, partitions)


def by_brokers(factor: float, events_min: int = 1) -> ScaleLaw:
    return ScaleLaw("puts", "brokers", lambda one, _: factor * one.brokers, events_min=events_min)


def seen(brokers: int, count: float, seconds: float = 1.0) -> Observed:
    return Observed(shape(brokers=brokers), seconds, {"puts": count})


def expected(one: Shape) -> Mapping[str, float]:
    return {law.figure: law.formula(one, SETTINGS) for law in LAWS}


def test_batches_go_early_within_the_budget_and_what_exceeds_it_is_gathered() -> None:
    settings = dataclasses.replace(SETTINGS, early_bytes_per_s=ON_OXIA.bytes_per_s)
    lone = flow(shape(SPARSE, brokers=100, partitions=100_000), settings)
    both = flow(shape(FULL), settings)

    assert (lone.lone_per_s, lone.early_puts_per_s, lone.flushes_per_s) == (50.0, pytest.approx(1 / 60), 0.0)
    assert both.lone_per_s == pytest.approx(ON_OXIA.bytes_per_s / (FULL.batch_bytes + 2_048))
    assert both.flushes_per_s > 4


def test_flushes_go_by_time_or_by_bytes_and_hold_different_partitions() -> None:
    by_time, by_bytes = flow(shape(MEDIUM), SETTINGS), flow(shape(FULL), SETTINGS)

    assert by_time.flushes_per_s == 4
    assert by_bytes.flushes_per_s == pytest.approx(6)
    assert by_time.slices == pytest.approx(100 * (1 - math.exp(-2.5)))


def test_only_where_any_broker_leads_do_brokers_collide_and_read_what_others_stored() -> None:
    one, any_of = expected(shape(leader=ONE_LEADER)), expected(shape(leader=ANY_BROKER))

    assert (one["conflicts"], one["gets"], one["get_bytes"]) == (0, 0, 0)
    assert any_of["conflicts"] > 0
    assert any_of["gets"] > any_of["puts"]
    assert any_of["get_bytes"] == pytest.approx(9 * 10 * 4 * 250 * 4_096, rel=0.1)


def test_hints_grow_with_the_square_of_brokers() -> None:
    few, many = (expected(shape(brokers=brokers, partitions=100_000))["hints"] for brokers in (10, 20))

    assert many / few == pytest.approx(4, rel=0.05)


def test_a_factor_is_fitted_on_some_runs_and_checked_on_the_others() -> None:
    fitted = fit(by_brokers(1), [seen(3, 60, 10.0), seen(10, 20)], [seen(30, 66)], SETTINGS)

    assert fitted.factor == pytest.approx(2)
    assert fitted.misses == pytest.approx((-6 / 66,))
    assert fitted.per_s(shape(brokers=1_000), SETTINGS) == pytest.approx(2_000)
    check([fitted])


def test_a_law_that_misses_is_an_error_that_names_it() -> None:
    fitted = fit(by_brokers(1), [seen(3, 3), seen(10, 10)], [seen(30, 36), seen(30, 30)], SETTINGS)

    with pytest.raises(LawMissed, match="puts by 17%"):
        check([fitted])


def test_a_law_is_neither_fitted_nor_checked_by_a_few_events() -> None:
    fitted = fit(by_brokers(1, events_min=50), [seen(3, 3), seen(10, 10)], [seen(30, 90)], SETTINGS)

    assert (fitted.factor, fitted.fitted_on, fitted.miss_max) == (1.0, 0, None)
    check([fitted])


def test_what_a_law_says_never_happens_must_not_happen() -> None:
    with pytest.raises(LawMissed, match="none expected"):
        fit(by_brokers(0), [seen(3, 3)], [], SETTINGS)


def test_one_oxia_server_takes_what_was_measured_and_between_the_points_something_between() -> None:
    assert report.oxia_puts_per_s(1) == pytest.approx(7_000)
    assert report.oxia_puts_per_s(10) == pytest.approx(34_000)
    assert 34_000 < report.oxia_puts_per_s(30) < 86_000
    assert report.oxia_puts_per_s(5_000) == pytest.approx(106_500)


def test_a_large_get_costs_more_than_a_small_one_and_none_less_than_nothing() -> None:
    assert report.get_cpu_s(4 * 2**20) == pytest.approx(0.65 / 256)
    assert 0 <= report.get_cpu_s(0) < report.get_cpu_s(64 * 2**10)


def test_walls_come_in_the_order_in_which_they_are_met() -> None:
    late = Resource("late", "late", "none", lambda one, _per_s, _costs: one.brokers / 500)
    early = Resource("early", "early", "none", lambda one, _per_s, _costs: one.brokers / 50)
    never = Resource("never", "never", "none", lambda _one, _per_s, _costs: 1.0)

    found = report.walls(lambda brokers: shape(brokers=brokers), expected, COSTS, [late, never, early])

    assert [wall.resource.name for wall in found] == ["early", "late"]
    assert 50 < found[0].brokers <= 52
    assert 500 < found[1].brokers <= 511


def test_what_the_smallest_cluster_is_short_of_has_its_wall_there() -> None:
    found = report.walls(lambda brokers: shape(leader=ANY_BROKER, brokers=brokers, partitions=100_000), expected, COSTS)

    assert (found[0].resource.name, found[0].brokers) == ("memory", BROKERS_MIN)
    assert next(wall for wall in found if wall.resource.name == "writers").brokers == pytest.approx(600, rel=0.03)


def test_no_manifest_is_short_of_room_where_one_broker_leads() -> None:
    found = report.walls(lambda brokers: shape(brokers=brokers, partitions=100_000), expected, COSTS)

    assert "writers" not in [wall.resource.name for wall in found]


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_laws_are_checked_on_clusters_that_they_are_not_fitted_on(load: ScaleLoad, leader: str) -> None:
    made = plans(load, leader)
    fitting = {plan.shape for plan in made if plan.is_fit}

    assert fitting
    assert fitting.isdisjoint(plan.shape for plan in made if not plan.is_fit)
    assert len(made) > len(fitting)


def made_report() -> ScaleReport:
    costs_report = CostsReport(
        message_cpu_s=25e-6,
        hint_cpu_s=1e-6,
        placement_cpu_s={"10": 5e-6, "1000": 5e-4},
        partition_bytes=5_000,
        memory_miss=0.01,
        memory_partitions_max=30_000,
        writers_max=600,
    )
    cases = []
    for leader in LEADERS:
        shapes = {brokers: shape(leader=leader, brokers=brokers, partitions=100_000) for brokers in (10, 1_000)}
        run = Observed(shapes[10], 2.0, {figure: 2 * per_s for figure, per_s in expected(shapes[10]).items()})
        fitted = [Fitted(law, 1.0, 3, (0.02,) if law.figure != "conflicts" else ()) for law in LAWS]
        cases.append(case_report(shapes, [(run, False)], fitted, costs_report, SETTINGS))
    return ScaleReport(
        schema=SCHEMA,
        command="python -m bench.scale --docs",
        started_at="2026-11-26T10:00:00+00:00",
        commit="0123456789abcdef",
        machine={},
        settings={name: float(value) for name, value in dataclasses.asdict(SETTINGS).items()},
        partitions=100_000,
        costs=costs_report,
        cases=cases,
    )


def test_a_row_that_was_measured_is_not_called_extrapolated() -> None:
    (case, _) = made_report().cases

    assert [(row.brokers, row.is_extrapolated) for row in case.rows] == [(10, False), (1_000, True)]
    assert case.rows[0].per_s["puts"] == pytest.approx(40)
    assert case.rows[1].per_s["puts"] == pytest.approx(4_000)
    assert case.rows[0].per_gib["puts"] == pytest.approx(40 / (10 * 1_000 * 4_096 / 2**30))
    assert case.rows[0].per_1000_records["puts"] == pytest.approx(40 / (10 * 1_000 * 20) * 1_000)


def test_the_table_marks_what_is_extrapolated_and_names_the_first_walls() -> None:
    lines = table(made_report().cases).splitlines()

    assert [line.split()[2] for line in lines[1:]] == ["10", "1,000*", "10", "1,000*"]
    assert "memory at 10, " in lines[3]
    assert "oxia at " in lines[1]


def test_the_page_marks_what_is_extrapolated_and_what_was_not_checked() -> None:
    section = page.section(made_report())

    assert "| *1,000* |" not in section
    assert "| 1,000 | *4,000* |" in section
    assert "| 10 | 40 |" in section
    assert "not checked: too few events" in section
    assert "**10 brokers** or fewer" in section


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(NoPlace):
        page.renewed("no marks", made_report())
    renewed = page.renewed(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", made_report())
    assert renewed.startswith(f"before\n{page.BEGIN}\nMade on")
    assert renewed.endswith(f"{page.END}\nafter\n")
    assert "old\n" not in renewed


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = made_report()
    documents.write_report(report, tmp_path / "folder" / "scale.json")

    assert documents.read_report(tmp_path / "folder" / "scale.json") == report


def test_a_run_in_which_a_batch_is_refused_is_no_measurement() -> None:
    append = Append(None, check_appended, [None], 1)
    with pytest.raises(RefusedBatch, match="away"):
        append.settle(0, Unavailable("the store is away"))


@pytest.mark.parametrize("leader", LEADERS)
def test_a_small_cluster_counts_what_the_laws_expect(leader: str) -> None:
    one = Shape(SMALL, leader, 3, 60)
    measured = measure(one, 1.0)
    counts = measured.counts

    assert counts.puts == pytest.approx(12, abs=2)
    assert counts.commits == pytest.approx(expected(one)["commits"], rel=0.15)
    assert counts.hints == pytest.approx(3 * (counts.commits * 17 / 16), rel=0.1)
    assert (counts.gets > 0) == (leader == ANY_BROKER)
    assert counts.put_bytes == pytest.approx(3 * 400 * 4_096, rel=0.15)


def test_a_run_is_the_same_each_time() -> None:
    plan = dataclasses.replace(plans(MEDIUM, ONE_LEADER)[0], shape=Shape(SMALL, ANY_BROKER, 3, 20), seconds=0.5)

    assert observe(plan) == observe(plan)


def test_what_is_measured_beside_clusters_is_more_than_nothing() -> None:
    assert 0 < costs.hint_cpu_s(1_000) < 1e-3
    assert 0 < costs.placement_cpu_s(10, placed=20) < costs.placement_cpu_s(1_000, placed=20)
    assert costs.writers_max(3) is None
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        known = runner.run(memory.know(200))
    assert known.kept == 200
    assert known.estimated_bytes > 0


def test_numbers_are_checked_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--brokers", "0"], ["--load", "none"], ["--partitions", "-1"]):
        with pytest.raises(SystemExit):
            scale.main(wrong)
    assert "is less than 1" in capsys.readouterr().err


def test_every_resource_has_a_remedy_or_says_that_there_is_none() -> None:
    assert len({resource.name for resource in RESOURCES}) == len(RESOURCES)
    assert all(resource.remedy for resource in RESOURCES)
