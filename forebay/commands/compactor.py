"""`forebay compactor …`. Data on stdout, talk on stderr; what a command needs is imported when it runs."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_UNHEALTHY, ClientFailed, errors_explained, failures_reported
from forebay.kafka_client.options import ConfigFile, Output, OutputFormat, Quiet, SettingOverrides, Terminal, load_settings
from forebay.kafka_client.text import align, facts

if TYPE_CHECKING:
    from compactor.discovery import Backlog
    from compactor.measures import CycleReport
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
    from forebay.processes.link import SupervisorLink

    raise typer.Exit(serve_until_stopped(load_settings(config_file, assignments), link=SupervisorLink() if supervised else None))


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
        from forebay.opening import check_there
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
        from forebay.opening import open_for_reading
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
        live, found = _answered(config_file, assignments, look)
        Terminal(output, quiet).show(status_lines(live, found), status_table(live, found))


def _answered(config_file: Path | None, assignments: list[str] | None, ask: "Callable[[Settings], Awaitable[T | NotFound]]") -> T:
    """What `ask` returns. What goes wrong is said in one line, and ends the command. A `NotFound` is returned, too: raised through the
    stores, it could leave them inside the group of their tasks.
    """
    from process import event_loop, malloc
    from runtime import logs
    from storage.errors import NotFound

    logs.configure(format="auto", level="error")  # the answer says it all
    malloc.tune()
    loaded = load_settings(config_file, assignments)

    async def answer() -> T | NotFound:
        return await ask(loaded.settings)

    with errors_explained():
        answered = event_loop.run(answer())
    if isinstance(answered, NotFound):
        raise ClientFailed(str(answered), exit_code=EXIT_NOT_FOUND)
    return answered


def cycle_lines(report: "CycleReport") -> dict[str, Any]:
    from compactor.measures import outcome_of

    return {
        "partitions": report.partitions,
        "segments": report.segments,
        "entries": report.entries,
        "objects": report.objects,
        "gets": report.gets,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "seconds": round(report.took_s, 3),
        "blocked": report.blocked or None,
        "failed": [
            {"topic_id": partition.topic_id, "partition": partition.partition, "outcome": outcome_of(error), "cause": str(error)}
            for partition, error in report.failed.items()
        ],
    }


def cycle_table(report: "CycleReport") -> str:
    rows: list[tuple[str, object]] = [
        ("partitions", report.partitions),
        ("segments", f"{report.segments} from {report.entries} entries, {_size(report.written_bytes)}"),
        ("objects", f"{report.objects} read with {report.gets} GETs, {_size(report.read_bytes)}"),
        ("seconds", f"{report.took_s:.1f}"),
    ]
    if report.blocked:
        rows.append(("blocked", report.blocked))
    rows += [(f"failed {partition.topic_id}/{partition.partition}", str(error)) for partition, error in report.failed.items()]
    return facts(rows)


def status_lines(live: "Sequence[CompactorRecord]", found: "Backlog") -> dict[str, Any]:
    import msgspec

    return {"compactors": [msgspec.to_builtins(one) for one in live], "backlog": msgspec.to_builtins(found)}


def status_table(live: "Sequence[CompactorRecord]", found: "Backlog") -> str:
    oldest = (
        "nothing" if found.oldest_ms is None else f"{_size(found.bytes)} in {found.entries} entries, the oldest of {_time(found.oldest_ms)}"
    )
    parts = [
        facts(
            [
                ("compactors", len(live) or "none runs: start forebay compactor serve, or set compactor.run: true for a broker"),
                ("partitions", f"{found.partitions}, {found.waiting} with entries in no segment yet, {found.due} due"),
                ("waiting", oldest),
                *[("unreadable", f"{path}: {cause}") for path, cause in found.unreadable.items()],
            ]
        )
    ]
    if live:
        rows = [(one.name, one.host, one.pid, one.http or "-", one.version, _time(one.started_at_ms)) for one in live]
        parts.append(align(("COMPACTOR", "HOST", "PID", "HTTP", "VERSION", "SINCE"), rows))
    if found.behind:
        behind = [
            (
                one.topic,
                one.partition,
                one.cursor,
                one.end,
                f"{one.entries}{'+' if one.is_more else ''}",
                _size(one.bytes),
                _time(one.since_ms),
                one.why,
            )
            for one in found.behind
        ]
        parts.append(align(("TOPIC", "PARTITION", "CURSOR", "END", "ENTRIES", "BYTES", "SINCE", "WHY"), behind))
    return "\n\n".join(parts)


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
