"""What keeps a broker from starting, in words for the operator: what · where from · fix."""

from collections.abc import Sequence
from typing import Final

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3


class StartError(Exception):
    """The operator must fix something first. `str()` is one line per problem; the process ends with `exit_code`."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SettingsError(StartError):
    """Some settings are wrong: all of them at once, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        assert problems, "an error without a problem"
        super().__init__("\n".join(problems), exit_code=EXIT_USAGE)
        self.problems = tuple(problems)
