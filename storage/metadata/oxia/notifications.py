"""Hints of changed keys: one stream per shard while somebody is subscribed, resumed where it broke off."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import structlog

from storage.metadata.hints import Hints
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.calls import ShardCalls

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 1.0
INTERNAL_PREFIX: Final = "__oxia/"

log = structlog.get_logger(__name__)


class NotificationFollower:
    """`start` when there is a subscription; the streams end with the next message after the last one."""

    def __init__(self, calls: ShardCalls, hints: Hints, *, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        self._calls = calls
        self._hints = hints
        self._spawn = spawn
        self._followed: set[int] = set()

    def start(self) -> None:
        for shard in self._calls.assignments.shards:
            if shard not in self._followed:
                self._followed.add(shard)
                self._spawn(self._run(shard), f"oxia notifications of shard {shard}")

    async def _run(self, shard: int) -> None:
        offset: int | None = None
        pause_s = PAUSE_S_MIN
        try:
            while self._hints:
                before = offset
                offset = await self._follow(shard, offset)
                pause_s = PAUSE_S_MIN if offset != before else min(2 * pause_s, PAUSE_S_MAX)
                if self._hints:
                    await self._calls.assignments.wait_changed(pause_s * self._calls.chance.uniform(0.5, 1.0))
        finally:
            self._followed.discard(shard)

    async def _follow(self, shard: int, offset: int | None) -> int | None:
        """Until the stream ends. The place in the shard's log up to which hints were given."""
        leader = self._calls.assignments.leader_of(shard)
        if leader is None:
            return offset
        call = self._calls.nodes.at(leader).get_notifications(wire.NotificationsRequest(shard=shard, start_offset_exclusive=offset))
        try:
            while self._hints:
                batch = await call.read()
                if not isinstance(batch, wire.NotificationBatch):
                    break
                offset = batch.offset
                self._publish(batch)
        except grpc.aio.AioRpcError as error:
            failure = self._calls.note(shard, error, leader)
            log.debug("oxia_notifications_interrupted", shard=shard, reason=failure.reason)
        finally:
            call.cancel()
        return offset

    def _publish(self, batch: wire.NotificationBatch) -> None:
        # A deleted range names only the start of its keys. What was deleted has no version, which reads as 0.
        changes = batch.notifications.items()
        self._hints.publish([(path, change.version_id or None) for path, change in changes if not path.startswith(INTERNAL_PREFIX)])
