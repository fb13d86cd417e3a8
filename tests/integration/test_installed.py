"""The wheel, installed into an environment of its own, away from the sources: what is in it, and that it serves."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from forebay.imports import OUR_PACKAGES
from tests.kit.serving import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the build fetches hatchling, the installation all dependencies

INSTALLED_WITHIN_S: Final = 300.0
ANSWERS_WITHIN_S: Final = 60.0
SERVE: Final = ("serve", "--log-format", "json", "--set", "kafka.listeners=PLAINTEXT://127.0.0.1:0", "--set", "http.listen=127.0.0.1:0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its programs."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    uv("pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), str(wheel))
    return folder / "bin"


def uv(*arguments: str) -> None:
    program = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S)
    assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "PYTHON"))}


def test_the_wheel_has_what_the_program_needs_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"forebay", *OUR_PACKAGES}
    assert [name for name in names if "test" in Path(name).name] == []


def test_the_installed_program_serves_and_stops(installed: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(installed / "forebay"), *SERVE], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        try:
            # A broker that never gets ready ends this by the test's own time limit.
            said = next((line for line in process.stdout if '"ready"' in line), None)
            assert said, "it ended before it was ready"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=ANSWERS_WITHIN_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert (tmp_path / "forebay-data" / "meta.db").exists()


def test_the_installed_program_loads_embedded_stores_and_says_what_services_need(installed: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: s\nstores: {kind: services}\ntopics: [{name: t}]\nproducers: [{topics: [t], records: 1000}]\n")

    def loaded(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(installed / "forebay"), "bench", "load", str(scenario), *options]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(), check=False, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S
        )

    refused, ended = loaded(), loaded("--stores", "disk")

    assert (refused.returncode, refused.stderr.split(" needs a checkout")[0]) == (2, "stores.kind services")
    assert ended.stdout.startswith("reconciled: intent 1,000 · acked 1,000 · stored 1,000 · PUT "), ended.stderr


def test_the_installed_program_shows_its_demo_with_flights_that_it_makes(installed: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [str(installed / "forebay"), "demo", "--exit", "--records", "5000"],
        cwd=tmp_path,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALLED_WITHIN_S,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "flights   made up, the same on every machine;" in ended.stdout
    assert "5000 of 5000 records read back, order and checksums match" in ended.stdout


def test_workers_of_the_installed_program_are_forked(installed: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(installed / "forebay"), *SERVE, "--workers", "2"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        try:
            ready = 0
            for line in process.stdout:
                ready += '"event": "ready"' in line
                if ready == 2:
                    break
            assert ready == 2, "a worker did not get ready"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=ANSWERS_WITHIN_S)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_package_that_was_installed_over_ours_ends_the_start_with_a_line(installed: Path, tmp_path: Path) -> None:
    (site,) = (installed.parent / "lib").glob("python*/site-packages")
    ours = site / "storage" / "__init__.py"
    kept = ours.read_bytes()
    ours.write_text('"""The storage of somebody else."""\n')
    try:
        ended = subprocess.run(
            [str(installed / "forebay"), "version"],
            cwd=tmp_path,
            env=environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
        )
    finally:
        ours.write_bytes(kept)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith('Another distribution has written its package "storage" over that of forebay')
