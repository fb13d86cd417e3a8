"""Logs of a process: constant event names and key-value facts, to one stream, as console lines or one JSON object per line.

The standard library's loggers (asyncio, aiohttp) end in the same stream and form. Nothing is logged per record or per request. What clients
can provoke is bounded: fields are cut (log_fields.py), a kind of line has a share, and who logs never waits for who reads (log_lines.py).
"""

import contextlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, TextIO

import structlog
from structlog.typing import Processor

from runtime.clock import Clock, SystemClock
from runtime.log_fields import cut_fields, show_controls
from runtime.log_lines import Lines, LineShares, LineWriter, StreamLines, renewed_after_fork
from runtime.telemetry import Metric, Telemetry

QUIET: Final = ("aioboto3", "aiobotocore", "boto3", "botocore")
"""Libraries whose `info` is nobody's business: where they found credentials, which retry mode they are in."""

SAID_EVERY_S: Final = 10.0
FLUSH_WITHIN_S: Final = 1.0
"""For lines that nobody reads: a process ends up to twice as much later."""

LINES_DROPPED: Final = Metric(
    "forebay_log_lines_dropped_total",
    "Lines missing in the log, by reason: full (1 MiB waits to be read), share (more than 100 of a kind within 10 s), "
    "failed (its reader is gone or its disk is full)",
    ("reason",),
)
SHARE: Final = "share"

_STAMPS: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
)


class Cancellable(Protocol):
    def cancel(self) -> object: ...


StartTimer = Callable[[float, Callable[[], None]], Cancellable]
"""Calls back after a number of seconds, as `call_later` of a loop does."""


class ProcessLog(logging.Handler):
    """Where every line of this process goes. Any thread may log; nobody waits but in `flush` and `close`.

    Python closes it when the interpreter ends. Code that ends the process in another way calls `flush` first.
    """

    def __init__(self, out: TextIO | None, *, console: bool, clock: Clock, later: StartTimer, shares: LineShares) -> None:
        """`out` None: there is no such stream, and every line is dropped."""
        super().__init__()
        self.is_console: Final = console
        self._clock = clock
        self._later = later
        self._shares = shares
        self._timer: Cancellable | None = None
        # Not that of the handler: who closes it holds that, and waits for the thread that counts what the system refuses to write.
        self._counting = threading.RLock()
        self._dropped: Counter[str] = Counter()
        self._count: Callable[[str, int], object] | None = None
        self._lines = self._open(out)
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=_STAMPS,
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    cut_fields,
                    *_rendering(console=console, colors=console and out is not None and out.isatty()),
                ],
            )
        )
        renewed_after_fork(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self._shares.admit(_kind(record), self._clock.monotonic_s()):
            self._lines.write(self._rendered(record))
        else:
            self._note_dropped(SHARE, 1)
            self._await_window()

    def write_line(self, text: str) -> None:
        """A line, or several, as they are: no event, and none of a share."""
        self._lines.write(_encoded(text))

    def count_with(self, telemetry: Telemetry) -> None:
        """Count dropped lines there, those of before, too."""
        counter = telemetry.counter(LINES_DROPPED)
        with self._counting:
            self._count = lambda reason, lines: counter.labels(reason).inc(lines)
            for reason, lines in self._dropped.items():
                self._count(reason, lines)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> None:
        """Wait until what was logged before is written, at most so long."""
        self._lines.flush(within_s)

    def close(self) -> None:
        """Say what was left out, write what waits within `FLUSH_WITHIN_S`, and drop the rest."""
        if self._timer is not None:
            self._timer.cancel()
        for left_out in self._shares.take_all():
            self._lines.write(self._notice(SHARE, left_out.lines, kind=left_out.kind))
        self._lines.close(FLUSH_WITHIN_S)
        super().close()

    def after_fork_in_child(self) -> None:
        """A timer is a thread, and there is none but the one that forked."""
        self._timer = None
        self._counting = threading.RLock()

    def _open(self, out: TextIO | None) -> Lines:
        try:
            descriptor = out.fileno() if out is not None else None
        except (OSError, ValueError):
            descriptor = None  # in memory, or closed
        if descriptor is None or out is None:
            return StreamLines(out, on_dropped=self._note_dropped)
        out.flush()

        def notice(reason: str, lines: int, cause: str) -> bytes:
            return self._notice(reason, lines, cause=cause)

        return LineWriter(descriptor, on_dropped=self._note_dropped, notice=notice)

    def _note_dropped(self, reason: str, lines: int) -> None:
        with self._counting:
            self._dropped[reason] += lines
            if self._count is not None:
                self._count(reason, lines)

    def _await_window(self) -> None:
        end_s = self._shares.next_end_s()
        if self._timer is None and end_s is not None:
            # Where there can be no more threads the next line that is left out tries again.
            with contextlib.suppress(RuntimeError):
                self._timer = self._later(max(0.0, end_s - self._clock.monotonic_s()), self._end_windows)

    def _end_windows(self) -> None:
        self.acquire()
        try:
            self._timer = None
            for left_out in self._shares.take_left_out(self._clock.monotonic_s()):
                self._lines.write(self._notice(SHARE, left_out.lines, kind=left_out.kind))
            self._await_window()
        finally:
            self.release()

    def _notice(self, reason: str, lines: int, **facts: str) -> bytes:
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, "log_lines_dropped", (), None)
        record.__dict__.update(reason=reason, count=lines, **{name: fact for name, fact in facts.items() if fact})
        return self._rendered(record)

    def _rendered(self, record: logging.LogRecord) -> bytes:
        try:
            return _encoded(self.format(record))
        except Exception as error:  # noqa: BLE001 - whatever somebody logs, its line says at least that there was one
            kind = _kind(record)
            record = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, "line_not_rendered", (), None)
            record.__dict__.update(kind=kind, error=type(error).__name__)
            return _encoded(self.format(record))


def configure(
    *,
    format: str,  # noqa: A002
    level: str,
    stream: TextIO | None = None,
    clock: Clock | None = None,
    later: StartTimer | None = None,
) -> ProcessLog:
    """All logs of this process go to `stream` (default: standard error) from now on.

    `format`: auto, console or json; auto asks whether `stream` is a terminal.
    `level`: debug, info, warning or error; lower events cost one comparison.
    """
    out: TextIO | None = sys.stderr if stream is None else stream  # None where a process was started without it
    console = out is not None and out.isatty() if format == "auto" else format == "console"
    threshold = logging.getLevelNamesMapping()[level.upper()]
    log = ProcessLog(out, console=console, clock=clock or SystemClock(), later=later or _on_a_thread, shares=LineShares())
    root = logging.getLogger()
    replaced, root.handlers = root.handlers, [log]
    for handler in replaced:
        if isinstance(handler, ProcessLog):
            handler.close()
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
    return log


def log_uncaught() -> None:
    """What Python itself would write to standard error becomes a line of the log: uncaught errors of all threads, and warnings."""
    logger = logging.getLogger("python")

    def of_thread(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else ""
        logger.error("uncaught", exc_info=args.exc_value, extra={"in_thread": name})

    def of_destructor(args: "sys.UnraisableHookArgs") -> None:
        logger.error("uncaught", exc_info=args.exc_value, extra={"at": args.err_msg or "", "object": repr(args.object)})

    def of_process(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        logger.critical("uncaught", exc_info=error)

    sys.excepthook, sys.unraisablehook, threading.excepthook = of_process, of_destructor, of_thread
    logging.captureWarnings(capture=True)


def _kind(record: logging.LogRecord) -> str:
    """What shares a share: an event of ours, or whatever a library says at one place of its code."""
    if isinstance(record.msg, dict):
        return f"{record.name} {record.msg.get('event')}"
    return f"{record.name} {record.filename}:{record.lineno}"


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode(errors="backslashreplace")


def _on_a_thread(delay_s: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()
    return timer


def _rendering(*, console: bool, colors: bool) -> list[Processor]:
    if console:
        # Plain tracebacks: the decorated ones print local variables, which may hold what clients sent.
        plain = structlog.dev.plain_traceback
        return [show_controls, structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=18, exception_formatter=plain)]
    return [structlog.processors.JSONRenderer(default=str)]


class Rarely:
    """Says that something happened: the first time at once, then at most every `every_s`, with how often it happened since."""

    def __init__(self, say: Callable[[int], None], *, later: StartTimer, every_s: float = SAID_EVERY_S) -> None:
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
