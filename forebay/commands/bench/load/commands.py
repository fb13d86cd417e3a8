"""`forebay bench load FILE`, and the same in steps. The result on stdout, talk on stderr."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from forebay.kafka_client.failures import EXIT_FAILED, EXIT_UNHEALTHY, failures_reported
from forebay.kafka_client.options import Output, OutputFormat, Quiet, Terminal
from forebay.kafka_client.text import printable

if TYPE_CHECKING:
    from forebay.commands.bench.load.reconcile import LoadVerdict

WHOLE: Final = "all"


class LoadCommands(TyperGroup):
    """`FILE` where a command could stand means `all FILE`: then a scenario is run as a whole."""

    default_command: Final = WHOLE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [WHOLE, *args]
        return list(super().parse_args(ctx, args))


class LoadStoresKind(enum.StrEnum):
    SERVICES = "services"
    DISK = "disk"
    MEMORY = "memory"


load = typer.Typer(
    cls=LoadCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="FILE | COMMAND [ARGS]...",
    help="Load a cluster while brokers fail, then reconcile everything.",
    epilog="forebay bench load FILE is short for forebay bench load all FILE. In steps: up, precreate, run and down, each of one folder.",
)

ScenarioFile = Annotated[Path, typer.Argument(help="The scenario: YAML or JSON.", metavar="FILE")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of the run.", metavar="RUN")]
Short = Annotated[bool, typer.Option("--short", help="A fiftieth of the records on embedded stores: seconds.")]
StoresToUse = Annotated[LoadStoresKind | None, typer.Option("--stores", help="Use these stores, whatever the scenario says.")]
Out = Annotated[Path, typer.Option("--out", help="Make the folder of the run below this one.", metavar="DIR")]


@load.command(WHOLE)
def whole(file: ScenarioFile, short: Short = False, stores: StoresToUse = None, out: Out = Path("runs"), quiet: Quiet = False) -> None:
    """Run a scenario as a whole: start, load, reconcile, end.

    The scenario says which brokers run, who produces and consumes, and which of them is killed when. Afterwards an independent reader finds
    what is stored. It is compared with what producers sent and were acknowledged, with what groups read and committed, and with what
    brokers and the S3 server counted. Exit code 1 names the partitions and offsets that do not agree.
    """
    with failures_reported():
        from forebay.commands.bench.load.running import run_load

        _show(run_load(file, is_short=short, stores=stores and stores.value, out=out, terminal=Terminal(quiet=quiet)))


@load.command()
def up(run: RunFolder, file: ScenarioFile, short: Short = False, stores: StoresToUse = None, quiet: Quiet = False) -> None:
    """Start the cluster of a scenario, and leave it running.

    The folder is new. A process in the background holds the cluster: when that ends, all that was started ends. `stack.json` in the folder
    names addresses and pids.
    """
    with failures_reported():
        from forebay.commands.bench.load.steps import up as bring_up

        facts = bring_up(run, file, is_short=short, stores=stores and stores.value)
        Terminal(quiet=quiet).say(f"up: {len(facts.members)} processes. Next: forebay bench load run {run}")
        typer.echo(facts.bootstrap)


@load.command()
def precreate(run: RunFolder, quiet: Quiet = False) -> None:
    """Create the topics of a run that is up. `run` does it, too."""
    with failures_reported():
        from forebay.commands.bench.load.steps import precreate as create

        made, known = create(run)
        for name in made:
            typer.echo(printable(name))
        if known:
            Terminal(quiet=quiet).say(f"there already: {', '.join(known)}")


@load.command("run")
def run_loaded(run: RunFolder, quiet: Quiet = False) -> None:
    """Load a run that is up, and reconcile. The cluster stays up."""
    with failures_reported():
        from forebay.commands.bench.load.steps import run as load_once

        _show(load_once(run, terminal=Terminal(quiet=quiet)))


@load.command()
def status(run: RunFolder, output: OutputFormat = Output.TABLE) -> None:
    """Show every process of a run. Exit code 6: it is not up, or a process ended by itself."""
    with failures_reported():
        from forebay.commands.bench.load.steps import status as look
        from forebay.kafka_client.text import NOTHING, align

        rows = look(run)
        table = align(
            ("NAME", "STATE", "PID", "KAFKA", "HTTP"),
            [(row.name, row.state, row.pid or NOTHING, row.kafka or NOTHING, row.http or NOTHING) for row in rows],
        )
        Terminal(output).show([row._asdict() for row in rows], table)
        if not all(row.is_right for row in rows):
            raise typer.Exit(EXIT_UNHEALTHY)


@load.command()
def down(run: RunFolder, quiet: Quiet = False) -> None:
    """End every process of a run. Its folder stays, and its data if the run is red."""
    with failures_reported():
        from forebay.commands.bench.load.steps import down as end

        terminal = Terminal(quiet=quiet)
        killed = end(run, terminal=terminal)
        if killed:
            terminal.warn(f"killed: {', '.join(killed)}")
        terminal.say(f"down: what is known of the run stays in {run}")


@load.command()
def watch(file: ScenarioFile, stores: StoresToUse = None, out: Out = Path("runs"), quiet: Quiet = False) -> None:
    """Load a cluster with dashboards until Ctrl-C.

    Prints where brokers, their HTTP API and metrics, Prometheus and Grafana are. The last two run if they are in the PATH; their files are
    in the folder of the run, for others. Producers go on at their rate, whatever number of records the scenario names, and topics keep an
    hour. Nothing is reconciled.
    """
    with failures_reported():
        from forebay.commands.bench.load.watching import watch as watch_load

        terminal = Terminal(quiet=quiet)
        acked = watch_load(file, stores=stores and stores.value, out=out, terminal=terminal, show=typer.echo)
        terminal.say(f"stopped: {acked:,} records were acknowledged")


def _show(verdict: "LoadVerdict") -> None:
    for line in verdict.faults:
        typer.echo(printable(line), err=True)
    typer.echo(verdict.line())
    if not verdict.is_good:
        raise typer.Exit(EXIT_FAILED)
