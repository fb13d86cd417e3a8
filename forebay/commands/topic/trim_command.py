"""`forebay topic trim`: the oldest records of a topic are deleted, up to an offset, a time or the end (DeleteRecords)."""

from typing import TYPE_CHECKING, Annotated

import typer

from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed, confirm, exit_if_any, failures_reported, noting_failure
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.commands.topic.starting import OffsetBounds, Stop


def trim(
    name: TopicNameArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Delete what is before the end (as it is now), an offset, -N (all but the last N of each partition) or @TIME.",
            metavar="WHERE",
        ),
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Trim this partition alone.  [default: all of the topic]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete the oldest records of a topic, after asking. They are gone for every consumer."""
    with failures_reported():
        stop = _stop(to)
        from forebay.commands.topic import administration
        from forebay.commands.topic.extents import stops_of
        from forebay.commands.topic.views import TrimmedPartition, counted, trim_table

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        there, stops = stops_of(connection, admin, name, stop, partition=partition)
        _check(name, there, stops, is_one=partition is not None)
        planned = {
            number: TrimmedPartition(partition=number, start=there[number].start, to=end, records=end - there[number].start)
            for number, end in sorted(stops.items())
            if end > there[number].start
        }
        records = counted(sum(one.records for one in planned.values()), "record")
        done: list[TrimmedPartition] = []
        failed: dict[str, ClientFailed] = {}
        if planned and not dry_run:
            where = counted(len(planned), "partition")
            if not yes:
                confirm(f'Deleting records of topic "{name}"', f'Delete {records} in {where} of topic "{name}"?')
            outcome = administration.delete_records(connection, admin, name, {number: one.to for number, one in planned.items()})
            for number, one in planned.items():
                with noting_failure(failed, f"{name}/{number}"):
                    if (failure := outcome[number]) is not None:
                        raise failure
                    done.append(one)
        shown = list(planned.values()) if dry_run else done
        failures = [{"name": where, "error": str(failure)} for where, failure in failed.items()]
        document = {"topic": name, "executed": not dry_run, "partitions": shown, "failed": failures}
        if shown:
            terminal.show(document, trim_table(shown))
        else:
            terminal.show_json(document)
        if not planned:
            terminal.say(f'There is nothing to delete: no record of topic "{name}" is before that.')
        elif dry_run:
            terminal.say(f"Nothing was deleted: this is a dry run. Without --dry-run, {records} would be.")
        elif done:
            terminal.say(f'Deleted {counted(sum(one.records for one in done), "record")} of topic "{name}".')
        exit_if_any(failed, of=len(planned))


def _stop(text: str) -> "Stop":
    from forebay.commands.topic.starting import parse_stop
    from runtime.clock import SystemClock

    try:
        return parse_stop(text, now_ms=SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(f'--to "{text}" {error}') from error


def _check(name: str, there: "Mapping[int, OffsetBounds]", stops: "Mapping[int, int]", *, is_one: bool) -> None:
    """Raise `ClientFailed` for an offset behind the end: it was meant for another partition, or another topic."""
    for number, end in stops.items():
        if end > there[number].end:
            only = "" if is_one or len(there) == 1 else " Choose one partition with -p."
            raise ClientFailed(
                f"Offset {end} is not in {name}/{number}, which starts at {there[number].start} and ends before {there[number].end}.{only} "
                f"Look at it: forebay topic describe {name}",
                exit_code=EXIT_NOT_FOUND,
            )
