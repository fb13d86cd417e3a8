"""`forebay group …`: groups are listed, described and deleted, and their offsets shown against the ends, reset and deleted.

Data go to stdout, talk to stderr. A command imports what it needs when it runs.
"""

import enum
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.failures import EXIT_FAILED, ClientFailed, confirm, exit_if_any, failures_reported, noting_failure
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OTHER_NAMES,
    Bootstrap,
    GroupNameArgument,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    group_names,
    open_connection,
    seconds,
    topic_names,
)
from forebay.kafka_client.text import check_name, check_names, check_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from forebay.commands.group.administration import GroupFacts, GroupLag
    from forebay.commands.group.resetting import ResetTarget, Scope
    from forebay.kafka_client.connection import ClusterConnection

INTERVAL: Final = "2s"
CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
ROWS_BYTES_MAX = 64 * 1024 * 1024
TIMESTAMP_MS_MAX = 2**63 - 1

group = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show and change consumer groups and their offsets.", epilog=OTHER_NAMES
)


class State(enum.StrEnum):
    """As brokers write it."""

    STABLE = "Stable"
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


class Type(enum.StrEnum):
    CLASSIC = "Classic"
    CONSUMER = "Consumer"


@group.command("ls", hidden=True)
@group.command("list")
def list_groups(
    state: Annotated[State | None, typer.Option("--state", case_sensitive=False, help="List only groups in this state.")] = None,
    kind: Annotated[Type | None, typer.Option("--type", case_sensitive=False, help="List only groups of this protocol.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the groups by name."""
    with failures_reported():
        from forebay.commands.group.administration import groups_table, read_groups

        terminal = Terminal(output, quiet)
        found = read_groups(*open_connection(bootstrap, timeout))
        groups = [one for one in found.groups if (state is None or one.state == state) and (kind is None or one.type == kind)]
        if groups or output is Output.JSON:
            terminal.show(groups, groups_table(groups))
        elif not found.failures:
            terminal.say(
                "No group is like that." if found.groups else "There are no groups. Make one: forebay topic consume TOPIC -g GROUP"
            )
        if found.failures:
            raise ClientFailed(f"Groups may be missing: {' '.join(found.failures)}", exit_code=EXIT_FAILED)


@group.command()
def describe(
    name: GroupNameArgument,
    members: Annotated[bool, typer.Option("--members", help="Show only the members, with their ids.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a group's state, coordinator and members. Each member is shown with the partitions that it reads."""
    with failures_reported():
        from forebay.commands.group.administration import group_table, look_up_group, members_table

        terminal = Terminal(output, quiet)
        found = look_up_group(*open_connection(bootstrap, timeout), name)
        if not members:
            terminal.show(found, group_table(found))
        elif found.members or output is Output.JSON:
            terminal.show(found.members, members_table(found.members))
        else:
            terminal.say(f'Group "{name}" has no members.')


@group.command()
def lag(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The group's name.  [default: all groups, one line each]",
            metavar="GROUP",
            autocompletion=group_names,
            callback=check_name,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Wait this long between two rounds.", metavar="DURATION")] = INTERVAL,
    rounds: Annotated[int | None, typer.Option("--rounds", "-n", min=1, help="Stop after this many rounds.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show how far a group is behind. Each partition has its committed offset, its end, the difference, and its reader."""
    with failures_reported():
        pause_s = seconds(interval, option="--interval")
        terminal = Terminal(output, quiet)
        if rounds is not None and not watch:
            raise typer.BadParameter("-n is for --watch")

        def look() -> "list[GroupLag]":
            # By a client of its own: one that lost its broker in the middle of a question may end the process (librdkafka 2.16).
            return _read_lags(*open_connection(bootstrap, timeout), name)

        if watch:
            _watch_lags(look, name, terminal, pause_s=pause_s, rounds=rounds)
        else:
            _show_lags(terminal, look(), name)


def _watch_lags(look: "Callable[[], list[GroupLag]]", name: str | None, terminal: Terminal, *, pause_s: float, rounds: int | None) -> None:
    """A look that fails is said, once for each cause in a row, and does not end it: the next may not."""
    from datetime import UTC, datetime

    from runtime.clock import SystemClock

    clock = SystemClock()
    redraws = sys.stdout.isatty() and terminal.output is Output.TABLE
    said = ""
    looked = 0
    while True:
        failure: ClientFailed | None = None
        try:
            found = look()
        except ClientFailed as failed:
            if looked == 0:
                raise
            failure = failed
            if str(failed) != said:
                terminal.say(str(failed))
        else:
            if terminal.output is Output.TABLE:
                at = datetime.fromtimestamp(clock.now_ms() // 1_000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                typer.echo(f"{CLEAR_SCREEN if redraws else ''}{at}")
            _show_lags(terminal, found, name)
            if terminal.output is Output.TABLE and looked + 1 != rounds:
                typer.echo()
            sys.stdout.flush()
        said = "" if failure is None else str(failure)
        looked += 1
        if looked == rounds:
            if failure is not None:
                raise failure
            return
        time.sleep(pause_s)


def _read_lags(connection: "ClusterConnection", admin: "AdminClient", name: str | None) -> "list[GroupLag]":
    from forebay.commands.group.administration import lags, read_groups, unknown_group

    if name is None:
        groups = read_groups(connection, admin)
        if groups.failures:
            raise ClientFailed(f"Not all groups are known: {' '.join(groups.failures)}")
        return lags(connection, admin, [group.name for group in groups.groups])
    found = lags(connection, admin, [name])
    if not found:
        raise unknown_group(connection, admin, name)
    return found


def _show_lags(terminal: Terminal, found: "list[GroupLag]", name: str | None) -> None:
    from forebay.commands.group.administration import lag_table, lags_table

    if name is not None:
        terminal.show(found[0], lag_table(found[0]))
    elif found or terminal.output is Output.JSON:
        terminal.show(found, lags_table(found))
    else:
        terminal.say("There are no groups. Make one: forebay topic consume TOPIC -g GROUP")


@group.command("reset-offsets")
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
        target = _reset_target(
            flags={"--to-earliest": to_earliest, "--to-latest": to_latest, "--to-current": to_current},
            to_offset=to_offset,
            to_datetime=to_datetime,
            to_timestamp=to_timestamp,
            shift_by=shift_by,
            by_duration=by_duration,
            from_file=from_file,
        )
        scopes = _reset_scopes(topics, all_topics=all_topics, from_file=from_file is not None)
        if export and output is not Output.TABLE:
            raise typer.BadParameter("--export has a format of its own: leave out -o")
        from forebay.commands.group.administration import commit, plan_resets_of, resets_rows, resets_table

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        resets, warnings = plan_resets_of(connection, admin, name, target, scopes)
        for warning in warnings:
            terminal.say(f"Warning: {warning}")
        if execute:
            commit(connection, admin, name, {(one.topic, one.partition): one.new for one in resets})
        terminal.show({"group": name, "executed": execute, "partitions": resets}, resets_rows(resets) if export else resets_table(resets))
        count = f"{len(resets):,} partition{'' if len(resets) == 1 else 's'}"
        terminal.say(f'Reset {count} of group "{name}".' if execute else "Nothing was changed: this is a dry run. Do it with --execute.")


def _reset_target(
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
                return resetting.AtEach(resetting.parse_rows(_rows_of(file)))
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{value}" {error}') from error
    raise AssertionError(f"no way to understand {option} {value!r}")


def _rows_of(file: Path) -> list[str]:
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


def _reset_scopes(topics: list[str] | None, *, all_topics: bool, from_file: bool) -> "list[Scope] | None":
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


@group.command("delete-offsets")
def delete_offsets(
    name: GroupNameArgument,
    topics: Annotated[
        list[str],
        typer.Argument(
            help="Delete the offsets of these topics, or of some of their partitions.",
            metavar="TOPIC[:0,1]...",
            autocompletion=topic_names,
            callback=check_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete committed offsets of a group, after asking. No member of the group may be subscribed to the topics."""
    with failures_reported():
        scopes = [_scope(text) for text in topics]
        from forebay.commands.group.administration import offsets_table
        from forebay.commands.group.resetting import DeletedOffset
        from forebay.commands.raw_requests import delete_committed, find_committed, partition_shown
        from forebay.commands.topic.administration import counted
        from runtime.clock import SystemClock

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        there, failed = find_committed(connection, admin, name, scopes)
        for each in failed.values():
            terminal.warn(str(each))
        if there and not yes:
            confirm(
                f'Deleting offsets of group "{name}"',
                f'Delete {counted(len(there), "committed offset")} of group "{name}" ({", ".join(map(partition_shown, there))})?',
            )
        outcome = delete_committed(connection, admin, name, there, clock=SystemClock()) if there else {}
        deleted = []
        for at, offset in there.items():
            with noting_failure(failed, partition_shown(at)):
                failure = outcome.get(at, ClientFailed(f"{partition_shown(at)}: the coordinator did not say what became of it."))
                if failure is not None:
                    raise failure
                deleted.append(DeletedOffset(topic=at[0], partition=at[1], offset=offset))
        failures = [{"name": where, "error": str(each)} for where, each in failed.items()]
        document = {"group": name, "deleted": deleted, "failed": failures}
        if deleted:
            terminal.show(document, offsets_table(deleted))
            terminal.say(f'Deleted {counted(len(deleted), "committed offset")} of group "{name}".')
        else:
            terminal.show_json(document)
        exit_if_any(failed, of=len(failed) + len(deleted))


def _scope(text: str) -> "Scope":
    from forebay.commands.group.resetting import parse_scope

    try:
        return parse_scope(text)
    except ValueError as error:
        raise typer.BadParameter(f'"{text}" {error}') from error


@group.command("rm", hidden=True)
@group.command("delete")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(
            help="The groups' names; put -- before a name that begins with a dash.",
            metavar="GROUP...",
            autocompletion=group_names,
            callback=check_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete groups without members, after asking. Their committed offsets go, too. Groups that cannot be deleted are named."""
    with failures_reported():
        from forebay.commands.group import administration

        terminal = Terminal(output, quiet)
        names = list(dict.fromkeys(names))
        connection, admin = open_connection(bootstrap, timeout)
        failed: dict[str, ClientFailed] = {}
        for name in names:
            with noting_failure(failed, name):
                _refuse_members(administration.look_up_group(connection, admin, name))
        left = [name for name in names if name not in failed]
        if left and not yes:
            what = f"group{'' if len(left) == 1 else 's'} " + ", ".join(f'"{name}"' for name in left)
            confirm(f"Deleting {what}", f"Delete {what} and all committed offsets?")
        deleted = []
        for name in left:
            with noting_failure(failed, name):
                administration.delete(connection, admin, name)
                deleted.append(name)
                terminal.say(f'Deleted group "{name}".')
        if len(names) > 1 and failed:
            terminal.say(f"Deleted {len(deleted)} of {len(names)} groups.")
        failures = [{"name": name, "error": str(failed[name])} for name in names if name in failed]
        terminal.show_json({"deleted": deleted, "failed": failures})
        exit_if_any(failed, of=len(names))


def _refuse_members(found: "GroupFacts") -> None:
    if found.members:
        from forebay.commands.group.administration import member_count

        raise ClientFailed(
            f'Group "{found.name}" cannot be deleted: it has {member_count(len(found.members))} (state {found.state}). '
            f"Stop its consumers first; they are shown by: forebay group describe {found.name}"
        )
