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
    rest = _go_on(work, waits_for)
    del waits_for  # what it brings is for `work` alone
    async with asyncio.timeout(timeout_s):
        return await rest


@types.coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: Any) -> Step[T]:
    """What `await work` does, but for its first step, which has been done: it waits for what that yielded.

    Nothing that `work` has waited for stays in this frame: an error has the frames that it went through, and who keeps it here closes a
    circle that only the collector opens. Nor does `work` go on while an error is handled here, which would be the context of its own.
    """
    thrown: BaseException | None = None
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is for `work` to handle
                thrown = error
            waits_for = None
            if thrown is None:
                waits_for = work.send(sent)
            else:
                try:
                    waits_for = work.throw(thrown)
                finally:
                    thrown = None
    except StopIteration as done:
        result: T = done.value
        return result
