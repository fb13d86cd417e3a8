"""Ctrl-C between calls into the library, never within.

Raised in a callback that the library makes, an interruption ends as `SystemError`, and what the callback was to count or commit is lost.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

from confluent_kafka import Consumer, Message, Producer

T = TypeVar("T")


def interruptible(call: Callable[[], T]) -> T:
    """What a long call into the library returns or raises. Ctrl-C ends the wait for it at once; the call goes on in a thread of its own,
    for which the process does not wait when it ends.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name="library-call", daemon=True).start()
    return outcome.result()


class _Calls:
    """Signals have one handler in a process, so this has one instance."""

    def __init__(self) -> None:
        self.within = 0
        self._waiting = False

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        # Whoever insists gets out at once.
        if self.within and not self._waiting:
            self._waiting = True
            return
        signal.default_int_handler(number, frame)

    def left(self) -> None:
        self.within -= 1
        if self._waiting and not self.within:
            self._waiting = False
            raise KeyboardInterrupt


_calls = _Calls()


@contextlib.contextmanager
def interrupted_between_calls() -> Iterator[None]:
    """Holds for calls of the clients below; they end within a poll's time, or when the coordinator's is over."""
    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGINT, _calls.interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """What happens in here, an interruption waits for: what was done is counted."""
    _calls.within += 1
    try:
        yield
    finally:
        _calls.left()


class PatientConsumer(Consumer):
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        _calls.within += 1
        try:
            return super().consume(num_messages, timeout)
        finally:
            _calls.left()

    def poll(self, timeout: float = -1) -> Message | None:
        _calls.within += 1
        try:
            return super().poll(timeout)
        finally:
            _calls.left()

    def close(self) -> None:
        _calls.within += 1
        try:
            super().close()
        finally:
            _calls.left()


class PatientProducer(Producer):
    def poll(self, timeout: float = -1) -> int:
        _calls.within += 1
        try:
            return super().poll(timeout)
        finally:
            _calls.left()

    def flush(self, timeout: float = -1) -> int:
        _calls.within += 1
        try:
            return super().flush(timeout)
        finally:
            _calls.left()
