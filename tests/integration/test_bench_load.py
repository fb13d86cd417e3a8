"""`forebay bench load`: client, broker and log agree while a broker is killed, and a wrong broker is found out."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.commands.bench.load.reconcile import LoadVerdict
from forebay.commands.bench.load.running import FILES, LoadRun
from forebay.commands.bench.load.scenario import Scenario, read_scenario
from forebay.kafka_client.failures import EXIT_USAGE
from forebay.kafka_client.options import Terminal
from runtime.clock import SystemClock
from tests.integration.command_line import forebay
from tests.kit.serving import ROOT

SCENARIO = ROOT / "scenarios" / "three-brokers-one-killed.yaml"
WRONG_BROKERS = "tests.simulation.wrong_process"


def scenario(tmp_path: Path, **changed: Any) -> Scenario:
    """A thousand small records to two partitions of one broker."""
    found: dict[str, Any] = {
        "name": "small",
        "stores": {"kind": "disk"},
        "topics": [{"name": "t", "partitions": 2}],
        "producers": [{"topics": ["t"], "records": 1_000, "size": "tiny"}],
        "sample_every": "1s",
    }
    file = tmp_path / "small.json"
    file.write_text(json.dumps(found | changed))
    return read_scenario(file)


def run(tmp_path: Path, module: str = "forebay", **changed: Any) -> LoadVerdict:
    folder = tmp_path / "run"
    folder.mkdir()
    return LoadRun(scenario(tmp_path, **changed), folder, terminal=Terminal(quiet=True), clock=SystemClock(), module=module).run()


def test_the_short_form_reconciles_three_brokers_of_which_one_is_killed(tmp_path: Path) -> None:
    code, data, talk = forebay("", "bench", "load", str(SCENARIO), "--short", "--out", str(tmp_path), "-q")

    assert (code, talk) == (0, "")
    assert data.startswith("reconciled: intent 24,000 · acked 24,000 · stored 24,000 · consumed 2 × 24,000 · PUT ")
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} == set(FILES)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["target"]) for event in events] == [("kill", 2)]
    assert data.strip() == json.loads((folder / "summary.json").read_text())["line"]
    assert "kill broker 2" in (folder / "index.html").read_text()
    assert read_scenario(folder / "scenario.yaml") == read_scenario(SCENARIO).shortened()


@pytest.mark.slow
@pytest.mark.long
def test_clients_by_http_are_reconciled_too_while_brokers_roll(tmp_path: Path) -> None:
    verdict = run(
        tmp_path,
        cluster={"brokers": 2},
        producers=[{"topics": ["t"], "records": 6_000, "size": "tweet", "client": "http", "keys": "zipf:50"}],
        consumers=[
            {"group": "g", "topics": ["t"], "commit": "auto"},
            {"group": "h", "count": 2, "topics": ["t"], "client": "http", "commit": "auto"},
        ],
        events=[{"at": "10%", "do": "roll"}],
    )

    assert verdict.faults == ()
    assert (verdict.intent, verdict.acked, verdict.stored, verdict.consumed) == (6_000, 6_000, 6_000, {"g": 6_000, "h": 6_000})


@pytest.mark.slow
@pytest.mark.long
def test_a_paused_broker_with_its_workers_and_one_that_is_added_lose_nothing(tmp_path: Path) -> None:
    verdict = run(
        tmp_path,
        cluster={"brokers": 1, "workers": 2, "zones": ["a"]},
        events=[{"at": "10%", "do": "pause", "target": 1, "for": "1s"}, {"at": "20%", "do": "add_broker"}],
        phases=[{"name": "slow", "seconds": 1, "rate_factor": 0.5}, {"name": "fast", "seconds": 1, "rate_factor": 4}],
        producers=[{"topics": ["t"], "records": 2_000, "rate": 1_000, "size": "half_k"}],
    )

    assert verdict.faults == ()
    assert verdict.stored == 2_000


@pytest.mark.slow
@pytest.mark.long
def test_on_real_services_that_fail_the_meters_equal_the_access_log_and_lost_owners_are_replaced(tmp_path: Path) -> None:
    verdict = run(
        tmp_path,
        stores={"kind": "services", "latency_ms": 5, "s3_faults": {"slow_down": 0.05, "internal_error": 0.05, "lost_reply": 0.05}},
        cluster={"brokers": 2, "compactors": 1, "settings": {"storage.early_bytes_per_second": "0B"}},
        topics=[{"name": "t", "partitions": 8}],
        producers=[{"topics": ["t"], "records": 2_000, "size": "k", "rate": 1_000, "client": "http"}],
        consumers=[{"group": "g", "topics": ["t"]}, {"group": "h", "topics": ["t"], "client": "http"}],
        routing={"mode": "owners", "k": 1, "pick": "least_in_flight"},
        events=[
            {"at": "20%", "do": "s3_away", "for": "1s"},
            {"at": "40%", "do": "drain", "target": 1, "for": "0s"},
            {"at": "70%", "do": "kill", "target": 2},
        ],
    )

    assert verdict.faults == ()
    assert (verdict.stored, verdict.consumed) == (2_000, {"g": 2_000, "h": 2_000})
    assert verdict.puts_counted is not None
    assert verdict.puts_logged == verdict.puts_counted + verdict.puts_unanswered + verdict.puts_after_samples > 0
    assert (tmp_path / "run" / "s3-access.log").exists()
    answers = {line.split()[11] for line in (tmp_path / "run" / "s3-refused.log").read_text().splitlines()}
    assert answers == {"SlowDown", "InternalError"}
    sets = json.loads((tmp_path / "run" / "routing.json").read_text())["sets"]
    remaps = [json.loads(line) for line in (tmp_path / "run" / "remaps.jsonl").read_text().splitlines()]
    assert len(sets) == 8
    for broker, other, what in ((1, 2, "drain broker 1"), (2, 1, "kill broker 2")):
        owned = {one["partition"] for one in sets if one["owners"] == [broker]}
        moved = {(one["partition"], *one["before"], *one["after"]) for one in remaps if one["what"] == what}
        assert moved == {(partition, broker, other) for partition in owned}


def test_a_broker_that_acknowledges_before_its_cas_is_found_out_by_partition_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_BROKER", "acks_and_never_writes")
    monkeypatch.setenv("WRONG_BROKER_NOTE", str(tmp_path / "note"))

    verdict = run(
        tmp_path,
        WRONG_BROKERS,
        producers=[{"topics": ["t"], "records": 1_000, "size": "tiny", "idempotent": False}],
        events=[{"at": "1%", "do": "kill", "target": 1, "for": "0s"}],
    )

    assert not verdict.is_good
    assert any("partition" in line and " offset" in line and "were acknowledged, and are not stored" in line for line in verdict.faults)


@pytest.mark.slow
@pytest.mark.long
def test_a_broker_that_tells_wrong_offsets_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG_BROKER", "tells_offsets_that_are_too_large")

    verdict = run(tmp_path, WRONG_BROKERS)

    assert not verdict.is_good
    assert any(line.startswith("topic t partition 0 offset") and line.endswith("stored elsewhere") for line in verdict.faults)


@pytest.mark.slow
@pytest.mark.long
def test_a_coordinator_that_keeps_no_commit_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG_BROKER", "keeps_no_commit_of_a_group")

    verdict = run(tmp_path, WRONG_BROKERS, consumers=[{"group": "g", "topics": ["t"]}])

    assert "group g, topic t partition 0: the group has committed offset none, and the log ends at 500" in verdict.faults


def test_a_scenario_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.read_text().replace("brokers: 3", "broker: 3"))

    code, data, talk = forebay("", "bench", "load", str(file), "--out", str(tmp_path / "runs"))

    assert (code, data) == (EXIT_USAGE, "")
    assert talk.startswith(f"{file}:4: cluster.broker is no key of a scenario: did you mean brokers?")
    assert not (tmp_path / "runs").exists()
