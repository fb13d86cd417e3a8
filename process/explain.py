"""Errors that end a process → one line for the operator and an exit code. What is not here is a bug, and gets a traceback."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from storage.errors import IncompatibleFormat, Unavailable

_OF_THE_PLACE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT}
)
"""What an operator can put right at the file or folder that the error names. That one is not there is as likely a bug."""


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
