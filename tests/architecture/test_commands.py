"""Every command that a page names exists: targets of the Makefile, commands and options of `forebay`, modules, cases of the bench, files.

In the README each line of a block of commands must be one. Other pages show settings and output in such blocks, too, so only lines that
begin like a command of ours count there. Commands between backquotes count everywhere. Left out: ADRs, which describe the day they were
written, and blocks marked `console`, which tests/integration/test_cli_page.py runs.
"""

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from bench.__main__ import CASES
from bench.beside.loads import LOADS, SIZES, TARGETS, WORKERS
from forebay.cli import application

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
PAGES: Final = sorted(
    path
    for path in (
        README,
        *(ROOT / name for name in ("CONTRIBUTING.md", "ARCHITECTURE.md", "examples/README.md", "services/README.md", "bench/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests" / "compat").glob("README.md"),
    )
    if "adr" not in path.parts
)
OF_OTHERS: Final = frozenset({"kcat", "curl", "uv", "pipx", "pip", "docker", "apt-get", "git", "mvn", "go", "valgrind", "setsid", "echo"})
WRITTEN_BY_MAKE: Final = frozenset({".services/env"})
_BLOCK: Final = re.compile(r"^ *```(?:sh|bash)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_BEGINNING: Final = r"(?:make [a-z]|(?:\.venv/bin/)?forebay [a-z-]|(?:\.venv/bin/)?python3? (?:-|[a-z]))"
_INLINE: Final = re.compile(rf"(?<!`)`({_BEGINNING}[^`]*)`(?!`)")
_OURS: Final = re.compile(rf"^({_BEGINNING}.*)$")
_TARGET: Final = re.compile(r"^([a-z-]+):.*##[^\n]*\n((?:\t.*\n)*)", re.MULTILINE)
_MAKEFILE: Final = dict(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if page == README and line.strip():
                yield line.strip()
            elif ours := _OURS.match(line.strip()):
                yield ours[1]
    for inline in _INLINE.findall(text):
        yield inline.replace("\n", " ")


def problem(command: str) -> str | None:
    """What does not exist; None if all of it does. A pipe is judged by its first command."""
    for part in re.sub(r"\s#.*", "", command).split(" && "):
        words = shlex.split(part.partition(" | ")[0].replace("…", ""))
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and (found := _problem(words)):
            return found
    return None


def _problem(words: list[str]) -> str | None:
    name, *rest = words
    match Path(name).name:
        case "make":
            return _make(rest)
        case "forebay":
            return _forebay(rest)
        case "python" | "python3":
            return _python(rest)
        case "cd":
            return None if (ROOT / rest[0]).is_dir() else f"there is no folder {rest[0]}"
        case ".":
            return None if rest[0] in WRITTEN_BY_MAKE else f"nothing writes {rest[0]}"
        case other if other in OF_OTHERS:
            return None
    if name.startswith(".venv/bin/"):
        return None if (ROOT / name).exists() else f"{name} is not installed"
    return None if os.access(ROOT / name, os.X_OK) else f"{name} is no program"


def _make(words: list[str]) -> str | None:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    for target in (word for word in words if "=" not in word):
        if target not in _MAKEFILE:
            return f"the Makefile has no target {target}"
        if "ARGS" in given:
            recipe = _MAKEFILE[target]
            if "$(ARGS)" not in recipe:
                return f"make {target} takes no ARGS"
            filled = recipe.strip().removeprefix("@").replace("$(BIN)", ".venv/bin").replace("$(ARGS)", given["ARGS"])
            return problem(filled)
    return None


def _forebay(words: list[str]) -> str | None:
    command: Any = typer.main.get_command(application)
    path = "forebay"
    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            if option not in known | {"-h", "--help"}:
                return f"{path} has no option {option}"
        elif commands_below := getattr(command, "commands", None):
            named = word if word in commands_below else getattr(command, "default_command", word)
            if named not in commands_below:
                return f"{path} has no command {word}"
            command, path = commands_below[named], f"{path} {named}"
    return None


def _python(words: list[str]) -> str | None:
    match words:
        case ["-X", _, *rest]:
            return _python(rest)
        case ["-m", "forebay", *rest]:
            return _forebay(rest)
        case ["-m", "bench", *rest]:
            return _bench(rest, "--only", "case", {case.name for case in CASES})
        case ["-m", "bench.beside", *rest]:
            return _bench(rest, "--only", "load", {load.name for load in (*LOADS, *SIZES)}) or _bench(
                rest, "--targets", "target", {*TARGETS, *WORKERS}
            )
        case ["-m", module, *_]:
            return None if importlib.util.find_spec(module) else f"there is no module {module}"
        case [script, *_]:
            return None if (ROOT / script).is_file() else f"there is no file {script}"
    return None


def _bench(words: list[str], option: str, what: str, known: set[str]) -> str | None:
    if option not in words:
        return None
    for word in words[words.index(option) + 1 :]:
        if word.startswith("-"):
            break
        if word not in known:
            return f"the bench has no {what} {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    problems = [f"{command}: {found}" for command in commands(page) if (found := problem(command))]

    assert not problems, "\n".join(problems)


def test_the_commands_of_the_readme_are_found() -> None:
    found = list(commands(README))

    assert {"make", ".venv/bin/forebay", ".venv/bin/python", "kcat"} <= {command.split()[0] for command in found}
    assert len(found) > 5


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("make dmo", "the Makefile has no target dmo"),
        ("make demo ARGS=--leave", "forebay demo has no option --leave"),
        ("make lint ARGS=--fix", "make lint takes no ARGS"),
        (".venv/bin/forebay topic mak x", "forebay topic has no command mak"),
        ("forebay serve --worker 3", "forebay serve has no option --worker"),
        ("FOREBAY_X=1 python -m benches", "there is no module benches"),
        ("python -m bench --only produce-2kib", "the bench has no case produce-2kib"),
        ("python -m bench.beside --only e2e produce-2kib", "the bench has no load produce-2kib"),
        ("make bench ARGS='--only e2e --targets disk'", "the bench has no target disk"),
        ("python examples/none.py", "there is no file examples/none.py"),
        ("make setup && cd nowhere", "there is no folder nowhere"),
        ("teach me", "teach is no program"),
    ],
)
def test_a_command_that_does_not_exist_is_named(command: str, said: str) -> None:
    assert problem(command) == said
