"""Sessions: one of the port is one of Oxia's on its home shard, and on every other that holds a record of it, opened when the first is put.

A session of the port is lost with the first of them. Its time is measured from the moment the last acknowledged keep-alive was SENT,
so that it is known to be over here before Oxia ends it there.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc

from storage.errors import OutcomeUnknown, StorageError, Unavailable
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.calls import CallFailed, CallFate, ShardCalls, read_failure, unreadable
from storage.metadata.oxia.nodes import OxiaNode

KEEP_ALIVES_PER_TIMEOUT: Final = 3
RETRIES_PER_TIMEOUT: Final = 12
CLOSE_TIMEOUT_S: Final = 3.0
SHARD_BITS: Final = 20
NOBODYS: Final = 1 << 62
"""A session id that Oxia will never give away: its ids are places in a shard's log."""


class _OnShard:
    """One of Oxia's sessions. `opened` holds its id or why there is none; `ended`, why it may still be there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.opened: asyncio.Future[int | StorageError] = loop.create_future()
        self.ended: asyncio.Future[StorageError | None] = loop.create_future()
        self.session_id: int | None = None
        self.acknowledged_s = float("inf")


class OxiaSession:
    """Its tasks end with it."""

    def __init__(
        self,
        *,
        timeout_ms: int,
        client_identity: str,
        calls: ShardCalls,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._timeout_ms = timeout_ms
        self._timeout_s = timeout_ms / 1_000
        self._client_identity = client_identity
        self._calls = calls
        self._spawn = spawn
        self._lost = asyncio.Event()
        self._on_shards: dict[int, _OnShard] = {}
        self._session_id = NOBODYS
        self._keeps_alive = True

    @property
    def session_id(self) -> int:
        """Unique in the namespace: the session on the home shard and that shard's number."""
        return self._session_id

    @property
    def is_lost(self) -> bool:
        if not self._lost.is_set() and self._left_s() <= 0:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        """Raise `Unavailable` or `OutcomeUnknown` if Oxia could not be reached; the session then ends by itself, unrenewed."""
        self._lost.set()
        for on_shard in list(self._on_shards.values()):
            error = await asyncio.shield(on_shard.ended)
            if error is not None:
                raise error

    def stop_keeping_alive(self) -> None:
        """As when its process hangs: it ends when its timeout has passed."""
        self._keeps_alive = False

    def give_up(self) -> None:
        """Oxia said that it is gone, or nobody wants it: its tasks tell Oxia and end."""
        self._lost.set()

    async def open_first(self, shard: int) -> None:
        """Raise `Unavailable`."""
        self._session_id = ((await self.opened_on(shard) + 1) << SHARD_BITS) | shard

    def id_on(self, shard: int) -> int | None:
        """Oxia's session of this one on `shard`; None if it has to be opened first."""
        if self.is_lost:
            return NOBODYS
        on_shard = self._on_shards.get(shard)
        return None if on_shard is None else on_shard.session_id

    async def opened_on(self, shard: int) -> int:
        """Open it on `shard` unless it is. Raise `Unavailable`."""
        if self.is_lost:
            return NOBODYS
        on_shard = self._on_shards.get(shard)
        if on_shard is None:
            on_shard = self._on_shards[shard] = _OnShard(asyncio.get_running_loop())
            self._spawn(self._serve(shard, on_shard), f"oxia session on shard {shard}")
        opened = await asyncio.shield(on_shard.opened)
        if isinstance(opened, StorageError):
            raise Unavailable(f"session not opened: {opened}")
        return opened

    async def _serve(self, shard: int, on_shard: _OnShard) -> None:
        """The life of one of Oxia's sessions."""
        unfinished = OutcomeUnknown("session perhaps not closed: the metadata store was closed meanwhile")
        try:
            try:
                async with self._calls.turn(shard):
                    on_shard.session_id = await self._calls.repeat(shard, self._creation(shard, on_shard))
            except Unavailable as error:
                del self._on_shards[shard]
                on_shard.opened.set_result(error)
                on_shard.ended.set_result(None)
                return
            on_shard.opened.set_result(on_shard.session_id)
            await self._keep_alive(shard, on_shard, on_shard.session_id)
            self._lost.set()
            on_shard.ended.set_result(await self._end(shard, on_shard.session_id))
        finally:
            if not on_shard.opened.done():
                on_shard.opened.set_result(unfinished)
            if not on_shard.ended.done():
                self._lost.set()
                on_shard.ended.set_result(unfinished)

    def _creation(self, shard: int, on_shard: _OnShard) -> Callable[[OxiaNode, float], Coroutine[Any, Any, int]]:
        request = wire.CreateSessionRequest(shard=shard, session_timeout_ms=self._timeout_ms, client_identity=self._client_identity)

        async def create(node: OxiaNode, timeout_s: float) -> int:
            # Should one be made whose answer is lost: it holds no record and ends unrenewed.
            sent_s = self._calls.clock.monotonic_s()
            response: wire.CreateSessionResponse | None = await node.create_session(request, timeout=timeout_s)
            if response is None:
                raise unreadable(node.address)
            on_shard.acknowledged_s = sent_s
            return response.session_id

        return create

    async def _keep_alive(self, shard: int, on_shard: _OnShard, session_id: int) -> None:
        """Until the session is lost or closed."""
        heartbeat = wire.SessionHeartbeat(shard=shard, session_id=session_id)
        pause_s = self._timeout_s / KEEP_ALIVES_PER_TIMEOUT
        while not await self._is_lost_within(pause_s):
            if not self._keeps_alive or (leader := self._calls.assignments.leader_of(shard)) is None:
                pause_s = self._timeout_s / RETRIES_PER_TIMEOUT
                continue
            sent_s = self._calls.clock.monotonic_s()
            # One that is slow must not keep the next from being tried within the timeout.
            timeout_s = min(self._timeout_s / KEEP_ALIVES_PER_TIMEOUT, self._left_s())
            try:
                await self._calls.nodes.at(leader).keep_alive(heartbeat, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                if self._calls.note(shard, error, leader).fate is CallFate.SESSION_GONE:
                    return
                pause_s = self._timeout_s / RETRIES_PER_TIMEOUT
            else:
                on_shard.acknowledged_s = sent_s
                pause_s = self._timeout_s / KEEP_ALIVES_PER_TIMEOUT

    async def _end(self, shard: int, session_id: int) -> StorageError | None:
        """Tell Oxia. A request that may have been carried out is not repeated: a second answer could come before the records are gone."""
        request = wire.CloseSessionRequest(shard=shard, session_id=session_id)

        async def attempt(node: OxiaNode, timeout_s: float) -> StorageError | None:
            try:
                await node.close_session(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                failure = read_failure(error, node.address)
                if failure.fate in (CallFate.NOT_LEADER, CallFate.NOT_SENT):
                    raise
                return None if failure.fate is CallFate.SESSION_GONE else OutcomeUnknown(f"session perhaps not closed: {failure.reason}")
            return None

        try:
            async with self._calls.turn(shard):
                return await self._calls.repeat(shard, attempt, within_s=CLOSE_TIMEOUT_S)
        except CallFailed as error:
            return Unavailable(f"session not closed: {error}")
        except Unavailable as error:
            return OutcomeUnknown(f"session perhaps not closed: {error}")

    async def _is_lost_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(min(seconds, self._left_s())):
                await self._lost.wait()
        except TimeoutError:
            return self.is_lost
        return True

    def _left_s(self) -> float:
        acknowledged_s = min(itertools.chain((on.acknowledged_s for on in self._on_shards.values()), (float("inf"),)))
        return acknowledged_s + self._timeout_s - self._calls.clock.monotonic_s()


class Sessions:
    """All sessions of one store, by the id that its callers know."""

    def __init__(self, calls: ShardCalls, *, client_identity: str, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        self._calls = calls
        self._client_identity = client_identity
        self._spawn = spawn
        self._sessions: dict[int, OxiaSession] = {}

    async def open(self, *, timeout_ms: int, home: int) -> OxiaSession:
        """`home`: the shard that it begins on, and is lost with whatever it holds there. Raise `Unavailable`."""
        self._sessions = {session_id: session for session_id, session in self._sessions.items() if not session.is_lost}
        session = OxiaSession(timeout_ms=timeout_ms, client_identity=self._client_identity, calls=self._calls, spawn=self._spawn)
        try:
            await session.open_first(home)
        except asyncio.CancelledError:
            # Nobody will close it: it must not be kept alive forever.
            session.give_up()
            raise
        self._sessions[session.session_id] = session
        return session

    def id_on(self, session_id: int, shard: int) -> int | None:
        """Oxia's session behind `session_id` on `shard`; None if it has to be opened first; nobody's if it is over or not of here."""
        session = self._sessions.get(session_id)
        return NOBODYS if session is None else session.id_on(shard)

    async def open_on(self, session_id: int, shard: int) -> None:
        """Raise `Unavailable`."""
        if (session := self._sessions.get(session_id)) is not None:
            await session.opened_on(shard)

    def gone(self, session_id: int) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            session.give_up()

    async def close(self) -> None:
        """Tell Oxia of the end of all of them, for a bounded time: what it does not hear of ends unrenewed."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S), asyncio.TaskGroup() as group:
                for session in self._sessions.values():
                    group.create_task(_close_quietly(session))
        except TimeoutError:
            return


async def _close_quietly(session: OxiaSession) -> None:
    try:
        await session.close()
    except StorageError:
        # It ends by itself when its timeout has passed.
        return
