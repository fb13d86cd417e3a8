"""The transcripts of docs/reference/cli.md are run again, beside a broker that serves."""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from forebay.cli import application
from tests.integration.command_line import ANSWER_WITHIN_S, answered, environment, following, interrupted, soon
from tests.kit.serving import ROOT, Served, serving

PAGE = ROOT / "docs" / "reference" / "cli.md"
PRINTED = re.compile(r"printf '([^']*)' \| (.*)")
MASKS = (
    (re.compile(r"(?<=\"timestamp_ms\":)\d{13}\b|\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
    (re.compile(r"(?<=^id       )[A-Za-z0-9_-]{22}$|(?<=^cluster     )[A-Za-z0-9_-]{22}$", re.MULTILINE), "<id>"),
    (re.compile(r"(?<=^topic    )forebay-bench-[0-9a-z]{26}$", re.MULTILINE), "<topic>"),
    (re.compile(r"(?<= in )[\d.,]+(?= s$)|[\d.,]+(?= (?:records/s|requests/s|MB/s|s of CPU|ms\b))", re.MULTILINE), "<n>"),
)


class Block(NamedTuple):
    """Commands with what they write; `meanwhile` is a member of a group that runs while they do."""

    meanwhile: str | None
    commands: list[tuple[str, str]]


def blocks() -> Iterator[Block]:
    found = re.findall(r"(?:^<!-- meanwhile: (.*) -->\n)?^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for meanwhile, text in found:
        yield Block(meanwhile or None, re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE))


def in_this_process(command: str) -> tuple[bytes, list[str]] | None:
    """Standard input and arguments of a command that shows as much without a process of its own; None for shells and loads."""
    printed = PRINTED.fullmatch(command)
    given, rest = (printed[1], printed[2]) if printed else ("", command)
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    if words[0] != "forebay" or words[1] == "bench" or any(set(word) <= set("();<>|&") for word in words):
        return None
    return given.encode().decode("unicode_escape").encode(), words[1:]


def written(broker: Served, command: str) -> str:
    if (here := in_this_process(command)) is not None:
        given, words = here
        ended = CliRunner().invoke(application, words, input=given, env=environment(broker.bootstrap))
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        return masked(broker, ended.output, ended.exit_code)
    # bash, so that a pipe's last command is the one whose exit code counts; stderr as a terminal shows it.
    run = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=ANSWER_WITHIN_S,
        env=environment(broker.bootstrap),
        check=False,
    )
    return masked(broker, run.stdout.decode(), run.returncode)


def masked(broker: Served, written: str, exit_code: int) -> str:
    text = written.replace(f"{broker.kafka_port}", "<port>")
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text + (f"[exit code {exit_code}]\n" if exit_code else "")


@contextlib.contextmanager
def running(broker: Served, command: str | None) -> Iterator[None]:
    """A command that joins a group with -g, has been given its partitions, and has committed all there is."""
    if command is None:
        yield
        return
    words = shlex.split(command)
    group = words[words.index("-g") + 1]

    def is_settled() -> bool:
        found = answered(broker.bootstrap, "group", "lag", group)
        return found["state"] == "Stable" and found["lag"] == 0 and any(one["member_id"] for one in found["partitions"])

    process = following(broker.bootstrap, *words[1:])
    try:
        soon(is_settled)
        yield
    finally:
        assert interrupted(process)[0] == 0


@pytest.mark.timeout(300)
def test_the_transcripts_of_the_page_are_what_the_commands_write() -> None:
    with serving(None) as broker:
        for block in blocks():
            with running(broker, block.meanwhile):
                for command, expected in block.commands:
                    assert aligned(written(broker, command)) == aligned(expected), command


def aligned(text: str) -> str:
    """A masked port is not as wide as the real one: the column it stands in is not compared in width."""
    return re.sub(r" *(PORT|<port>) *", r" \1 ", text)


def test_every_command_is_in_the_page() -> None:
    shown = " ".join(command for block in blocks() for command, _ in block.commands)

    for command in ("list", "describe", "create", "alter", "add-partitions", "delete", "produce", "consume", "tail", "trim"):
        assert f"forebay topic {command}" in shown
    for command in ("list", "describe", "lag", "reset-offsets", "delete-offsets", "delete"):
        assert f"forebay group {command}" in shown
    for command in ("info", "brokers", "health"):
        assert f"forebay cluster {command}" in shown
    for command in ("produce", "consume", "e2e", "requests"):
        assert f"forebay bench {command}" in shown
