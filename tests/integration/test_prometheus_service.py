"""Prometheus as `services.prometheus` fetches and runs it."""

import json
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from services.build import BuildError
from services.ports import free_port
from services.process import ServerError
from services.prometheus import prometheus_program, running_prometheus

WITHIN_S: Final = 60.0
pytestmark = pytest.mark.timeout(900)  # the package is fetched once


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    file = tmp_path / "prometheus.yml"
    file.write_text("global: {scrape_interval: 1s}\n")
    return file


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with an `apt-get` and a `dpkg-deb` that make both programs, slowly enough for two to meet; and the file of apt's calls."""
    folder, calls = tmp_path / "path", tmp_path / "calls"
    folder.mkdir()
    programs = {
        "apt-get": f'#!/bin/sh\necho "$@" >> {calls}\nsleep 0.3\necho package > prometheus_9.deb\n',
        "dpkg-deb": '#!/bin/sh\nmkdir -p "$3/usr/bin"\necho one > "$3/usr/bin/prometheus"\necho two > "$3/usr/bin/promtool"\n',
    }
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (tmp_path / "plain").mkdir()
    for name in ("sh", "sleep", "mkdir"):
        (tmp_path / "plain" / name).symlink_to(Path("/bin") / name)
    monkeypatch.setenv("PATH", f"{folder}:{tmp_path / 'plain'}")
    return calls


def test_a_server_scrapes_what_its_configuration_names_and_stops(tmp_path: Path, configuration: Path) -> None:
    with running_prometheus(tmp_path / "data", configuration) as prometheus:
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/status/buildinfo", timeout=WITHIN_S) as answer:
            version = json.load(answer)["data"]["version"]
        pid = prometheus.pid

    assert version.startswith(("2.", "3."))
    assert not Path(f"/proc/{pid}").exists()


def test_a_configuration_with_a_mistake_is_refused_with_what_prometheus_says(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text("global: {scrape_intervall: 1s}\n")

    with pytest.raises(ServerError, match="scrape_intervall"), running_prometheus(tmp_path / "data", tmp_path / "prometheus.yml"):
        pass


def test_a_port_that_is_taken_is_an_error(tmp_path: Path, configuration: Path) -> None:
    with (
        running_prometheus(tmp_path / "one", configuration, port=free_port()) as one,
        pytest.raises(ServerError, match=r"Port \d+ .* is in use: Prometheus cannot start"),
        running_prometheus(tmp_path / "two", configuration, port=one.port),
    ):
        pass


def test_promtool_is_there_too() -> None:
    said = subprocess.run([prometheus_program("promtool"), "--version"], capture_output=True, text=True, timeout=WITHIN_S, check=True)

    assert "promtool, version" in said.stdout + said.stderr


def test_two_that_need_the_package_fetch_it_once(tmp_path: Path, debian: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: prometheus_program(name, cache=tmp_path / "cache"), ("prometheus", "promtool")))

    assert [path.read_text() for path in found] == ["one\n", "two\n"]
    assert [line.split()[0] for line in debian.read_text().splitlines()] == ["update", "download"]


def test_installed_programs_are_used_as_they_are(tmp_path: Path, debian: Path) -> None:
    for name in ("prometheus", "promtool"):
        (tmp_path / "path" / name).write_text("#!/bin/sh\n")
        (tmp_path / "path" / name).chmod(0o755)

    assert prometheus_program("promtool", cache=tmp_path / "cache") == tmp_path / "path" / "promtool"
    assert not debian.exists()


@pytest.mark.parametrize(
    ("program", "script", "said"),
    [
        ("apt-get", "echo 'E: Unable to locate package prometheus' >&2; exit 100", r"cannot be had.*\n.*Unable to locate package"),
        ("dpkg-deb", 'mkdir -p "$3/usr/bin"', "has no `prometheus`"),
    ],
)
def test_a_package_that_cannot_be_had_is_an_error_that_says_what_to_do(
    tmp_path: Path, debian: Path, program: str, script: str, said: str
) -> None:
    (tmp_path / "path" / program).write_text(f"#!/bin/sh\n{script}\n")

    with pytest.raises(BuildError, match=said) as failed:
        prometheus_program("promtool", cache=tmp_path / "cache")
    assert "apt install --no-install-recommends prometheus" in str(failed.value)
    assert [path for path in (tmp_path / "cache" / "debian").iterdir() if not path.name.endswith(".lock")] == []


def test_without_apt_the_error_names_what_to_install(tmp_path: Path, debian: Path) -> None:
    (tmp_path / "path" / "apt-get").unlink()

    with pytest.raises(BuildError, match=r"no `apt-get` to fetch Debian's\. Install Prometheus 2\.42 or newer"):
        prometheus_program("prometheus", cache=tmp_path / "cache")
