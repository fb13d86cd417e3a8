"""Garbage collection by hand."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from compactor.assembly import open_compactor
from compactor.collector import CollectionReport
from compactor.measures import outcome_of
from forebay.commands.storage.running import EXIT_UNSOUND
from forebay.kafka_client.options import Terminal
from forebay.kafka_client.text import facts
from forebay.opening import check_there
from process import event_loop
from process.explain import explain
from process.settings.errors import SettingsError
from process.settings.loading import load
from runtime import logs

FAILURES_SHOWN_MAX = 20


def collect_garbage(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, delete: bool) -> int:
    """The exit code."""
    logs.configure(format="auto", level="error")

    async def run() -> CollectionReport:
        settings = load(file=file, environ=os.environ, assignments=assignments).settings
        check_there(settings)
        async with open_compactor(settings, is_paced=False) as opened:
            return await opened.upkeep.collect(dry_run=not delete)

    try:
        report = event_loop.run(run())
    except SettingsError as error:
        typer.echo(str(error), err=True)
        return error.exit_code
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            raise
        typer.echo(explanation.message, err=True)
        return explanation.exit_code
    failures, aborted = dict(report.failed), 0
    if report.uploads is not None:
        aborted = report.uploads.aborted
        if report.uploads.failed is not None:
            failures["unfinished uploads"] = report.uploads.failed
    failed = [{"of": of, "outcome": outcome_of(error), "cause": str(error)} for of, error in failures.items()]
    lines = {
        "looked_at": report.looked_at,
        "live": report.live,
        "unsure": report.unsure,
        "unused": report.deleted,
        "unused_bytes": report.deleted_bytes,
        "uploads": aborted,
        "deleted": delete,
        "failed": failed,
    }
    rows: list[tuple[str, object]] = [
        ("looked at", report.looked_at),
        ("live", report.live),
        ("deleted" if delete else "unused", f"{report.deleted}, {report.deleted_bytes} bytes"),
    ]
    if aborted:
        rows.append(("aborted" if delete else "unfinished", f"{aborted} uploads that nobody will finish"))
    if report.unsure:
        rows.append(("unsure", report.unsure))
    rows += [(f"{one['outcome']}", f"{one['of']}: {one['cause']}") for one in failed[:FAILURES_SHOWN_MAX]]
    terminal.show(lines, facts(rows))
    if (report.deleted or aborted) and not delete:
        terminal.say("Nothing was deleted. A compactor deletes them by itself; --delete does so at once.")
    return EXIT_UNSOUND if report.unsure else 0
