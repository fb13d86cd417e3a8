"""How a serving process ends: the first SIGTERM or SIGINT asks it to stop, a SIGINT after that or a missed deadline ends it.

`Broker.drain` (broker/assembly.py) says what a broker does meanwhile, and in which order.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

EXIT_INTERRUPTED: Final = 130

ExitNow = Callable[[int], Any]
"""Ends the process without any clean-up: os._exit."""


class StopRequest:
    """Made and installed on the running loop by the task that starts and serves."""

    def __init__(self, *, exit_now: ExitNow = os._exit) -> None:
        self._exit_now = exit_now
        self._asked = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = asyncio.current_task()
        self.signal_name = ""

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.receive, number)

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def started(self) -> None:
        """From here on a signal ends `wait`; before, it cancels the task that starts."""
        self._starting = None

    async def wait(self) -> None:
        await self._asked.wait()

    def receive(self, number: int) -> None:
        if self._asked.is_set():
            if number == signal.SIGINT:
                self._exit_now(EXIT_INTERRUPTED)
            return
        self.signal_name = signal.Signals(number).name
        self._asked.set()
        if self._starting is not None:
            self._starting.cancel()


class Deadline:
    """Calls back from a thread of its own, because what hangs may hang on the event loop."""

    def __init__(self, missed: Callable[[], None]) -> None:
        self._missed = missed
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._missed)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Harmless if it never started."""
        if self._timer is not None:
            self._timer.cancel()
