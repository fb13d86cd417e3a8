"""Work over the stores that the settings name: opened, read, closed; what goes wrong becomes one line and an exit code."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import typer

from forebay.opening import open_for_reading
from process import event_loop
from process.explain import explain
from process.settings.errors import SettingsError
from process.settings.loading import load
from runtime import logs
from storage.opening import Stores

EXIT_NOT_FOUND: Final = 4
EXIT_UNSOUND: Final = 6

T = TypeVar("T")


class NotThere(Exception):
    """Something that was asked for does not exist: `str()` is the line for the operator."""


def over_stores(file: Path | None, assignments: Sequence[str], work: Callable[[Stores], Awaitable[T]]) -> T:
    """The result of `work`. Raise `typer.Exit` when a line on stderr has said why there is none."""
    logs.configure(format="auto", level="error")

    async def run() -> T | NotThere:
        async with open_for_reading(load(file=file, environ=os.environ, assignments=assignments).settings) as stores:
            try:
                return await work(stores)
            except NotThere as error:
                # Raised through the stores, it would come back in the groups of their tasks.
                return error

    try:
        found = event_loop.run(run())
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from error
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            raise
        typer.echo(explanation.message, err=True)
        raise typer.Exit(explanation.exit_code) from error
    if isinstance(found, NotThere):
        typer.echo(str(found), err=True)
        raise typer.Exit(EXIT_NOT_FOUND)
    return found
