"""Why a command of a Kafka client failed: cause and fix in one line, and the exit code of the command line's table."""

import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import typer

from forebay.kafka_client.text import printable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_REFUSED: Final = 5
EXIT_UNHEALTHY: Final = 6
EXIT_TIMED_OUT: Final = 124
EXIT_INTERRUPTED: Final = 130


class ClientFailed(Exception):
    """`str()` is the line for the operator."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def failures_reported() -> Iterator[None]:
    """Ends the command with one line on stderr and its exit code; Ctrl-C ends it with 130, a closed pipe quietly with 0."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except ClientFailed as failed:
        typer.echo(printable(str(failed)), err=True)
        raise typer.Exit(failed.exit_code) from failed
    except KeyboardInterrupt as interrupted:
        raise typer.Exit(EXIT_INTERRUPTED) from interrupted
    except BrokenPipeError as closed:
        # What is still buffered has no reader; flushing it when the process ends would fail again.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        raise typer.Exit(0) from closed
    except OSError as error:
        where = "Reading or writing" if error.filename is None else str(error.filename)
        fix = f" Give uid {os.geteuid()} access to it, or name another." if isinstance(error, PermissionError) else ""
        if error.filename is None:
            # A full disk behind stdout, which must not be flushed again.
            with contextlib.suppress(OSError):
                sys.stdout.close()
        typer.echo(printable(f"{where}: {(error.strerror or str(error)).lower()}.{fix}"), err=True)
        raise typer.Exit(EXIT_FAILED) from error


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """Ends the command with one line on stderr and its exit code where an operator can put an error right (process/exit_codes.py)."""
    try:
        yield
    except Exception as error:
        from process.exit_codes import explain

        explanation = explain(error)
        if explanation is None:
            raise
        typer.echo(explanation.message, err=True)
        raise typer.Exit(explanation.exit_code) from error


@contextlib.contextmanager
def noting_failure(failed: dict[str, ClientFailed], name: str) -> Iterator[None]:
    """Report a failure of one of several, and go on with the others."""
    try:
        yield
    except ClientFailed as failure:
        failed[name] = failure
        typer.echo(printable(str(failure)), err=True)


def exit_if_any(failed: Mapping[str, ClientFailed], *, of: int) -> None:
    """With what the one failure says, if there was one target; with 1 if there were several."""
    if failed:
        raise typer.Exit(EXIT_FAILED if of > 1 else next(iter(failed.values())).exit_code)


def confirm(what: str, question: str) -> None:
    """Asks at a terminal. Raise `ClientFailed` unless the answer is yes; `what` is named where nobody can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ClientFailed(f"{what} has to be confirmed: at a terminal, or with --yes.", exit_code=EXIT_USAGE)
    typer.echo(f"{printable(question)} [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ClientFailed("Nothing was deleted.", exit_code=EXIT_FAILED)


def unknown_topic(name: str, known: Iterable[str]) -> ClientFailed:
    near = difflib.get_close_matches(name, list(known), n=1)
    nearest = f' Nearest: "{near[0]}".' if near else ""
    return ClientFailed(f'Topic "{name}" does not exist.{nearest} Create it: forebay topic create {name}', exit_code=EXIT_NOT_FOUND)


def unknown_partition(topic: str, partition: int, count: int) -> ClientFailed:
    has = "partition 0 alone" if count == 1 else f"partitions 0 to {count - 1}"
    return ClientFailed(f'Topic "{topic}" has no partition {partition}: it has {has}.', exit_code=EXIT_NOT_FOUND)
