"""What is said where a program or a package that a client needs is missing or broken."""

from pathlib import Path

import pytest

from services.build import BuildError
from tests.kit.toolchains import kcat, python


def client(folder: Path, library: str, version: str) -> Path:
    (folder / "client.toml").write_text(f'library = "{library}"\nversion = "{version}"\n')
    return folder


def on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    program = folder / name
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 3\n", "no program\n"])
def test_a_kcat_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    on_the_path(tmp_path, monkeypatch, "kcat", script)

    with pytest.raises(BuildError, match="kcat -V does not work"):
        kcat.command(client(tmp_path, "kcat", "1.7.1 (librdkafka 2.0.2)"), tmp_path / "cache")


def test_a_kcat_that_says_nothing_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_path(tmp_path, monkeypatch, "kcat", "#!/bin/sh\nexit 0\n")

    with pytest.raises(kcat.NotOnThisMachineError, match=r"kcat 1\.7\.1 .* is that of Debian 12"):
        kcat.command(client(tmp_path, "kcat", "1.7.1 (librdkafka 2.0.2)"), tmp_path / "cache")


def test_a_python_client_that_is_not_installed_is_named_with_what_installs_it(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no-such-client is not installed .*make setup-dev"):
        python.command(client(tmp_path, "no-such-client", "1"), tmp_path / "cache")
