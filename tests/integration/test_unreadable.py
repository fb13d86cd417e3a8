"""What a command says of a file or folder that it may not read or write: one line with the cause and the fix, and never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kit.serving import ROOT

DROP: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root obeys permissions then. Another user could not read what is imported on the way."""
WITHIN_S: Final = 100.0
WRONG_SETTINGS: Final = {
    "shut_folder": "forebay.yaml: cannot see as uid {uid} whether there is one in {folder} (Permission denied). Start forebay in a folder",
    "shut_settings": "forebay.yaml: cannot be read (Permission denied) as uid {uid}. Make it and the folders above it readable",
    "settings_that_lead_nowhere": "forebay.yaml: cannot be read (Too many levels of symbolic links) as uid {uid}. Name another file",
    "gone": "The current folder is gone. Start forebay in one that is there.",
}
NO_ACCESS: Final = ("Make it writable", "Give this user access", "make both writable", "is not readable")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    below = tmp_path_factory.mktemp("unreadable")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))}
    ended = subprocess.run(
        [*(DROP if os.geteuid() == 0 else ()), sys.executable, "-m", "tests.integration.unreadable", str(below)],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return below, json.loads(ended.stdout)


def test_no_command_ends_in_a_traceback(found: tuple[Path, list[dict[str, Any]]]) -> None:
    assert [one for one in found[1] if one["is_bug"] or "Traceback" in one["said"] or "please report" in one["said"]] == []


def test_settings_that_cannot_be_read_are_named_with_the_user_and_a_fix(found: tuple[Path, list[dict[str, Any]]]) -> None:
    below, ended = found
    of_settings = [one for one in ended if one["situation"] in WRONG_SETTINGS and one["command"] != "demo"]

    assert {one["situation"] for one in of_settings} == set(WRONG_SETTINGS)
    for one in of_settings:
        line = WRONG_SETTINGS[one["situation"]].format(uid=os.geteuid(), folder=below / one["situation"])
        assert one["said"].count(line) == 1, one
        assert one["code"] == (1 if one["command"] == "doctor" else 2), one


def test_data_that_cannot_be_read_are_named_with_a_fix(found: tuple[Path, list[dict[str, Any]]]) -> None:
    of_data = [one for one in found[1] if one["situation"] not in WRONG_SETTINGS or one["command"] == "demo"]

    assert len({one["situation"] for one in of_data}) == 4
    for one in of_data:
        assert "forebay-data" in one["said"], one
        assert any(fix in one["said"] for fix in NO_ACCESS), one
        assert one["code"] == {"doctor": 1, "demo": one["code"]}.get(one["command"], 3), one
        assert one["code"] in {1, 2, 3}, one
