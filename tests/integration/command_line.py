"""The command line as tests run it: in this process, or as a process of its own that can be interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from forebay.cli import application
from runtime.clock import SystemClock

ANSWER_WITHIN_S = 200.0
ASK_EVERY_S = 0.1

_clock = SystemClock()


def environment(bootstrap: str) -> dict[str, str]:
    folder = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**kept, "FOREBAY_BOOTSTRAP": bootstrap, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def forebay(bootstrap: str, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, data, talk."""
    ended = CliRunner().invoke(application, [*arguments], input=given, env={"FOREBAY_BOOTSTRAP": bootstrap})
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def lines_until(last: str, lines: Iterable[str]) -> list[str]:
    """What a process said before `last`, as it comes. One that ends without it has failed, and what it said says why."""
    said: list[str] = []
    for line in lines:
        said.append(line.rstrip())
        if said[-1] == last:
            return said[:-1]
    raise AssertionError("\n".join([f"it ended before it said {last!r}:", *said]))


def answered(bootstrap: str, *arguments: str, given: bytes = b"") -> Any:
    code, data, talk = forebay(bootstrap, *arguments, "-o", "json", "-q", given=given)
    assert (code, talk) == (0, "")
    return json.loads(data)


def following(bootstrap: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "forebay", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(bootstrap))


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=ANSWER_WITHIN_S)
    return process.returncode, talk.decode()


def soon(is_so: Callable[[], bool]) -> None:
    give_up_s = _clock.monotonic_s() + ANSWER_WITHIN_S
    while not is_so():
        assert _clock.monotonic_s() < give_up_s, "not so in time"
        time.sleep(ASK_EVERY_S)
