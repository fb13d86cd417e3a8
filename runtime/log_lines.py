"""Lines of a log on their way out, bounded twice: `LineWriter` in what waits to be read, `LineShares` in how often one thing is said.

Whoever writes a line never waits: a thread puts it out, and a reader who is slow or gone costs lines, which are counted, and nothing else.
"""

import os
import queue
import select
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, TextIO

WAITING_BYTES_MAX: Final = 2**20
"""The size of the lines that nobody has read yet; a pipe holds 64 KiB more."""
LINES_PER_WINDOW: Final = 100
WINDOW_S: Final = 10.0
KINDS_MAX: Final = 1_024
OTHER_KINDS: Final = "other kinds"
"""Share what one kind has, while as many kinds as are remembered have windows of their own."""

FULL: Final = "full"
"""Nobody reads: as many bytes wait as may."""
FAILED: Final = "failed"
"""The system refused to write: the reader is gone, the disk is full."""

OnDropped = Callable[[str, int], None]
"""Called with the reason and a number of lines, in whatever thread."""
Notice = Callable[[str, int, str], bytes]
"""Reason, number of lines, the system's words or none → the line that says so."""


class Lines(Protocol):
    """Where whole lines go, each with its end."""

    def write(self, line: bytes) -> None: ...

    def flush(self, within_s: float) -> None:
        """Wait until what was written before is out, at most so long."""
        ...

    def close(self, within_s: float) -> None:
        """Flush; what is written from now on is dropped."""
        ...


class LineWriter:
    """Puts lines out whole and in order, from a daemon thread that starts with the first of them, in a forked child again.

    `write` never blocks. What finds no room is dropped whole and counted, and a `notice` takes its place. Lines are joined up to the size
    that a pipe takes at once, so that they stay whole beside those of other processes. Any thread may call any method.

    Not only for logs that may lose lines: a file that was opened with O_APPEND is such a descriptor, too.
    """

    def __init__(self, descriptor: int, *, on_dropped: OnDropped, notice: Notice, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        """`descriptor` is duplicated: the caller may close it."""
        self._descriptor = os.dup(descriptor)
        self._on_dropped = on_dropped
        self._notice = notice
        self._waiting_bytes_max = waiting_bytes_max
        self._is_closed = False
        self._is_torn = False
        self._failed = 0
        self._cause = ""
        self._begin()
        renewed_after_fork(self)

    def _begin(self) -> None:
        # A destructor may log in the middle of what its thread does here: lock and queue allow it.
        self._lock = threading.RLock()
        self._waiting: queue.SimpleQueue[bytes | _Hole | _Asked] = queue.SimpleQueue()
        self._taken_bytes = self._out_bytes = 0
        self._hole: _Hole | None = None
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        with self._lock:
            is_taken = not self._is_closed and self._taken_bytes - self._out_bytes + len(line) <= self._waiting_bytes_max
            if is_taken:
                self._taken_bytes += len(line)
                self._waiting.put(line)
                self._run_if_possible()
            elif not self._is_closed:
                if self._hole is None:
                    self._hole = _Hole()
                    self._waiting.put(self._hole)
                self._hole.lines += 1
        if not is_taken:
            self._on_dropped(FULL, 1)

    def flush(self, within_s: float) -> None:
        if not self._is_closed:
            self._ask(_Asked(is_last=False), within_s)

    def close(self, within_s: float) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._ask(_Asked(is_last=True), within_s)

    def after_fork_in_child(self) -> None:
        """What waits is the parent's, and so are its thread and whoever held the lock."""
        self._begin()

    def _ask(self, asked: "_Asked", within_s: float) -> None:
        with self._lock:
            self._waiting.put(asked)
            self._run_if_possible()
            is_running = self._thread is not None
        if is_running:
            asked.is_reached.wait(within_s)

    def _run_if_possible(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # There can be no more threads now: the next line tries again.
            self._thread = None

    def _run(self) -> None:
        joined: list[bytes] = []
        while True:
            item = self._next() if joined else self._waiting.get()
            if isinstance(item, bytes) and sum(map(len, joined)) + len(item) <= select.PIPE_BUF:
                joined.append(item)
                continue
            if joined:
                self._put_out(joined)
                self._out_bytes += sum(map(len, joined))
            joined = [item] if isinstance(item, bytes) else []
            if isinstance(item, _Hole):
                with self._lock:
                    self._hole = None
                self._put_out([self._notice(FULL, item.lines, "")])
            elif isinstance(item, _Asked):
                if item.is_last:
                    os.close(self._descriptor)
                item.is_reached.set()
                if item.is_last:
                    return

    def _next(self) -> "bytes | _Hole | _Asked | None":
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _put_out(self, lines: Sequence[bytes]) -> None:
        ahead = [self._notice(FAILED, self._failed, self._cause)] if self._failed else []
        end = b"\n" if self._is_torn else b""
        sent_bytes = self._send(b"".join((end, *ahead, *lines)))
        ends = list(accumulate(map(len, (end, *ahead, *lines))))
        if sent_bytes:
            # The end of a line that the system broke off comes before the next one.
            self._is_torn = sent_bytes not in ends
        if sent_bytes >= ends[len(ahead)]:
            self._failed = 0
        lost = sum(sent_bytes < line_end for line_end in ends[len(ahead) + 1 :])
        if lost:
            self._failed += lost
            self._on_dropped(FAILED, lost)

    def _send(self, data: bytes) -> int:
        """How many bytes went out: all, unless the system refuses more."""
        sent_bytes = 0
        with memoryview(data) as view:
            while sent_bytes < len(data):
                try:
                    sent_bytes += os.write(self._descriptor, view[sent_bytes:])
                except BlockingIOError:
                    # Somebody who has the descriptor, too, made it so.
                    room = select.poll()
                    room.register(self._descriptor, select.POLLOUT)
                    room.poll()
                except OSError as error:
                    self._cause = error.strerror or str(error)
                    break
        return sent_bytes


class _Hole:
    """Stands in the queue where lines are missing."""

    def __init__(self) -> None:
        self.lines = 0


class _Asked:
    """Stands in the queue behind what somebody waits for."""

    def __init__(self, *, is_last: bool) -> None:
        self.is_last = is_last
        self.is_reached = threading.Event()


class StreamLines:
    """Lines to a stream that has no descriptor, which is in memory; or to none."""

    def __init__(self, stream: TextIO | None, *, on_dropped: OnDropped) -> None:
        self._stream = stream
        self._on_dropped = on_dropped

    def write(self, line: bytes) -> None:
        if self._stream is None or self._stream.closed:
            self._on_dropped(FAILED, 1)
            return
        self._stream.write(line.decode())
        self._stream.flush()

    def flush(self, within_s: float) -> None:
        """Everything is out."""

    def close(self, within_s: float) -> None:  # noqa: ARG002 - there is nothing to wait for
        self._stream = None


class LeftOut(NamedTuple):
    """How many lines of a kind its share had no room for, in one window."""

    kind: str
    lines: int


class _Window:
    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        self.admitted = 0
        self.left_out = 0


class LineShares:
    """A kind of line may be said `LINES_PER_WINDOW` times in the `WINDOW_S` that begin with its first line. Not safe for threads."""

    def __init__(self, *, lines_max: int = LINES_PER_WINDOW, window_s: float = WINDOW_S, kinds_max: int = KINDS_MAX) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        self._kinds_max = kinds_max
        # In the order of their ends, since all are equally long.
        self._windows: dict[str, _Window] = {}
        self._left_out: list[LeftOut] = []

    def admit(self, kind: str, now_s: float) -> bool:
        self._end_windows(now_s)
        if kind not in self._windows and len(self._windows) >= self._kinds_max:
            kind = OTHER_KINDS
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now_s + self._window_s)
        if window.admitted == self._lines_max:
            window.left_out += 1
            return False
        window.admitted += 1
        return True

    def take_left_out(self, now_s: float) -> list[LeftOut]:
        """Take what was left out in the windows that ended and were not taken yet."""
        self._end_windows(now_s)
        taken, self._left_out = self._left_out, []
        return taken

    def take_all(self) -> list[LeftOut]:
        """Take it for the windows that have not ended, too, and end them."""
        return self.take_left_out(float("inf"))

    def next_end_s(self) -> float | None:
        """When there is something to take; None while nothing is left out."""
        if self._left_out:
            return 0.0
        return next((window.end_s for window in self._windows.values() if window.left_out), None)

    def _end_windows(self, now_s: float) -> None:
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if window.end_s > now_s:
                return
            del self._windows[kind]
            if window.left_out:
                self._left_out.append(LeftOut(kind, window.left_out))


class _Forked(Protocol):
    def after_fork_in_child(self) -> None: ...


_of_this_process: Final[weakref.WeakSet[_Forked]] = weakref.WeakSet()


def renewed_after_fork(owner: _Forked) -> None:
    """Call its `after_fork_in_child` in every child, as long as it lives."""
    _of_this_process.add(owner)


def _renew_all() -> None:
    for owner in list(_of_this_process):
        owner.after_fork_in_child()


os.register_at_fork(after_in_child=_renew_all)
