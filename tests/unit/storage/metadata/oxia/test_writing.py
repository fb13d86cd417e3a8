import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.metadata.oxia.calls import ShardCalls
from storage.metadata.oxia.limits import OxiaLimits
from storage.metadata.oxia.sessions import Sessions
from storage.metadata.oxia.writing import Writing
from storage.metadata.port import ABSENT, Key, NotApplied, Put, WriteOutcome


class Silent:
    """Calls of which none ever has its turn."""

    is_closed = False
    clock = SystemClock()

    class assignments:  # noqa: N801 - stands for an attribute
        taken = 0

        @staticmethod
        def shard_of(_key: str) -> int:
            return 0

    @contextlib.asynccontextmanager
    async def turn(self, _shard: int) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def test_more_writes_than_may_wait_for_a_shard_are_refused_for_certain() -> None:
    limits = OxiaLimits(writes_waiting_max=5)
    async with Nursery() as nursery:

        def spawn(coroutine: Any, name: str) -> object:
            return nursery.spawn(coroutine, name=name)

        line = Writing(cast("ShardCalls", Silent()), cast("Sessions", None), client_identity="test", spawn=spawn, limits=limits)

        async def put(number: int) -> WriteOutcome:
            return await line.write([Put(Key(f"k{number}", "k"), b"", ABSENT)])

        waiting = [nursery.spawn(put(number), name="put") for number in range(5)]  # type: ignore[arg-type]
        await asyncio.sleep(0)

        assert await put(6) == NotApplied("too many writes wait for shard 0: 5")
        assert not any(task.done() for task in waiting)
