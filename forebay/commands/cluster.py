"""`forebay cluster …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.kafka_client.failures import EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_TIMED_OUT, EXIT_UNHEALTHY, ClientFailed, failures_reported
from forebay.kafka_client.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Output,
    OutputFormat,
    Quiet,
    Terminal,
    Timeout,
    seconds,
)

if TYPE_CHECKING:
    from forebay.commands.cluster_facts import BrokerLine, ClusterFacts, ClusterHealth

cluster = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show the brokers of a Kafka cluster and their health.")

WATCH_EVERY_S: Final = 2.0
WAIT_EVERY_S: Final = 0.5
WAIT_WITHIN: Final = "60s"
ANSWER_WITHIN_S: Final = 3.0
ROLES_CONFIG: Final = "broker.roles"


@cluster.command()
def info(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show the cluster's id and what there is in it."""
    with failures_reported():
        from forebay.commands.cluster_facts import cluster_table

        found = _facts(bootstrap, timeout)
        Terminal(output, quiet).show(found, cluster_table(found))


@cluster.command()
def brokers(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the brokers as the cluster advertises them."""
    with failures_reported():
        from forebay.commands.cluster_facts import brokers_table

        found = _with_roles(bootstrap, timeout, _facts(bootstrap, timeout).brokers)
        Terminal(output, quiet).show(found, brokers_table(found))


@cluster.command()
def health(
    watch: Annotated[bool, typer.Option("--watch", help="Check every 2 s and write what changed, until Ctrl-C.")] = False,
    exit_when_healthy: Annotated[
        bool, typer.Option("--exit-when-healthy", help="Wait until all is well, for 60 s or as long as --timeout says.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Wait this long for an answer, or until all is well.", metavar="DURATION")
    ] = None,
) -> None:
    """Say whether all brokers answer and all partitions are whole. A partition is whole if it has a leader and all its replicas.

    It exits with code 6 if not, and with 3 if no broker answers.
    """
    with failures_reported():
        from forebay.commands.cluster_facts import health_table
        from runtime.clock import SystemClock

        terminal = Terminal(output, quiet)
        if not watch and not exit_when_healthy:
            found = _health(bootstrap, seconds(timeout or DEFAULT_TIMEOUT))
            terminal.show(found, health_table(found))
            if not found.healthy:
                raise typer.Exit(EXIT_UNHEALTHY)
            return
        clock = SystemClock()
        within_s = seconds(timeout or (WAIT_WITHIN if exit_when_healthy else DEFAULT_TIMEOUT))
        give_up_s = clock.monotonic_s() + within_s
        shown: object = None
        said = ""
        try:
            while True:
                left_s = give_up_s - clock.monotonic_s() if exit_when_healthy else within_s
                try:
                    state = _health(bootstrap, max(left_s, WAIT_EVERY_S))
                    cause = "; ".join(state.reasons)
                    if state != shown and (watch or state.healthy):
                        terminal.show(state, health_table(state))
                        shown = state
                    if state.healthy and exit_when_healthy:
                        return
                except ClientFailed as failed:
                    cause, shown = str(failed), None
                if cause and cause != said:
                    terminal.say(cause)
                said = cause
                if exit_when_healthy and clock.monotonic_s() >= give_up_s:
                    raise ClientFailed(f"Not healthy within {within_s:g} s: {cause}", exit_code=EXIT_TIMED_OUT)
                time.sleep(WAIT_EVERY_S if exit_when_healthy else WATCH_EVERY_S)
        except KeyboardInterrupt as interrupted:
            raise typer.Exit(EXIT_INTERRUPTED if exit_when_healthy else 0) from interrupted


@cluster.command()
def upgrade(
    to: Annotated[
        int | None,
        typer.Option(
            "--to", min=1, help="Raise the format level to this.  [default: the highest that this forebay knows]", metavar="LEVEL"
        ),
    ] = None,
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
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Let brokers write the formats of a newer release. All brokers must know these formats; older releases cannot start afterwards."""
    with failures_reported():
        import asyncio

        from forebay.commands.cluster_facts import upgrade_cluster, upgrade_table
        from process.exit_codes import explain
        from process.settings.errors import SettingsError
        from process.settings.loading import load
        from storage.errors import NotFound, OutcomeUnknown

        try:
            loaded = load(file=config_file, environ=os.environ, assignments=assignments or ())
            found = asyncio.run(upgrade_cluster(loaded.settings, to))
        except SettingsError as error:
            raise ClientFailed(str(error), exit_code=error.exit_code) from error
        except TimeoutError as error:
            raise ClientFailed("The metadata store did not answer in time. Ask again.", exit_code=EXIT_TIMED_OUT) from error
        except Exception as error:
            explanation = explain(error)
            if explanation is not None:
                raise ClientFailed(explanation.message, exit_code=explanation.exit_code) from error
            if isinstance(error, NotFound):
                raise ClientFailed(str(error), exit_code=EXIT_NOT_FOUND) from error
            if isinstance(error, OutcomeUnknown):
                raise ClientFailed(f"{error}. Ask again.", exit_code=EXIT_TIMED_OUT) from error
            raise
        Terminal(output, quiet).show(found, upgrade_table(found))
        if found.problem is not None:
            raise ClientFailed(found.problem)


def _facts(bootstrap: str, timeout: str) -> "ClusterFacts":
    from forebay.commands.cluster_facts import cluster_facts
    from forebay.kafka_client.connection import connect

    connection = connect(bootstrap, timeout_s=seconds(timeout))
    admin = connection.admin()
    with connection.answers_awaited():
        return cluster_facts(connection.result(admin.describe_cluster(request_timeout=connection.timeout_s)), connection.metadata(admin))


def _with_roles(bootstrap: str, timeout: str, lines: "list[BrokerLine]") -> "list[BrokerLine]":
    """The brokers with the roles that each tells in its configs; those that do not answer, or are not ours, tell none."""
    import msgspec
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    from forebay.kafka_client.connection import connect

    within_s = min(seconds(timeout), ANSWER_WITHIN_S)
    admin = connect(bootstrap, timeout_s=within_s).admin()
    resources = {str(one.id): ConfigResource(ResourceType.BROKER, str(one.id)) for one in lines}
    told: dict[str, list[str]] = {}
    for name, asked in resources.items():
        with contextlib.suppress(KafkaException, TimeoutError):
            found = admin.describe_configs([asked], request_timeout=within_s)[asked].result(within_s).get(ROLES_CONFIG)
            if found is not None and found.value:
                told[name] = found.value.split(",")
    return [msgspec.structs.replace(one, roles=told.get(str(one.id))) for one in lines]


def _health(bootstrap: str, timeout_s: float) -> "ClusterHealth":
    from forebay.commands.cluster_facts import judge_health, reach_brokers
    from forebay.kafka_client.connection import BootstrapServer, connect

    connection = connect(bootstrap, timeout_s=timeout_s)
    metadata = connection.metadata(connection.admin())
    addresses = {broker.id: BootstrapServer(str(broker.host), broker.port) for broker in metadata.brokers.values()}
    return judge_health(metadata, reach_brokers(addresses, within_s=min(timeout_s, ANSWER_WITHIN_S)))
