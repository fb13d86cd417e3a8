"""The watch of the event loop: every turn that takes long is counted with its API, and the longest are logged with what ran.

A call-back beats on the loop every BEAT_S. A thread sleeps until the beat that is due is late by LATE_S; only then it looks, once, at what
the loop's thread runs. While beats are in time that is ten call-backs and ten wake-ups of the thread per second, each of
microseconds; a request costs nothing.

A turn is timed from the beat that it delays, so up to BEAT_S of it go unseen, and all above BEAT_S + LATE_S are noticed. A call that keeps
the interpreter's lock keeps the thread from looking, too: what it sees then is the line after that call.

`judge` says whether the loop was held: what lateness of a beat is the broker's own doing, and what the machine's. `seen` names what ran,
from the frames of a thread: places in the code and the API they serve. Nothing that a client sent is looked at.
"""

import asyncio
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import structlog

from runtime.clock import Clock
from runtime.logs import SAID_EVERY_S
from runtime.telemetry import Metric, Telemetry

ApiOfFile = Callable[[str], str | None]
"""A file, named from the root of the repository or of its library on → the API it serves, one of a bounded number; None: it serves none."""

HELD_S_MIN: Final = 0.05
"""What is shorter is no news."""
FRAMES_MAX: Final = 8
NO_API: Final = "none"
"""The label of what serves no API, or none that shows: flushes, timers, HTTP, the rest."""
_OUTSIDE: Final = re.compile(r".*/(?:site-packages|python\d[.\d]*)/")
BEAT_S: Final = 0.1
LATE_S: Final = HELD_S_MIN
WARN_ABOVE_S: Final = 0.1
LOOK_AGAIN_S: Final = 0.1
"""Between two looks whether a turn that was looked at is over."""
WORSE: Final = 1.25
"""Within SAID_EVERY_S of a line, another follows only if the loop was held this many times as long."""
END_WITHIN_S: Final = 5.0
HELD: Final = Metric(
    "forebay_event_loop_blocked_seconds",
    "Turns of the event loop that took long, by what they were for: all above 150 ms, some from 50 ms on, without waits for a processor",
    ("api",),
    (0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    former_name="forebay_event_loop_held_seconds",
)

log = structlog.get_logger("loop")


class LoopReading(NamedTuple):
    """The state of the loop's thread at one time: CPU it has used, and how long it was ready to run and had no processor."""

    at_s: float
    cpu_s: float
    waited_s: float
    gc_s: float
    """Counted for the whole process: a collection in any thread keeps all others from running Python."""


class Held(NamedTuple):
    """`held_s` is what counts; the others say how it came about. All of them are of the time from when the beat was due until it came,
    but for those of CPU, which begin with the beat before."""

    held_s: float
    late_s: float
    cpu_s: float
    waited_s: float
    gc_s: float


def judge(before: LoopReading, after: LoopReading, *, due_s: float, unseen_s: float) -> Held | None:
    """`before` was read at the last beat, `after` at the one that was due at `due_s`; for `unseen_s` of the time between nobody else in the
    process could run either. None if the loop was held for less than HELD_S_MIN.
    """
    late_s = after.at_s - due_s
    cpu_s, waited_s, gc_s = after.cpu_s - before.cpu_s, after.waited_s - before.waited_s, after.gc_s - before.gc_s
    own_s = late_s - waited_s
    blocked_s = max(0.0, own_s - cpu_s - unseen_s)
    held_s = min(own_s, max(cpu_s + blocked_s, gc_s))
    return Held(held_s, late_s, cpu_s, waited_s, gc_s) if held_s >= HELD_S_MIN else None


_ROOT: Final = Path(__file__).parents[1].as_posix() + "/"


class SampledStack(NamedTuple):
    api: str
    stack: tuple[str, ...]
    """Innermost first: file:line function."""


NOTHING_SEEN: Final = SampledStack(NO_API, ())


def seen(frame: FrameType | None, api_of_file: ApiOfFile) -> SampledStack:
    """The API of the innermost frame that has one, and the FRAMES_MAX innermost frames. Keeps no frame.

    The thread goes on meanwhile: on a busy machine CPython 3.11 has given something else as the frame behind one that had ended.
    """
    api: str | None = None
    stack: list[str] = []
    while isinstance(frame, FrameType):
        name = _shown(frame.f_code.co_filename)
        if len(stack) < FRAMES_MAX:
            stack.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        api = api or api_of_file(name)
        frame = frame.f_back
    return SampledStack(api or NO_API, tuple(stack))


class Usage(NamedTuple):
    cpu_s: float
    waited_s: float


class Look(NamedTuple):
    """What the thread saw of the turn that delays the beat of `due_s`."""

    due_s: float
    at_s: float
    seen: SampledStack


class LoopWatch:
    """`usage` is of the thread that calls it. Between `start`, on the loop, and `stop`."""

    def __init__(self, *, api_of_file: ApiOfFile, telemetry: Telemetry, clock: Clock, usage: Callable[[], Usage]) -> None:
        self._api_of_file = api_of_file
        self._held = telemetry.histogram(HELD)
        self._clock = clock
        self._usage = usage
        self._gc_s = 0.0
        self._gc_began_s = 0.0
        self._before = LoopReading(0.0, 0.0, 0.0, 0.0)
        self._due_s = 0.0
        self._look: Look | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
        self._said_s: float | None = None
        self._said_held_s = 0.0
        self._unsaid = 0

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        gc.callbacks.append(self._on_gc)
        self._expect_beat()
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread, which sleeps."""
        gc.callbacks.remove(self._on_gc)
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        self._thread.join(END_WITHIN_S)

    def _expect_beat(self) -> None:
        self._before = self._read()
        self._due_s = self._before.at_s + BEAT_S
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _read(self) -> LoopReading:
        return LoopReading(self._clock.monotonic_s(), *self._usage(), self._gc_s)

    def _beat(self) -> None:
        due_s = self._due_s
        if self._clock.monotonic_s() - due_s >= LATE_S:
            self._note(self._read(), due_s)
        self._expect_beat()

    def _note(self, after: LoopReading, due_s: float) -> None:
        look = self._look
        if look is not None and look.due_s != due_s:
            look = None  # of an earlier turn
        held = judge(self._before, after, due_s=due_s, unseen_s=max(0.0, (after.at_s if look is None else look.at_s) - due_s - LATE_S))
        if held is not None:
            found = NOTHING_SEEN if look is None else look.seen
            self._held.labels(found.api).observe(held.held_s)
            if held.held_s >= WARN_ABOVE_S:
                self._say(held, found, after.at_s)

    def _say(self, held: Held, found: SampledStack, now_s: float) -> None:
        is_recent = self._said_s is not None and now_s - self._said_s < SAID_EVERY_S
        if is_recent and held.held_s < WORSE * self._said_held_s:
            self._unsaid += 1
            return
        log.warning(
            "event_loop_blocked",
            former_event="event_loop_held",
            seconds=round(held.held_s, 3),
            api=found.api,
            late_seconds=round(held.late_s, 3),
            cpu_seconds=round(held.cpu_s, 3),
            waited_for_cpu_seconds=round(held.waited_s, 3),
            gc_seconds=round(held.gc_s, 3),
            unlogged=self._unsaid,
            stack=" < ".join(found.stack),
        )
        self._said_s, self._said_held_s, self._unsaid = now_s, held.held_s, 0

    def _on_gc(self, phase: str, _info: dict[str, Any]) -> None:
        now_s = self._clock.monotonic_s()
        if phase == "start":
            self._gc_began_s = now_s
        elif self._gc_began_s:
            self._gc_s += now_s - self._gc_began_s

    def _watch(self) -> None:
        """The thread."""
        sleep_s = LATE_S
        while not self._ended.wait(sleep_s):
            due_s = self._due_s
            now_s = self._clock.monotonic_s()
            late_at_s = due_s + LATE_S
            if now_s < late_at_s:
                sleep_s = late_at_s - now_s
                continue
            if self._look is None or self._look.due_s != due_s:
                frames = sys._current_frames()  # noqa: SLF001 - nothing else shows what another thread runs
                self._look = Look(due_s, now_s, seen(frames.get(self._loop_thread), self._api_of_file))
                del frames
            sleep_s = LOOK_AGAIN_S


@contextmanager
def watching(*, api_of_file: ApiOfFile, telemetry: Telemetry, clock: Clock) -> Iterator[None]:
    """The running loop, whose thread this is, is watched."""
    with own_usage() as usage:
        watch = LoopWatch(api_of_file=api_of_file, telemetry=telemetry, clock=clock, usage=usage)
        watch.start()
        try:
            yield
        finally:
            watch.stop()


@contextmanager
def own_usage() -> Iterator[Callable[[], Usage]]:
    """The usage of this thread. Where the system does not say how long a thread waited for a processor, that is 0: all lateness counts."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda: Usage(time.thread_time(), 0.0)
        return

    def usage() -> Usage:
        cpu_ns, waited_ns, *_ = os.pread(descriptor, 128, 0).split()
        return Usage(int(cpu_ns) / 1e9, int(waited_ns) / 1e9)

    try:
        yield usage
    finally:
        os.close(descriptor)


def _shown(filename: str) -> str:
    """From the root of the package or of the library on."""
    return _OUTSIDE.sub("", filename.removeprefix(_ROOT))
