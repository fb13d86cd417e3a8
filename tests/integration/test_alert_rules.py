"""Each alert by promtool, on series that make it true, on series that nearly do, and before its time has come."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli import application
from services.prometheus import prometheus_program

WITHIN_S: Final = 120.0
MINUTES: Final = 130
"""How long the series of a case are; a sample a minute."""
pytestmark = pytest.mark.timeout(900)  # the package of Prometheus is fetched once


class Case(NamedTuple):
    """Series with which an alert fires, and series with which it does not."""

    true: dict[str, str]
    false: dict[str, str]


def always(value: float) -> str:
    return f"{value:g}x{MINUTES}"


def growing(by: float, *, minutes: int = MINUTES) -> str:
    return f"0+{by:g}x{minutes}"


def histogram(name: str, labels: str, *, fast: tuple[str, float], slow: tuple[str, float]) -> dict[str, str]:
    """Growing by so many a minute up to a bound, and up to the next."""
    counts = (fast, slow, ("+Inf", slow[1]))
    return {f'{name}_bucket{{{labels},le="{bound}"}}': growing(count) for bound, count in counts}


def flush(stage: str, fast: tuple[str, float], slow: tuple[str, float]) -> dict[str, str]:
    return histogram("forebay_flush_duration_seconds", f'instance="a",stage="{stage}"', fast=fast, slow=slow)


def lag(fast: float) -> dict[str, str]:
    return histogram("forebay_event_loop_lag_seconds", 'instance="a"', fast=("0.1", fast), slow=("0.25", 100))


REQUESTS: Final = "forebay_s3_requests_total"
RETRIES: Final = "forebay_object_store_retries_total"
ORPHANS: Final = 'forebay_footprint_bytes{kind="unreferenced"}'
HALF_A_DAY: Final = 12 * 60 + MINUTES
CASES: Final[dict[str, Case]] = {
    "BrokerDown": Case(
        {'up{job="forebay",instance="a"}': always(0)},
        {'up{job="forebay",instance="a"}': always(1), 'up{job="forebay-compactor",instance="a"}': always(0), 'up{job="node"}': always(0)},
    ),
    "CompactorDown": Case({'up{job="forebay-compactor"}': always(0)}, {'up{job="forebay"}': always(0)}),
    "NotReady": Case({"forebay_ready": always(0)}, {"forebay_ready": always(1)}),
    "UnexpectedErrors": Case({"forebay_unexpected_errors_total": growing(1)}, {"forebay_unexpected_errors_total": always(5)}),
    "LoopLag": Case(lag(98), lag(99)),
    "StoreFailing": Case(
        {'forebay_store_failing{store="metadata",op="write"}': always(1)},
        {'forebay_store_failing{store="metadata",op="write"}': " ".join(["1 0"] * (MINUTES // 2))},
    ),
    "S3Errors": Case(
        {f'{REQUESTS}{{answer="5xx"}}': growing(1), f'{REQUESTS}{{answer="none"}}': growing(1), f'{REQUESTS}{{answer="2xx"}}': growing(98)},
        {
            f'{REQUESTS}{{answer="5xx"}}': growing(1),
            f'{REQUESTS}{{answer="4xx"}}': growing(50),
            f'{REQUESTS}{{answer="2xx"}}': growing(150),
        },
    ),
    "S3Throttled": Case(
        {f'{RETRIES}{{op="put",cause="throttled"}}': growing(1)},
        {f'{RETRIES}{{op="put",cause="throttled"}}': always(9), f'{RETRIES}{{op="put",cause="interrupted"}}': growing(1)},
    ),
    "OverBudget": Case(
        {'forebay_cost_dollars_total{cause="flush"}': growing(1), "forebay_cost_budget_dollars": always(43_700)},
        {'forebay_cost_dollars_total{cause="flush"}': growing(1), "forebay_cost_budget_dollars": always(43_900)},
    ),
    "SlowFlush": Case(
        flush("put", ("1", 0), ("2.5", 100)), flush("put", ("1", 100), ("2.5", 100)) | flush("commit", ("2.5", 0), ("10", 100))
    ),
    "SlowCommit": Case(
        flush("commit", ("0.5", 98), ("1", 100)), flush("commit", ("0.5", 99), ("1", 100)) | flush("put", ("0.5", 0), ("1", 100))
    ),
    "BufferFull": Case(
        {"forebay_request_buffer_bytes": always(161), "forebay_request_buffer_limit_bytes": always(200)},
        {"forebay_request_buffer_bytes": always(159), "forebay_request_buffer_limit_bytes": always(200)},
    ),
    "CompactorBehind": Case(
        {"forebay_compactor_waiting_seconds": always(7_201), "forebay_compactor_segment_age_seconds": always(3_600)},
        {
            'forebay_compactor_waiting_seconds{instance="a"}': always(7_200),
            'forebay_compactor_segment_age_seconds{instance="a"}': always(3_600),
            'forebay_compactor_waiting_seconds{instance="b"}': always(600),
            'forebay_compactor_segment_age_seconds{instance="b"}': always(0),
        },
    ),
    "CompactorStuck": Case({"forebay_compactor_success_age_seconds": always(601)}, {"forebay_compactor_success_age_seconds": always(600)}),
    "CorruptReads": Case(
        {'forebay_corrupt_reads_total{cause="short"}': growing(2), "forebay_recovered_reads_total": growing(1)},
        {
            'forebay_corrupt_reads_total{cause="short"}': growing(1),
            'forebay_corrupt_reads_total{cause="missing"}': always(7),
            "forebay_recovered_reads_total": f"7+1x{MINUTES}",
        },
    ),
    "LagSeconds": Case(
        {'forebay_group_lag_seconds{group="g",topic="t"}': always(301)}, {'forebay_group_lag_seconds{group="g",topic="t"}': always(300)}
    ),
    "RetentionCliff": Case(
        {'forebay_group_lag_retention_ratio{group="g",topic="t"}': always(0.71)},
        {'forebay_group_lag_retention_ratio{group="g",topic="t"}': always(0.7)},
    ),
    "OrphansGrow": Case(
        {ORPHANS: growing(1, minutes=HALF_A_DAY)},
        {ORPHANS: f"0+1x60 60x{HALF_A_DAY}", 'forebay_footprint_bytes{kind="wal"}': growing(1, minutes=HALF_A_DAY)},
    ),
    "ObjectsMissing": Case({"forebay_gc_missing_objects": always(1)}, {"forebay_gc_missing_objects": always(0)}),
    "MetadataWentBack": Case({"forebay_metadata_went_back": always(1)}, {"forebay_metadata_went_back": always(0)}),
}


def generated(name: str) -> str:
    ended = CliRunner().invoke(application, ["generate", name])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([prometheus_program("promtool"), *words], capture_output=True, text=True, timeout=WITHIN_S, check=False)


def case(series: dict[str, str], checks: list[dict[str, Any]]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": given, "promql_expr_test": checks}


def fires(alert: str, *, at_minute: int, count: int) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": count}] if count else []
    return {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{at_minute}m",
        "exp_samples": expected,
    }


def judged(folder: Path, rules: str, cases: list[dict[str, Any]]) -> str:
    """What promtool says of the cases; empty if they are as expected."""
    (folder / "rules.yml").write_text(rules)
    (folder / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}))
    done = promtool("test", "rules", folder / "test.yml")
    return "" if done.returncode == 0 else done.stdout + done.stderr


def minutes_of(alert: dict[str, Any]) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", alert["for"]).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 0, "m": 1, "h": 60}[unit]


def settled(wait: int) -> int:
    """When an alert fires for sure that waits so many minutes: one that waits an hour also looks back an hour."""
    return wait + (65 if wait >= 60 else 15)


@pytest.mark.slow
@pytest.mark.long
def test_every_alert_fires_when_it_is_true_and_only_then(tmp_path: Path) -> None:
    [group] = yaml.safe_load(generated("alerts"))["groups"]
    wait_of = {rule["alert"]: minutes_of(rule) for rule in group["rules"]}
    true = [case(given.true, [fires(alert, at_minute=settled(wait_of[alert]), count=1)]) for alert, given in CASES.items()]
    early = [case(CASES[alert].true, [fires(alert, at_minute=wait - 1, count=0)]) for alert, wait in wait_of.items() if wait]
    false = [case(given.false, [fires(alert, at_minute=settled(wait_of[alert]), count=0)]) for alert, given in CASES.items()]

    assert wait_of.keys() == CASES.keys()
    assert judged(tmp_path, generated("alerts"), [*true, *early, *false]) == ""


def test_a_case_that_is_not_as_expected_is_told(tmp_path: Path) -> None:
    cases = [case(CASES["NotReady"].true, [fires("NotReady", at_minute=20, count=0)])]

    assert "NotReady" in judged(tmp_path, generated("alerts"), cases)


def test_recording_rules_reckon_puts_for_a_gib_and_dollars_for_a_month(tmp_path: Path) -> None:
    series = {
        f'{REQUESTS}{{request="put",key="wal",answer="2xx"}}': growing(60),
        f'{REQUESTS}{{request="upload_part",key="wal",answer="2xx"}}': growing(4),
        f'{REQUESTS}{{request="put",key="segment",answer="2xx"}}': growing(9),
        'forebay_topic_bytes_total{topic="a",direction="in"}': growing(2**31),
        'forebay_topic_bytes_total{topic="a",direction="out"}': growing(2**33),
        'forebay_cost_dollars_total{cause="flush"}': growing(0.5),
    }
    checks = [
        {"expr": f"round({name})", "eval_time": "70m", "exp_samples": [{"labels": "{}", "value": value}]}
        for name, value in (("forebay:put_per_gib:rate1h", 32), ("forebay:dollars_per_month", 21_900))
    ]

    assert judged(tmp_path, generated("recording"), [case(series, checks)]) == ""


def test_promtool_finds_no_fault_in_the_rules(tmp_path: Path) -> None:
    for name in ("alerts", "recording"):
        (tmp_path / f"{name}.yml").write_text(generated(name))
        done = promtool("check", "rules", tmp_path / f"{name}.yml")

        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout
