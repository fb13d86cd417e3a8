"""What shells are answered that complete a command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(sys.executable).parent)


def completed(line: str, *, bootstrap: str = "127.0.0.1:1") -> list[str]:
    """As bash would: the script is loaded, and its function asked for a line with the cursor at the end."""
    bash = shutil.which("bash")
    assert bash is not None
    program = (
        'eval "$(forebay generate completion bash)"\n'
        'COMP_LINE="$1" COMP_POINT=${#1}\n'
        "_forebay_completion forebay\n"
        "[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    ended = subprocess.run(
        [bash, "--norc", "-c", program, "bash", line],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{FOLDER}{os.pathsep}{os.environ['PATH']}", "FOREBAY_BOOTSTRAP": bootstrap},
    )
    assert ended.stderr == ""
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("forebay gr", ["group"]),
        ("forebay group re", ["reset-offsets"]),
        ("forebay bench ", ["produce", "consume", "e2e", "requests", "load"]),
        ("forebay bench produce --compression z", ["zstd"]),
        ("forebay generate completion ", ["bash", "zsh", "fish"]),
        ("forebay group list --state st", ["Stable"]),
        ("forebay group reset-offsets g --to-e", ["--to-earliest"]),
        ("forebay topic list -b localhost:9092 --ti", ["--timeout"]),
    ],
)
def test_bash_completes_commands_and_options(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_without_a_broker_no_name_is_offered_and_nothing_is_said() -> None:
    assert completed("forebay topic describe ") == []
    assert completed("forebay group lag -b no-such-host.invalid ") == []


def test_zsh_is_answered_in_its_own_words() -> None:
    environment = {**os.environ, "_FOREBAY_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "forebay generate completion "}
    ended = subprocess.run([f"{FOLDER}/forebay"], capture_output=True, text=True, check=True, env=environment)

    assert ended.stdout.splitlines() == ['_arguments \'*: :(("bash"', '"zsh"', '"fish"))\'']
