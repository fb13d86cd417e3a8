"""Says which requests take long, by the slowest of each ten seconds."""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from runtime.logs import Cancellable, Rarely

_log = structlog.get_logger("requests")


class Slow(NamedTuple):
    """A request that took long. Long polls have their own time on top of `slow_request_s`."""

    seconds: float
    api: str
    error: str
    client_host: str
    client_id: str | None


class SlowRequests:
    """Remembers one request: nothing grows with how many are slow."""

    def __init__(self, *, later: Callable[[float, Callable[[], None]], Cancellable]) -> None:
        """`later` is `call_later` of the loop."""
        self._rarely = Rarely(self._say, later=later)
        self._slowest: Slow | None = None

    def note(self, slow: Slow) -> None:
        if self._slowest is None or slow.seconds > self._slowest.seconds:
            self._slowest = slow
        self._rarely.happened()

    def _say(self, count: int) -> None:
        slowest, self._slowest = self._slowest, None
        assert slowest is not None, "said without one that was noted"
        _log.warning(
            "slow_requests",
            count=count,
            slowest_s=round(slowest.seconds, 3),
            api=slowest.api,
            error=slowest.error,
            client_host=slowest.client_host,
            client_id=slowest.client_id,
        )
