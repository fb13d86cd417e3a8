"""`forebay debug …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.kafka_client.failures import errors_explained
from forebay.kafka_client.options import load_settings

if TYPE_CHECKING:
    from forebay.commands.trace import Trace, TraceFailed
    from process.settings.model import Settings

debug = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect the stores of a running cluster, without changing them.")


@debug.callback()
def _commands() -> None:
    """Keeps the name of a command even while there is one alone."""


@debug.command("trace-offset")
def trace_offset(
    topic: Annotated[str, typer.Argument(help="The topic's name; put -- before a name that begins with a dash.", metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.", metavar="PARTITION")],
    offset: Annotated[int, typer.Argument(min=0, help="The offset of a record.", metavar="OFFSET")],
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            envvar="FOREBAY_CONFIG",
            help="Read the brokers' settings from this file.  [default: ./forebay.yaml]",
            metavar="FILE",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Set one setting; it overrides file and environment. Repeatable.", metavar="KEY=VALUE")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Write the answer as table or json.", metavar="FORMAT")] = "table",
) -> None:
    """Show where the record at an offset lies. The answer has its manifest, entry, object, bytes and batch header."""
    import asyncio

    from forebay.commands.trace import TraceFailed, trace_as_json, trace_as_table

    views = {"table": trace_as_table, "json": trace_as_json}
    if output not in views:
        raise typer.BadParameter(f"{output} is not an output format: table or json")
    loaded = load_settings(config_file, assignments)
    with errors_explained():
        found = asyncio.run(_traced(loaded.settings, topic, partition, offset))
    trace = found.so_far if isinstance(found, TraceFailed) else found
    if trace is not None:
        typer.echo(views[output](trace))
    if isinstance(found, TraceFailed):
        typer.echo(str(found), err=True)
        raise typer.Exit(found.exit_code)


async def _traced(settings: "Settings", topic: str, partition: int, offset: int) -> "Trace | TraceFailed":
    from forebay.commands.trace import TraceFailed
    from forebay.commands.tracing import Tracer
    from forebay.opening import open_for_reading

    async with open_for_reading(settings) as stores:
        try:
            return await Tracer(metadata=stores.metadata, objects=stores.objects).trace(topic, partition, offset)
        except TraceFailed as failed:
            # Raised through the stores, it could leave them inside the group of their tasks.
            return failed
