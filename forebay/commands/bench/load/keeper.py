"""Holds the cluster of a run between two commands: `python -m forebay.commands.bench.load.keeper RUN SOCKET`.

Everything that it started ends with it, however it ends. Standard output: one line of JSON when the cluster is ready, or why it is not.
Afterwards it takes orders on a socket that only its user can reach: a line of JSON, answered by one when the order is carried out. SIGTERM
and SIGINT end it in order.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from forebay.commands.bench.load.folder import SCENARIO_FILE, StackFacts, read_facts
from forebay.commands.bench.load.scenario import LoadEvent, read_scenario
from forebay.commands.bench.load.stack import LoadStack, logged_by_s3
from forebay.kafka_client.failures import EXIT_FAILED, ClientFailed
from process.settings.errors import StartError
from runtime.clock import SystemClock

ORDER_WITHIN_S: Final = 600.0
"""A roll of sixteen brokers takes its time."""
ORDER_BYTES_MAX: Final = 64 * 1024
_READ_WITHIN_S: Final = 5.0
_READ_BYTES: Final = 4096


class KeeperOrder(msgspec.Struct, frozen=True):
    do: Literal["begin", "end", "down"]
    event: LoadEvent | None = None


class KeeperAnswer(msgspec.Struct, frozen=True):
    """`failed` is empty when the order was carried out."""

    failed: str = ""
    exit_code: int = 0


class KeptStack:
    """The cluster of a run that another process holds. What it is, `stack.json` says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def facts(self) -> StackFacts:
        return read_facts(self._folder)

    def logged(self) -> Sequence[Any] | None:
        return logged_by_s3(self._folder)

    def begin(self, event: LoadEvent) -> None:
        give_order(self.facts.control, KeeperOrder("begin", event))

    def end(self, event: LoadEvent) -> None:
        give_order(self.facts.control, KeeperOrder("end", event))


def give_order(control: str, order: KeeperOrder) -> None:
    """Return when it is carried out. Raise `ClientFailed` if the keeper does not answer, or could not."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ORDER_WITHIN_S)
            connection.connect(control)
            connection.sendall(msgspec.json.encode(order) + b"\n")
            answer = msgspec.json.decode(_line(connection), type=KeeperAnswer)
    except (OSError, msgspec.MsgspecError) as error:
        raise ClientFailed(
            f"The keeper of the run does not answer on {control} ({error}). End the run: forebay bench load down RUN"
        ) from error
    if answer.failed:
        raise ClientFailed(answer.failed, exit_code=answer.exit_code)


def keep(folder: Path) -> None:
    """Hold the cluster until an order or a signal ends it. Raise `StartError` or `ClientFailed` if it does not start."""
    with contextlib.ExitStack() as closing:
        own = tempfile.mkdtemp(prefix="forebay-load-")
        closing.callback(shutil.rmtree, own, ignore_errors=True)
        path = f"{own}/control"
        listening = closing.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path)
        listening.listen()
        with LoadStack(read_scenario(folder / SCENARIO_FILE), folder, clock=SystemClock(), control=path) as stack:
            _tell(KeeperAnswer())
            last = _carry_out(listening, stack)
        with last:
            _answer(last, KeeperAnswer())


def _carry_out(listening: socket.socket, stack: LoadStack) -> socket.socket:
    """Carry out orders. Returns the connection of the one to end, which waits for its answer."""
    while True:
        connection, _ = listening.accept()
        with contextlib.ExitStack() as closing:
            closing.enter_context(connection)
            connection.settimeout(_READ_WITHIN_S)
            try:
                order = msgspec.json.decode(_line(connection), type=KeeperOrder)
            except (OSError, msgspec.MsgspecError) as error:
                _answer(connection, KeeperAnswer(f"The keeper does not understand the order: {error}", EXIT_FAILED))
                continue
            if order.do == "down":
                closing.pop_all()
                return connection
            assert order.event is not None
            try:
                (stack.begin if order.do == "begin" else stack.end)(order.event)
            except (StartError, ClientFailed) as error:
                _answer(connection, KeeperAnswer(str(error), error.exit_code))
            else:
                _answer(connection, KeeperAnswer())


def _line(connection: socket.socket) -> bytes:
    """Raise `ConnectionError` for a line that has no end, or is too long."""
    received = b""
    while not received.endswith(b"\n"):
        more = connection.recv(_READ_BYTES)
        if not more or len(received) > ORDER_BYTES_MAX:
            raise ConnectionError("the line has no end")
        received += more
    return received


def _answer(connection: socket.socket, answer: KeeperAnswer) -> None:
    # Where the command that gave the order is gone, nobody needs the answer.
    with contextlib.suppress(OSError):
        connection.sendall(msgspec.json.encode(answer) + b"\n")


def _tell(answer: KeeperAnswer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def _end_on_signals() -> None:
    """The first ends the process in order; a second does not disturb that."""

    def end(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main() -> None:
    # Ctrl-C in the terminal of the command that started it is not meant for it.
    os.setsid()
    try:
        _end_on_signals()
        keep(Path(sys.argv[1]))
    except (StartError, ClientFailed) as error:
        _tell(KeeperAnswer(str(error), error.exit_code))


if __name__ == "__main__":
    main()
