"""What the Python scripts share: the lines they print, deadlines, names of errors, the records of `produce`. Knows no client.

    player = Player(error_name)            # exception → Kafka's name of the error, or None
    @player.step
    def seek() -> object: ...
    player.play()

A step may be a coroutine function; `await player.play_all()` then runs all in one event loop.
"""

import asyncio
import hashlib
import inspect
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from runtime.clock import SystemClock

STEP_WITHIN_S: Final = 30
KAFKA_ERRORS: Final = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    40: "INVALID_CONFIG",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
}
"""Kafka's names of the errors that are to be seen, by code."""

_clock = SystemClock()

BOOTSTRAP: Final = sys.argv[1]
PREFIX: Final = sys.argv[2]


class RefusedError(Exception):
    """An error code that the client handed over without raising it."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error code {code} {message}".rstrip())
        self.code = code


class Overdue(BaseException):
    """A step took too long. Not an Exception: no client may take it for one of its own."""


@dataclass(frozen=True)
class Sent:
    """A record of `produce`."""

    partition: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def records() -> Iterator[Sent]:
    for number in range(60):
        yield Sent(
            partition=number % 3,
            key=f"key-{number}".encode(),
            value=None if number % 10 == 9 else f"value-{number}".encode(),
            headers=[("index", str(number).encode()), ("empty", b"")],
            timestamp_ms=1_600_000_000_000 + 1_000 * number,
        )


def values_of(codec: str) -> list[bytes]:
    """Those of the step `codecs`."""
    return [f"{codec}-{number}-".encode() + b"x" * 100 for number in range(10)]


def line(partition: int, offset: int, timestamp_ms: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> str:
    """A record as the digest of `consume` has it."""
    shown = ",".join(f"{name}={(header or b'').decode()}" for name, header in headers)
    return f"{partition} {offset} {timestamp_ms} {key.decode()} {'null' if value is None else value.decode()} {shown}"


def digest(lines: list[str]) -> str:
    return hashlib.sha256(b"".join(sorted(f"{one}\n".encode() for one in lines))).hexdigest()


def until(is_so: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    """Call `is_so` until it holds; it waits a little itself. Raise TimeoutError."""
    give_up_s = _clock.monotonic_s() + within_s
    while not is_so():
        if _clock.monotonic_s() > give_up_s:
            raise TimeoutError(f"after {within_s:.0f} s: {what}")


async def reached(is_so: Callable[[], Awaitable[bool]], what: str, within_s: float = 20.0) -> None:
    """`until` for coroutines."""
    give_up_s = _clock.monotonic_s() + within_s
    while not await is_so():
        if _clock.monotonic_s() > give_up_s:
            raise TimeoutError(f"after {within_s:.0f} s: {what}")


class Player:
    def __init__(self, error_name: Callable[[BaseException], str | None]) -> None:
        self._error_name = error_name
        self._since_s = _clock.monotonic_s()
        self._steps: list[tuple[str, Callable[[], Any]]] = []

    def step(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A step that ends with what it saw; its name is that of the function, without a `_` at the end."""
        self._steps.append((function.__name__.rstrip("_"), function))
        return function

    def refused(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A step that is to end in an error, whose name is what it saw."""

        async def play_in_loop() -> object:
            try:
                await function()
            except Exception as error:  # noqa: BLE001 - it is said
                return self._named(error)
            return {"error": None}

        def play() -> object:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - it is said
                return self._named(error)
            return {"error": None}

        self._steps.append((function.__name__.rstrip("_"), play_in_loop if inspect.iscoroutinefunction(function) else play))
        return function

    def play(self, *, without: Collection[str] = ()) -> None:
        """Play the steps one after the other, but those of `without`; standard error says how long each took."""
        signal.signal(signal.SIGALRM, _overdue)
        for name, function in self._steps:
            if name in without:
                continue
            signal.alarm(STEP_WITHIN_S)
            try:
                self._say(name, saw=function())
            except (Exception, Overdue) as error:  # noqa: BLE001 - it is said
                self._say(name, failed=error)
            finally:
                signal.alarm(0)

    async def play_all(self) -> None:
        for name, function in self._steps:
            try:
                async with asyncio.timeout(STEP_WITHIN_S):
                    saw = await function()
                self._say(name, saw=saw)
            except Exception as error:  # noqa: BLE001 - it is said
                self._say(name, failed=error)

    def _named(self, error: Exception) -> object:
        name = self._error_name(error)
        if name is None:
            raise error
        return {"error": name}

    def _say(self, name: str, *, saw: object = None, failed: BaseException | None = None) -> None:
        now_s = _clock.monotonic_s()
        print(f"{name}: {now_s - self._since_s:.1f} s", file=sys.stderr, flush=True)
        self._since_s = now_s
        said = {"step": name, "saw": saw} if failed is None else {"step": name, "failed": f"{type(failed).__name__}: {failed}"}
        print(json.dumps(said), flush=True)


def _overdue(_signal: int, _frame: object) -> None:
    raise Overdue(f"took longer than {STEP_WITHIN_S} s")
