"""Transcripts in pages of docs/: the commands of their ```console blocks are run again, and what they write is compared.

A page says `<time>`, `<n>` and the like for what a mask finds, and has folders, ports and URLs that read well in place of the test's own.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from typer.testing import CliRunner

from forebay.cli import application
from runtime.clock import SystemClock
from tests.integration.command_line import ANSWER_WITHIN_S

SOON_S = 90.0
ASK_EVERY_S = 0.1
LOOKS = ("curl ", "grep ", "tail ", "forebay cluster ", "forebay group describe ", "forebay topic consume ", "forebay doctor ")
FAILED = "[exit code "
IN_THIS_PROCESS = re.compile(r"forebay (?:cluster|group|topic) [^|<>&;$'*]*")
"""Commands of which a process of their own would show no more."""
MASKS = (
    (re.compile(r'(?<="timestamp": ")[^"]*|(?<="since":")[^"]*'), "<time>"),
    (re.compile(r'(?<=_s": )[\d.]+|(?<="free_bytes": )\d+|(?<="total_bytes": )\d+|(?<="failed": )\d+'), "<n>"),
    (re.compile(r"(?<=/srv/forebay/objects/)[\w./-]+(?=')|(?<=\bwal/)[\w/]+"), "<object>"),
    (re.compile(r"(?<=\bllog/)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<topic-id>"),
    (re.compile(r"(?<=, read )\d+(?= bytes)"), "<n>"),
    (re.compile(r"(?<=pid )\d+|(?<=\"pid\": )\d+"), "<pid>"),
)

_clock = SystemClock()


def part(page: str, title: str) -> str:
    """What follows a heading, up to the next one of any level. `KeyError` if there is none."""
    lines: list[str] | None = None
    is_block = False
    for line in page.splitlines(keepends=True):
        is_block ^= line.startswith("```")
        if line.startswith("#") and not is_block:
            if lines is not None:
                break
            lines = [] if line.lstrip("# ").rstrip() == title else None
        elif lines is not None:
            lines.append(line)
    if lines is None:
        raise KeyError(title)
    return "".join(lines)


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of the ```console blocks, with what it writes."""
    found = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [command for block in found for command in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]


@dataclass
class Shell:
    """Where commands of a page run. Leaving it kills what they started.

    `names`: what the page calls something, and what it really is. `entering`: words before each command that is a process of its own.
    In a command `<pid>` is the broker that was started last.
    """

    folder: Path
    names: Mapping[str, str]
    environ: Mapping[str, str] = field(default_factory=dict)
    entering: Sequence[str] = ()
    masks: Sequence[tuple[re.Pattern[str], str]] = MASKS
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """By commands that end in `&`, and not ended by `kill`."""

    def replay(self, text: str) -> None:
        """Run what the text shows, one command after the other. Fail where something else is written."""
        shown = commands(text)
        assert shown, "there is nothing to replay"
        for command, expected in shown:
            self._replay(command, expected)

    def in_words_of_the_page(self, text: str) -> str:
        for word, real in sorted(self.names.items(), key=lambda name: -len(name[1])):
            text = text.replace(real, word)
        for pattern, mask in self.masks:
            text = pattern.sub(mask, text)
        return text

    def as_it_is(self, text: str) -> str:
        """The reverse, without masks, in words of a shell."""
        for word, real in sorted(self.names.items(), key=lambda name: -len(name[0])):
            text = text.replace(word, shlex.quote(real))
        return text

    def stop(self) -> None:
        """Ask what commands started to end, and wait until it has."""
        for process in self.started:
            process.terminate()
        while self.started:
            self.started.pop().wait(ANSWER_WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.wait(ANSWER_WITHIN_S)

    def _replay(self, command: str, expected: str) -> None:
        # Who only looks, or failed, tries again until it is as the page says: a broker takes its time, on a busy machine more of it.
        may_be_repeated = f"{command} ".startswith(LOOKS) or FAILED in expected
        give_up_s = _clock.monotonic_s() + SOON_S
        while True:
            written = self.in_words_of_the_page(self._written(command))
            if _without_widths(written) == _without_widths(expected):
                return
            if not may_be_repeated or _clock.monotonic_s() > give_up_s:
                raise AssertionError(f"$ {command}\n{written}\n--- the page has\n{expected}")
            time.sleep(ASK_EVERY_S)

    def _written(self, command: str) -> str:
        real = self.as_it_is(command)
        if IN_THIS_PROCESS.fullmatch(command):
            ended = CliRunner().invoke(application, shlex.split(real)[1:], env=dict(self.environ))
            return ended.output + _exit_code(ended.exit_code)
        if command.endswith(" &"):
            words = [*self.entering, "bash", "-c", f"exec {real.removesuffix(' &')}"]
            self.started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=self.folder, env=self._environment()))
            return ""
        if self.started:
            real = real.replace("<pid>", str(self.started[-1].pid))
        run = subprocess.run(
            [*self.entering, "bash", "-c", real],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_WITHIN_S,
            cwd=self.folder,
            env=self._environment(),
            check=False,
        )
        if command == "kill <pid>":
            self.started.pop().wait(ANSWER_WITHIN_S)
        return run.stdout.decode() + _exit_code(run.returncode)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_", "AWS_"))}
        # The words of a compactor would come between those of the broker.
        return kept | {
            "FOREBAY_COMPACTOR__RUN": "false",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **self.environ,
        }


def _exit_code(code: int) -> str:
    return f"{FAILED}{code}]\n" if code else ""


def _without_widths(text: str) -> str:
    """Columns are as wide as what is in them, and a name of the page is not as wide as the real one."""
    return re.sub(r" +", " ", text)
