"""`forebay group reset-offsets`: shows what it would commit, and commits it with --execute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.kafka_client.failures import failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    GroupNameArgument,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    open_connection,
    topic_names,
)
from forebay.kafka_client.text import check_text

if TYPE_CHECKING:
    from forebay.commands.group.resetting import ResetTarget, Scope

ROWS_BYTES_MAX = 64 * 1024 * 1024
TIMESTAMP_MS_MAX = 2**63 - 1


def reset_offsets(
    name: GroupNameArgument,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Reset this topic, or some of its partitions; repeatable.", metavar="TOPIC[:0,1]", autocompletion=topic_names
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Reset every topic that the group has committed offsets for.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Go to the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Go to the end, after the last record.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Keep the committed offset; without one, act as --to-latest.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="Go to this offset.", metavar="N")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            help="Go to the first record at or after this time, e.g. 2013-01-01T00:00; UTC unless it names a zone.",
            metavar="TIME",
        ),
    ] = None,
    to_timestamp: Annotated[
        int | None,
        typer.Option(
            "--to-timestamp",
            min=0,
            max=TIMESTAMP_MS_MAX,
            help="Go to the first record at or after this time, in milliseconds since 1970.",
            metavar="MS",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Move the committed offset forward by N, or back: -10.", metavar="N")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", help="Go to the first record of the last 1h, 30m, P1D …", metavar="DURATION")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            exists=True,
            dir_okay=False,
            readable=True,
            metavar="FILE",
            help="Read topic,partition,offset lines, as --export writes them.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Change the offsets; without this, only show what would change.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Write lines for --from-file instead of a table.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Move the offsets of a group without members. This is a dry run unless --execute is given."""
    with failures_reported():
        target = _target(
            flags={"--to-earliest": to_earliest, "--to-latest": to_latest, "--to-current": to_current},
            to_offset=to_offset,
            to_datetime=to_datetime,
            to_timestamp=to_timestamp,
            shift_by=shift_by,
            by_duration=by_duration,
            from_file=from_file,
        )
        scopes = _scopes(topics, all_topics=all_topics, from_file=from_file is not None)
        if export and output is not Output.TABLE:
            raise typer.BadParameter("--export has a format of its own: leave out -o")
        from forebay.commands.group.administration import commit
        from forebay.commands.group.resets import plan
        from forebay.commands.group.views import resets_rows, resets_table

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        resets, warnings = plan(connection, admin, name, target, scopes)
        for warning in warnings:
            terminal.say(f"Warning: {warning}")
        if execute:
            commit(connection, admin, name, {(one.topic, one.partition): one.new for one in resets})
        terminal.show({"group": name, "executed": execute, "partitions": resets}, resets_rows(resets) if export else resets_table(resets))
        count = f"{len(resets):,} partition{'' if len(resets) == 1 else 's'}"
        terminal.say(f'Reset {count} of group "{name}".' if execute else "Nothing was changed: this is a dry run. Do it with --execute.")


def _target(
    *,
    flags: dict[str, bool],
    to_offset: int | None,
    to_datetime: str | None,
    to_timestamp: int | None,
    shift_by: int | None,
    by_duration: str | None,
    from_file: Path | None,
) -> "ResetTarget":
    """Require exactly one of the ways to name a target."""
    given: dict[str, object] = {option: True for option, is_given in flags.items() if is_given}
    values = {
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--to-timestamp": to_timestamp,
        "--shift-by": shift_by,
        "--by-duration": by_duration,
        "--from-file": from_file,
    }
    given |= {option: value for option, value in values.items() if value is not None}
    if len(given) != 1:
        ways = ", ".join([*flags, *values])
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other" if given else f"say where to, with one of {ways}")
    from forebay.commands.group import resetting
    from forebay.commands.topic.starting import AtEnd, AtOffset, AtStart, AtTime, parse_time_ms
    from forebay.kafka_client.options import parse_duration_ms
    from runtime.clock import SystemClock

    now_ms = SystemClock().now_ms()
    ((option, value),) = given.items()
    try:
        match option, value:
            case "--to-earliest", _:
                return AtStart()
            case "--to-latest", _:
                return AtEnd()
            case "--to-current", _:
                return resetting.AtCurrent()
            case "--to-offset", int(offset):
                return AtOffset(offset)
            case "--to-timestamp", int(timestamp_ms):
                return AtTime(timestamp_ms)
            case "--shift-by", int(count):
                return resetting.ShiftedBy(count)
            case "--to-datetime", str(text):
                return AtTime(parse_time_ms(text.removeprefix("@"), now_ms=now_ms))
            case "--by-duration", str(text):
                back_ms = parse_duration_ms(text)
                if back_ms < 0:
                    raise ValueError("is negative: it is counted back from now already")
                return AtTime(max(0, now_ms - back_ms))
            case "--from-file", Path() as file:
                return resetting.AtEach(resetting.parse_rows(_lines(file)))
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{value}" {error}') from error
    raise AssertionError(f"no way to understand {option} {value!r}")


def _lines(file: Path) -> list[str]:
    # Not by its size: a pipe has none.
    with file.open("rb") as rows:
        held = rows.read(ROWS_BYTES_MAX + 1)
    if len(held) > ROWS_BYTES_MAX:
        raise ValueError(f"is larger than {ROWS_BYTES_MAX // 2**20} MiB")
    try:
        # Spreadsheets put a mark before the first name.
        return held.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text: byte {error.start} is no part of it") from error


def _scopes(topics: list[str] | None, *, all_topics: bool, from_file: bool) -> "list[Scope] | None":
    """None means what is committed, or what the file names."""
    if from_file:
        if topics or all_topics:
            raise typer.BadParameter("--from-file names the partitions itself: leave out --topic and --all-topics")
        return None
    if bool(topics) == all_topics:
        raise typer.BadParameter("say which topics: either --topic TOPIC[:0,1], or --all-topics")
    if all_topics:
        return None
    from forebay.commands.group.resetting import parse_scope

    scopes = []
    for text in topics or ():
        check_text(text, option="--topic")
        try:
            scopes.append(parse_scope(text))
        except ValueError as error:
            raise typer.BadParameter(f'--topic "{text}" {error}') from error
    return scopes
