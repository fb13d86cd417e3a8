"""The audit log: what administrative requests changed, or tried to, one JSON line each, in a file of its own (`log.audit`).

A line is written beside the answer, not before it: operators who must not lose one alert on `forebay_audit_lines_dropped_total`. A file
that is renamed or removed, as logrotate does, is made again with the next line.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from process.settings.errors import EXIT_USAGE, StartError
from runtime.clock import Clock
from runtime.log_fields import cut_fields
from runtime.log_lines import LineWriter
from runtime.telemetry import Metric, Telemetry

DROPPED: Final = Metric(
    "forebay_audit_lines_dropped_total",
    "Lines missing in the audit log (log.audit), by reason: failed (the system refused to write) or full (1 MiB waits to be written)",
    ("reason",),
)
CLOSE_WITHIN_S: Final = 5.0
LOOK_EVERY_S: Final = 1.0
"""At the name, whether the file is still there."""
MODE: Final = 0o640

_log = structlog.get_logger("audit")


class AuditLog:
    """Made by `open_audit_log`."""

    def __init__(self, path: Path, *, broker_id: Callable[[], int], telemetry: Telemetry, clock: Clock) -> None:
        """Raises OSError."""
        self._path = path
        self._broker_id = broker_id
        self._dropped = telemetry.counter(DROPPED)
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._opened, self._lines = self._open()

    def write(self, facts: Mapping[str, object]) -> None:
        """One line. Neither waits nor raises."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._looked_s + LOOK_EVERY_S:
            self._looked_s = now_s
            self._follow()
        self._lines.write(self._line(facts))

    def close(self) -> None:
        """Wait for what was written, at most CLOSE_WITHIN_S."""
        self._lines.close(CLOSE_WITHIN_S)

    def _open(self) -> tuple[tuple[int, int], LineWriter]:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            status = os.fstat(descriptor)
            writer = LineWriter(descriptor, on_dropped=lambda reason, lines: self._dropped.labels(reason).inc(lines), notice=self._notice)
            return (status.st_dev, status.st_ino), writer
        finally:
            os.close(descriptor)

    def _follow(self) -> None:
        """Write to the file of that name, should it be another by now."""
        try:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(self._path)
                if (status.st_dev, status.st_ino) == self._opened:
                    return
            former, (self._opened, self._lines) = self._lines, self._open()
        except OSError as error:
            _log.error(
                "audit_log_not_reopened", path=str(self._path), cause=error.strerror, effect="lines go to the file that was there before"
            )
            return
        former.close(0.0)

    def _line(self, facts: Mapping[str, object]) -> bytes:
        stamp = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        cut = cut_fields(None, "", {"timestamp": stamp, "broker_id": self._broker_id(), **facts})
        return msgspec.json.encode(cut) + b"\n"

    def _notice(self, reason: str, lines: int, cause: str) -> bytes:
        _log.error("audit_lines_dropped", path=str(self._path), reason=reason, count=lines, cause=cause)
        return self._line({"event": "audit_lines_dropped", "reason": reason, "count": lines, "cause": cause})


def refusal(path: str, error: OSError) -> str:
    """PURE. Why there can be no audit log, and what to do."""
    return f'log.audit "{path}" cannot be written ({error.strerror}). Correct it, or make its folder and let this user write there.'


@contextlib.contextmanager
def open_audit_log(path: str, *, broker_id: Callable[[], int], telemetry: Telemetry, clock: Clock) -> Iterator[AuditLog]:
    """Raises `StartError` if it cannot be written to: a broker that was asked for one does not run without."""
    try:
        audit = AuditLog(Path(path), broker_id=broker_id, telemetry=telemetry, clock=clock)
    except OSError as error:
        raise StartError(refusal(path, error), exit_code=EXIT_USAGE) from error
    try:
        yield audit
    finally:
        audit.close()
