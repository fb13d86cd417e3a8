"""The budget of request bytes in memory, across all connections (I11).

Above the limit every connection stops reading; below half of it all go on. A connection that has begun a frame may finish it.
"""

from collections.abc import Callable
from typing import Final

from broker.protocol.errors import ProtocolViolation
from runtime.telemetry import Metric, Telemetry

ADMITTED_BYTES: Final = Metric("forebay_request_buffer_bytes", "Bytes of requests received and not yet answered")
PAUSES: Final = Metric(
    "forebay_backpressure_pauses_total", "Times reading from all clients was paused because the request budget was used up"
)


class Admission:
    def __init__(self, *, bytes_max: int, telemetry: Telemetry) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._is_over = False
        self._resume: set[Callable[[], None]] = set()
        self._pauses = telemetry.counter(PAUSES)
        telemetry.gauge(ADMITTED_BYTES).set_function(lambda: self._held_bytes)

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def take(self, size_bytes: int) -> None:
        """Raise `ProtocolViolation` above twice the limit: only frames under way can get there, and a client may send them again."""
        if self._held_bytes + size_bytes > 2 * self._bytes_max:
            raise ProtocolViolation(f"no memory for another request: held_bytes={self._held_bytes} wanted_bytes={size_bytes}")
        self._held_bytes += size_bytes
        if not self._is_over and self._held_bytes > self._bytes_max:
            self._is_over = True
            self._pauses.inc()

    def give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        assert self._held_bytes >= 0, "gave back more than was taken"
        if self._is_over and self._held_bytes <= self._bytes_max // 2:
            self._is_over = False
            waiting, self._resume = self._resume, set()
            for resume in waiting:
                resume()

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call back once, on the loop, when there is room again."""
        self._resume.add(resume)

    def forget(self, resume: Callable[[], None]) -> None:
        self._resume.discard(resume)
