"""A deadline for work that seldom waits."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Step = Generator[Any, Any, T]


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, under `asyncio.timeout` from its first wait on.

    A timer and its context cost as much as twenty calls, and most requests are answered without a wait. Raises `TimeoutError`, and what
    `work` raises; when cancelled, so is `work`.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(timeout_s):
        return await _go_on(work, waits_for)


@types.coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: Any) -> Step[T]:
    """What `await work` does, but for its first step, which has been done: it waits for what that yielded."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is for `work` to handle
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
