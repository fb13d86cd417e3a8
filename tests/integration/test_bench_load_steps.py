"""A load in steps, `forebay bench load up|precreate|run|status|down`, leaves nothing behind; and a cluster that runs already is loaded."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.commands.bench.load.folder import FILES, LoadProcess, StackFacts, read_facts
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_UNHEALTHY, EXIT_USAGE
from tests.integration.command_line import forebay, soon

HTTP_ALONE = {"topics": ["t"], "size": "tiny", "client": "http"}


def scenario(file: Path, **parts: Any) -> Path:
    file.write_text(json.dumps({"name": "steps", "topics": [{"name": "t", "partitions": 2}], **parts}))
    return file


def step(name: str, *arguments: object) -> tuple[int, str, str]:
    return forebay("", "bench", "load", name, *map(str, arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run that may be up at the end of the test."""
    yield tmp_path / "run"
    if (tmp_path / "run" / "stack.json").exists():
        assert step("down", tmp_path / "run")[0] == 0


def rows(text: str) -> dict[str, str]:
    """The state of each process of `status`."""
    return {line.split()[0]: line.split()[1] for line in text.splitlines()[1:]}


def alive(facts: StackFacts) -> list[LoadProcess]:
    return [process for process in facts.processes() if process.is_running()]


def test_a_run_in_steps_is_reconciled_once_and_leaves_no_process(folder: Path, tmp_path: Path) -> None:
    file = scenario(tmp_path / "s.json", stores={"kind": "disk"}, producers=[HTTP_ALONE | {"records": 100}], sample_every="1s")

    code, bootstrap, talk = step("up", folder, file)
    assert code == 0, talk
    facts = read_facts(folder)
    assert bootstrap.strip() == facts.bootstrap
    assert len(alive(facts)) == 2

    code, _, talk = step("up", folder, file)
    assert (code, "is up already" in talk) == (EXIT_REFUSED, True)
    assert step("precreate", folder, "-q") == (0, "t\n", "")
    assert step("precreate", folder) == (0, "", "there already: t\n")

    code, line, _ = step("run", folder, "-q")
    assert (code, line.partition(" · PUT")[0]) == (0, "reconciled: intent 100 · acked 100 · stored 100")
    assert {one.name for one in folder.iterdir()} == {*FILES, "data"}
    code, _, talk = step("run", folder)
    assert (code, "has been loaded" in talk) == (EXIT_REFUSED, True)
    code, shown, _ = step("status", folder)
    assert (code, rows(shown)) == (0, {"keeper": "runs", "broker-1": "runs"})

    there = scenario(
        tmp_path / "there.json",
        cluster={"addresses": [facts.members[0].kafka], "http": [facts.members[0].http]},
        topics=[{"name": "u", "partitions": 2}],
        producers=[HTTP_ALONE | {"topics": ["u"], "records": 50}],
    )
    code, line, _ = forebay("", "bench", "load", str(there), "--out", str(tmp_path / "runs"), "-q")
    assert (code, line.partition(" · PUT")[0]) == (0, "reconciled: intent 50 · acked 50 · stored 50")
    assert step("up", tmp_path / "other", there)[0] == EXIT_USAGE

    assert step("down", folder, "-q") == (0, "", "")
    assert alive(facts) == []
    assert not (folder / "data").exists()
    code, shown, _ = step("status", folder)
    assert (code, set(rows(shown).values())) == (EXIT_UNHEALTHY, {"ended"})
    assert step("run", folder)[0] == EXIT_NOT_FOUND


@pytest.mark.slow
@pytest.mark.long
def test_what_a_killed_keeper_held_ends_and_down_finds_nothing_left(folder: Path, tmp_path: Path) -> None:
    file = scenario(
        tmp_path / "s.json", stores={"kind": "services"}, cluster={"workers": 2, "compactors": 1}, producers=[HTTP_ALONE | {"records": 10}]
    )
    assert step("up", folder, file)[0] == 0
    facts = read_facts(folder)
    assert len(alive(facts)) == 7
    assert facts.keeper is not None

    os.kill(facts.keeper.pid, signal.SIGKILL)

    soon(lambda: alive(facts) == [])
    assert step("status", folder)[0] == EXIT_UNHEALTHY
    assert step("down", folder)[0] == 0


@pytest.mark.parametrize("name", ["precreate", "run", "status", "down"])
def test_a_step_of_a_folder_that_is_no_run_is_refused(name: str, tmp_path: Path) -> None:
    code, data, talk = step(name, tmp_path)

    assert (code, data) == (EXIT_NOT_FOUND, "")
    assert talk.startswith(f"{tmp_path} is no run: it has no stack.json. Begin one: ")


def test_a_folder_that_is_there_becomes_no_run(tmp_path: Path) -> None:
    code, _, talk = step("up", tmp_path, "scenarios/three-brokers-one-killed.yaml")

    assert code == EXIT_REFUSED
    assert talk.startswith(f"{tmp_path} is there already.")
