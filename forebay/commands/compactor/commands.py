"""`forebay compactor …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from forebay.commands.settings_options import ConfigFile, SettingOverrides
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_UNHEALTHY, ClientFailed, failures_reported
from forebay.kafka_client.options import Output, OutputFormat, Quiet, Terminal

if TYPE_CHECKING:
    from compactor.discovery import Backlog
    from compactor.measures import CycleReport
    from process.settings.loading import Loaded
    from process.settings.model import Settings
    from storage.catalog.brokers import CompactorRecord
    from storage.errors import NotFound

T = TypeVar("T")

compactor = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after stored records: entries become segments.")


@compactor.command()
def serve(
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True, help="Standard input is the supervisor.")] = False,
) -> None:
    """Run a compactor until SIGTERM or Ctrl-C. Several share the partitions among them.

    `forebay serve` runs one by itself, unless compactor.run is false.
    """
    from forebay.processes.compactor import serve as serve_until_stopped
    from forebay.processes.workers.link import SupervisorLink

    raise typer.Exit(serve_until_stopped(_load(config_file, assignments), link=SupervisorLink() if supervised else None))


@compactor.command("run-once")
def run_once(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.", metavar="[TOPIC]", show_default=False)] = None,
    partition: Annotated[int | None, typer.Argument(min=0, help="Only this partition of it.", metavar="[PARTITION]")] = None,
    everything: Annotated[
        bool, typer.Option("--now", help="Compact all there is, whether or not it fills a segment or is old enough.")
    ] = False,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Do once what a compactor does all the time, beside those that run. It exits with code 6 if a partition could not be compacted."""

    async def run(settings: "Settings") -> "CycleReport | NotFound":
        from compactor.assembly import open_compactor, policy_of
        from compactor.plan import CompactionPolicy
        from forebay.commands.debug.opening import check_there
        from storage.errors import NotFound

        check_there(settings)
        policy = policy_of(settings)
        if everything:
            policy = CompactionPolicy(segment_bytes=policy.segment_bytes, entries_due=1)
        async with open_compactor(settings, policy=policy, is_paced=False) as opened:
            try:
                return await opened.upkeep.cycle(only=None if topic is None else {topic}, number=partition, is_share=False)
            except NotFound as error:
                return error

    with failures_reported():
        from forebay.commands.compactor.views import cycle_lines, cycle_table

        report = _answered(config_file, assignments, run)
        Terminal(output, quiet).show(cycle_lines(report), cycle_table(report))
        if report.failed:
            raise typer.Exit(EXIT_UNHEALTHY)


@compactor.command()
def status(
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic. Repeatable.", metavar="TOPIC")] = None,
    limit: Annotated[int, typer.Option(min=0, max=10_000, help="Show this many of the partitions that are most behind.")] = 20,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show which compactors run, and what is in no segment yet and why."""

    async def look(settings: "Settings") -> "tuple[list[CompactorRecord], Backlog] | NotFound":
        from compactor.assembly import policy_of
        from compactor.discovery import read_backlog
        from forebay.commands.debug.opening import open_for_reading
        from runtime.clock import SystemClock
        from storage.catalog.brokers import live_compactors
        from storage.errors import NotFound

        async with open_for_reading(settings) as stores:
            try:
                live, wanted = await live_compactors(stores.metadata), topic or None
                return live, await read_backlog(stores.metadata, policy=policy_of(settings), clock=SystemClock(), only=wanted, shown=limit)
            except NotFound as error:
                return error

    with failures_reported():
        from forebay.commands.compactor.views import status_lines, status_table

        live, found = _answered(config_file, assignments, look)
        Terminal(output, quiet).show(status_lines(live, found), status_table(live, found))


def _load(config_file: Path | None, assignments: list[str] | None) -> "Loaded":
    from process.settings.errors import SettingsError
    from process.settings.loading import load

    try:
        return load(file=config_file, environ=os.environ, assignments=assignments or ())
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from error


def _answered(config_file: Path | None, assignments: list[str] | None, ask: "Callable[[Settings], Awaitable[T | NotFound]]") -> T:
    """What `ask` returns. What goes wrong is said in one line, and ends the command. A `NotFound` is returned, too: raised through the
    stores, it could leave them inside the group of their tasks.
    """
    from process import event_loop, malloc
    from process.explain import explain
    from runtime import logs
    from storage.errors import NotFound

    logs.configure(format="auto", level="error")  # the answer says it all
    malloc.tune()
    loaded = _load(config_file, assignments)

    async def answer() -> T | NotFound:
        return await ask(loaded.settings)

    try:
        answered = event_loop.run(answer())
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            raise
        typer.echo(explanation.message, err=True)
        raise typer.Exit(explanation.exit_code) from error
    if isinstance(answered, NotFound):
        raise ClientFailed(str(answered), exit_code=EXIT_NOT_FOUND)
    return answered
