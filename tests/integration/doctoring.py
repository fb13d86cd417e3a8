"""`forebay serve` that ends because something is wrong, and `forebay doctor` on the same settings, each as a process of its own."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from forebay.commands.doctor.finding import exit_code
from forebay.commands.doctor.run import examine, of_settings_errors
from process.settings.errors import SettingsError
from process.settings.loading import load
from tests.kit import forked

ENDS_WITHIN_S = 90.0


class Report(NamedTuple):
    """What doctor found: the details by check and verdict, and its exit code."""

    exit_code: int
    findings: tuple[tuple[str, str, str], ...]

    def of(self, verdict: str) -> dict[str, str]:
        return {check: detail for check, its, detail in self.findings if its == verdict}

    @property
    def failed(self) -> dict[str, str]:
        return self.of("failed")


def doctor(settings: Mapping[str, str], *, environ: Mapping[str, str] | None = None, cwd: Path) -> Report:
    """In this process: the same checks, without what its start costs."""
    given = [f"{key}={value}" for key, value in settings.items()]
    with mock.patch.dict(os.environ, _environment(environ or {}), clear=True), contextlib.chdir(cwd):
        try:
            findings = asyncio.run(examine(load(file=Path(os.devnull), environ=os.environ, assignments=given), lambda _: None))
        except SettingsError as error:
            findings = of_settings_errors(error.problems)
    return Report(exit_code(findings), tuple((one.check, one.verdict.value, one.detail) for one in findings))


def doctor_apart(settings: Mapping[str, str], *, cwd: Path, open_files_max: int) -> Report:
    """As a process of its own."""
    ended = _run(["doctor", "-o", "json"], settings, {}, cwd, open_files_max)
    assert "Traceback" not in ended.stderr, ended.stderr
    return Report(ended.returncode, tuple((one["check"], one["verdict"], one["detail"]) for one in json.loads(ended.stdout)))


def refusal(
    settings: Mapping[str, str], *, environ: Mapping[str, str] | None = None, cwd: Path, open_files_max: int | None = None
) -> list[str]:
    """The lines of why `serve` ends."""
    if open_files_max is None:
        arguments = ["serve", "-c", os.devnull, *(f"--set={key}={value}" for key, value in settings.items())]
        ended = forked.run(arguments, environ=_environment(environ or {}), cwd=cwd, timeout_s=ENDS_WITHIN_S)
    else:
        ended = _run(["serve"], settings, environ or {}, cwd, open_files_max)
    assert ended.returncode in {1, 2, 3}, ended.stderr
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    (message,) = [event["message"] for event in events if event["event"] == "cannot_serve"]
    return str(message).splitlines()


def on_this_machine(folder: Path) -> dict[str, str]:
    """Settings of an embedded broker whose ports the system assigns."""
    return {
        "kafka.listeners": "PLAINTEXT://127.0.0.1:0",
        "http.listen": "127.0.0.1:0",
        "storage.url": f"file://{folder}/objects",
        "metadata.url": f"sqlite:///{folder}/meta.db",
    }


def names_below(folder: Path) -> list[str]:
    """Without those that SQLite makes beside a file that it opens only to read."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(name for name in names if not name.endswith(("-shm", "-wal")))


def _run(
    command: Sequence[str], settings: Mapping[str, str], environ: Mapping[str, str], cwd: Path, open_files_max: int
) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "forebay", *command, "-c", os.devnull, *(f"--set={key}={value}" for key, value in settings.items())]
    words = ["/bin/sh", "-c", f'ulimit -n {open_files_max} && exec "$@"', "sh", *words]
    return subprocess.run(
        words,
        env=_environment(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))} | dict(environ)
