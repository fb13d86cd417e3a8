import json
from pathlib import Path

import pytest

from forebay.commands.demo.own_topic import OwnTopic, is_demos_name, new_name, note, read_note
from runtime.clock import SystemClock
from runtime.ids import IdSource

NAME = "forebay-demo-flights-01kasdfghjkqwertyzxcvbnm12"


def test_every_run_has_a_name_of_its_own() -> None:
    ids = IdSource(clock=SystemClock())

    names = {new_name(ids) for _ in range(100)}

    assert len(names) == 100
    assert all(map(is_demos_name, names))


@pytest.mark.parametrize("topic", [OwnTopic(NAME, "dG9waWM"), OwnTopic(NAME, "")], ids=["made", "about to be made"])
def test_what_a_run_noted_the_next_one_knows(tmp_path: Path, topic: OwnTopic) -> None:
    note(tmp_path, OwnTopic("forebay-demo-flights-01kasdfghjkqwertyzxcvbnm11", "of the run before"))

    note(tmp_path, topic)

    assert read_note(tmp_path) == topic


@pytest.mark.parametrize(
    "written",
    [
        None,
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"{}",
        json.dumps({"name": NAME}).encode(),
        json.dumps({"name": NAME, "id": 7}).encode(),
        json.dumps({"name": "orders", "id": ""}).encode(),
        json.dumps({"name": "forebay-demo-flights", "id": ""}).encode(),
        json.dumps({"name": f"{NAME}\n", "id": ""}).encode(),
    ],
)
def test_a_note_that_is_not_of_the_demo_names_no_topic(tmp_path: Path, written: bytes | None) -> None:
    if written is not None:
        (tmp_path / "demo-topic.json").write_bytes(written)

    assert read_note(tmp_path) is None
