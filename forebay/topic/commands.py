"""`forebay topic …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

import sys
from typing import Annotated, Final

import typer

from forebay.kafka_client.failures import EXIT_FAILED, EXIT_USAGE, ClientFailed, failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OTHER_NAMES,
    Bootstrap,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    connected,
    pairs,
)
from forebay.kafka_client.text import checked_text
from forebay.topic.arguments import Name
from forebay.topic.consume_command import consume, tail
from forebay.topic.produce_command import produce

topic = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Topics and their records, through any broker of a Kafka cluster.", epilog=OTHER_NAMES
)

PARTITIONS_MAX: Final = 10_000
"""What brokers create at once, Forebay's (storage/catalog/topics.py) and Apache Kafka's."""

Configs = Annotated[list[str] | None, typer.Option("--config", "-c", help="A config of the topic; repeatable.", metavar="KEY=VALUE")]


def _partition_count(given: int | None) -> int | None:
    if given is not None and given > PARTITIONS_MAX:
        raise typer.BadParameter(f"{given:,} partitions are too many: brokers create {PARTITIONS_MAX:,} at most")
    return given


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
        from forebay.topic.administration import listed
        from forebay.topic.views import topics_table

        terminal = Terminal(output, quiet)
        topics = listed(*connected(bootstrap, timeout))
        if topics or output is Output.JSON:
            terminal.show(topics, topics_table(topics))
        else:
            terminal.say("There are no topics. Create one: forebay topic create NAME")


@topic.command()
def describe(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a topic's partitions with their offsets, and its configs: in a table those that were set, in JSON all of them."""
    with failures_reported():
        from forebay.topic.administration import described
        from forebay.topic.views import topic_table

        found = described(*connected(bootstrap, timeout), name)
        Terminal(output, quiet).show(found, topic_table(found))


@topic.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            callback=_partition_count,
            help=f"How many, {PARTITIONS_MAX:,} at most; without it as many as the cluster makes of itself.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, max=10_000, help="For Apache Kafka; Forebay's records are in the object store."),
    ] = None,
    configs: Configs = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Create a topic."""
    with failures_reported():
        given = pairs(configs, option="-c", example="retention.ms=3600000")
        from forebay.topic import administration
        from forebay.topic.views import counted
        from runtime.clock import SystemClock

        made = administration.create(
            *connected(bootstrap, timeout),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=given,
            clock=SystemClock(),
        )
        terminal = Terminal(output, quiet)
        terminal.say(f'Created topic "{name}" with {counted(len(made.partitions), "partition")}.')
        reported = max((len(partition.replicas) for partition in made.partitions), default=0)
        if replication_factor is not None and reported < replication_factor:
            # Apache Kafka refuses what it has no brokers for; whoever accepts it keeps records elsewhere.
            terminal.say(
                f"Replication factor {replication_factor} was accepted and ignored: "
                f"durability comes from the object store (reported as {reported})."
            )
        terminal.show_json(made)


@topic.command()
def alter(
    name: Name,
    configs: Configs = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="A config that goes back to its default; repeatable.", metavar="KEY")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Set configs of a topic, or take them back."""
    with failures_reported():
        given = pairs(configs, option="-c", example="retention.ms=3600000")
        if not given and not unset:
            raise typer.BadParameter("nothing to alter: give -c KEY=VALUE or --unset KEY")
        for key in unset or ():
            if not checked_text(key, option="--unset"):
                raise typer.BadParameter("--unset needs a name")
            if key in given:
                raise typer.BadParameter(f"{key} is both set and unset")
        from forebay.topic import administration

        administration.alter(*connected(bootstrap, timeout), name, set_to=given, unset=unset or ())
        terminal = Terminal(output, quiet)
        terminal.say(
            f'Altered topic "{name}": {", ".join([*(f"{k}={v}" for k, v in given.items()), *(f"{k} unset" for k in unset or ())])}.'
        )
        terminal.show_json({"name": name, "set": given, "unset": unset or []})


@topic.command("rm", hidden=True)
@topic.command("delete")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete a topic and its records, after asking."""
    with failures_reported():
        from forebay.topic import administration
        from forebay.topic.views import counted

        connection, admin = connected(bootstrap, timeout)
        found = administration.looked_up(connection, admin, name)
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise ClientFailed(f'Deleting topic "{name}" has to be confirmed: at a terminal, or with --yes.', exit_code=EXIT_USAGE)
            there = administration.bounds(connection, admin, name, range(len(found.partitions))).values()
            held = counted(sum(partition.end - partition.start for partition in there), "record")
            typer.echo(f'Delete topic "{name}" with {counted(len(found.partitions), "partition")} and {held}? [y/N]: ', nl=False, err=True)
            if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
                raise ClientFailed("Nothing was deleted.", exit_code=EXIT_FAILED)
        administration.delete(connection, admin, name)
        terminal = Terminal(output, quiet)
        terminal.say(f'Deleted topic "{name}".')
        terminal.show_json({"name": found.name, "id": administration.id_of(found), "deleted": True})


topic.command("produce")(produce)
topic.command("consume")(consume)
topic.command("tail")(tail)
