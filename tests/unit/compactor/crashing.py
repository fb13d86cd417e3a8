"""Stores in front of which a process dies."""

from collections.abc import Awaitable, Callable
from typing import Any


class Crash(Exception):
    """The process dies here."""


class Crashing:
    """A store that dies before its n-th effect, or after it; `counted` says how many there were."""

    def __init__(self, inner: object, *, at: int, is_done: bool, shared: "list[int]") -> None:
        self._inner = inner
        self._at = at
        self._is_done = is_done
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return self._effect(call) if name in {"write", "put_if_absent"} else call

    def _effect(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*given: Any, **named: Any) -> Any:
            number, self._shared[0] = self._shared[0], self._shared[0] + 1
            if number > self._at or (number == self._at and not self._is_done):
                raise Crash
            done = await call(*given, **named)
            if number == self._at:
                raise Crash
            return done

        return run
