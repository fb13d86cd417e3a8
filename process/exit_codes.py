"""Errors that end a process → an exit code, and one line for the operator in the form of its log: JSON, or plain text on a console.

An error that `explain` does not know is a bug, and gets a traceback.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import structlog

from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.stopping import ExitNow
from runtime.logs import ProcessLog
from storage.errors import IncompatibleFormat, Unavailable

_OF_THE_PLACE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT}
)
"""What an operator can put right at the file or folder that the error names. That one is not there is as likely a bug."""
_log = structlog.get_logger(__name__)


class Explanation(NamedTuple):
    message: str
    exit_code: int


def explain(error: BaseException) -> Explanation | None:
    """Explain an error, or the first part of a group that can be explained; a failing start arrives wrapped in the groups of its tasks."""
    for leaf in _leaves(error):
        match leaf:
            case StartError():
                return Explanation(str(leaf), leaf.exit_code)
            case IncompatibleFormat():
                return Explanation(str(leaf), EXIT_USAGE)
            case Unavailable():
                return Explanation(str(leaf), EXIT_UNREACHABLE)
            case OSError(errno=code) if code in _OF_THE_PLACE and leaf.filename is not None:
                return Explanation(of_place(leaf), EXIT_UNREACHABLE)
    return None


def of_place(error: OSError) -> str:
    """A line about the file or folder that a failed call names: the cause, the user and the fix."""
    fix = "Give this user access to it and to the folders above it" if isinstance(error, PermissionError) else "Put it right"
    return f"{whole_path(error.filename)}: {error.strerror} as uid {os.geteuid()}. {fix}, or choose another."


def whole_path(path: str | bytes | os.PathLike[str]) -> str:
    """With the current folder before it, unless that is gone."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.abspath(os.fsdecode(path))
    return os.fsdecode(path)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def say_cannot_serve(log: ProcessLog, message: str, *, exit_code: int, worker: int | None = None) -> None:
    """`message`: what is wrong and how to fix it. `worker`: whose words they are, under a supervisor."""
    if log.is_console:
        log.write_line(message if worker is None else f"worker {worker}: {message}")
        return
    facts: Mapping[str, Any] = {} if worker is None else {"worker": worker}
    _log.error("cannot_serve", message=message, exit_code=exit_code, **facts)


def flushed(exit_now: ExitNow, log: ProcessLog) -> ExitNow:
    """Ends the process without any clean-up but that of its log."""

    def flush_and_exit(code: int) -> Any:
        log.flush()
        return exit_now(code)

    return flush_and_exit
