"""The command line. What a command needs is imported when it runs, so that `--help` and completion stay quick."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.commands.bench.commands import bench
from forebay.commands.cluster import cluster
from forebay.commands.compactor import compactor
from forebay.commands.config import config
from forebay.commands.cost import cost
from forebay.commands.debug import debug
from forebay.commands.generate.commands import generate
from forebay.commands.group.commands import group
from forebay.commands.spark import spark
from forebay.commands.storage.commands import storage
from forebay.commands.topic.commands import topic
from forebay.kafka_client.failures import failures_reported
from forebay.kafka_client.options import ConfigFile, Output, OutputFormat, Quiet, SettingOverrides, Terminal

COMPLETION_VARIABLE = "_FOREBAY_COMPLETE"
"""While a shell sets it, `forebay` answers the shell instead of running a command."""

if TYPE_CHECKING:
    from process.settings.errors import SettingsError
    from process.settings.loading import Loaded

if COMPLETION_VARIABLE in os.environ:
    from typer._completion_classes import completion_init

    # What `forebay generate completion` prints asks in Typer's way; Typer's own options, which install scripts of its own, are left out.
    completion_init()

application = typer.Typer(
    name="forebay",
    help="A Kafka-compatible broker that keeps records in an object store and their order in a metadata store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
application.add_typer(config, name="config")
application.add_typer(debug, name="debug")
application.add_typer(topic, name="topic")
application.add_typer(group, name="group")
application.add_typer(cluster, name="cluster")
application.add_typer(bench, name="bench")
application.add_typer(compactor, name="compactor")
application.add_typer(storage, name="storage")
application.add_typer(cost, name="cost")
application.add_typer(spark, name="spark")
application.add_typer(generate, name="generate")

LogFormat = Annotated[
    str | None, typer.Option(help="Write the log as auto, console or json. [env var: FOREBAY_LOG__FORMAT]", metavar="FORMAT")
]
LogLevel = Annotated[
    str | None,
    typer.Option(help="Log at this level and above: debug, info, warning or error. [env var: FOREBAY_LOG__LEVEL]", metavar="LEVEL"),
]


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    pass


@application.command()
def serve(
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Run this many brokers, each in a process of its own, under a supervisor that restarts those that die. Worker i adds i to "
            "every port (and to broker.id, if it is set); each worker has buffers and caches of the full size. The stores must be "
            "shareable: not memory://.",
        ),
    ] = 1,
    accept_new_store: Annotated[
        bool,
        typer.Option(
            "--accept-new-store",
            help="Start even if the object store has none of the objects that the metadata name, or has objects that the metadata do not "
            "know. A store with the id of another cluster is still refused.",
        ),
    ] = False,
    accept_older_metadata: Annotated[
        bool,
        typer.Option(
            "--accept-older-metadata",
            help="Start even if the metadata are older than what the object store has seen, as after a restore of an older copy. Objects "
            "that the metadata do not name are kept.",
        ),
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True, help="Standard input is the supervisor.")] = False,
) -> None:
    """Run a broker, or several, until SIGTERM or Ctrl-C."""
    loaded = _load(config_file, assignments, log_format=log_format, log_level=log_level)
    from process.settings.model import Accepted

    accepted = Accepted(accept_new_store, accept_older_metadata)
    from forebay.processes.link import SupervisorLink

    link = SupervisorLink() if supervised else None
    if workers > 1:
        from forebay.processes.supervisor import serve_workers

        raise typer.Exit(serve_workers(loaded, workers=workers, accepted=accepted, link=link))
    from forebay.imports import import_without_extras

    import_without_extras()
    from broker.assembly import open_broker
    from forebay.processes.serve import serve as serve_until_stopped

    raise typer.Exit(serve_until_stopped(loaded, open_broker=partial(open_broker, accepted=accepted), link=link))


@application.command()
def demo(
    records: Annotated[int, typer.Option(min=1, max=336_776, help="Replay this many of the 336,776 flights.")] = 336_776,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Serve Kafka clients on this port, or on the next free one.")] = 9092,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="Keep nothing on disk.")] = False,
    leave: Annotated[bool, typer.Option("--exit", help="Exit after the check instead of serving on.")] = False,
    data: Annotated[Path, typer.Option(help="Keep data in this folder; other files in it are left alone.", metavar="DIR")] = Path(
        "forebay-data"
    ),
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline",
            help="Let Spark put the flights into a table and sum up their delays while they come, three brokers serve and one is killed. "
            "Needs the extra pipeline, Java, and the jars of `make jars`: `make pipeline` in a clone has all.",
        ),
    ] = False,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            show_default="1, or 3 with --pipeline",
            help="Run this many brokers. With several, the broker that the producer writes to is killed half-way. They use the stores of "
            "the settings (FOREBAY_METADATA__URL, FOREBAY_STORAGE__URL, forebay.yaml), or share the data folder if these name none.",
        ),
    ] = None,
) -> None:
    """Replay a year of flights and check that every record comes back. The demo runs one embedded broker, or several."""
    from forebay.commands.demo.run import DemoOptions, run

    count = brokers or (3 if pipeline else 1)
    options = DemoOptions(records=records, port=port, data=None if in_memory else data, leave=leave, brokers=count, pipeline=pipeline)
    raise typer.Exit(run(options))


@application.command()
def doctor(
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Check everything that a broker with these settings needs.

    Run it beside a broker, or before one starts. It exits with code 1 if a check fails.
    """
    with failures_reported():
        from forebay.commands.doctor.run import doctor as check_all

        options = _options(log_format=log_format, log_level=log_level)
        raise typer.Exit(check_all(config_file, assignments or (), options, Terminal(output, quiet)))


@application.command()
def version() -> None:
    """Show the version."""
    from runtime.version import forebay_version

    typer.echo(f"forebay {forebay_version()}")


def _complain_in_the_log(error: "SettingsError", log_format: str) -> None:
    from process.exit_codes import say_cannot_serve
    from runtime import logs

    log = logs.configure(format=log_format, level="info")
    say_cannot_serve(log, str(error), exit_code=error.exit_code)
    log.flush()


def _load(file: Path | None, assignments: list[str] | None, *, log_format: str | None, log_level: str | None) -> "Loaded":
    """What is wrong with the settings goes to the log, in their `log.format` as far as it can be read."""
    from process.settings.errors import SettingsError
    from process.settings.loading import load, readable_log_format

    given = _options(log_format=log_format, log_level=log_level)
    try:
        return load(file=file, environ=os.environ, assignments=assignments or (), options=given)
    except SettingsError as error:
        _complain_in_the_log(error, readable_log_format(file=file, environ=os.environ, assignments=assignments or (), options=given))
        raise typer.Exit(error.exit_code) from error


def _options(*, log_format: str | None, log_level: str | None) -> dict[str, tuple[str, str]]:
    options = {"log.format": ("--log-format", log_format), "log.level": ("--log-level", log_level)}
    return {key: (option, value) for key, (option, value) in options.items() if value is not None}
