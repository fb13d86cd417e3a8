"""Background tasks with an owner: nothing runs that nobody waits for."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class Nursery:
    """Owns the background tasks of one component: `async with` it; leaving cancels what still runs and waits for it.

    A task that fails takes the nursery down, and with it whoever entered it: a broker that lost one of its parts must not go on half alive.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_left = False
        """It takes no more tasks: for callbacks of the loop that may come that late."""

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.is_left = True
        for task in list(self._tasks):
            task.cancel()
        await self._group.__aexit__(kind, error, traceback)

    def spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run it until it ends, is cancelled, or the nursery is left. Raises RuntimeError if it is left already, or a task has failed."""
        try:
            task = self._group.create_task(coroutine, name=name)
        except RuntimeError:
            coroutine.close()  # else it warns of itself whenever it is collected, which may be much later
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
