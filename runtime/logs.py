"""Logs of a process: constant event names and key-value facts, to one stream, as console lines or one JSON object per line.

The standard library's loggers (asyncio, aiohttp) end in the same stream and form. Nothing is logged per record or per request.
"""

import logging
import sys
from collections.abc import Callable
from typing import Final, Protocol, TextIO

import structlog
from structlog.typing import Processor

QUIET: Final = ("aioboto3", "aiobotocore", "boto3", "botocore")
"""Libraries whose `info` is nobody's business: where they found credentials, which retry mode they are in."""

SAID_EVERY_S: Final = 10.0

_STAMPS: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
)


def configure(*, format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """`format`: auto, console or json; auto asks whether `stream` (default: standard error) is a terminal.

    `level`: debug, info, warning or error; lower events cost one comparison.
    """
    out = sys.stderr if stream is None else stream
    console = out.isatty() if format == "auto" else format == "console"
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_STAMPS,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(console=console, colors=console and out.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    structlog.configure(
        processors=[*_STAMPS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Bound loggers are made at import time, before this: a cached one would keep the first configuration.
        cache_logger_on_first_use=False,
    )


def _rendering(*, console: bool, colors: bool) -> list[Processor]:
    if console:
        # Plain tracebacks: the decorated ones print local variables, which may hold what clients sent.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=18, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Rarely:
    """Says that something happened: the first time at once, then at most every `every_s`, with how often it happened since."""

    def __init__(
        self, say: Callable[[int], None], *, later: Callable[[float, Callable[[], None]], Cancellable], every_s: float = SAID_EVERY_S
    ) -> None:
        """`later` calls back after so many seconds, as `call_later` of the loop does."""
        self._say = say
        self._later = later
        self._every_s = every_s
        self._unsaid = 0
        self._timer: Cancellable | None = None

    def happened(self) -> None:
        self._unsaid += 1
        if self._timer is None:
            self._tell()

    def stop(self) -> None:
        """Say what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsaid:
            self._say(self._unsaid)
            self._unsaid = 0

    def _tell(self) -> None:
        self._timer = None
        if self._unsaid:
            count, self._unsaid = self._unsaid, 0
            self._say(count)
            self._timer = self._later(self._every_s, self._tell)
