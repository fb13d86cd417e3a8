"""A package of one of our names that is somebody else's is named before it is imported, with what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.imports import OUR_PACKAGES, clash

ANSWERS_WITHIN_S = 60


def python(*arguments: str, folder: Path, pythonpath: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSAFEPATH"}}
    if pythonpath:
        environment["PYTHONPATH"] = str(pythonpath)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S
    )


def test_our_own_packages_are_found() -> None:
    assert clash() == ""


@pytest.mark.parametrize("name", OUR_PACKAGES)
def test_a_module_in_the_working_directory_is_named_before_it_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')")

    ended = python("-m", "forebay", "version", folder=tmp_path)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f'Package "{name}" comes from {tmp_path}/{name}.py, but forebay needs its own in ')
    assert ended.stderr.endswith(". Start forebay in another folder, or as `forebay` instead of `python -m forebay`.\n")
    assert ended.stderr.count("\n") == 1


def test_a_package_in_pythonpath_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "others" / "storage").mkdir(parents=True)
    (tmp_path / "others" / "storage" / "__init__.py").write_text("")

    ended = python("-m", "forebay", "version", folder=tmp_path, pythonpath=tmp_path / "others")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f'Package "storage" comes from {tmp_path}/others/storage, but forebay needs its own in ')
    assert ended.stderr.endswith(f". Take {tmp_path}/others out of PYTHONPATH.\n")


def test_a_folder_of_data_with_one_of_our_names_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "objects.bin").write_bytes(b"data")

    ended = python("-m", "forebay", "version", folder=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_parent_of_workers_looks_for_itself(tmp_path: Path) -> None:
    (tmp_path / "broker.py").write_text("raise SystemExit('it ran')")

    ended = python("-m", "forebay.processes.forking", folder=tmp_path)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f'Package "broker" comes from {tmp_path}/broker.py, but forebay needs its own in ')


def test_a_package_that_another_distribution_wrote_over_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "written_over"
    ours.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    (ours / "__init__.py").write_text('"""A part of Forebay."""\n')
    assert clash(home=tmp_path, packages=["written_over"]) == ""

    (ours / "__init__.py").write_text('"""Something else."""\n')
    said = clash(home=tmp_path, packages=["written_over"])
    assert said.startswith(f'Another distribution has written its package "written_over" over that of forebay in {ours}. ')
    assert "uv tool install" in said


def test_a_package_of_another_distribution_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    said = clash(home=tmp_path / "site-packages", packages=["elsewhere"])

    assert said.startswith(
        f'Package "elsewhere" comes from {tmp_path}/elsewhere.py, but forebay needs its own in {tmp_path}/site-packages/elsewhere. '
    )
    assert "uv tool install" in said


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    said = clash(home=tmp_path, packages=["taken_away"])

    assert said == f'forebay needs its own package "taken_away" in {tmp_path}/taken_away, and it is not there. Install forebay again.'
