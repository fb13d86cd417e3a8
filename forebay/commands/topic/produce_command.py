"""`forebay topic produce`."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.kafka_client.failures import EXIT_INTERRUPTED, EXIT_TIMED_OUT, EXIT_USAGE, ClientFailed, failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    TopicNameArgument,
    open_connection,
)
from forebay.kafka_client.text import check_text

if TYPE_CHECKING:
    from forebay.commands.topic.line_format import Parse, RecordLine
    from forebay.commands.topic.producing import ByteSource, ProducedLines


def produce(
    name: TopicNameArgument,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Give every record this key.", metavar="KEY")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", help="Split each line at the first TEXT into key and value.", metavar="TEXT")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="Give every record this header; repeatable.", metavar="NAME=VALUE")
    ] = None,
    line_format: Annotated[
        str | None,
        typer.Option("--format", "-f", "-F", help="Read lines in this form: %k %v %h %p %d, as in '%k:%v'.", metavar="FORMAT"),
    ] = None,
    empty_is_null: Annotated[bool, typer.Option("--null", "-Z", help="Store empty keys and values as null.")] = False,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Write to this partition.  [default: by key]")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", exists=True, dir_okay=False, readable=True, metavar="FILE", help="Read lines from this file instead of stdin."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Append the lines of stdin, or of a file, as records. It ends when all records are stored."""
    with failures_reported():
        from forebay.commands.topic.line_format import RecordLine

        rest = RecordLine(
            None,
            None if key is None or (empty_is_null and not key) else os.fsencode(key),
            tuple(_header(one) for one in headers or ()),
            -1 if partition is None else partition,
        )
        parse = _parse(line_format, key_delimiter, rest, empty_is_null=empty_is_null)
        from forebay.commands.topic import producing
        from forebay.commands.topic.administration import look_up_topic
        from forebay.commands.topic.views import counted
        from forebay.kafka_client.failures import unknown_partition
        from forebay.kafka_client.interrupts import interrupted_between_calls
        from forebay.kafka_client.progress import progress
        from runtime.clock import SystemClock

        clock = SystemClock()
        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        count = len(look_up_topic(connection, admin, name).partitions)
        if partition is not None and partition >= count:
            raise unknown_partition(name, partition, count)
        reports = {} if output is Output.JSON else producing.FAILURES_ONLY
        producer = connection.producer({**producing.CONFIG, **reports, "message.timeout.ms": int(connection.timeout_s * 1_000)})
        produced = producing.ProducedLines()
        interrupted = False
        unreadable: ClientFailed | None = None
        opened: AbstractContextManager[ByteSource] = file.open("rb") if file is not None else _standard_input(terminal)
        whole = None if file is None else file.stat().st_size
        with (
            interrupted_between_calls(),
            producing.without_collection(),
            opened as stream,
            progress(quiet=quiet or (file is None and sys.stdin.isatty()), whole=whole, in_bytes=True, clock=clock) as shown,
        ):
            try:
                blocks = producing.values(stream, rest, empty_is_null=empty_is_null) if parse is None else producing.records(stream, parse)
                producing.produce(producer, name, blocks, produced, moved=shown.moved)
            except KeyboardInterrupt:
                interrupted = True
            except ClientFailed as failed:
                # What was handed over before is stored, and said.
                unreadable = failed
            finally:
                left = producing.settle(producer, within_s=connection.timeout_s, clock=clock)
        stored = produced.stored(left)
        terminal.say(f'{counted(stored, "record")} stored in "{name}".')
        by_partition = [{"partition": at, "records": produced.by_partition[at]} for at in sorted(produced.by_partition)]
        terminal.show_json({"topic": name, "records": stored, "partitions": by_partition})
        _judge(produced, left, connection.timeout_s)
        if unreadable is not None:
            raise unreadable
        if interrupted:
            raise typer.Exit(EXIT_INTERRUPTED)


def _judge(produced: "ProducedLines", left: int, timeout_s: float) -> None:
    """Raise for lines that were not stored, or of which that is not known."""
    from forebay.commands.topic.views import counted
    from forebay.kafka_client.connection import NO_ANSWER, exit_code_of, message_of

    if produced.refused is not None:
        line, error = produced.refused
        if error.code() in NO_ANSWER:
            raise ClientFailed(f"Line {line} may or may not be stored: no answer within {timeout_s:g} s.", exit_code=EXIT_TIMED_OUT)
        raise ClientFailed(f"Line {line} was not stored: {message_of(error)}", exit_code=exit_code_of(error))
    if left:
        raise ClientFailed(
            f"{counted(left, 'record')} may or may not be stored: no answer within {timeout_s:g} s.", exit_code=EXIT_TIMED_OUT
        )


def _parse(text: str | None, key_delimiter: str | None, rest: "RecordLine", *, empty_is_null: bool) -> "Parse | None":
    """None: lines are values."""
    from forebay.commands.topic.line_format import line_fields, line_parse
    from forebay.commands.topic.record_format import keyed

    if text is not None and key_delimiter is not None:
        raise typer.BadParameter("-f and -K exclude each other: write the key in the format, as %k")
    if key_delimiter == "":
        raise typer.BadParameter("-K needs a text that ends each key, such as : or \\t")
    given = text if text is not None else None if key_delimiter is None else keyed(key_delimiter)
    if given is None:
        return None
    try:
        fields = line_fields(given)
    except ValueError as error:
        raise typer.BadParameter(f'{"-K" if text is None else "-f"} "{given}" {error}') from error
    names = {field.name for field in fields}
    if rest.key is not None and "k" in names:
        raise typer.BadParameter("-k and keys of lines exclude each other")
    if rest.partition >= 0 and "p" in names:
        raise typer.BadParameter("-p and partitions of lines exclude each other")
    return line_parse(fields, rest, empty_is_null=empty_is_null)


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f'-H "{text}": write NAME=VALUE, for example -H source=web')
    return check_text(name, option="-H"), os.fsencode(value)


def _standard_input(terminal: Terminal) -> "AbstractContextManager[ByteSource]":
    if sys.stdin is None:
        raise ClientFailed("Standard input is closed: there are no lines to read. Give --file FILE.", exit_code=EXIT_USAGE)
    if sys.stdin.isatty():
        terminal.say("One record a line; Ctrl-D ends.")
    stream: Any = sys.stdin.buffer  # a BufferedReader, though it is declared as less
    return nullcontext(stream)
