"""Programs of the JVM that say what they dislike: how they are run, and the warnings and errors in their logs."""

import contextlib
import json
import re
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from services.build import cache_folder
from services.jars import assembled, found
from tests.kit.toolchains import java

ANSWERS_WITHIN_S: Final = 60.0
FOLDER: Final = Path(__file__).parent
_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dfile.encoding=UTF-8",
)
_EVENT: Final = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \[.*?\] (?P<level>[A-Z]+) (?P<logger>\S+) - (?P<message>.*)")
_DISLIKED: Final = frozenset({"WARN", "ERROR"})


def command(main_class: str, *, compile_sources: bool = False) -> list[str]:
    """The beginning of a command that runs a class of the jars that pom.xml names, or of the sources beside it. Raise `BuildError`."""
    jars = assembled(FOLDER)
    path = f"{jars}/*"
    if compile_sources:
        sources = [java.SHARED / "Json.java", *sorted(FOLDER.glob("*.java"))]
        path = f"{java.compiled(sources, jars, cache_folder() / 'compat')}:{path}"
    return [found("java"), *_OPTIONS, "-cp", path, main_class]


class Program:
    """A class of the sources beside this file, whose `main` answers each line of its standard input with a line of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, line: str) -> dict[str, object]:
        """Its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWERS_WITHIN_S)
        assert ready, f"no answer to {line} within {ANSWERS_WITHIN_S:.0f} s"
        said = self._process.stdout.readline()
        assert said, f"it ended when it was told {line}: exit code {self._process.wait(ANSWERS_WITHIN_S)}"
        answer: dict[str, object] = json.loads(said)
        return answer

    def end(self) -> None:
        """Tell it that nothing more will be said; it has ended well when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(ANSWERS_WITHIN_S) == 0


@contextlib.contextmanager
def program(main_class: str, *arguments: str, log: Path) -> Iterator[Program]:
    """A running one, which is killed if it has not ended by the end. What it logs is in `log`. Raise `BuildError`."""
    typed = [*command(main_class, compile_sources=True), *arguments]
    with (
        log.open("wb") as out,
        subprocess.Popen(typed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, encoding="utf-8") as process,
    ):
        try:
            yield Program(process)
        finally:
            process.kill()


def complaints(log: Path, *expected: Mapping[str, str]) -> Sequence[str]:
    """Warnings and errors in what a program logged, each as `LEVEL LOGGER: MESSAGE`.

    Each of `expected` is a logger (the end of its name) → a pattern of the whole message: what is left out.
    """
    said = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        event = _EVENT.fullmatch(line)
        if not event or event["level"] not in _DISLIKED:
            continue
        logger = event["logger"].rpartition(".")[2]
        if not any(re.fullmatch(patterns[logger], event["message"]) for patterns in expected if logger in patterns):
            said.append(f"{event['level']} {logger}: {event['message']}")
    return said
