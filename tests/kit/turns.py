"""The longest turn of the event loop while a test runs something, in CPU of its thread."""

import asyncio
import time


class Turns:
    """A callback that runs in every turn of the loop while `start` is in force."""

    def __init__(self) -> None:
        self._handle: asyncio.Handle | None = None
        self._began_s = self._last_s = 0.0
        self.longest_s = 0.0
        self.total_s = 0.0

    def start(self) -> None:
        self.longest_s = 0.0
        self._began_s = self._last_s = time.thread_time()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> float:
        """The longest turn since `start`, in seconds of CPU; `total_s` is what all of them took."""
        assert self._handle is not None, "not started"
        self._handle.cancel()
        self.total_s = time.thread_time() - self._began_s
        return max(self.longest_s, time.thread_time() - self._last_s)

    def _turn(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
