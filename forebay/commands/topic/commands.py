"""`forebay topic …`: topics are listed, described, created, altered, grown, deleted and trimmed, by the admin APIs alone.

Data go to stdout, talk to stderr. A command imports what it needs when it runs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.commands.topic.record_commands import consume, produce, tail
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed, confirm, exit_if_any, failures_reported, noting_failure
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OTHER_NAMES,
    PARTITIONS_MAX,
    Bootstrap,
    Configs,
    Output,
    OutputFormat,
    Quiet,
    ReplicationFactor,
    Terminal,
    Timeout,
    TopicNameArgument,
    TopicNamesArgument,
    open_connection,
    pairs,
    partition_count,
)
from forebay.kafka_client.text import check_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.commands.topic.starting import OffsetBounds, Stop

topic = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Manage topics, and write and read their records.", epilog=OTHER_NAMES
)


@topic.command("ls", hidden=True)
@topic.command("list")
def list_topics(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the topics by name."""
    with failures_reported():
        from forebay.commands.topic.administration import read_topics, topics_table

        terminal = Terminal(output, quiet)
        topics = read_topics(*open_connection(bootstrap, timeout))
        if topics or output is Output.JSON:
            terminal.show(topics, topics_table(topics))
        else:
            terminal.say("There are no topics. Create one: forebay topic create NAME")


@topic.command()
def describe(
    name: TopicNameArgument,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a topic's partitions, offsets, sizes and configs. A table shows the configs that were set, JSON all of them."""
    with failures_reported():
        from forebay.commands.raw_requests import with_sizes
        from forebay.commands.topic.administration import describe_topic, topic_table
        from runtime.clock import SystemClock

        connection, admin = open_connection(bootstrap, timeout)
        found, failed = with_sizes(connection, admin, describe_topic(connection, admin, name), clock=SystemClock())
        terminal = Terminal(output, quiet)
        for failure in failed:
            terminal.say(str(failure))
        terminal.show(found, topic_table(found))


@topic.command()
def create(
    names: TopicNamesArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            callback=partition_count,
            help=f"Create this many partitions, {PARTITIONS_MAX:,} at most.  [default: as the cluster is set]",
        ),
    ] = None,
    replication_factor: ReplicationFactor = None,
    configs: Configs = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Create topics. Topics that cannot be created are named."""
    with failures_reported():
        given = pairs(configs, option="-c", example="retention.ms=3600000")
        from forebay.commands.topic import administration
        from runtime.clock import SystemClock

        terminal = Terminal(output, quiet)
        names = list(dict.fromkeys(names))
        connection, admin = open_connection(bootstrap, timeout)
        made: list[administration.TopicFacts] = []
        failed: dict[str, ClientFailed] = {}
        for name in names:
            with noting_failure(failed, name):
                created = administration.create(
                    connection,
                    admin,
                    name,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    configs=given,
                    clock=SystemClock(),
                )
                made.append(created)
                terminal.say(f'Created topic "{name}" with {administration.counted(len(created.partitions), "partition")}.')
        reported = max((len(partition.replicas) for one in made for partition in one.partitions), default=0)
        if replication_factor is not None and made and reported < replication_factor:
            # Apache Kafka refuses what it has no brokers for; whoever accepts it keeps records elsewhere.
            terminal.say(
                f"Replication factor {replication_factor} was accepted and ignored: "
                f"durability comes from the object store (reported as {reported})."
            )
        _told(terminal, "Created", "created", names, failed, made, alone=made[0] if made else None)


@topic.command()
def alter(
    name: TopicNameArgument,
    configs: Configs = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="Set this config back to its default; repeatable.", metavar="KEY")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Set configs of a topic, or unset them."""
    with failures_reported():
        given = pairs(configs, option="-c", example="retention.ms=3600000")
        if not given and not unset:
            raise typer.BadParameter("nothing to alter: give -c KEY=VALUE or --unset KEY")
        for key in unset or ():
            if not check_text(key, option="--unset"):
                raise typer.BadParameter("--unset needs a name")
            if key in given:
                raise typer.BadParameter(f"{key} is both set and unset")
        from forebay.commands.topic import administration

        administration.alter(*open_connection(bootstrap, timeout), name, set_to=given, unset=unset or ())
        terminal = Terminal(output, quiet)
        terminal.say(
            f'Altered topic "{name}": {", ".join([*(f"{k}={v}" for k, v in given.items()), *(f"{k} unset" for k in unset or ())])}.'
        )
        terminal.show_json({"name": name, "set": given, "unset": unset or []})


@topic.command("add-partitions")
def add_partitions(
    names: TopicNamesArgument,
    more: Annotated[int | None, typer.Option("--num", "-n", min=1, max=PARTITIONS_MAX, help="Add this many partitions.")] = None,
    total: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, callback=partition_count, help="Add partitions until there are this many.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Add partitions to topics. Keys may then go to other partitions than before."""
    with failures_reported():
        if (more is None) == (total is None):
            raise typer.BadParameter("say how many: either --num N more, or --partitions N in all")
        from forebay.commands.topic import administration

        terminal = Terminal(output, quiet)
        names = list(dict.fromkeys(names))
        connection, admin = open_connection(bootstrap, timeout)
        grown = []
        failed: dict[str, ClientFailed] = {}
        for name in names:
            with noting_failure(failed, name):
                before, after = administration.add_partitions(
                    connection, admin, name, more=more, total=total, partitions_max=PARTITIONS_MAX
                )
                grown.append({"name": name, "before": before, "partitions": after})
                terminal.say(f'Topic "{name}" has {after:,} partitions, {after - before:,} more than before.')
        _told(terminal, "Added partitions to", "grown", names, failed, grown, alone=grown[0] if grown else None)


@topic.command("rm", hidden=True)
@topic.command("delete")
def delete(
    names: TopicNamesArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete topics and their records, after asking. Topics that cannot be deleted are named."""
    with failures_reported():
        from forebay.commands.topic import administration

        terminal = Terminal(output, quiet)
        names = list(dict.fromkeys(names))
        connection, admin = open_connection(bootstrap, timeout)
        there = {}
        failed: dict[str, ClientFailed] = {}
        for name in names:
            with noting_failure(failed, name):
                there[name] = administration.look_up_topic(connection, admin, name)
        if there and not yes:
            what = f"topic{'' if len(there) == 1 else 's'} " + ", ".join(f'"{name}"' for name in there)
            held = sum(
                partition.end - partition.start
                for name, found in there.items()
                for partition in administration.bounds(connection, admin, name, range(len(found.partitions))).values()
            )
            partitions = administration.counted(sum(len(found.partitions) for found in there.values()), "partition")
            confirm(f"Deleting {what}", f"Delete {what} with {partitions} and {administration.counted(held, 'record')}?")
        deleted = []
        for name, found in there.items():
            with noting_failure(failed, name):
                administration.delete(connection, admin, name)
                deleted.append({"name": found.name, "id": administration.id_of(found)})
                terminal.say(f'Deleted topic "{name}".')
        _told(terminal, "Deleted", "deleted", names, failed, deleted, alone={**deleted[0], "deleted": True} if deleted else None)


def _told(
    terminal: Terminal, verb: str, key: str, names: list[str], failed: dict[str, ClientFailed], done: Sequence[object], *, alone: object
) -> None:
    """Print the outcome for the topics named: one as itself, several as what was done and what was not."""
    if len(names) == 1:
        if done:
            terminal.show_json(alone)
    else:
        if failed:
            terminal.say(f"{verb} {len(done)} of {len(names)} topics.")
        failures = [{"name": name, "error": str(failed[name])} for name in names if name in failed]
        terminal.show_json({key: done, "failed": failures})
    exit_if_any(failed, of=len(names))


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
        stop = _trim_stop(to)
        from forebay.commands.topic.administration import TrimmedPartition, counted, delete_records, stops_of, trim_table

        terminal = Terminal(output, quiet)
        connection, admin = open_connection(bootstrap, timeout)
        there, stops = stops_of(connection, admin, name, stop, partition=partition)
        _check_trim(name, there, stops, is_one=partition is not None)
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
            outcome = delete_records(connection, admin, name, {number: one.to for number, one in planned.items()})
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


def _trim_stop(text: str) -> "Stop":
    from forebay.commands.topic.starting import parse_stop
    from runtime.clock import SystemClock

    try:
        return parse_stop(text, now_ms=SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(f'--to "{text}" {error}') from error


def _check_trim(name: str, there: "Mapping[int, OffsetBounds]", stops: "Mapping[int, int]", *, is_one: bool) -> None:
    """Raise `ClientFailed` for an offset behind the end: it was meant for another partition, or another topic."""
    for number, end in stops.items():
        if end > there[number].end:
            only = "" if is_one or len(there) == 1 else " Choose one partition with -p."
            raise ClientFailed(
                f"Offset {end} is not in {name}/{number}, which starts at {there[number].start} and ends before {there[number].end}.{only} "
                f"Look at it: forebay topic describe {name}",
                exit_code=EXIT_NOT_FOUND,
            )


topic.command("produce")(produce)
topic.command("consume")(consume)
topic.command("tail")(tail)
topic.command("trim")(trim)
