"""`forebay cost …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from forebay.kafka_client.failures import EXIT_UNHEALTHY, EXIT_UNREACHABLE, errors_explained, failures_reported
from forebay.kafka_client.options import (
    DEFAULT_TIMEOUT,
    ConfigFile,
    Output,
    OutputFormat,
    Quiet,
    SettingOverrides,
    Terminal,
    Timeout,
    load_settings,
    seconds,
)

T = TypeVar("T")

cost = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show what object storage costs, or would cost.")


@cost.command()
def estimate(
    throughput: Annotated[str, typer.Argument(help="Bytes a second of all producers, as they send them, e.g. 50MiB.", metavar="BYTES")],
    brokers: Annotated[int, typer.Option(min=1, max=10_000, help="Brokers that share the load.")] = 3,
    zones: Annotated[int, typer.Option(min=1, max=100, help="Zones that the brokers are in.")] = 3,
    retention: Annotated[str, typer.Option(help="Keep records this long.", metavar="DURATION")] = "7d",
    flush_interval: Annotated[str, typer.Option(help="As storage.flush_interval.", metavar="DURATION")] = "250ms",
    flush_bytes: Annotated[str, typer.Option(help="As storage.flush_bytes.", metavar="SIZE")] = "8MiB",
    batches: Annotated[
        float | None,
        typer.Option(
            "--batches",
            min=0.001,
            max=1e9,
            help="Batches a second of all producers: fewer than one an interval make fewer objects, and each counts with what goes early.",
            show_default="many",
        ),
    ] = None,
    readers: Annotated[
        int | None, typer.Option(min=1, max=10_000, show_default="all", help="Brokers that read each object, the writer included.")
    ] = None,
    zone_cache: Annotated[bool, typer.Option("--zone-cache", help="Each zone reads an object once.")] = False,
    fan_out: Annotated[float, typer.Option(min=0, max=10_000, help="Consumer groups that read everything, for Kafka's traffic.")] = 1.0,
    no_rack_aware: Annotated[bool, typer.Option("--no-rack-aware", help="Kafka's consumers read from other zones, too.")] = False,
    machine_price: Annotated[float, typer.Option(min=0, max=1_000, help="Dollars an hour of a broker's machine, here and in Kafka.")] = 0.0,
    store: Annotated[str | None, typer.Option(help="Prices of this store.", show_default="cost.store", metavar="STORE")] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Read prices from this file.", show_default="cost.prices_file", metavar="FILE")
    ] = None,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show what a load would cost a month, beside Apache Kafka's.

    It asks no cluster. Kafka is reckoned with three copies in three zones of AWS.
    """
    with failures_reported():
        from forebay.commands.cost_answers import estimate_data, estimate_table
        from process.cost.estimate import ExpectedLoad
        from process.cost.estimate import estimate as estimated
        from process.cost.prices import BUILT_IN_TABLE, read_prices, store_named, store_of
        from process.settings.errors import SettingsError
        from process.settings.notation import parse_duration, parse_size

        settings = load_settings(config_file, assignments).settings
        load = ExpectedLoad(
            bytes_per_s=_parsed(parse_size, throughput, "BYTES", minimum=1),
            brokers=brokers,
            zones=zones,
            retention_s=_parsed(parse_duration, retention, "--retention", minimum=timedelta(seconds=1)).total_seconds(),
            flush_interval_s=_parsed(parse_duration, flush_interval, "--flush-interval", minimum=timedelta(milliseconds=1)).total_seconds(),
            flush_bytes=_parsed(parse_size, flush_bytes, "--flush-bytes", minimum=1),
            batches_per_s=batches,
            readers=readers,
            has_zone_cache=zone_cache,
            fan_out=fan_out,
            is_rack_aware=not no_rack_aware,
            machine_per_hour=machine_price,
        )
        file = prices or (Path(settings.cost.prices_file) if settings.cost.prices_file else None)
        try:
            table = BUILT_IN_TABLE if file is None else read_prices(file)
            chosen = store or settings.cost.store or store_of(settings.storage.url)
            found = store_named(chosen, table, named="cost.store" if store is None else "--store")
        except SettingsError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from error
        result = estimated(load, found)
        budget = settings.cost.budget_per_month
        terminal = Terminal(output, quiet)
        terminal.show(estimate_data(load, result, found, table, budget), estimate_table(load, result, found, table, budget))


@cost.command()
def now(
    http: Annotated[
        list[str] | None,
        typer.Option(
            "--http",
            help="Ask the process that serves HTTP here. Repeatable.",
            metavar="HOST:PORT",
            show_default="http.listen, and what has registered",
        ),
    ] = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    config_file: ConfigFile = None,
    assignments: SettingOverrides = None,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show what running brokers and compactors have cost, and the rate.

    Each counts since it started, and its rate is that of its last ten minutes. It exits with code 3 if none of them answers, and with
    code 6 if some do not.
    """
    with failures_reported():
        from forebay.commands.cost_answers import ask_processes, now_data, now_table, registered
        from process import event_loop
        from process.cost.meter import sum_up
        from process.settings.notation import parse_address
        from runtime import logs

        logs.configure(format="auto", level="error")  # the answer says it all
        settings, terminal, within_s = load_settings(config_file, assignments).settings, Terminal(output, quiet), seconds(timeout)
        with errors_explained():
            addresses = [_parsed(parse_address, one, "--http") for one in http] if http else event_loop.run(registered(settings))
        bills = ask_processes(addresses, within_s=within_s)
        found = [bill.facts for bill in bills if bill.facts is not None]
        silent = [bill for bill in bills if bill.facts is None]
        for bill in silent:
            terminal.warn(f"{bill.address}: {bill.cause}. Name where processes serve HTTP with --http HOST:PORT.")
        if not found:
            raise typer.Exit(EXIT_UNREACHABLE)
        sums = sum_up(found)
        terminal.show(now_data(sums, found), now_table(sums, found))
        if silent:
            raise typer.Exit(EXIT_UNHEALTHY)


@cost.command()
def report(
    prometheus: Annotated[str, typer.Option(help="The Prometheus that scrapes the cluster, e.g. http://127.0.0.1:9090.", metavar="URL")],
    since: Annotated[str, typer.Option(help="Look back so far.", metavar="DURATION")] = "24h",
    cluster: Annotated[str | None, typer.Option(help="Of the series with this cluster label alone.", metavar="NAME")] = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputFormat = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show what a cluster has cost in a time, storage included.

    A Prometheus knows it, processes that have ended included. It exits with code 3 if it does not answer or has no such series.
    """
    with failures_reported():
        from forebay.commands.cost_answers import ask_prometheus, report_data, report_table
        from forebay.kafka_client.options import parse_duration_ms

        since_ms = _parsed(lambda text: parse_duration_ms(str(text)), since, "--since", minimum=1_000)
        if not prometheus.startswith(("http://", "https://")):
            raise typer.BadParameter(f'--prometheus "{prometheus}" is no URL: write for example http://127.0.0.1:9090')
        if cluster is not None and not (cluster.isprintable() and not set(cluster) & set('"\\')):
            raise typer.BadParameter(f"--cluster {cluster!r} has characters that a label cannot have here")
        found = ask_prometheus(prometheus, since_s=since_ms / 1_000, cluster=cluster, within_s=seconds(timeout))
        Terminal(output, quiet).show(report_data(found), report_table(found))


def _parsed(parse: Callable[[object], T], text: str, option: str, *, minimum: T | None = None) -> T:
    try:
        found = parse(text)
    except ValueError as error:
        raise typer.BadParameter(f'{option} "{text}" {error}') from error
    if minimum is not None and not found >= minimum:  # type: ignore[operator]
        raise typer.BadParameter(f'{option} "{text}" is too little')
    return found
