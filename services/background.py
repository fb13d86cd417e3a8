"""Servers that outlive the command that starts them, each remembered by a pid file: what `make services` starts.

A pid is believed only while the process of that number still runs the command that was started; otherwise it names a stranger.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from process.settings.ports import owner_of_port
from runtime.clock import SystemClock
from services import oxia, versitygw
from services.build import OXIA, VERSITYGW, built
from services.ports import HOST, is_free
from services.process import STOP_WITHIN_S, ServerError, spawn, wait_ready
from services.readiness import http_answers, oxia_answers

_ASK_EVERY_S: Final = 0.02
_PROC: Final = Path("/proc")

_clock = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a server. `answers`: whether it is ready. `port_option`: what to type for another port."""

    command: Sequence[str]
    environ: Mapping[str, str]
    port: int
    port_option: str
    answers: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundServer:
    """`folder` holds its data, its log and its pid file."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "server.pid"

    def pid(self) -> int | None:
        """The process id of the server, if it runs."""
        pid, command = self._remembered()
        return pid if pid and command_of(pid) == command else None

    def start(self, launch: Launch) -> bool:
        """Whether it had to be started; ready when this returns. Raise `ServerError`, with nothing left running that did not run before."""
        if (pid := self.pid()) is not None:
            if self._remembered()[1] != shlex.join(launch.command):
                raise ServerError(f"{self.name} (pid {pid}) runs with another version or other options. Stop it first: make services-stop.")
            if not launch.answers():
                raise ServerError(f"{self.name} (pid {pid}) runs and does not answer on port {launch.port}. See {self.log}.")
            return False
        if not is_free(launch.port):
            owner = owner_of_port(launch.port)
            by = f" ({owner})" if owner else ""
            raise ServerError(
                f"Port {launch.port} on {HOST} is in use{by}: {self.name} cannot start. Choose another with {launch.port_option}."
            )
        log_from = self.log.stat().st_size if self.log.exists() else 0
        process = spawn(launch.command, launch.environ, self.log)
        try:
            self._remember(process.pid, launch.command)
            wait_ready(process, name=self.name, log=self.log, log_from=log_from, answers=launch.answers)
        except BaseException:
            process.kill()
            process.wait(STOP_WITHIN_S)
            self.pid_file.unlink(missing_ok=True)
            raise
        return True

    def stop(self) -> bool:
        """Whether it ran. SIGTERM, and SIGKILL after `STOP_WITHIN_S`. A pid file that names a stranger is removed, the stranger let be.

        Raise `ServerError` if it does not end.
        """
        ran = self.pid() is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            if (pid := self.pid()) is not None:
                # It may end between the look and the signal.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                self._wait_until_over()
        if self.pid() is not None:
            raise ServerError(f"{self.name} (pid {self.pid()}) does not end.")
        self.pid_file.unlink(missing_ok=True)
        return ran

    def _remember(self, pid: int, command: Sequence[str]) -> None:
        fresh = self.pid_file.with_suffix(".new")
        fresh.write_text(f"{pid}\n{shlex.join(command)}\n")
        fresh.replace(self.pid_file)

    def _remembered(self) -> tuple[int | None, str]:
        try:
            pid, command = self.pid_file.read_text().splitlines()
            return int(pid), command
        except (OSError, ValueError):
            # No file, or not one of ours.
            return None, ""

    def _wait_until_over(self) -> None:
        give_up_s = _clock.monotonic_s() + STOP_WITHIN_S
        while self.pid() is not None and _clock.monotonic_s() < give_up_s:
            time.sleep(_ASK_EVERY_S)


def oxia_launch(folder: Path, *, port: int) -> Launch:
    """Raise `services.build.BuildError`."""
    return Launch(
        command=oxia.command(str(built(OXIA)), str(folder), address=f"{HOST}:{port}"),
        environ=os.environ | oxia.ON_ONE_PROCESSOR,
        port=port,
        port_option="--oxia-port",
        answers=partial(oxia_answers, port),
    )


def s3_launch(folder: Path, *, port: int) -> Launch:
    """Makes the bucket. Raise `services.build.BuildError`."""
    versitygw.prepare(folder, versitygw.BUCKET)
    return Launch(
        command=versitygw.command(str(built(VERSITYGW)), folder, address=f"{HOST}:{port}"),
        environ=versitygw.environ(os.environ),
        port=port,
        port_option="--s3-port",
        answers=partial(http_answers, port),
    )


def exports(*, oxia_port: int, s3_port: int) -> str:
    """The lines that make a broker started from this shell use both."""
    variables = {
        "FOREBAY_METADATA__URL": oxia.url_of(HOST, oxia_port),
        "FOREBAY_STORAGE__URL": versitygw.url_of(HOST, s3_port),
        **versitygw.CREDENTIALS,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def command_of(pid: int) -> str:
    """What the process runs, as a shell would take it; empty when there is none, or it has ended and nobody has asked how."""
    if not _PROC.exists():
        shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shlex.join(shown.stdout.split())
    try:
        return shlex.join(part.decode(errors="replace") for part in (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1])
    except OSError:
        return ""
