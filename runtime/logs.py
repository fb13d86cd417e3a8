"""Logs of a process: constant event names and key-value facts, to one stream, as console lines or one JSON object per line.

The standard library's loggers (asyncio, aiohttp) end in the same stream and form. Nothing is logged per record or per request.
"""

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import Processor

QUIET: Final = ("aioboto3", "aiobotocore", "boto3", "botocore")
"""Libraries whose `info` is nobody's business: where they found credentials, which retry mode they are in."""

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
