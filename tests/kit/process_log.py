"""The log of the process that runs the tests."""

import contextlib
import logging
from collections.abc import Iterator

import structlog

from runtime.logs import ProcessLog


@contextlib.contextmanager
def restored_log() -> Iterator[None]:
    """Undo `logs.configure`, which directs the log of the whole process: a command that runs in the process of the tests calls it."""
    root = logging.getLogger()
    level = root.level
    try:
        yield
    finally:
        root.handlers = [handler for handler in root.handlers if not isinstance(handler, ProcessLog)]
        root.setLevel(level)
        structlog.reset_defaults()
