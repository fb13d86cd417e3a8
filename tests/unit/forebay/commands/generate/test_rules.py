"""Alerts, recording rules and the scrape configuration. tests/integration/test_dashboards.py gives them to a Prometheus."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli import application
from forebay.reference import shown_metrics
from runtime.telemetry import Metric
from tests.unit.forebay.commands.generate.expressions import faults_of


@pytest.fixture(scope="module")
def table() -> Mapping[str, Metric]:
    return shown_metrics()


def generated(*words: str) -> Any:
    ended = CliRunner().invoke(application, ["generate", *words])
    assert ended.exit_code == 0, ended.output
    assert CliRunner().invoke(application, ["generate", *words]).stdout == ended.stdout
    return yaml.safe_load(ended.stdout)


def rules(*words: str) -> list[dict[str, Any]]:
    [group] = generated(*words)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_alert_asks_for_metrics_of_the_table_and_says_what_it_means(table: Mapping[str, Metric]) -> None:
    found = rules("alerts")

    assert len({rule["alert"] for rule in found}) == len(found) > 10
    for rule in found:
        assert faults_of(rule["expr"], table) == [], rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")


def test_alerts_can_be_tried_with_a_time_of_ones_own() -> None:
    assert {rule["for"] for rule in rules("alerts", "--for", "0s")} == {"0s"}
    assert {rule["for"] for rule in rules("alerts", "--for", "1500ms")} == {"1500ms"}
    assert {rule["alert"]: rule["for"] for rule in rules("alerts")}["BrokerDown"] == "1m"


def test_every_recording_rule_asks_for_metrics_of_the_table(table: Mapping[str, Metric]) -> None:
    found = rules("recording")

    assert [rule["record"] for rule in found] == ["forebay:put_per_gib:rate1h", "forebay:lag_seconds:max", "forebay:dollars_per_month"]
    assert [faults_of(rule["expr"], table) for rule in found] == [[], [], []]


def targets_of(configuration: Any) -> dict[str, list[str]]:
    return {job["job_name"]: job["static_configs"][0]["targets"] for job in configuration["scrape_configs"]}


def test_brokers_are_scraped_with_their_compactors_unless_others_are_named() -> None:
    one = generated("prometheus")
    several = generated("prometheus", "--broker", "b1:8070", "--broker", "[fe80::1]:9000", "--interval", "1s", "--rules", "it's.yml")
    elsewhere = generated("prometheus", "--compactor", "c:1", "--cluster", "west")
    without = generated("prometheus", "--no-compactors")

    assert targets_of(one) == {"forebay": ["127.0.0.1:8070"], "forebay-compactor": ["127.0.0.1:8170"]}
    assert one["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}
    assert targets_of(several) == {"forebay": ["b1:8070", "[fe80::1]:9000"], "forebay-compactor": ["b1:8170", "[fe80::1]:9100"]}
    assert several["global"]["scrape_interval"] == "1s"
    assert several["rule_files"] == ["it's.yml"]
    assert targets_of(elsewhere)["forebay-compactor"] == ["c:1"]
    assert {job["static_configs"][0]["labels"]["cluster"] for job in elsewhere["scrape_configs"]} == {"west"}
    assert targets_of(without) == {"forebay": ["127.0.0.1:8070"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("alerts", "--for", "soon"), '--for "soon" is not a duration'),
        (("prometheus", "--interval", "0s"), '--interval "0s" must be longer than nothing'),
        (("prometheus", "--broker", "b1"), "--broker b1: is not an address"),
        (("prometheus", "--compactor", "b1:1", "--no-compactors"), "--compactor names what --no-compactors leaves out"),
        (("prometheus", "--broker", "b1:65500"), "--broker b1:65500 has no compactor 100 ports above it"),
        (("prometheus", "--cluster", "a\nb"), "has characters that a configuration cannot have"),
        (("grafana", "write", "--all", "folder"), "name a dashboard, or write all of them with --all DIR"),
        (("prometheus", "--compactor", "b1:99999"), "--compactor b1:99999: is not an address"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(words: tuple[str, ...], said: str) -> None:
    ended = CliRunner().invoke(application, ["generate", *words])

    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.replace("│", " ").split())
