"""The folder of a run: what is in it from the beginning, what is read back from it, and the page that shows it.

`stack.json` tells the cluster: enough for another command to find every process, and to know that it is still the same. `index.html` has
the verdict, what was explained, and charts with the events on them, in one file without scripts.
"""

import contextlib
import html
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka import libversion as librdkafka_version

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
from forebay.commands.bench.load.scenario import LoadEvent, Scenario, written_out
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed
from runtime.clock import Clock
from runtime.version import forebay_version

STACK_FILE: Final = "stack.json"
CLIENTS_FILE: Final = "clients.json"
_PROC: Final = Path("/proc")
_ASK_WITHIN_S: Final = 5.0
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
WIDTH: Final = 900
HEIGHT: Final = 180
POINTS_MAX: Final = 1_000
"""A longer line is drawn with every second point, or fewer."""
_LEFT: Final = 70
_COLOURS: Final = ("#4b6a88", "#f0a35a", "#cf4446", "#8c2162", "#3f8f6b", "#6b7280", "#b08d2f", "#5a4fcf")
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1d2433;background:#fbfaf7;max-width:960px;margin:2em auto;padding:0 1em}"
    "code{font-size:1.05em}.bad{color:#b3261e}.good{color:#2e6b4f}li{margin:.2em 0}text{font:11px system-ui,sans-serif;fill:#6b7280}"
)

Points = list[tuple[float, float]]

Series = Mapping[str, Points]


class LoadProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process by its pid and by when it began, so that a later one with the same pid is not taken for it."""

    name: str
    pid: int
    began: str

    def is_running(self) -> bool:
        return bool(self.began) and began_of(self.pid) == self.began


class LoadMember(msgspec.Struct, frozen=True, kw_only=True):
    """A broker or a compactor. `process` is None in a cluster that the load did not start, and `kafka` empty for compactors. `worker` is
    None where a broker is one process.
    """

    kind: str
    number: int
    worker: int | None = None
    kafka: str
    http: str
    process: LoadProcess | None = None
    log: str = ""
    is_paused: bool = False
    is_away: bool = False
    is_drained: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}" if self.worker is None else f"{self.kind}-{self.number}-worker-{self.worker}"

    @property
    def takes_records(self) -> bool:
        """True for a broker that clients may choose, where they choose their broker."""
        return self.kind == "broker" and not (self.is_paused or self.is_away or self.is_drained)

    def is_running(self) -> bool:
        return not self.is_away and (self.process is None or self.process.is_running())


class StackFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`keeper` and `control`: the process that holds the cluster between two commands, and the socket on which it takes orders."""

    storage_url: str = ""
    metadata_url: str = ""
    bootstrap: str
    members: list[LoadMember]
    supervisors: list[LoadProcess] = msgspec.field(default_factory=list)
    """Parents of brokers with several workers."""
    servers: list[LoadProcess] = msgspec.field(default_factory=list)
    keeper: LoadProcess | None = None
    control: str = ""

    def processes(self) -> list[LoadProcess]:
        """All of them, the keeper first."""
        kept = [] if self.keeper is None else [self.keeper]
        return [*kept, *self.supervisors, *(one.process for one in self.members if one.process is not None), *self.servers]


class LoadTarget(Protocol):
    """The cluster that a load runs on, and what events do to it. Calls block. Raise `StartError` or `ClientFailed` for what does not go."""

    @property
    def facts(self) -> StackFacts:
        """As things stand now."""

    def logged(self) -> Sequence[Any] | None:
        """The lines of the S3 server's access log; None where there is no such server."""

    def begin(self, event: LoadEvent) -> None:
        """Let it happen. Returns when it has: a broker that starts is ready, one that drains is drained."""

    def end(self, event: LoadEvent) -> None:
        """Undo it: a paused one goes on, a broker that is away or drained starts again on its ports."""


def brokers_of(facts: StackFacts) -> list[LoadMember]:
    return [member for member in facts.members if member.kind == "broker"]


def live_brokers(facts: StackFacts) -> dict[int, str]:
    """HTTP addresses of brokers that take records now, by their place among all brokers and workers, from 1."""
    return {place: member.http for place, member in enumerate(brokers_of(facts), 1) if member.takes_records}


def write_facts(folder: Path, facts: StackFacts) -> None:
    """Replace `stack.json` as a whole."""
    fresh = folder / f".{STACK_FILE}"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
    fresh.replace(folder / STACK_FILE)


def read_facts(folder: Path) -> StackFacts:
    """Raise `ClientFailed` if there is no run, or its file is none of ours."""
    file = folder / STACK_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=StackFacts)
    except FileNotFoundError as error:
        raise ClientFailed(
            f"{folder} is no run: it has no {STACK_FILE}. Begin one: forebay bench load up {folder} FILE", exit_code=EXIT_NOT_FOUND
        ) from error
    except msgspec.MsgspecError as error:
        raise ClientFailed(f"{file} is not what forebay bench load wrote: {error}. Name the folder of a run.") from error


def read_clients(folder: Path) -> list[LoadProcess]:
    """The command that loads the cluster, unless it is this process, and its clients; nothing before that."""
    try:
        found = msgspec.json.decode((folder / CLIENTS_FILE).read_bytes(), type=list[LoadProcess])
    except (OSError, msgspec.MsgspecError):
        return []
    return [one for one in found if one.pid != os.getpid()]


def process_facts(name: str, pid: int | None) -> LoadProcess:
    """Note when the process began; None for `pid`: it has ended."""
    return LoadProcess(name=name, pid=pid or 0, began="" if pid is None else began_of(pid))


def began_of(pid: int) -> str:
    """When the process began, as the system says it; empty if there is none, or it has ended and was not waited for."""
    if not _PROC.exists():
        asked = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=_ASK_WITHIN_S)  # noqa: S603 - our own command line
        shown = said.stdout.split(maxsplit=1)
        return shown[1].strip() if len(shown) > 1 and not shown[0].startswith("Z") else ""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


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


def write_page(folder: Path, *, title: str, line: str, faults: Sequence[str], explained: Sequence[str]) -> None:
    """From the files of the run in `folder`."""
    reports, samples = _read_lines(folder / "client.jsonl"), _read_lines(folder / "samples.jsonl")
    events = [(float(one["at"]), str(one["what"])) for one in _read_lines(folder / "events.jsonl")]
    began = min((float(one["at"]) for one in (*reports, *samples)), default=0.0)
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="{"bad" if faults else "good"}"><code>{html.escape(line)}</code></p>',
        _list("What does not agree", faults),
        _list("What is explained", explained),
    ]
    for name, series in _charts(reports, samples).items():
        sections.append(f"<h2>{html.escape(name)}</h2>{chart(series, events, began)}")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    (folder / "index.html").write_text(head + "\n".join(sections) + "</html>\n", encoding="utf-8")


def chart(series: Series, events: Sequence[tuple[float, str]], began: float) -> str:
    """An SVG of lines over the seconds since `began`, each event a vertical line with its name."""
    points = [point for line in series.values() for point in line]
    if not points:
        return "<p>No samples.</p>"
    last = max(max(at for at, _ in points) - began, 1e-9)
    top = max(1e-9, *(value for _, value in points))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 40}" width="100%" role="img">']
    parts.append(f'<path d="M{_LEFT} 10V{HEIGHT}H{WIDTH}" fill="none" stroke="#c9c4b8"/>')
    parts.append(
        f'<text x="{_LEFT - 6}" y="18" text-anchor="end">{short(top)}</text><text x="{_LEFT - 6}" y="{HEIGHT}" text-anchor="end">0</text>'
    )
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{last:.0f} s</text>')

    def across(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT) * (at - began) / last

    for at, what in events:
        if at - began <= last:
            x = across(at)
            parts.append(f'<path d="M{x:.1f} 10V{HEIGHT}" stroke="#b3261e" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{x + 3:.1f}" y="18">{html.escape(what)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = line[:: max(1, -(-len(line) // POINTS_MAX))]
        way = " ".join(f"{across(at):.1f},{HEIGHT - (HEIGHT - 20) * value / top:.1f}" for at, value in drawn)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x = _LEFT + number % 6 * 135
        y = HEIGHT + 28 + number // 6 * 12
        parts.append(f'<text x="{x}" y="{y}" style="fill:{colour}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def short(value: float) -> str:
    """A number in a few characters: 1.2k, 35M."""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= least:
            return f"{value / least:.3g}{unit}"
    return f"{value:.3g}"


def _charts(reports: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    done, latency = defaultdict[str, Points](list), defaultdict[str, Points](list)
    rss, dollars, cpu = defaultdict[str, Points](list), defaultdict[str, Points](list), defaultdict[str, Points](list)
    for one in reports:
        done[one["name"]].append((one["at"], one["done"]))
        if one["latency_ms"]:
            latency[one["name"]].append((one["at"], one["latency_ms"]["p99"]))
    for one in samples:
        for key, series in (("rss_bytes", rss), ("dollars", dollars), ("cpu_s", cpu)):
            if key in one:
                series[one["name"]].append((one["at"], one[key]))
    return {
        "Records a second, acknowledged or read": {name: _rates(line) for name, line in done.items()},
        "Latency of acknowledgements, p99 (ms)": latency,
        "Records acknowledged and not yet read, by group": _behind(reports),
        "Resident memory (bytes)": rss,
        "Processors in use": {name: _rates(line) for name, line in cpu.items()},
        "Dollars of requests, at S3's prices": dollars,
    }


def _behind(reports: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Clients report one after the other, so a group may seem to be ahead for a moment. Records that it reads again count again."""
    done: dict[str, int] = {}
    found = defaultdict[str, Points](list)
    for one in reports:
        name = str(one["name"])
        done[name] = one["done"]
        if name.startswith("group-"):
            group = name.rpartition("-")[0]
            acked = sum(count for client, count in done.items() if client.startswith("producer-"))
            read = sum(count for client, count in done.items() if client.rpartition("-")[0] == group)
            found[group].append((one["at"], max(0, acked - read)))
    return found


def _rates(line: Points) -> Points:
    return [(at, max(0.0, value - before) / (at - earlier)) for (earlier, before), (at, value) in itertools.pairwise(line) if at > earlier]


def _list(title: str, lines: Iterable[str]) -> str:
    shown = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{shown or '<li>nothing</li>'}</ul>"


def _read_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
