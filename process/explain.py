"""Errors that end a process → one line for the operator and an exit code. What is not here is a bug, and gets a traceback."""

from collections.abc import Iterator
from typing import NamedTuple

from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from storage.errors import IncompatibleFormat, Unavailable


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
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
