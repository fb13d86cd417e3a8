"""A load in steps: `up`, `precreate`, `run`, `status` and `down` of one folder. `stack.json` in it is what each step goes by."""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from forebay.commands.bench.load.folder import (
    CLIENTS_FILE,
    SCENARIO_FILE,
    STACK_FILE,
    SUMMARY_FILE,
    LoadMember,
    LoadProcess,
    StackFacts,
    prepare_folder,
    process_facts,
    read_clients,
    read_facts,
)
from forebay.commands.bench.load.keeper import ORDER_WITHIN_S, KeeperAnswer, KeeperOrder, KeptStack, give_order
from forebay.commands.bench.load.reconcile import LoadVerdict
from forebay.commands.bench.load.running import LoadRun, create_topics, resolved_scenario
from forebay.commands.bench.load.scenario import Scenario, read_scenario
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE, ClientFailed
from forebay.kafka_client.options import Terminal
from runtime.clock import SystemClock

ENDED_WITHIN_S: Final = 30.0
"""Between SIGTERM and SIGKILL, where the keeper did not end everything itself."""
_KILLED_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.05
_READ_BYTES: Final = 64 * 1024


class StatusRow(NamedTuple):
    """`is_right`: it is as the run wants it. `pid` is 0 if there is no process."""

    name: str
    state: str
    pid: int
    kafka: str
    http: str
    is_right: bool


def up(folder: Path, file: Path, *, is_short: bool, stores: str | None) -> StackFacts:
    """Start the cluster of a scenario, which stays until `down`. Raise `ClientFailed`."""
    refuse_if_there(folder)
    scenario = resolved_scenario(file, is_short=is_short, stores=stores)
    if scenario.cluster.runs_already:
        raise ClientFailed(
            f"{file}: cluster.addresses name a cluster that runs: run it with forebay bench load {file}", exit_code=EXIT_USAGE
        )
    folder.mkdir(parents=True)
    folder = folder.resolve()
    prepare_folder(folder, scenario)
    _start_keeper(folder)
    return read_facts(folder)


def precreate(folder: Path) -> tuple[list[str], list[str]]:
    """Make the topics of a run that is up: the names of those that are new, and of those that were there. Raise `ClientFailed`."""
    facts, scenario = _up(folder)
    made = create_topics(scenario, facts.bootstrap, may_exist=True)
    return made, [name for topic in scenario.topics for name in topic.all_names if name not in made]


def run(folder: Path, *, terminal: Terminal) -> LoadVerdict:
    """Load a run that is up, once, and reconcile. Raise `ClientFailed`."""
    _, scenario = _up(folder)
    if (folder / CLIENTS_FILE).exists():
        raise ClientFailed(
            f"{folder} has been loaded: see {SUMMARY_FILE} in it. Begin another: forebay bench load up NEW {folder}/{SCENARIO_FILE}",
            exit_code=EXIT_REFUSED,
        )
    folder = folder.resolve()
    return LoadRun(scenario, folder, terminal=terminal, clock=SystemClock()).run_on(KeptStack(folder))


def status(folder: Path) -> list[StatusRow]:
    """Every process that belongs to the run, and how it is. Raise `ClientFailed` if the folder is no run."""
    facts = read_facts(folder)
    clients = [client for client in read_clients(folder) if client.is_running()]
    is_up = bool(clients) if facts.keeper is None else facts.keeper.is_running()
    rows = [] if facts.keeper is None else [_row_of(facts.keeper)]
    rows += [_row_of_member(member) for member in facts.members]
    rows += [_row_of(server) for server in facts.servers]
    rows += [_row_of(client) for client in clients]
    return rows if is_up else [row._replace(is_right=False) for row in rows]


def down(folder: Path, *, terminal: Terminal) -> list[str]:
    """End everything of a run. Returns the names of processes that had to be killed. Raise `ClientFailed` if something does not end."""
    facts = read_facts(folder)
    clients = read_clients(folder)
    for client in clients:
        _signal(client, signal.SIGTERM)
    if facts.keeper is not None and facts.keeper.is_running():
        try:
            give_order(facts.control, KeeperOrder("down"))
        except ClientFailed as failed:
            terminal.warn(str(failed))
    left = _end([*clients, *facts.processes()])
    if _was_good(folder):
        shutil.rmtree(folder / "data", ignore_errors=True)
    return [one.name for one in left]


def refuse_if_there(folder: Path) -> None:
    """Raise `ClientFailed` if a run is in the folder, or anything else."""
    if not folder.exists():
        return
    if (folder / STACK_FILE).exists():
        keeper = read_facts(folder).keeper
        if keeper is not None and keeper.is_running():
            raise ClientFailed(
                f"{folder} is up already (keeper pid {keeper.pid}). End it: forebay bench load down {folder}",
                exit_code=EXIT_REFUSED,
            )
        raise ClientFailed(f"{folder} has been a run, and keeps what is known of it. Name another folder.", exit_code=EXIT_REFUSED)
    raise ClientFailed(f"{folder} is there already. Name a folder that is not: it becomes that of the run.", exit_code=EXIT_REFUSED)


def _up(folder: Path) -> tuple[StackFacts, Scenario]:
    facts = read_facts(folder)
    if facts.keeper is None or not facts.keeper.is_running():
        raise ClientFailed(
            f"{folder} is not up. Begin another: forebay bench load up NEW {folder}/{SCENARIO_FILE}", exit_code=EXIT_NOT_FOUND
        )
    return facts, read_scenario(folder / SCENARIO_FILE)


def _start_keeper(folder: Path) -> None:
    """Return when the cluster is ready. The keeper stays, and is nobody's child afterwards. Raise `ClientFailed` with what it says if it
    cannot start."""
    command = [sys.executable, "-m", "forebay.commands.bench.load.keeper", os.fspath(folder)]
    said, saying = os.pipe()
    with open(said, "rb") as hearing, (folder / "logs" / "keeper.log").open("wb") as log:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, saying, 1),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
        ]
        try:
            keeper = process_facts("keeper", os.posix_spawn(sys.executable, command, os.environ, file_actions=actions))
        finally:
            os.close(saying)
        try:
            there, _, _ = select.select([hearing], [], [], ORDER_WITHIN_S)
            line = hearing.readline(_READ_BYTES) if there else b""
            answer = (
                msgspec.json.decode(line, type=KeeperAnswer) if line else KeeperAnswer(f"It did not start: see {log.name}.", EXIT_FAILED)
            )
            if answer.failed:
                raise ClientFailed(answer.failed, exit_code=answer.exit_code)
        except BaseException:
            _end([keeper])
            raise


def _row_of(process: LoadProcess) -> StatusRow:
    is_running = process.is_running()
    return StatusRow(process.name, "runs" if is_running else "ended", process.pid, "", "", is_running)


def _row_of_member(member: LoadMember) -> StatusRow:
    is_running = member.is_running()
    states = {"away": member.is_away, "ended": not is_running, "paused": member.is_paused, "drained": member.is_drained, "runs": True}
    state = next(state for state, holds in states.items() if holds)
    pid = member.process.pid if is_running and member.process is not None else 0
    return StatusRow(member.name, state, pid, member.kafka, member.http, state != "ended")


def _end(processes: Sequence[LoadProcess]) -> list[LoadProcess]:
    """In order, and by force after a while. Returns those that had to be killed. Raise `ClientFailed` if one does not end."""
    for one in processes:
        _signal(one, signal.SIGCONT)
        _signal(one, signal.SIGTERM)
    left = _left_after(processes, ENDED_WITHIN_S)
    for one in left:
        _signal(one, signal.SIGKILL)
    if stubborn := _left_after(left, _KILLED_WITHIN_S):
        named = ", ".join(f"{one.name} (pid {one.pid})" for one in stubborn)
        raise ClientFailed(f"{named} did not end within {_KILLED_WITHIN_S:.0f} s of SIGKILL.")
    return left


def _left_after(processes: Sequence[LoadProcess], within_s: float) -> list[LoadProcess]:
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + within_s
    left = [one for one in processes if one.is_running()]
    while left and clock.monotonic_s() < give_up_s:
        time.sleep(_LOOK_S)
        left = [one for one in left if one.is_running()]
    return left


def _signal(process: LoadProcess, number: int) -> None:
    if process.is_running():
        # It may end between the look and the signal.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _was_good(folder: Path) -> bool:
    """Return whether the data may go: no load was judged, or all agreed."""
    try:
        summary: dict[str, Any] = msgspec.json.decode((folder / SUMMARY_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return True
    return not summary["faults"]
