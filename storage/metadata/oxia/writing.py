"""Writes: one request per shard under way, in which everything travels that waited for the one before it.

One, because Oxia up to 0.14 (at least) gives a write its place in the shard's log before, and apart from, putting it there: of two
requests at a time one may overtake the other, which leaves a hole, and the shard takes no writes until a restart (docs/internals/adr/0006).

A write is sent once. Only one that certainly was not carried out is sent again, or answered with `NotApplied`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import grpc
import structlog

from storage.errors import Unavailable
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.calls import CallFate, Failure, ShardCalls, unreadable
from storage.metadata.oxia.limits import DEFAULT_LIMITS, OxiaLimits
from storage.metadata.oxia.requests import Together, UnreadableAnswer, Write, check_ops, decode, encode
from storage.metadata.oxia.sessions import NOBODYS, Sessions
from storage.metadata.port import Applied, NotApplied, Put, Status, Unknown, WriteOp, WriteOutcome

_CLOSED: Final = "the metadata store is closed"

log = structlog.get_logger(__name__)


class _Waiting:
    __slots__ = ("asked_s", "outcome", "write")

    def __init__(self, write: Write, asked_s: float, outcome: asyncio.Future[WriteOutcome]) -> None:
        self.write = write
        self.asked_s = asked_s
        self.outcome = outcome


class _Line:
    """What waits for one shard, in the order it came."""

    __slots__ = ("arrived", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.arrived = asyncio.Event()


class Writing:
    def __init__(
        self,
        calls: ShardCalls,
        sessions: Sessions,
        *,
        client_identity: str,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        limits: OxiaLimits = DEFAULT_LIMITS,
    ) -> None:
        self._calls = calls
        self._sessions = sessions
        self._client_identity = client_identity
        self._spawn = spawn
        self._timeout_s, self._waiting_max = limits.write_timeout_s, limits.writes_waiting_max
        self._lines: dict[int, _Line] = {}
        self._stuck: dict[int, tuple[str, int]] = {}

    @property
    def stuck_reason(self) -> str | None:
        """Why a shard takes no writes until Oxia is started again: what the last write to it said, unless a server was started since."""
        return next((reason for reason, taken in self._stuck.values() if taken == self._calls.assignments.taken), None)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self._calls.is_closed:
            return NotApplied(_CLOSED)
        if not ops:
            return Applied(())
        asked_s = self._calls.clock.monotonic_s()
        write = check_ops(ops, self._calls.assignments.shard_of)
        for session_id in write.sessions:
            if self._sessions.id_on(session_id, write.shard) is None:
                try:
                    await self._sessions.open_on(session_id, write.shard)
                    self._calls.ensure_open()
                except Unavailable as error:
                    return NotApplied(str(error))
        line = self._lines.get(write.shard)
        if line is None:
            line = _Line()
            self._spawn(self._serve(write.shard, line), f"oxia writes to shard {write.shard}")
            self._lines[write.shard] = line
        if len(line.waiting) >= self._waiting_max:
            return NotApplied(f"too many writes wait for shard {write.shard}: {self._waiting_max}")
        waiting = _Waiting(write, asked_s, asyncio.get_running_loop().create_future())
        line.waiting.append(waiting)
        line.arrived.set()
        return await waiting.outcome

    async def _serve(self, shard: int, line: _Line) -> None:
        """The only one that sends writes to `shard`."""
        batch: list[_Waiting] = []
        try:
            while True:
                await line.arrived.wait()
                async with self._calls.turn(shard):
                    batch = self._next_batch(line)
                    if batch:
                        await self._carry_out(shard, batch)
        finally:
            for waiting in batch:
                _answer(waiting, Unknown("the metadata store was closed meanwhile"))
            for waiting in line.waiting:
                _answer(waiting, NotApplied(_CLOSED))

    def _next_batch(self, line: _Line) -> list[_Waiting]:
        """Take what goes next; nothing when nobody waits any more for what waited."""
        too_old_s = self._calls.clock.monotonic_s() - self._timeout_s
        waiting, together = line.waiting, Together()
        batch: list[_Waiting] = []
        while waiting:
            first = waiting[0]
            if first.asked_s < too_old_s:
                _answer(first, NotApplied("other requests to the shard took all the time there was"))
            if not first.outcome.done():
                if not together.admits(first.write):
                    return batch
                batch.append(first)
            waiting.popleft()
        line.arrived.clear()
        return batch

    async def _carry_out(self, shard: int, batch: list[_Waiting]) -> None:
        ops = batch[0].write.ops if len(batch) == 1 else [op for waiting in batch for op in waiting.write.ops]

        def session_id_of(session_id: int) -> int:
            on_shard = self._sessions.id_on(session_id, shard)
            return NOBODYS if on_shard is None else on_shard

        request = encode(ops, shard=shard, session_id_of=session_id_of, client_identity=self._client_identity)
        answer = await self._send(shard, request, asked_s=batch[0].asked_s)
        if not isinstance(answer, wire.WriteResponse):
            for waiting in batch:
                _answer(waiting, answer)
            return
        try:
            results = decode(ops, request, answer)
        except UnreadableAnswer as error:
            for waiting in batch:
                _answer(waiting, Unknown(f"oxia gave an answer that is none: {error}"))
            return
        if self._stuck:
            self._stuck.pop(shard, None)
        if any(waiting.write.sessions for waiting in batch):
            for op, result in zip(ops, results, strict=True):
                if result.status is Status.SESSION_DOES_NOT_EXIST and isinstance(op, Put) and op.session is not None:
                    self._sessions.gone(op.session)
        first = 0
        for waiting in batch:
            end = first + len(waiting.write.ops)
            _answer(waiting, Applied(results[first:end]))
            first = end

    async def _send(self, shard: int, request: wire.WriteRequest, *, asked_s: float) -> wire.WriteResponse | NotApplied | Unknown:
        calls = self._calls
        backoff = calls.backoff(self._timeout_s - (calls.clock.monotonic_s() - asked_s))
        while True:
            leader = calls.assignments.leader_of(shard)
            if leader is None:
                failure = Failure(CallFate.NOT_SENT, f"oxia names no leader of shard {shard}")
            else:
                try:
                    response = await calls.nodes.at(leader).write(request, timeout=self._timeout_s)
                    return Unknown(str(unreadable(leader))) if response is None else response
                except grpc.aio.AioRpcError as error:
                    failure = calls.note(shard, error, leader)
            match failure.fate:
                case CallFate.NOT_LEADER | CallFate.NOT_SENT:
                    pause_s = backoff.next_pause_s()
                    if pause_s is None:
                        return NotApplied(failure.reason)
                    await calls.assignments.wait_changed(pause_s)
                case CallFate.REFUSED | CallFate.NAMESPACE_MISSING:
                    return NotApplied(failure.reason)
                case CallFate.STUCK:
                    if shard not in self._stuck:
                        log.error("oxia_shard_stuck", shard=shard, reason=failure.reason)
                    self._stuck[shard] = failure.reason, calls.assignments.taken
                    return Unknown(failure.reason)
                case _:
                    return Unknown(failure.reason)


def _answer(waiting: _Waiting, outcome: WriteOutcome) -> None:
    # Done already: its caller was cancelled.
    if not waiting.outcome.done():
        waiting.outcome.set_result(outcome)
