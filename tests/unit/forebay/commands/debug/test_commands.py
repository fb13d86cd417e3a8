"""The command over stores that are not there, and its words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.commands.debug import debug


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(debug, ["trace-offset", "orders", "0", "7", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_folder_without_a_cluster_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    code, data, talk = run()

    assert (code, data) == (3, "")
    assert f"{tmp_path}/forebay-data/meta.db does not exist. Give the brokers' own with -c FILE or --set metadata.url=" in talk
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_of_objects_is_told(tmp_path: Path) -> None:
    (tmp_path / "meta.db").touch()

    code, _, talk = run("--set", "metadata.url=sqlite:///./meta.db")

    assert (code, 'storage.url "file://./forebay-data/objects"' in talk) == (3, True)


def test_a_file_that_is_no_metadata_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"not a database, but long enough to look like one" * 100)
    (tmp_path / "objects").mkdir()

    code, _, talk = run("--set", "metadata.url=sqlite:///./meta.db", "--set", "storage.url=file://./objects")

    assert code == 3
    assert "cannot read the metadata file" in talk
    assert talk.count("\n") == 1


def test_the_memory_of_a_broker_cannot_be_looked_into() -> None:
    code, _, talk = run("--set", "metadata.url=memory://", "--set", "storage.url=memory://")

    assert code == 2
    assert "cannot be read from outside" in talk


def test_a_wrong_setting_is_told_as_everywhere() -> None:
    code, _, talk = run("--set", "storage.urll=x")

    assert (code, "Did you mean storage.url?" in talk) == (2, True)


def test_a_wrong_output_format_is_usage() -> None:
    assert run("-o", "xml")[0] == 2


def test_the_command_is_in_the_help() -> None:
    assert "trace-offset" in CliRunner().invoke(debug, ["--help"]).stdout
