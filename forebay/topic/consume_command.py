"""`forebay topic consume` and `forebay topic tail`."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from forebay.kafka_client.completion import group_names
from forebay.kafka_client.failures import EXIT_TIMED_OUT, ClientFailed, failures_reported
from forebay.kafka_client.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT, Bootstrap, Quiet, Terminal, connected, seconds
from forebay.kafka_client.text import checked_name, printable_record
from forebay.topic.arguments import Name

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from forebay.topic.consuming import Consumed, Until
    from forebay.topic.record_format import Part
    from forebay.topic.starting import Start
    from runtime.clock import Clock

TAIL_RECORDS: Final = 10

Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="One partition; without it all.")]
Format = Annotated[
    str, typer.Option("--format", "-f", help=r"Percent format (%t %p %o %d %k %v %h, \n; %v{hex}), json or raw.", metavar="FORMAT")
]
Silence = Annotated[
    str | None,
    typer.Option("--timeout", help="Give up when no record comes for so long; without it wait for ever.", metavar="DURATION"),
]


def consume(
    name: Name,
    start: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            help="start, end, an offset, -N (the last N), @TIME (as ISO 8601, in ms, or -10m). With -g: start or end, where nothing is "
            "committed.  [default: start]",
            metavar="WHERE",
        ),
    ] = None,
    number: Annotated[int | None, typer.Option("--number", "-n", min=1, help="End after so many records; without it follow.")] = None,
    partition: Partition = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Join this group, go on where it is, and commit what was written.",
            metavar="GROUP",
            autocompletion=group_names,
            callback=checked_name,
        ),
    ] = None,
    record_format: Format = r"%v\n",
    at_end: Annotated[bool, typer.Option("--exit", "-e", help="End when all partitions were read to their ends.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    quiet: Quiet = False,
    timeout: Silence = None,
) -> None:
    """Write the records of a topic, and wait for more until Ctrl-C. Without -g no group is joined and nothing is committed."""
    with failures_reported():
        from forebay.topic import consuming, starting
        from runtime.clock import SystemClock

        clock = SystemClock()
        write = _format(record_format)
        try:
            begin = starting.parse_start(start or "start", now_ms=clock.now_ms())
        except ValueError as error:
            raise typer.BadParameter(f'-o "{start}" {error}') from error
        until = consuming.Until(count=number, at_end=at_end, silence_s=None if timeout is None else seconds(timeout))
        terminal = Terminal(quiet=quiet)
        wait = timeout or DEFAULT_TIMEOUT
        if group is None:
            _read(name, begin, until, write, terminal, partition=partition, bootstrap=bootstrap, timeout=wait, clock=clock)
            return
        if partition is not None:
            raise typer.BadParameter("-g and -p exclude each other: a group gives its members their partitions")
        if not isinstance(begin, starting.AtStart | starting.AtEnd):
            raise typer.BadParameter(
                f'-o "{start}" is not for a group, which goes on where it is: start or end, where nothing is committed. '
                f"To move it: forebay group reset-offsets {group}"
            )
        from_start = isinstance(begin, starting.AtStart)
        _read_as_member(name, group, until, write, terminal, from_start=from_start, bootstrap=bootstrap, timeout=wait, clock=clock)


def tail(
    name: Name,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="So many of each partition.")] = TAIL_RECORDS,
    partition: Partition = None,
    record_format: Format = r"%v\n",
    at_end: Annotated[bool, typer.Option("--exit", "-e", help="Do not wait for more.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    quiet: Quiet = False,
    timeout: Silence = None,
) -> None:
    """Write the last records of a topic, and those that come, until Ctrl-C."""
    with failures_reported():
        from forebay.topic.consuming import Until
        from forebay.topic.starting import BeforeEnd
        from runtime.clock import SystemClock

        until = Until(at_end=at_end, silence_s=None if timeout is None else seconds(timeout))
        _read(
            name,
            BeforeEnd(number),
            until,
            _format(record_format),
            Terminal(quiet=quiet),
            partition=partition,
            bootstrap=bootstrap,
            timeout=timeout or DEFAULT_TIMEOUT,
            clock=SystemClock(),
        )


def _format(text: str) -> "Part":
    from forebay.topic.record_format import record_format

    for_terminal = sys.stdout is not None and sys.stdout.isatty()
    try:
        return record_format(text, shown=printable_record) if for_terminal else record_format(text)
    except ValueError as error:
        raise typer.BadParameter(f'-f "{text}" {error}') from error


class WholeWrites:
    """What is behind stdout. With PYTHONUNBUFFERED nothing buffers, and a disk that fills up, or a pipe, may take a part of a record."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.flush = stream.flush

    def write(self, record: bytes) -> None:
        left = memoryview(record)
        while left:
            # None: it takes nothing now, and is not to be waited for.
            taken: int | None = self._stream.write(left)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left = left[taken:]


def _stdout() -> WholeWrites:
    if sys.stdout is None:
        raise ClientFailed("Standard output is closed: there is nowhere to write records.")
    return WholeWrites(sys.stdout.buffer)


@contextlib.contextmanager
def _silence_explained(bootstrap: str) -> Iterator[None]:
    """No record came: if that is because no broker can be reached any more, say so."""
    try:
        yield
    except ClientFailed as failed:
        if failed.exit_code == EXIT_TIMED_OUT:
            from forebay.kafka_client.connection import DIAGNOSE_WITHIN_S, connect

            connect(bootstrap, timeout_s=DIAGNOSE_WITHIN_S)
        raise


def _losses_said(terminal: Terminal) -> "dict[str, Callable[[KafkaError], None]]":
    """A consumer waits for brokers that are gone for as long as it takes, and would not say what for."""
    from confluent_kafka import KafkaError

    said = False

    def lost(error: KafkaError) -> None:
        nonlocal said
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not said:  # noqa: SLF001
            said = True
            terminal.say("No broker can be reached: trying again.")

    return {"error_cb": lost}


def _read(
    name: str,
    begin: "Start",
    until: "Until",
    write: "Part",
    terminal: Terminal,
    *,
    partition: int | None,
    bootstrap: str,
    timeout: str,
    clock: "Clock",
) -> None:
    from forebay.kafka_client.interrupts import interrupted_between_calls
    from forebay.topic import administration, consuming

    connection, admin = connected(bootstrap, timeout)
    offsets = administration.first_offsets(connection, admin, name, begin, partition=partition)
    data = _stdout()
    consumer = connection.consumer({**consuming.CONFIG, **_losses_said(terminal)})
    consumed = consuming.Consumed()
    with interrupted_between_calls():
        try:
            with _silence_explained(bootstrap):
                consuming.consume(
                    consumer, name, offsets, until, consumed, write=lambda record: data.write(write(record)), flush=data.flush, clock=clock
                )
        except KeyboardInterrupt:
            data.flush()
            if not until.follows:
                raise
        finally:
            consumer.close()
    terminal.say(f'{_counted(consumed)} of "{name}".')


def _read_as_member(
    name: str,
    group: str,
    until: "Until",
    write: "Part",
    terminal: Terminal,
    *,
    from_start: bool,
    bootstrap: str,
    timeout: str,
    clock: "Clock",
) -> None:
    from forebay.kafka_client.interrupts import interrupted_between_calls
    from forebay.topic.administration import looked_up
    from forebay.topic.consuming import Consumed
    from forebay.topic.group_consuming import GroupReader, group_config

    connection, admin = connected(bootstrap, timeout)
    looked_up(connection, admin, name)
    data = _stdout()
    consumer = connection.consumer({**group_config(group, from_start=from_start), **_losses_said(terminal)})
    consumed = Consumed()
    reader = GroupReader(consumer, name, flush=data.flush, clock=clock)
    with interrupted_between_calls():
        try:
            try:
                with _silence_explained(bootstrap):
                    reader.read(until, consumed, lambda record: data.write(write(record)))
            except KeyboardInterrupt:
                if not until.follows:
                    raise
            finally:
                reader.settle()
        finally:
            consumer.close()
    terminal.say(f'{_counted(consumed)} of "{name}", committed for group "{group}".')


def _counted(consumed: "Consumed") -> str:
    from forebay.topic.views import counted

    return counted(consumed.records, "record")
