"""`forebay spark` for somebody who has not installed Spark, and for somebody who has: one sentence, no stack."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

WITHIN_S: Final = 60.0
NOT_THERE: Final = "raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n"


def forebay(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "forebay", "spark", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env={**os.environ, **environ})


@pytest.fixture
def without_pyspark(tmp_path: Path) -> str:
    """What PYTHONPATH has to be for that."""
    (tmp_path / "pyspark.py").write_text(NOT_THERE)
    return str(tmp_path)


@pytest.mark.parametrize("arguments", [("run", "materialize", "--help"), ("check",)], ids=" ".join)
def test_without_pyspark_a_sentence_says_what_to_install(arguments: tuple[str, ...], without_pyspark: str) -> None:
    done = forebay(*arguments, PYTHONPATH=without_pyspark)

    assert done.returncode == os.EX_UNAVAILABLE
    assert done.stderr == "Spark is not installed (760 MB). In a clone: uv tool install --force '.[spark]', or make setup-dev.\n"
    assert done.stdout == ""


def test_without_java_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    done = forebay("run", "audit", "--table", "/nowhere", JAVA_HOME=str(tmp_path))

    assert done.returncode == os.EX_UNAVAILABLE
    assert done.stderr.startswith(f"Spark needs Java, and JAVA_HOME is {tmp_path}, and there is no bin/java in it. Install ")
    assert done.stderr.count("\n") == 1


def test_jobs_are_listed_without_pyspark(without_pyspark: str) -> None:
    done = forebay("run", PYTHONPATH=without_pyspark)

    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"materialize", "audit", "replay"}


def test_wrong_settings_are_said_before_a_session_is_started(tmp_path: Path) -> None:
    done = forebay("run", "materialize", "--table", "a", "--chekpoint", "b", JAVA_HOME=str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "materialize has no option --chekpoint (did you mean --checkpoint?)"


def test_a_job_that_there_is_not_is_named_with_those_there_are() -> None:
    done = forebay("run", "materialise")

    assert done.returncode == 2
    assert done.stderr.startswith("There is no job materialise. There are: materialize, ")
