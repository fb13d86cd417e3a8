"""A cluster of a load as `stack.json` tells it: enough for another command to find every process, and to know that it is still the same."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from forebay.commands.bench.load.scenario import LoadEvent
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed

STACK_FILE: Final = "stack.json"
CLIENTS_FILE: Final = "clients.json"
_PROC: Final = Path("/proc")
_ASK_WITHIN_S: Final = 5.0


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
