"""`make watch`: a cluster under load with its addresses in one table, until Ctrl-C, after which no process is left."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from forebay.commands.bench.load.folder import read_facts
from forebay.commands.bench.load.watching import INSTALL_PROMETHEUS
from tests.integration.command_line import ANSWER_WITHIN_S, environment, interrupted


def test_a_cluster_is_watched_until_ctrl_c_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    scenario = {
        "name": "watch",
        "stores": {"kind": "memory"},
        "topics": [{"name": "t", "partitions": 1}],
        "producers": [{"topics": ["t"], "records": 100, "rate": 200, "client": "http"}],
    }
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    command = [sys.executable, "-m", "forebay", "bench", "load", "watch", str(tmp_path / "s.json"), "--out", str(tmp_path / "runs")]
    # Whatever this machine has, the command finds neither Prometheus nor Grafana.
    environ = {**environment(""), "PATH": str(tmp_path / "bin")}

    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    table = {}
    while "run folder" not in table:
        line = process.stdout.readline().decode()
        assert line, process.communicate(timeout=ANSWER_WITHIN_S)
        what, _, where = line.strip().partition("  ")
        table[what] = where.strip()
    folder = Path(table["run folder"])
    facts = read_facts(folder)
    (broker,) = facts.members
    assert table["broker 1"] == broker.kafka
    with urllib.request.urlopen(table["metrics"], timeout=ANSWER_WITHIN_S) as page:
        assert b"forebay_build_info" in page.read()
    assert "overview.json" in os.listdir(folder / "monitoring" / "dashboards")
    assert f"'{broker.http}'" in (folder / "monitoring" / "prometheus.yml").read_text()

    code, talk = interrupted(process)

    assert code == 0, talk
    assert f"Prometheus is not in the PATH: {INSTALL_PROMETHEUS}" in talk
    assert "records were acknowledged" in talk.splitlines()[-1]
    assert [one.name for one in facts.processes() if one.is_running()] == []
    left = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert [line for line in left.splitlines() if str(tmp_path) in line] == []


def test_what_the_command_starts_ends_when_the_command_is_killed() -> None:
    command = [
        sys.executable,
        "-m",
        "forebay.processes.child",
        sys.executable,
        "-c",
        "import time; print('there', flush=True); time.sleep(600)",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"there\n"

    process.stdin.close()

    assert process.wait(ANSWER_WITHIN_S) == 128 + signal.SIGTERM
    assert process.stdout.read() == b""
    process.stdout.close()
