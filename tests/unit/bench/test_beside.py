"""The comparison with Apache Kafka, but for its processes: turns, arguments, ratios, prices, the page, and what a failure leaves."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import results
from bench.beside import __main__ as beside
from bench.beside import page, report, running
from bench.beside.chart_data import chart_data
from bench.beside.loads import (
    FILES,
    FILES_2,
    LOADS,
    OURS,
    S3,
    TARGETS,
    WORKERS,
    BesideLoad,
    LoadKind,
    filling_words,
    like,
    load_words,
    warm_up_times,
)
from bench.beside.report import BesideReport, FailureReport, RunReport, figures, load_report, number, table
from bench.beside.running import BesidePlan, MeasuredRuns, run_loads, turns
from bench.processes import KAFKA, NotReady
from forebay.cli import application

BY_NAME = {load.name: load for load in LOADS}
PRODUCE, CONSUME, REQUESTS, E2E = (BY_NAME[name] for name in ("produce-1kib", "consume-1kib", "requests", "e2e"))
LATENCIES = [load for load in LOADS if load.kind is LoadKind.LATENCY]
GIB = 2**30


def raw(*, records: int = 1000, size_bytes: int = 1024, per_s: float = 100.0, warm_up: int = 0) -> dict[str, Any]:
    """As `forebay bench --json` writes it, as far as it is looked at."""
    return {
        "settings": {"warm_up": warm_up},
        "records": records,
        "bytes": records * size_bytes,
        "records_per_s": per_s,
        "mb_per_s": per_s / 10,
        "latency_ms": {"p50": 1000 / per_s, "p95": 0.0, "p99": 2000 / per_s, "max": 0.0},
    }


def run(round_index: int, per_s: float, *, cpu_s: float = 1.0, dollars: float | None = None) -> RunReport:
    return RunReport(round=round_index, cpu_s=cpu_s, dollars=dollars, raw=raw(per_s=per_s))


def made_report(**targets: list[float]) -> BesideReport:
    """Every load with these rates by target and round; `_` in a name means `-`."""
    runs = {
        name.replace("_", "-"): [run(index, per_s, dollars=0.001 if name.startswith("s3") else None) for index, per_s in enumerate(rates)]
        for name, rates in targets.items()
    }
    return BesideReport(
        schema=1,
        command="python -m bench.beside",
        started_at="2026-11-26T10:00:00+00:00",
        commit="0123456789abcdef",
        machine={"cpu_count": 2, "cpu_model": "A Processor", "load_average_1m": 0.5},
        servers={"kafka": "4.3.1", "versitygw": "1.8.0", "oxia": "0.14.0"},
        scale=1.0,
        repeats=3,
        failure=None,
        loads=[load_report(load, runs, 1.0) for load in LOADS],
    )


def test_every_target_has_one_turn_in_each_round() -> None:
    for count in range(5):
        for round_index in range(9):
            assert sorted(turns(OURS[:count], round_index)) == sorted(OURS[:count])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_target_always_comes_after_the_same(count: int) -> None:
    rounds = [[KAFKA, *turns(OURS[:count], index)] for index in range(max(3, count))]

    for name in OURS[:count]:
        assert len({order[order.index(name) - 1] for order in rounds}) > 1


def test_three_rounds_of_four_have_no_pair_twice() -> None:
    pairs = [pair for index in range(3) for order in [turns(OURS, index)] for pair in itertools.pairwise(order)]

    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_every_target_has_an_amount_of_every_load(load: BesideLoad) -> None:
    assert set(load.amounts) == set(TARGETS)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_words_of_a_load_are_those_of_forebay_bench(load: BesideLoad) -> None:
    import typer

    command: Any = typer.main.get_command(application)
    word, *options = load_words(load, S3, 0.3)
    known = {name for parameter in command.commands["bench"].commands[word].params for name in parameter.opts}

    assert {option for option in options if option.startswith("-")} <= known


def test_scale_multiplies_records_and_seconds() -> None:
    assert load_words(PRODUCE, KAFKA, 0.5) == ["produce", "--record-bytes", "1024", "--records", "500000"]
    assert load_words(REQUESTS, S3, 0.0001) == ["requests", "--records", "1"]
    assert load_words(E2E, FILES, 0.3) == ["e2e", "--rate", "200", "--seconds", "3"]
    assert load_words(E2E, FILES, 0.001)[-1] == "0.5"


@pytest.mark.parametrize("name", WORKERS)
def test_several_workers_are_given_what_one_broker_over_the_same_stores_is_given(name: str) -> None:
    assert like(name) in (FILES, S3)
    assert [load_words(load, name, 0.3) for load in LOADS] == [load_words(load, like(name), 0.3) for load in LOADS]


def test_what_several_workers_did_is_in_the_table_and_not_on_the_page() -> None:
    made = made_report(kafka=[100.0], files=[90.0], files_2=[150.0])

    assert [target.name for target in made.loads[0].targets] == [KAFKA, FILES, FILES_2]
    assert FILES_2 in table(made.loads)
    assert FILES_2 not in page.section(made)


def test_conflicts_are_counted_per_gib_or_per_thousand_requests() -> None:
    conflicting = RunReport(round=0, cpu_s=1.0, dollars=None, raw=raw(records=2**20), conflicts=7)

    assert figures(PRODUCE.kind, conflicting)["conflicts_per_gib"] == pytest.approx(7)
    assert figures(REQUESTS.kind, conflicting)["conflicts_per_1000"] == pytest.approx(7_000 / 2**20)
    assert "conflicts_per_gib" not in figures(PRODUCE.kind, run(0, 1.0))


def test_the_page_says_how_much_memory_a_broker_had_at_most() -> None:
    def peaks(*peaks_mib: float) -> list[RunReport]:
        return [
            RunReport(round=index, cpu_s=1.0, dollars=None, raw=raw(), peak_rss_mib=peak_mib) for index, peak_mib in enumerate(peaks_mib)
        ]

    loads = [load_report(PRODUCE, {KAFKA: [run(0, 1.0)], FILES: peaks(90.0, 110.0)}, 1.0), load_report(E2E, {FILES: peaks(170.4)}, 1.0)]
    made = msgspec.structs.replace(made_report(), loads=loads)

    assert "| peak memory through all of it, MiB | – | 170 | – |" in page.section(made)


def test_kafka_is_warmed_with_more_than_is_measured() -> None:
    assert [warm_up_times(name) for name in TARGETS] == [2, 0.2, 0.2, 0.2, 0.2]


def test_what_is_read_is_written_before_with_a_tenth_more() -> None:
    words = filling_words(CONSUME, FILES, 0.1)

    assert words[words.index("--records") + 1] == "110000"
    assert load_words(CONSUME, FILES, 0.1)[-1] == "100000"


def test_cpu_and_dollars_are_counted_per_gib_with_the_warm_up_of_the_client() -> None:
    found = figures(PRODUCE.kind, RunReport(round=0, cpu_s=3.0, dollars=0.002, raw=raw(records=2**20, warm_up=2**19)))

    assert found["cpu_s_per_gib"] == pytest.approx(2.0)
    assert found["dollars_per_gib"] == pytest.approx(0.002 / 1.5)


def test_cpu_is_counted_per_thousand_requests_where_records_are_small() -> None:
    found = figures(REQUESTS.kind, RunReport(round=0, cpu_s=3.0, dollars=None, raw=raw(records=1000, warm_up=500)))

    assert found["cpu_s_per_1000"] == pytest.approx(2.0)
    assert "dollars_per_gib" not in found


def test_a_ratio_is_that_of_one_round() -> None:
    found = load_report(PRODUCE, {KAFKA: [run(0, 100.0), run(1, 10.0)], FILES: [run(0, 200.0), run(1, 5.0)]}, 1.0)
    files = found.target(FILES)

    assert files is not None
    assert (files.summary["times_kafka"].min, files.summary["times_kafka"].max) == (0.5, 2.0)
    assert (files.summary["mb_per_s"].min, files.summary["mb_per_s"].max) == (0.5, 20.0)


def test_a_latency_has_no_ratio() -> None:
    found = load_report(E2E, {KAFKA: [run(0, 100.0)], FILES: [run(0, 200.0)]}, 1.0)

    assert [set(target.summary) for target in found.targets] == 2 * [{"p50_ms", "p99_ms", "cpu_s_per_1000"}]


def test_requests_are_priced_by_what_they_do_whether_they_failed_or_not() -> None:
    series = "forebay_object_store_requests_total"
    asked = results.requests({f"{series}{{op=put,outcome=ok}}": 900.0, f"{series}{{op=put,outcome=failed}}": 100.0, "other": 5.0})

    assert asked == {"put": 1000.0, "list": 0, "get": 0, "stat": 0, "delete": 0}
    assert results.dollars(asked) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"),
        (99.94, "99.9"),
        (99.99, "100"),
        (0.999, "1.0"),
        (1.234, "1.23"),
        (0.1234, "0.12"),
        (0.00721, "0.0072"),
        (0.0, "0"),
    ],
)
def test_a_number_has_as_many_digits_as_say_something(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_has_a_line_for_each_figure_of_each_target() -> None:
    lines = table(made_report(kafka=[100.0], files=[120.0]).loads).splitlines()

    assert len(lines) == 1 + 2 * (len(LOADS) + len(LATENCIES))
    assert any(line.startswith("requests") and "120 requests/s" in line and "1.20" in line for line in lines)


def test_the_section_has_a_ratio_beside_each_rate_and_a_dash_where_nothing_was_measured() -> None:
    section = page.section(made_report(kafka=[100.0, 110.0, 90.0], files=[200.0, 220.0, 180.0], s3_100ms=[10.0, 11.0, 9.9]))
    line = next(line for line in section.splitlines() if line.startswith("| a 100 B record"))

    assert line.split(" | ")[1:] == [
        "100 (90.0–110)",
        "200 (180–220)<br>**2.00×**",
        "–",
        "–",
        "10.0 (9.90–11.0)<br>**0.10×** (0.10–0.11) |",
    ]
    assert "Measured on 2026-11-26 by `python -m bench.beside` at commit 01234567" in section
    assert "(beside-kafka.svg)" in section


def test_the_section_says_what_a_gib_costs_on_s3_alone() -> None:
    section = page.section(made_report(kafka=[100.0], files=[100.0], s3=[100.0]))
    line = next(line for line in section.splitlines() if line.startswith("| write 1 KiB records, $/GiB"))

    assert line == f"| write 1 KiB records, $/GiB | – | – | {0.001 * GIB / 1_024_000:.5f} | – | – |"


def test_what_is_outside_the_marks_stays() -> None:
    text = f"# Page\n{page.BEGIN}\nold\n{page.END}\nmore\n"
    fresh = page.renewed(text, made_report(kafka=[1.0]))

    assert fresh.startswith(f"# Page\n{page.BEGIN}\nMeasured on")
    assert fresh.endswith(f"\n{page.END}\nmore\n")
    assert page.renewed(fresh, made_report(kafka=[1.0])) == fresh


@pytest.mark.parametrize("text", ["", page.BEGIN, f"{page.END}\n{page.BEGIN}\n", f"{page.BEGIN}\n{page.END}\n{page.BEGIN}\n{page.END}\n"])
def test_a_page_without_its_two_marks_is_refused(text: str) -> None:
    with pytest.raises(page.NoPlace):
        page.renewed(text, made_report(kafka=[1.0]))


def test_the_chart_has_bars_of_rates_and_lines_of_latencies() -> None:
    found = chart_data(made_report(kafka=[100.0], files=[150.0], s3=[10.0]))

    assert [[bar.target for bar in group.bars] for group in found.groups] == [["files", "S3"]] * (len(LOADS) - len(LATENCIES))
    assert [(line.target, line.p50_ms.median) for line in found.lines] == [("Kafka", 10.0), ("files", 6.666667), ("S3", 100.0)]


class Bench:
    """Targets that are open or not, and loads that go well until one does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: set[str] = set()
        self.warmed: list[str] = []
        self.refuses: dict[str, BaseException] = {}
        self.fails: dict[tuple[str, int], BaseException] = {}
        monkeypatch.setattr(running, "opened", self._opened)
        monkeypatch.setattr(running, "warm", lambda load, target, scale: self.warmed.append(target))
        monkeypatch.setattr(running, "measure", self._measure)

    def run(self, tmp_path: Path) -> tuple[FailureReport | None, MeasuredRuns]:
        plan = BesidePlan(loads=[REQUESTS], targets=[FILES, S3], scale=1.0, repeats=2, folder=tmp_path)
        measured = MeasuredRuns(plan)
        return run_loads(plan, measured), measured

    @contextlib.contextmanager
    def _opened(self, name: str, _folder: Path) -> Iterator[Any]:
        if name in self.refuses:
            raise self.refuses[name]
        self.open.add(name)
        try:
            yield Named(name)
        finally:
            self.open.remove(name)

    def _measure(self, _load: BesideLoad, target: Any, _scale: float, round_index: int) -> RunReport:
        if (target.name, round_index) in self.fails:
            raise self.fails[target.name, round_index]
        return run(round_index, 100.0)


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def counts(measured: MeasuredRuns) -> dict[str, int]:
    return {target.name: len(target.runs) for load in measured.reports() for target in load.targets}


def test_every_target_is_warmed_and_then_measured_in_each_round(bench: Bench, tmp_path: Path) -> None:
    failure, measured = bench.run(tmp_path)

    assert failure is None
    assert [target.name for target in bench.warmed] == [KAFKA, FILES, S3]  # type: ignore[attr-defined]
    assert counts(measured) == {KAFKA: 2, FILES: 2, S3: 2}
    assert bench.open == set()


@pytest.mark.parametrize(("error", "said"), [(running.LoadFailed("no answer"), "no answer"), (KeyboardInterrupt(), "interrupted")])
def test_what_was_measured_before_a_failure_is_kept_and_every_target_ends(
    bench: Bench, tmp_path: Path, error: BaseException, said: str
) -> None:
    bench.fails[S3, 1] = error

    failure, measured = bench.run(tmp_path)

    assert str(failure) == f"requests on s3: {said}"
    assert counts(measured)[S3] == 1
    assert counts(measured)[KAFKA] == 2
    assert bench.open == set()


def test_a_target_that_does_not_start_is_named_and_the_others_end(bench: Bench, tmp_path: Path) -> None:
    bench.refuses[S3] = NotReady("ended with 1")

    failure, measured = bench.run(tmp_path)

    assert str(failure) == "s3 did not start: ended with 1"
    assert counts(measured) == {}
    assert bench.open == set()


def test_a_failure_is_in_the_report_and_in_the_exit_code(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fails[FILES, 0] = running.LoadFailed("no answer")

    code = beside.main(["--only", "requests", "--targets", "files", "--out", str(tmp_path), "--folder", str(tmp_path)])

    (file,) = tmp_path.glob("beside-*.json")
    found = json.loads(file.read_text())
    assert code == 1
    assert found["schema"] == report.SCHEMA
    assert found["failure"] == {"load": "requests", "target": "files", "error": "no answer"}
    assert [target["name"] for target in found["loads"][0]["targets"]] == [KAFKA]
    assert "requests on files: no answer" in capsys.readouterr().err


def test_documents_of_a_part_are_not_renewed(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside.documents, "renew", lambda: pytest.fail("renewed"))

    assert beside.main(["--only", "requests", "--docs", "--out", str(tmp_path), "--folder", str(tmp_path)]) == 0
    assert "left as they are" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--scale", "0"], ["--scale", "nan"], ["--repeats", "0"], ["--only", "none"], ["--targets", "disk"]])
def test_what_makes_no_sense_is_refused_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        beside.main(words)

    assert ended.value.code == 2
