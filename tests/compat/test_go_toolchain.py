"""The toolchain of Go, with a `go` that only notes that it was asked."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.build import BuildError
from tests.kit.toolchains import go

_NOTES = """#!/bin/sh
echo "$PWD $*" >> "{calls}"
while [ "$1" != "-o" ]; do shift; done
echo built > "$2"
"""
_REFUSES = """#!/bin/sh
echo "main.go:3:1: syntax error" >&2
exit 1
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    folder = tmp_path / "some-client"
    folder.mkdir()
    for name in ("main.go", "go.mod", "go.sum", "client.toml"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `go` was asked, a line for each time."""
    calls = tmp_path / "calls"
    _on_the_path(tmp_path, monkeypatch, _NOTES.format(calls=calls))
    return calls


def _on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_a_client_is_built_once_by_two_at_a_time(client: Path, calls: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        commands = list(threads.map(lambda _: go.command(client, tmp_path / "cache"), range(2)))

    assert commands[0] == commands[1]
    assert Path(commands[0][0]).read_text() == "built\n"
    asked = calls.read_text().splitlines()
    assert len(asked) == 1
    assert asked[0].startswith(f"{client} build -mod=readonly -trimpath ")


@pytest.mark.parametrize("name", ["main.go", "go.mod", "go.sum"])
def test_a_changed_source_is_another_program(client: Path, calls: Path, tmp_path: Path, name: str) -> None:
    before = go.command(client, tmp_path / "cache")

    (client / name).write_text("changed")

    assert go.command(client, tmp_path / "cache") != before
    assert len(calls.read_text().splitlines()) == 2


def test_what_the_clients_share_is_part_of_each(client: Path, calls: Path, tmp_path: Path) -> None:
    before = go.command(client, tmp_path / "cache")

    shared = shutil.copytree(go.SHARED, tmp_path / "go")
    assert go.command(client, tmp_path / "cache", shared=shared) == before

    (shared / "play.go").write_text("changed")
    assert go.command(client, tmp_path / "cache", shared=shared) != before
    assert len(calls.read_text().splitlines()) == 2


def test_what_is_no_source_does_not_matter(client: Path, calls: Path, tmp_path: Path) -> None:
    before = go.command(client, tmp_path / "cache")

    (client / "client.toml").write_text("changed")

    assert go.command(client, tmp_path / "cache") == before
    assert len(calls.read_text().splitlines()) == 1


def test_without_go_the_error_says_what_to_install(client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BuildError, match=r"some-client has to be built .* Install Go 1\.26 or newer"):
        go.command(client, tmp_path / "cache")


def test_what_go_said_is_in_the_error_and_nothing_is_kept(client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _on_the_path(tmp_path, monkeypatch, _REFUSES)

    with pytest.raises(BuildError, match="syntax error"):
        go.command(client, tmp_path / "cache")

    assert not list((tmp_path / "cache" / "go").glob("some-client-*"))
