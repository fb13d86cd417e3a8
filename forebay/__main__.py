"""The `forebay` command. This module runs on any Python 3, to be able to say which one is needed."""

import os
import sys

_OLDEST_PYTHON = (3, 11)
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_STANDARD_ERROR = 2


def refusal(version: "tuple[int, ...]", *, assertions: bool) -> str:
    """Why this interpreter will not do; empty if it will."""
    if version < _OLDEST_PYTHON:
        return "Python {}.{} found; forebay needs 3.11 or newer.".format(*version[:2])
    if not assertions:
        return "forebay does not run with -O or PYTHONOPTIMIZE: its assertions are part of what keeps data safe."
    return ""


def take_standard_descriptors() -> None:
    """A process that was started without one gives it to the next file or socket it opens, where whoever writes to it would write."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def main() -> None:
    take_standard_descriptors()
    reason = refusal(sys.version_info[:2], assertions=__debug__)
    if reason:
        sys.stderr.write(reason + "\n")
        sys.exit(_EXIT_USAGE)
    from forebay.imports import clash

    reason = clash()
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
