"""`forebay doctor`, once its options are read: findings on stdout, the sum of them and the stores' own words on stderr."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from forebay.commands.doctor.finding import Finding, exit_code
from forebay.commands.doctor.run import examine, of_settings_errors
from forebay.commands.doctor.views import as_json, as_line, summary
from forebay.kafka_client.options import Output, Terminal
from process.settings.errors import SettingsError
from process.settings.loading import load
from runtime import logs


def doctor(file: Path | None, assignments: Sequence[str], options: Mapping[str, tuple[str, str]], terminal: Terminal) -> int:
    """The exit code."""
    is_for_people = terminal.output is Output.TABLE

    def tell(finding: Finding) -> None:
        if is_for_people:
            typer.echo(as_line(finding))

    # What stores log of their own accord is in the findings.
    logs.configure(format="auto", level="error")
    try:
        loaded = load(file=file, environ=os.environ, assignments=assignments, options=options)
    except SettingsError as error:
        findings = of_settings_errors(error.problems)
        for finding in findings:
            tell(finding)
    else:
        findings = asyncio.run(examine(loaded, tell))
    if is_for_people:
        terminal.say(summary(findings))
    else:
        typer.echo(as_json(findings))
    return exit_code(findings)
