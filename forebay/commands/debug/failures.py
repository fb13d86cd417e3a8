"""Why there is no answer, or only a part of one: cause and fix in one line, and the exit code."""

from typing import Final

from forebay.commands.debug.trace import Trace
from process.settings.errors import EXIT_FAILED

EXIT_NOT_FOUND: Final = 4
EXIT_TIMED_OUT: Final = 124


class TraceFailed(Exception):
    """`str()` is the line for the operator; `so_far` is what was found before, if that says anything."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED, so_far: Trace | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.so_far = so_far
