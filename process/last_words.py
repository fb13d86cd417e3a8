"""Why `forebay serve` cannot start or go on, in the form of its log: one JSON line of an event, or plain text on a console."""

from collections.abc import Mapping
from typing import Any

import structlog

from process.stopping import ExitNow
from runtime.logs import ProcessLog

_log = structlog.get_logger(__name__)


def say_cannot_serve(log: ProcessLog, message: str, *, exit_code: int, worker: int | None = None) -> None:
    """`message`: what is wrong and how to mend it. `worker`: whose words they are, under a supervisor."""
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
