"""`forebay storage …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.kafka_client.options import Output, OutputFormat, Quiet, Terminal

storage = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and verify what the stores of a cluster hold.")

_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FOREBAY_CONFIG",
        help="Read the brokers' settings from this file.  [default: ./forebay.yaml]",
        metavar="FILE",
    ),
]
_SettingOverrides = Annotated[
    list[str] | None, typer.Option("--set", help="Set one setting; it overrides file and environment. Repeatable.", metavar="KEY=VALUE")
]
_Concurrency = Annotated[int, typer.Option(min=1, max=256, help="Make this many requests to the object store at a time.")]


@storage.command()
def verify(
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Verify this topic alone. Repeatable.", metavar="TOPIC")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Verify this partition of the topic alone.")] = None,
    sample: Annotated[str, typer.Option(help="Look at this share of the objects; at all metadata anyhow.", metavar="PERCENT")] = "100%",
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes of the objects, and check every batch.")] = False,
    concurrency: _Concurrency = 16,
    config_file: _ConfigFile = None,
    assignments: _SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Check that every committed offset can be read.

    Brokers and compactors may go on meanwhile. It exits with code 6 if anything is wrong, and says what it means and what to do.
    """
    from forebay.commands.storage.verifying import VerifyOptions, sample_parts, verify_stores

    if partition is not None and len(topics or ()) != 1:
        raise typer.BadParameter("--partition needs one --topic")
    options = VerifyOptions(
        topics=tuple(topics or ()), partition=partition, sample_parts=sample_parts(sample), is_deep=deep, concurrency=concurrency
    )
    raise typer.Exit(verify_stores(config_file, assignments or (), options, Terminal(output, quiet)))
