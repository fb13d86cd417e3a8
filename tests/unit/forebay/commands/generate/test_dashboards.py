"""Dashboards as a Grafana would read them; there is none here, so what it would complain about is looked for."""

import json
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from typer.testing import CliRunner

from forebay.cli import application
from forebay.reference import shown_metrics
from runtime.telemetry import Metric
from tests.unit.forebay.commands.generate.expressions import faults_of

NAMES: Final = ("overview", "write", "read", "cache", "compactor", "store", "groups", "runtime", "oxia")
UNITS: Final = {"short", "bytes", "binBps", "s", "percentunit", "ops", "reqps", "currencyUSD"}
"""As https://github.com/grafana/grafana has them in packages/grafana-data/src/valueFormats/categories.ts."""

register_default_plugins()


@pytest.fixture(scope="module")
def table() -> Mapping[str, Metric]:
    return shown_metrics()


@cache
def generated(*words: str) -> str:
    ended = CliRunner().invoke(application, ["generate", "grafana", *words])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.fixture(params=NAMES)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(generated(request.param))
    return found


def lost(ours: object, theirs: object, at: str = "") -> list[str]:
    """Where `theirs` does not have what `ours` has."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [fault for key, value in ours.items() for fault in lost(value, theirs.get(key, "nothing"), f"{at}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [fault for index, (one, other) in enumerate(zip(ours, theirs, strict=True)) for fault in lost(one, other, f"{at}/{index}")]
    return [] if ours == theirs else [f"{at}: {ours!r} became {theirs!r}"]


def through_grafana(document: object) -> object:
    return json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))


def test_grafana_s_own_types_lose_nothing_of_a_dashboard(document: dict[str, Any]) -> None:
    assert lost(document, through_grafana(document)) == []


@pytest.mark.parametrize(
    "misspelt",
    [
        {"titel": "A"},
        {"panels": [{"type": "timeseries", "gridpos": {"x": 0}}]},
        {"panels": [{"type": "timeseries", "datasource": {"type": "prometheus"}, "targets": [{"expression": "up"}]}]},
        {"panels": [{"type": "stat", "fieldConfig": {"defaults": {"units": "s"}}}]},
        {"templating": {"list": [{"name": "a", "type": "query", "all": True}]}},
    ],
)
def test_a_field_that_grafana_does_not_know_is_lost_on_the_way(misspelt: dict[str, Any]) -> None:
    assert lost(misspelt, through_grafana(misspelt))


def test_panels_have_ids_of_their_own_and_lie_beside_each_other(document: dict[str, Any]) -> None:
    panels = document["panels"]
    places = [panel["gridPos"] for panel in panels]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["y"] >= 0 and place["h"] > 0 for place in places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)


def test_queries_of_a_panel_have_letters_of_their_own_and_a_known_unit(document: dict[str, Any]) -> None:
    for panel in document["panels"]:
        letters = [target["refId"] for target in panel["targets"]]

        assert letters
        assert len(set(letters)) == len(letters)
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS


def test_every_expression_asks_for_metrics_and_labels_of_the_table(document: dict[str, Any], table: Mapping[str, Metric]) -> None:
    found = {target["expr"]: faults_of(target["expr"], table) for panel in document["panels"] for target in panel["targets"]}

    assert {expression: faults for expression, faults in found.items() if faults} == {}


def test_a_legend_names_labels_that_its_expression_keeps(document: dict[str, Any]) -> None:
    for panel in document["panels"]:
        for target in panel["targets"]:
            named = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            kept = {label for by in target["expr"].split(" by (")[1:] for label in by.partition(")")[0].split(", ")} - {"le"}

            assert named == kept, target


def test_every_series_is_chosen_by_the_variables_above_the_panels(document: dict[str, Any]) -> None:
    assert [one["name"] for one in document["templating"]["list"]] == ["datasource", "cluster", "instance"]
    for panel in document["panels"]:
        for target in panel["targets"]:
            chosen = target["expr"].count('cluster=~"$cluster",instance=~"$instance"')
            assert chosen == target["expr"].count("{") > 0


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(rate(forebay_gone_total[5m]))", "forebay_gone_total is not in the table"),
        ("sum by (topic) (rate(forebay_s3_requests_total[5m]))", "forebay_s3_requests_total has no topic"),
        ('sum(rate(forebay_s3_requests_total{topic="a"}[5m]))', "forebay_s3_requests_total has no topic"),
        ("sum(forebay_s3_requests_total)", "forebay_s3_requests_total is a counter whose value is used"),
        ("max(forebay_cache_bytes)", "forebay_cache_bytes is a gauge of which several make a sum"),
        ("sum by (store) (forebay_clock_difference_seconds)", "forebay_clock_difference_seconds is a gauge of which several make a max"),
        ("sum(rate(forebay_cache_bytes[5m]))", "forebay_cache_bytes is a gauge of which several make a sum"),
        ("histogram_quantile(0.9, sum by (le) (rate(forebay_flush_duration_seconds[5m])))", "is a histogram without _bucket"),
        ("sum(rate(forebay_ready_count[5m]))", "forebay_ready_count is no histogram"),
        ("sum((forebay_ready)", "unequal parentheses"),
        ("sum(forebay_ready) % 2", "cannot be read"),
    ],
)
def test_a_faulty_expression_is_found(table: Mapping[str, Metric], expression: str, fault: str) -> None:
    assert any(fault in one for one in faults_of(expression, table))


def test_every_dashboard_goes_to_a_folder_as_it_is_printed_again_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        ended = CliRunner().invoke(application, ["generate", "grafana", "--all", str(tmp_path / "new" / "folder")])
        assert (ended.exit_code, ended.stdout) == (0, "")
        found = {file.stem: file.read_text() for file in (tmp_path / "new" / "folder").iterdir()}

        assert found == {name: generated(name) for name in NAMES}
    assert len({json.loads(text)["uid"] for text in found.values()}) == len(NAMES)
    assert generated() == found["overview"]


def test_a_dashboard_or_a_folder_that_cannot_be_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    taken = CliRunner().invoke(application, ["generate", "grafana", "--all", str(tmp_path / "file")])
    unknown = CliRunner().invoke(application, ["generate", "grafana", "overvue"])

    assert taken.exit_code == 1
    assert "file exists" in taken.stderr
    assert unknown.exit_code == 2
    assert "'overview', 'write', 'read'" in unknown.stderr
