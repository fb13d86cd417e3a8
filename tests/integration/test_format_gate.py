"""The format gate with real processes: an upgrade beside a broker, and a cluster at a level that this release does not know."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.commands.cluster import cluster
from storage.formats.levels import LEVEL_MAX
from tests.kit.serving import events, serving

ENDS_WITHIN_S = 60.0
EXIT_FAILED, EXIT_USAGE = 1, 2


def stores(folder: Path) -> list[str]:
    return [f"--set=storage.url=file://{folder}/objects", f"--set=metadata.url=sqlite:///{folder}/meta.db"]


def upgrade(folder: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cluster, ["upgrade", "-c", os.devnull, *stores(folder), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def raise_by_hand(folder: Path) -> None:
    """As a newer release would."""
    with contextlib.closing(sqlite3.connect(folder / "meta.db")) as connection, connection:
        changed = connection.execute(
            "UPDATE records SET value = CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB) WHERE CAST(value AS TEXT) LIKE '%\"cluster_id\"%'",
            (f'"level":{LEVEL_MAX}', f'"level":{LEVEL_MAX + 1}'),
        )
        assert changed.rowcount == 1


def refusal_in(said: list[dict[str, object]]) -> str:
    (message,) = [event["message"] for event in said if event["event"] == "cannot_serve"]
    return str(message)


@pytest.mark.timeout(300)
def test_a_cluster_is_upgraded_beside_its_broker_and_one_of_a_newer_level_is_left_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        code, data, talk = upgrade(tmp_path, "-o", "json")
        refused = upgrade(tmp_path, "--to", str(LEVEL_MAX + 1))
        raise_by_hand(tmp_path)
        ended = broker.process.wait(ENDS_WITHIN_S)
        told = events(broker.log_path)
    again = subprocess.run(
        [sys.executable, "-m", "forebay", "serve", "-c", os.devnull, *stores(tmp_path)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )

    found = json.loads(data)
    assert (code, talk) == (0, "")
    assert (found["before"], found["level"], found["problem"]) == (LEVEL_MAX, LEVEL_MAX, None)
    assert [(one["id"], one["level_max"]) for one in found["brokers"]] == [(1, LEVEL_MAX)]
    assert refused[0] == EXIT_FAILED
    assert "use a newer forebay" in refused[2]
    assert ended == EXIT_USAGE, told
    problem = f"this cluster is at format level {LEVEL_MAX + 1}, this forebay"
    assert problem in refusal_in(told), told
    assert again.returncode == EXIT_USAGE
    refusal = refusal_in([json.loads(line) for line in again.stderr.splitlines()])
    assert problem in refusal
    assert "use a newer forebay" in refusal
    assert "Traceback" not in again.stderr


def test_where_no_broker_was_ever_started_there_is_nothing_to_upgrade(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "meta.db")):
        pass
    code, _, talk = upgrade(tmp_path)

    assert code != 0
    assert "Traceback" not in talk
    assert len(talk.splitlines()) == 1
