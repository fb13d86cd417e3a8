"""`forebay group lag`: once, or again and again."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.failures import ClientFailed, failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    group_names,
    open_connection,
    seconds,
)
from forebay.kafka_client.text import check_name

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from forebay.commands.group.lag import GroupLag
    from forebay.kafka_client.connection import ClusterConnection

INTERVAL: Final = "2s"
CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"


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
            return _looked(*open_connection(bootstrap, timeout), name)

        if watch:
            _watch(look, name, terminal, pause_s=pause_s, rounds=rounds)
        else:
            _show(terminal, look(), name)


def _watch(look: "Callable[[], list[GroupLag]]", name: str | None, terminal: Terminal, *, pause_s: float, rounds: int | None) -> None:
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
            _show(terminal, found, name)
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


def _looked(connection: "ClusterConnection", admin: "AdminClient", name: str | None) -> "list[GroupLag]":
    from forebay.commands.group.administration import read_groups, unknown_group
    from forebay.commands.group.lag import lags

    if name is None:
        groups = read_groups(connection, admin)
        if groups.failures:
            raise ClientFailed(f"Not all groups are known: {' '.join(groups.failures)}")
        return lags(connection, admin, [group.name for group in groups.groups])
    found = lags(connection, admin, [name])
    if not found:
        raise unknown_group(connection, admin, name)
    return found


def _show(terminal: Terminal, found: "list[GroupLag]", name: str | None) -> None:
    from forebay.commands.group.views import lag_table, lags_table

    if name is not None:
        terminal.show(found[0], lag_table(found[0]))
    elif found or terminal.output is Output.JSON:
        terminal.show(found, lags_table(found))
    else:
        terminal.say("There are no groups. Make one: forebay topic consume TOPIC -g GROUP")
