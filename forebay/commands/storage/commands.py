"""`forebay storage …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

from typing import Annotated

import typer

from forebay.kafka_client.options import ConfigFile, Output, OutputFormat, Quiet, SettingOverrides, Terminal, parse_duration_ms

storage = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and verify what the stores of a cluster hold.")

_Concurrency = Annotated[int, typer.Option(min=1, max=256, help="Make this many requests to the object store at a time.")]


@storage.command()
def verify(
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Verify this topic alone. Repeatable.", metavar="TOPIC")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Verify this partition of the topic alone.")] = None,
    sample: Annotated[str, typer.Option(help="Look at this share of the objects; at all metadata anyhow.", metavar="PERCENT")] = "100%",
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes of the objects, and check every batch.")] = False,
    concurrency: _Concurrency = 16,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
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


@storage.command()
def summary(
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Count what each partition of this topic holds instead. Repeatable.", metavar="TOPIC"),
    ] = None,
    concurrency: _Concurrency = 16,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Count objects and bytes, by kind and by topic.

    Those that no entry names are counted apart, by age.
    """
    from forebay.commands.storage.showing import show_partitions, show_summary

    if topics:
        terminal = Terminal(output, quiet)
        raise typer.Exit(show_partitions(config_file, assignments or (), terminal, topics=topics, concurrency=concurrency))
    raise typer.Exit(show_summary(config_file, assignments or (), Terminal(output, quiet), concurrency=concurrency))


@storage.command()
def objects(
    prefix: Annotated[str, typer.Option(help="List objects whose key begins so, such as wal/ or segments/.")] = "",
    older_than: Annotated[str, typer.Option(help="List objects that were stored this long ago, e.g. 90m or 7d.", metavar="DURATION")] = "0",
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="List at most this many.")] = 1_000,
    kept: Annotated[
        bool, typer.Option("--kept", help="List objects that nothing names and that stay, since older metadata were accepted once.")
    ] = False,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """List objects with their sizes and times."""
    from forebay.commands.storage.showing import ObjectChoice, show_objects

    try:
        older_than_ms = parse_duration_ms(older_than)
    except ValueError as error:
        raise typer.BadParameter(f'--older-than "{older_than}" {error}') from error
    terminal = Terminal(output, quiet)
    chosen = ObjectChoice(prefix=prefix, older_than_ms=older_than_ms, limit=limit, is_kept=kept)
    raise typer.Exit(show_objects(config_file, assignments or (), terminal, chosen))


@storage.command()
def gc(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them. Without it they are only counted.")] = False,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Count objects that no partition refers to, or delete them.

    So it does with uploads in parts that a killed process left in S3, and with early pages that a killed broker left in the metadata store.
    Compactors do this all the time. What is younger than compactor.delete_grace is left alone. It exits with code 6 if some objects or
    pages could not be judged.
    """
    from forebay.commands.storage.verifying import collect_garbage

    raise typer.Exit(collect_garbage(config_file, assignments or (), Terminal(output, quiet), delete=delete))


@storage.command("accept-lost")
def accept_lost(
    key: Annotated[str, typer.Argument(help="The object's key, as the log, doctor and verify show it.", metavar="KEY")],
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Let objects be deleted again though this one is missing.

    While an object that a live entry names is missing nothing is deleted. Its records stay unreadable. It exits with code 4 if the object
    is there.
    """
    from forebay.commands.storage.verifying import accept_as_lost

    raise typer.Exit(accept_as_lost(config_file, assignments or (), Terminal(output, quiet), key=key))


@storage.command("delete-kept")
def delete_kept(
    keys: Annotated[list[str], typer.Argument(help="Keys of objects, as objects --kept shows them.", metavar="KEY")],
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Delete objects that stay since older metadata were accepted.

    Their records cannot be brought back afterwards. It exits with code 4, and deletes nothing, if one of them is not kept or is named.
    """
    from forebay.commands.storage.verifying import delete_kept_objects

    raise typer.Exit(delete_kept_objects(config_file, assignments or (), Terminal(output, quiet), keys=keys))


@storage.command("object")
def one_object(
    key: Annotated[str, typer.Argument(help="The object's key, as objects and verify show it.", metavar="KEY")],
    limit: Annotated[int, typer.Option(min=0, max=100_000, help="Show the batches of at most this many slices or blocks.")] = 100,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Decode an object: its slices or blocks, and their batches.

    It exits with code 6 if the object is damaged.
    """
    from forebay.commands.storage.showing import show_object

    raise typer.Exit(show_object(config_file, assignments or (), Terminal(output, quiet), key=key, parts_max=limit))
