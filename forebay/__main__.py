"""The `forebay` command. This module runs on any Python 3, to be able to say which one is needed."""

import sys

_OLDEST_PYTHON = (3, 11)
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


def refusal(version: "tuple[int, ...]", *, assertions: bool) -> str:
    """Why this interpreter will not do; empty if it will."""
    if version < _OLDEST_PYTHON:
        return "Python {}.{} found; forebay needs 3.11 or newer.".format(*version[:2])
    if not assertions:
        return "forebay does not run with -O or PYTHONOPTIMIZE: its assertions are part of what keeps data safe."
    return ""


def main() -> None:
    reason = refusal(sys.version_info[:2], assertions=__debug__)
    if reason:
        sys.stderr.write(reason + "\n")
        sys.exit(_EXIT_USAGE)
    try:
        from forebay.cli import application

        application()
    except KeyboardInterrupt:
        # Before a command began: while its modules were read.
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
