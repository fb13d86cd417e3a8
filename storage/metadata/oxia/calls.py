"""Requests to the leader of a shard that may be sent again: everything but writes."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.metadata.oxia.assignments import Assignments
from storage.metadata.oxia.failures import CallFate, Failure, read_failure
from storage.metadata.oxia.nodes import Nodes, OxiaNode

DEADLINE_S: Final = 5.0
"""For one request; for one that is repeated, from its first attempt to the start of its last."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5

_REPEATABLE: Final = (CallFate.NOT_LEADER, CallFate.NOT_SENT, CallFate.BROKEN_OFF)

T = TypeVar("T")


class CallFailed(Unavailable):
    """A request that was not worth another try, or for which there is no time left."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.fate = failure.fate


class Patience:
    """The pauses between the attempts at one request: they double, with chance in them, until the time is over."""

    def __init__(self, clock: Clock, chance: random.Random, *, seconds: float) -> None:
        self._clock = clock
        self._chance = chance
        self._over_s = clock.monotonic_s() + seconds
        self._pause_s = PAUSE_S_MIN

    @property
    def left_s(self) -> float:
        return self._over_s - self._clock.monotonic_s()

    def next_pause_s(self) -> float | None:
        """None when there is no time for another attempt."""
        pause_s = self._pause_s * self._chance.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s if pause_s < self.left_s else None


class ShardCalls:
    """What reads, sessions and notifications have in common."""

    def __init__(self, assignments: Assignments, nodes: Nodes, *, clock: Clock, chance: random.Random) -> None:
        self.assignments = assignments
        self.nodes = nodes
        self.clock = clock
        self.chance = chance
        self.is_closed = False
        self._turns: dict[int, asyncio.Lock] = {}

    def turn(self, shard: int) -> asyncio.Lock:
        """Held by whoever has a request under way that Oxia puts into the log of `shard`: writing.py says why there is one at a time."""
        turn = self._turns.get(shard)
        if turn is None:
            turn = self._turns[shard] = asyncio.Lock()
        return turn

    def patience(self, seconds: float = DEADLINE_S) -> Patience:
        return Patience(self.clock, self.chance, seconds=seconds)

    def ensure_open(self) -> None:
        if self.is_closed:
            raise Unavailable("the metadata store is closed")

    async def repeat(self, shard: int, attempt: Callable[[OxiaNode, float], Awaitable[T]], *, within_s: float = DEADLINE_S) -> T:
        """`attempt(node, timeout_s)` against whoever leads `shard`, again while it is worth it. Raise `CallFailed` or `Unavailable`."""
        patience = self.patience(within_s)
        while True:
            self.ensure_open()
            leader = self.assignments.leader_of(shard)
            if leader is None:
                failure = Failure(CallFate.NOT_SENT, f"oxia names no leader of shard {shard}")
            else:
                try:
                    return await attempt(self.nodes.at(leader), max(patience.left_s, PAUSE_S_MIN))
                except grpc.aio.AioRpcError as error:
                    failure = self.note(shard, error, leader)
                except (asyncio.CancelledError, grpc.aio.UsageError):
                    self.raise_if_closed_meanwhile()
                    raise
            await self.pause_after(failure, patience)

    def note(self, shard: int, error: grpc.aio.AioRpcError, leader: str) -> Failure:
        """What the error means; a leader that is none is remembered as such."""
        failure = read_failure(error, leader)
        if failure.fate is CallFate.NOT_LEADER:
            self.assignments.refuse(shard, leader)
        return failure

    async def pause_after(self, failure: Failure, patience: Patience) -> None:
        """Return when it is time for another attempt. Raise `CallFailed` if there shall be none."""
        pause_s = patience.next_pause_s() if failure.fate in _REPEATABLE else None
        if pause_s is None:
            raise CallFailed(failure)
        await self.assignments.wait_changed(pause_s)

    def raise_if_closed_meanwhile(self) -> None:
        """gRPC ends the requests of a closed channel as cancelled: not to be taken for the cancellation of the caller."""
        task = asyncio.current_task()
        if self.is_closed and (task is None or task.cancelling() == 0):
            raise Unavailable("the metadata store was closed meanwhile")

    async def next_message(self, call: "grpc.aio.UnaryStreamCall[Any, T]", address: str, *, within_s: float = DEADLINE_S) -> T | None:
        """None at the end of the stream. Raise `AioRpcError`, or `CallFailed` when nothing comes in time or what comes cannot be read."""
        try:
            async with asyncio.timeout(within_s):
                message = await call.read()
        except TimeoutError:
            raise CallFailed(Failure(CallFate.NO_ANSWER, f"oxia at {address}: no answer in time")) from None
        if message is None:
            # gRPC gives None for a message that it could not decode: taken for the end, it would cut an answer short.
            raise unreadable(address)
        return None if message is grpc.aio.EOF else message  # type: ignore[return-value]


def unreadable(address: str) -> CallFailed:
    return CallFailed(Failure(CallFate.FAILED, f"oxia at {address}: gave an answer that cannot be read"))
