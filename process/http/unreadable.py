"""What comes by the HTTP port and is no HTTP: counted, and said once in ten seconds.

aiohttp logs a traceback for each, so that anybody who reaches the port could fill the log.
"""

import asyncio
import logging

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from runtime.logs import Rarely
from runtime.telemetry import Metric, Telemetry

UNREADABLE = Metric("forebay_http_unreadable_total", "Requests of the HTTP port that were no HTTP; each was answered with 400, or closed")

_SERVER_LOG = "aiohttp.server"

_log = structlog.get_logger("http")


class UnreadableRequests(logging.Filter):
    """Made on the loop. `stop` says what is left to say."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._count = telemetry.counter(UNREADABLE)
        self._rarely = Rarely(self._say, later=asyncio.get_running_loop().call_later)
        self._client_host = self._cause = ""

    def logger(self) -> logging.Logger:
        """For aiohttp. What is not unreadable goes where aiohttp's own would go."""
        logger = logging.Logger(_SERVER_LOG)
        logger.parent = logging.getLogger(_SERVER_LOG)
        logger.addFilter(self)
        return logger

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):
            return False  # who asked has left before the answer: nobody is to know
        if not isinstance(error, HttpProcessingError):
            return True
        self._client_host = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        self._cause = f"{type(error).__name__}: {' '.join(error.message.split())}"
        self._count.inc()
        self._rarely.happened()
        return False

    def stop(self) -> None:
        self._rarely.stop()

    def _say(self, count: int) -> None:
        _log.warning("http_unreadable", count=count, client_host=self._client_host, cause=self._cause)
