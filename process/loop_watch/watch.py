"""The watch of the event loop: every turn that takes long is counted with its API, and the longest are logged with what ran.

A call-back beats on the loop every BEAT_S. A thread sleeps until the beat that is due is late by LATE_S; only then it looks, once, at what
the loop's thread runs. While beats are in time that is ten call-backs and ten wake-ups of the thread per second, each of
microseconds; a request costs nothing.

A turn is timed from the beat that it delays, so up to BEAT_S of it go unseen, and all above BEAT_S + LATE_S are noticed. A call that keeps
the interpreter's lock keeps the thread from looking, too: what it sees then is the line after that call.
"""

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import structlog

from process.loop_watch.judging import HELD_S_MIN, Held, LoopReading, judge
from process.loop_watch.stacks import NOTHING_SEEN, ApiOfFile, SampledStack, seen
from runtime.clock import Clock
from runtime.logs import SAID_EVERY_S
from runtime.telemetry import Metric, Telemetry

BEAT_S: Final = 0.1
LATE_S: Final = HELD_S_MIN
WARN_ABOVE_S: Final = 0.1
LOOK_AGAIN_S: Final = 0.1
"""Between two looks whether a turn that was looked at is over."""
WORSE: Final = 1.25
"""Within SAID_EVERY_S of a line, another follows only if the loop was held this many times as long."""
END_WITHIN_S: Final = 5.0

HELD: Final = Metric(
    "forebay_event_loop_held_seconds",
    "Turns of the event loop that took long, by what they were for: all above 150 ms, some from 50 ms on, without waits for a processor",
    ("api",),
    (0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

log = structlog.get_logger("loop")


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
            "event_loop_held",
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
