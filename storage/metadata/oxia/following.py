"""Streams that Oxia holds open: the leaders of shards, and hints of changed keys.

`AssignmentFollower` follows several nodes at once, as long as the store is open: one that hangs or lags shall not be the only source.
`NotificationFollower` has one stream per shard while somebody is subscribed, and resumes it where it broke off.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import structlog

from storage.errors import Unavailable
from storage.metadata.hints import Hints
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.assignments import ShardClaim
from storage.metadata.oxia.calls import CallFailed, CallFate, Failure, ShardCalls, read_failure
from storage.metadata.oxia.location import OxiaLocation

STREAMS_MAX: Final = 3
OPEN_TIMEOUT_S: Final = 10.0
REFUSED_TIMEOUT_S: Final = 3.0
"""How long nodes that cannot be connected to are given to start, when the store is opened."""
FIRST_MESSAGE_TIMEOUT_S: Final = 5.0
CONNECTED_POLL_S: Final = 0.05
SETTLED_S: Final = 0.3
"""Between a new connection to a node that was gone and the question: a standalone Oxia 0.14 that listens but has not quite started
yet dies of it."""
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 1.0
PAUSE_S_MAX_WHEN_FOLLOWING: Final = 15.0
"""Between tries to reach one node while the stream of another is open."""
_DEFINITE: Final = (CallFate.NAMESPACE_MISSING, CallFate.REFUSED)
INTERNAL_PREFIX: Final = "__oxia/"

log = structlog.get_logger(__name__)


class AssignmentFollower:
    """`run` one task per stream; they share the nodes out among themselves."""

    def __init__(self, location: OxiaLocation, calls: ShardCalls) -> None:
        self._location = location
        self._calls = calls
        self._failures: dict[str, Failure] = {}
        self._followed: set[str] = set()
        self._open_streams = 0

    def streams(self) -> list[Coroutine[Any, Any, None]]:
        """To be run as tasks, all of them, until they are cancelled."""
        return [self._run() for _ in range(STREAMS_MAX)]

    async def wait_first(self) -> None:
        """Return when the shards are known. Raise `Unavailable`, in one line, when every node has said no or the time is over."""
        started_s = self._calls.clock.monotonic_s()
        while not self._calls.assignments.shards:
            waited_s = self._calls.clock.monotonic_s() - started_s
            if (reason := self._reason_to_give_up(waited_s)) is not None:
                raise Unavailable(f"cannot open {self._location}: {reason}")
            await self._calls.assignments.wait_changed(0.05)

    def _reason_to_give_up(self, waited_s: float) -> str | None:
        failures = [self._failures[address] for address in self._location.addresses if address in self._failures]
        if len(failures) == len(self._location.addresses) and (
            all(failure.fate in _DEFINITE for failure in failures)
            or (waited_s > REFUSED_TIMEOUT_S and all(failure.fate in (*_DEFINITE, CallFate.NOT_SENT) for failure in failures))
        ):
            return "; ".join(failure.reason for failure in failures)
        if waited_s > OPEN_TIMEOUT_S:
            return (
                "; ".join(failure.reason for failure in failures)
                or f"no answer from {', '.join(self._location.addresses)}: see whether it hangs"
            )
        return None

    async def _run(self) -> None:
        last, pause_s = "", PAUSE_S_MIN
        while True:
            address = self._next_node(last)
            if address is None:
                await self._calls.assignments.wait_changed(PAUSE_S_MAX_WHEN_FOLLOWING)
                continue
            last = address
            self._followed.add(address)
            try:
                told = await self._follow(address)
            finally:
                self._followed.discard(address)
            pause_s = PAUSE_S_MIN if told else min(2 * pause_s, PAUSE_S_MAX_WHEN_FOLLOWING if self._open_streams else PAUSE_S_MAX)
            await asyncio.sleep(pause_s * self._calls.chance.uniform(0.5, 1.0))

    def _next_node(self, last: str) -> str | None:
        """The one after `last` of those that nobody follows; `last` itself when it is the only one."""
        nodes = list(dict.fromkeys((*self._location.addresses, *self._calls.assignments.leaders)))
        turned = nodes[nodes.index(last) + 1 :] + nodes[: nodes.index(last) + 1] if last in nodes else nodes
        return next((node for node in turned if node not in self._followed), None)

    async def _follow(self, address: str) -> bool:
        """Until the stream ends. Whether it said anything."""
        if self._failures.get(address) and not await self._is_back(address):
            return False
        told = False
        call = self._calls.nodes.at(address).get_shard_assignments(wire.ShardAssignmentsRequest(namespace=self._location.namespace))
        try:
            message = await self._calls.next_message(call, address, within_s=FIRST_MESSAGE_TIMEOUT_S)
            while message is not None:
                self._take(address, message)
                if not told:
                    told = True
                    self._open_streams += 1
                    self._failures.pop(address, None)
                following = await call.read()
                message = following if isinstance(following, wire.ShardAssignments) else None
        except CallFailed as error:
            self._failures[address] = Failure(error.fate, str(error))
        except grpc.aio.AioRpcError as error:
            self._failures[address] = read_failure(error, address)
        except ValueError as error:
            self._failures[address] = Failure(CallFate.FAILED, f"oxia at {address}: {error}")
        finally:
            call.cancel()
            if told:
                self._open_streams -= 1
        if told and not self._calls.is_closed:
            failure = self._failures.setdefault(address, Failure(CallFate.BROKEN_OFF, f"oxia at {address}: it ended the stream"))
            log.info("oxia_assignments_interrupted", address=address, reason=failure.reason)
        return told

    async def _is_back(self, address: str) -> bool:
        backoff = self._calls.backoff(FIRST_MESSAGE_TIMEOUT_S)
        # Asked for, not waited for: gRPC does not forget a watch on a connection that nobody waits for any more.
        while not self._calls.nodes.at(address).is_connected():
            if backoff.left_s <= 0:
                return False
            await asyncio.sleep(CONNECTED_POLL_S)
        await asyncio.sleep(SETTLED_S)
        return True

    def _take(self, address: str, message: wire.ShardAssignments) -> None:
        assigned = message.namespaces[self._location.namespace]
        if assigned.shard_key_router != wire.XXHASH3:
            raise ValueError(f"it routes keys in an unknown way: shard_key_router={assigned.shard_key_router}")
        self._calls.assignments.take(
            address,
            [
                ShardClaim(
                    assignment.shard,
                    assignment.leader,
                    assignment.int32_hash_range.min_hash_inclusive,
                    assignment.int32_hash_range.max_hash_inclusive,
                )
                for assignment in assigned.assignments
            ],
        )


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
