"""The folder of a run: what is in it from the beginning, and what is read back from it."""

import contextlib
import importlib.metadata
import itertools
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import libversion as librdkafka_version

from forebay.commands.bench.load.facts import CLIENTS_FILE, STACK_FILE
from forebay.commands.bench.load.reconcile import (
    AckedRange,
    DoubtfulRange,
    SentRange,
    SessionBegan,
    SessionCommitted,
    SessionEvent,
    SessionRead,
    StoredRun,
)
from forebay.commands.bench.load.scenario import Scenario, written_out
from runtime.clock import Clock
from runtime.version import forebay_version

SCENARIO_FILE: Final = "scenario.yaml"
SUMMARY_FILE: Final = "summary.json"
ENVIRONMENT_FILE: Final = "environment.json"
FILES: Final = (
    *(STACK_FILE, CLIENTS_FILE, SCENARIO_FILE, "versions.json", ENVIRONMENT_FILE, "routing.json", "logs", "samples.jsonl", "client.jsonl"),
    *("intents", "consumed", "stored.jsonl", "remaps.jsonl", "events.jsonl", SUMMARY_FILE, "index.html"),
)
_ENVIRONMENT: Final = ("LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "UV_PYTHON", "GOMAXPROCS", "CI")
"""The variables of the environment that are written down. None of them may be secret."""
_LIBRARIES: Final = ("confluent-kafka", "aiohttp", "obstore", "grpcio", "msgspec", "uvloop")


def new_folder(out: Path, name: str, clock: Clock) -> Path:
    """UTC-NAME below `out`, which was not there: of two runs in a second the later has a number."""
    out.mkdir(parents=True, exist_ok=True)
    began = datetime.fromtimestamp(clock.now_ms() / 1_000, tz=UTC)
    for number in itertools.count(1):
        folder = out / f"{began:%Y-%m-%dT%H-%M-%SZ}-{name}{'' if number == 1 else f'-{number}'}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder.resolve()
    raise AssertionError("numbers do not end")


def prepare_folder(folder: Path, scenario: Scenario) -> None:
    """Write down what is known before anything starts. The token of the run is new."""
    for name in ("logs", "intents", "consumed"):
        (folder / name).mkdir(parents=True)
    for name in ("client.jsonl", "events.jsonl", "remaps.jsonl", "samples.jsonl"):
        (folder / name).touch()
    (folder / SCENARIO_FILE).write_text(written_out(scenario), encoding="utf-8")
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    versions = {"forebay": forebay_version(), "python": platform.python_version(), "librdkafka": librdkafka_version()[0], **libraries}
    write_json(folder / "versions.json", versions)
    token = int.from_bytes(os.urandom(4), "big")
    machine = {"system": platform.platform(), "processors": os.cpu_count(), "command": "forebay bench load", "run": token}
    known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    write_json(folder / ENVIRONMENT_FILE, {**machine, "environment": known})


def run_token(folder: Path) -> int:
    """Return the text that each value of the run begins with."""
    return int(msgspec.json.decode((folder / ENVIRONMENT_FILE).read_bytes())["run"])


def write_json(file: Path, facts: object) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")


def read_intents(folder: Path) -> tuple[list[SentRange], list[AckedRange], list[DoubtfulRange]]:
    """Read what producers meant and heard. Ranges that follow each other are joined while they are read."""
    sent: dict[tuple[int, str, int], SentRange] = {}
    earlier: list[SentRange] = []
    acked, doubtful = [], []
    for word, *rest in _lines(folder.glob("*.jsonl")):
        if word == "sent":
            one = SentRange(*rest)
            known = sent.get(one[:3])
            if known is not None and known.end == one.first:
                one = known._replace(end=one.end)
            elif known is not None:
                earlier.append(known)
            sent[one[:3]] = one
        elif word == "acked":
            acked.append(AckedRange(*rest))
        else:
            doubtful.append(DoubtfulRange(*rest))
    return [*earlier, *sent.values()], acked, doubtful


def read_sessions(folder: Path, group: str) -> list[SessionEvent]:
    found: list[SessionEvent] = []
    for word, at, member, *rest in _lines((folder / group).glob("*.jsonl")):
        if word == "read":
            found.append(SessionRead(at, member, StoredRun(*rest)))
        else:
            found.append(SessionBegan(at, member, *rest) if word == "began" else SessionCommitted(at, member, *rest))
    return found


def _lines(files: Iterator[Path]) -> Iterator[list[Any]]:
    """The whole lines. A process that was killed may have left half a line."""
    for file in sorted(files):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


def write_lines(file: Path, lines: Sequence[object]) -> None:
    with file.open("ab") as out:
        out.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
