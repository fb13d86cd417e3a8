"""`forebay topic produce`, `consume` and `tail`: lines become records, and records lines. A command imports what it needs when it runs."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeVar

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
    TopicNamesArgument,
    group_names,
    open_connection,
    seconds,
)
from forebay.kafka_client.text import check_name, check_text, printable_record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message
    from confluent_kafka.admin import AdminClient

    from forebay.commands.topic.consuming import Consumed, WriteMessages
    from forebay.commands.topic.formats import BatchFormat, Parse, RecordLine
    from forebay.commands.topic.producing import ByteSource, ProducedLines
    from forebay.commands.topic.starting import StartingPoint, Stop
    from forebay.kafka_client.connection import ClusterConnection
    from runtime.clock import Clock

TAIL_RECORDS: Final = 10
P = TypeVar("P")

Regex = Annotated[bool, typer.Option("--regex", "-r", help="Treat TOPIC as a pattern: read all topics that match it now.")]

PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Read one partition.  [default: all]")]

Format = Annotated[
    str | None,
    typer.Option(
        "--format", "-f", "-F", help=r"Write records as '%t %p %o %d %k %v %h\n', json or raw.  [default: %v\n]", metavar="FORMAT"
    ),
]

KeyDelimiter = Annotated[str | None, typer.Option("--key-delimiter", "-K", help="Write keys, too, each followed by TEXT.", metavar="TEXT")]

TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", help="Give up when no record comes for this long.  [default: wait forever]", metavar="DURATION"),
]


def consume(
    names: TopicNamesArgument,
    regex: Regex = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "--from",
            "-o",
            help="Begin at start, end, an offset, -N (the last N) or @TIME (ISO 8601, ms, or -10m). With -g: start or end, where nothing "
            "is committed.  [default: start]",
            metavar="WHERE",
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option("--until", help="Stop before the end (as it is now), an offset, -N (N before the end) or @TIME.", metavar="WHERE"),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="Stop after this many records.  [default: wait for more]")
    ] = None,
    partition: PartitionOption = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Join this group, go on from its committed offsets, and commit what was written.",
            metavar="GROUP",
            autocompletion=group_names,
            callback=check_name,
        ),
    ] = None,
    record_format: Format = None,
    key_delimiter: KeyDelimiter = None,
    at_end: Annotated[bool, typer.Option("--exit", "-e", help="Exit when all partitions were read to their ends.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    quiet: Quiet = False,
    timeout: TimeoutOption = None,
) -> None:
    """Write the records of topics, and wait for more. Ctrl-C ends it. Without -g it joins no group and commits nothing."""
    with failures_reported():
        from forebay.commands.topic import starting
        from runtime.clock import SystemClock

        clock = SystemClock()
        begin = _place(starting.parse_start, "-o", start or "start", clock)
        reading = ConsumeRequest(
            topics=_topics(names, regex=regex),
            count=number,
            at_end=at_end,
            silence_s=None if timeout is None else seconds(timeout),
            form=_format(record_format, key_delimiter),
            terminal=Terminal(quiet=quiet),
            bootstrap=bootstrap,
            timeout=timeout or DEFAULT_TIMEOUT,
            clock=clock,
        )
        if group is None:
            before = None if stop is None else _place(starting.parse_stop, "--until", stop, clock)
            if isinstance(begin, starting.AtOffset) and isinstance(before, starting.AtOffset) and before.offset < begin.offset:
                raise typer.BadParameter(f"--until {stop} is before -o {start}: nothing is between them")
            reading.by_assignment(begin, before, partition=partition)
            return
        if partition is not None:
            raise typer.BadParameter("-g and -p exclude each other: a group gives its members their partitions")
        if stop is not None:
            raise typer.BadParameter("-g and --until exclude each other: to end where the partitions do, give --exit")
        if not isinstance(begin, starting.AtStart | starting.AtEnd):
            raise typer.BadParameter(
                f'-o "{start}" is not for a group, which goes on where it is: start or end, where nothing is committed. '
                f"To move it: forebay group reset-offsets {group}"
            )
        reading.as_member(group, from_start=isinstance(begin, starting.AtStart))


def tail(
    names: TopicNamesArgument,
    regex: Regex = False,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Write this many records of each partition.")] = TAIL_RECORDS,
    partition: PartitionOption = None,
    record_format: Format = None,
    key_delimiter: KeyDelimiter = None,
    at_end: Annotated[bool, typer.Option("--exit", "-e", help="Exit instead of waiting for more.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    quiet: Quiet = False,
    timeout: TimeoutOption = None,
) -> None:
    """Write the last records of topics, and those to come. Ctrl-C ends it."""
    with failures_reported():
        from forebay.commands.topic.starting import BeforeEnd
        from runtime.clock import SystemClock

        reading = ConsumeRequest(
            topics=_topics(names, regex=regex),
            count=None,
            at_end=at_end,
            silence_s=None if timeout is None else seconds(timeout),
            form=_format(record_format, key_delimiter),
            terminal=Terminal(quiet=quiet),
            bootstrap=bootstrap,
            timeout=timeout or DEFAULT_TIMEOUT,
            clock=SystemClock(),
        )
        reading.by_assignment(BeforeEnd(number), None, partition=partition)


def _place(parse: "Callable[..., P]", option: str, text: str, clock: "Clock") -> "P":
    try:
        return parse(text, now_ms=clock.now_ms())
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{text}" {error}') from error


def _topics(names: Sequence[str], *, regex: bool) -> "list[str] | list[re.Pattern[str]]":
    if not regex:
        return list(dict.fromkeys(names))
    try:
        return [re.compile(name) for name in names]
    except re.error as error:
        raise typer.BadParameter(f'--regex "{error.pattern!s}" is no pattern: {error}') from error


def _format(text: str | None, key_delimiter: str | None) -> "BatchFormat":
    from forebay.commands.topic.formats import DEFAULT_FORMAT, as_it_is, batch_format, keyed

    if text is not None and key_delimiter is not None:
        raise typer.BadParameter("-f and -K exclude each other: write the key in the format, as %k")
    given = text if text is not None else DEFAULT_FORMAT if key_delimiter is None else keyed(key_delimiter)
    for_terminal = sys.stdout is not None and sys.stdout.isatty()
    try:
        return batch_format(given, shown=printable_record if for_terminal else as_it_is)
    except ValueError as error:
        raise typer.BadParameter(f'-f "{given}" {error}') from error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRequest:
    """What was asked for, however it is read."""

    topics: "list[str] | list[re.Pattern[str]]"
    count: int | None
    at_end: bool
    silence_s: float | None
    form: "BatchFormat"
    terminal: Terminal
    bootstrap: str
    timeout: str
    clock: "Clock"

    def by_assignment(self, begin: "StartingPoint", stop: "Stop | None", *, partition: int | None) -> None:
        from forebay.commands.topic import consuming
        from forebay.commands.topic.administration import extent
        from forebay.commands.topic.producing import without_collection
        from forebay.kafka_client.connection import interrupted_between_calls

        connection, admin = open_connection(self.bootstrap, self.timeout)
        topics = self._named(connection, admin)
        found = extent(connection, admin, topics, begin, stop, partition=partition)
        until = consuming.Until(count=self.count, at_end=self.at_end, stops=found.stops, silence_s=self.silence_s)
        data = _stdout()
        consumer = connection.consumer({**consuming.CONFIG, **_losses_said(self.terminal)})
        consumed = consuming.Consumed()
        whole = found.records if self.count is None else min(self.count, found.records)
        # Who follows a topic may do so for weeks.
        with interrupted_between_calls(), contextlib.nullcontext() if until.follows else without_collection():
            try:
                with _silence_explained(self.bootstrap), self._written(data, None if until.follows else whole) as write:
                    consuming.consume(consumer, found.offsets, until, consumed, write=write, flush=data.flush, clock=self.clock)
            except KeyboardInterrupt:
                data.flush()
                self.terminal.say(f"{_counted(consumed, topics)}.")
                if not until.follows:
                    raise
                return
            finally:
                consumer.close()
        self.terminal.say(f"{_counted(consumed, topics)}.")

    def as_member(self, group: str, *, from_start: bool) -> None:
        from forebay.commands.topic.administration import look_up_topic
        from forebay.commands.topic.consuming import Consumed, GroupReader, Until, group_config
        from forebay.kafka_client.connection import interrupted_between_calls

        connection, admin = open_connection(self.bootstrap, self.timeout)
        topics = self._named(connection, admin)
        for topic in topics:
            look_up_topic(connection, admin, topic)
        until = Until(count=self.count, at_end=self.at_end, silence_s=self.silence_s)
        data = _stdout()
        consumer = connection.consumer({**group_config(group, from_start=from_start), **_losses_said(self.terminal)})
        consumed = Consumed()
        reader = GroupReader(consumer, topics, flush=data.flush, clock=self.clock)
        interrupted = False
        with interrupted_between_calls():
            try:
                try:
                    with _silence_explained(self.bootstrap), self._written(data, self.count) as write:
                        reader.read(until, consumed, write)
                except KeyboardInterrupt:
                    interrupted = True
                finally:
                    reader.settle()
            finally:
                consumer.close()
        self.terminal.say(f'{_counted(consumed, topics)}, committed for group "{group}".')
        if interrupted and not until.follows:
            raise KeyboardInterrupt

    def _named(self, connection: "ClusterConnection", admin: "AdminClient") -> list[str]:
        from forebay.commands.topic.administration import topics_like

        patterns = [topic for topic in self.topics if isinstance(topic, re.Pattern)]
        return topics_like(connection, admin, patterns) if patterns else [topic for topic in self.topics if isinstance(topic, str)]

    @contextlib.contextmanager
    def _written(self, data: WholeWrites, whole: int | None) -> "Iterator[WriteMessages]":
        """A bar is no good among records: there is one if they go elsewhere than to a terminal."""
        from forebay.kafka_client.text import progress

        def write(messages: "Sequence[Message]") -> None:
            written = self.form(messages)
            data.write(written)
            shown.moved(len(messages), len(written))

        among_records = sys.stdout is not None and sys.stdout.isatty()
        with progress(quiet=self.terminal.quiet or among_records, whole=whole, clock=self.clock) as shown:
            yield write


def _counted(consumed: "Consumed", topics: Sequence[str]) -> str:
    from forebay.commands.topic.administration import counted

    which = f'"{topics[0]}"' if len(topics) == 1 else f"{len(topics)} topics"
    return f"{counted(consumed.records, 'record')} of {which}"


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
        from forebay.commands.topic.formats import RecordLine

        rest = RecordLine(
            None,
            None if key is None or (empty_is_null and not key) else os.fsencode(key),
            tuple(_header(one) for one in headers or ()),
            -1 if partition is None else partition,
        )
        parse = _parse(line_format, key_delimiter, rest, empty_is_null=empty_is_null)
        from forebay.commands.topic import producing
        from forebay.commands.topic.administration import counted, look_up_topic
        from forebay.kafka_client.connection import interrupted_between_calls
        from forebay.kafka_client.failures import unknown_partition
        from forebay.kafka_client.text import progress
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
    from forebay.commands.topic.administration import counted
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
    from forebay.commands.topic.formats import keyed, line_fields, line_parse

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
