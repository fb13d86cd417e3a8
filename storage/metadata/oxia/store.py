"""The metadata store on Oxia, production's: any number of shards, led by any number of nodes.

A request goes to the node that leads its shard. Nothing is asked for regularly but for the keep-alives of open sessions;
who leads what, and hints, come on streams that Oxia holds open (following.py). Reads (`OxiaReader`) are sent again, within a deadline,
when a leader moves or a connection breaks; writes (writing.py) are not.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

import grpc

from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import Unavailable
from storage.metadata.hints import Hints
from storage.metadata.keys import CLUSTER
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.assignments import Assignments
from storage.metadata.oxia.calls import CallBackoff, CallFailed, CallFate, Failure, ShardCalls
from storage.metadata.oxia.following import AssignmentFollower, NotificationFollower
from storage.metadata.oxia.limits import DEFAULT_LIMITS, OxiaLimits
from storage.metadata.oxia.location import OxiaLocation
from storage.metadata.oxia.nodes import CLOSE_TIMEOUT_S, Nodes, OxiaNode, Token
from storage.metadata.oxia.requests import is_empty, parent_of
from storage.metadata.oxia.sessions import Sessions
from storage.metadata.oxia.writing import Writing
from storage.metadata.port import Key, OnChange, Record, Session, Subscription, WriteOp, WriteOutcome

GETS_MAX: Final = 1_000
"""Keys in one request; more are asked for one request after the other."""
SESSION_TIMEOUT_MS_MIN: Final = 2_000
SESSION_TIMEOUT_MS_MAX: Final = 300_000
HOME: Final = CLUSTER
"""What is probed; and its shard is where sessions begin. Brokers and their claims have its partition key: a session that began elsewhere
would be lost with a shard that holds nothing of it."""


class OxiaReader:
    def __init__(self, calls: ShardCalls) -> None:
        self._calls = calls

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._calls.ensure_open()
        places_by_shard: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places_by_shard.setdefault(self._calls.assignments.shard_of(key.partition_key), []).append(place)
        records: list[Record | None] = [None] * len(keys)
        if len(places_by_shard) == 1:
            for shard, places in places_by_shard.items():
                await self._get(shard, keys, places, records)
        elif places_by_shard:
            try:
                async with asyncio.TaskGroup() as group:
                    for shard, places in places_by_shard.items():
                        group.create_task(self._get(shard, keys, places, records))
            except* Unavailable as errors:
                raise _first_of(errors) from None
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._calls.ensure_open()
        assert parent_of(key.path) == parent_of(within), f"a ceiling stays under one parent: key={key.path!r} within={within!r}"
        start = max(key.path, within)
        if not start.startswith(within):
            return None
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=start, include_value=True, comparison_type=wire.CEILING)
        (found,) = await self._read(shard, request)
        # Oxia goes on behind the prefix: to deeper keys and to those of other parents.
        if found.status != wire.OK or not found.key.startswith(within) or found.key.count("/") != key.path.count("/"):
            return None
        return Record(found.key, found.value, found.version.version_id)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self._calls.ensure_open()
        if is_empty(start.path, end):
            return
        shard = self._calls.assignments.shard_of(start.partition_key)
        request = wire.RangeScanRequest(shard=shard, start_inclusive=start.path, end_exclusive=end)
        backoff: CallBackoff | None = None
        while True:
            leader = self._calls.assignments.leader_of(shard)
            failure = Failure(CallFate.NOT_SENT, f"oxia names no leader of shard {shard}")
            if leader is not None:
                call = self._calls.nodes.at(leader).range_scan(request)
                try:
                    while True:
                        try:
                            message = await self._calls.next_message(call, leader)
                        except grpc.aio.AioRpcError as error:
                            failure = self._calls.note(shard, error, leader)
                            break
                        except (asyncio.CancelledError, grpc.aio.UsageError):
                            self._calls.raise_if_closed_meanwhile()
                            raise
                        if message is None:
                            return
                        backoff = None
                        for record in message.records:
                            # Where another attempt goes on: there is no key between the two.
                            request.start_inclusive = f"{record.key}\x00"
                            yield Record(record.key, record.value, record.version.version_id)
                finally:
                    call.cancel()
            backoff = backoff or self._calls.backoff()
            await self._calls.pause_after(failure, backoff)
            self._calls.ensure_open()

    async def list_paths(self, start: Key, end: str) -> list[str]:
        self._calls.ensure_open()
        if is_empty(start.path, end):
            return []
        shard = self._calls.assignments.shard_of(start.partition_key)
        request = wire.ListRequest(shard=shard, start_inclusive=start.path, end_exclusive=end)

        async def attempt(node: OxiaNode, _timeout_s: float) -> list[str]:
            paths: list[str] = []
            call = node.list(request)
            try:
                while (message := await self._calls.next_message(call, node.address)) is not None:
                    paths += message.keys
            finally:
                call.cancel()
            return paths

        return await self._calls.repeat(shard, attempt)

    async def probe(self, key: Key) -> None:
        """One get on one shard. Raise `Unavailable`."""
        self._calls.ensure_open()
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=key.path)
        await self._read(shard, request)

    async def put_ms(self, key: Key) -> int | None:
        self._calls.ensure_open()
        shard = self._calls.assignments.shard_of(key.partition_key)
        request = wire.ReadRequest(shard=shard)
        request.gets.add(key=key.path)
        (found,) = await self._read(shard, request)
        return found.version.modified_timestamp if found.status == wire.OK else None

    async def _get(self, shard: int, keys: Sequence[Key], places: Sequence[int], records: list[Record | None]) -> None:
        for first in range(0, len(places), GETS_MAX):
            page = places[first : first + GETS_MAX]
            request = wire.ReadRequest(shard=shard)
            add = request.gets.add
            for place in page:
                add(key=keys[place].path, include_value=True)
            for place, found in zip(page, await self._read(shard, request), strict=True):
                if found.status == wire.OK:
                    records[place] = Record(keys[place].path, found.value, found.version.version_id)

    async def _read(self, shard: int, request: wire.ReadRequest) -> Sequence[wire.GetResponse]:
        async def attempt(node: OxiaNode, timeout_s: float) -> Sequence[wire.GetResponse]:
            found = await node.read(request, timeout=timeout_s)
            if len(found) != len(request.gets):
                raise CallFailed(Failure(CallFate.FAILED, f"oxia at {node.address}: {len(found)} answers to {len(request.gets)} gets"))
            return found

        return await self._calls.repeat(shard, attempt)


class OxiaMetadataStore:
    """Made by `open`."""

    def __init__(self, location: OxiaLocation, *, clock: Clock, chance: random.Random, nursery: Nursery, limits: OxiaLimits) -> None:
        client_identity = f"forebay-{chance.getrandbits(64):016x}"
        self._nursery = nursery
        self._tasks: set[asyncio.Task[None]] = set()
        access = location.access
        token = None if access.token_file is None else Token(access.token_file, clock=clock)
        nodes = Nodes(access=access, token=token, spawn=self._spawn, limits=limits)
        self._calls = ShardCalls(Assignments(), nodes, clock=clock, chance=chance)
        self._hints = Hints()
        self._sessions = Sessions(self._calls, client_identity=client_identity, spawn=self._spawn)
        self._writing = Writing(self._calls, self._sessions, client_identity=client_identity, spawn=self._spawn, limits=limits)
        self._reading = OxiaReader(self._calls)
        self._assignments = AssignmentFollower(location, self._calls)
        self._notifications = NotificationFollower(self._calls, self._hints, spawn=self._spawn)
        self.write: Callable[[Sequence[WriteOp]], Coroutine[Any, Any, WriteOutcome]] = self._writing.write

    @classmethod
    async def open(
        cls, location: OxiaLocation, *, clock: Clock, chance: random.Random, nursery: Nursery, limits: OxiaLimits = DEFAULT_LIMITS
    ) -> "OxiaMetadataStore":
        """Connect and learn the shards. Raise `Unavailable`, in one line with address, cause and fix, within 10 s.

        `chance` draws pauses and the name this client goes by. `nursery` holds its tasks; `close` ends them.
        """
        try:
            store = cls(location, clock=clock, chance=chance, nursery=nursery, limits=limits)
        except Unavailable as error:
            raise Unavailable(f"cannot open {location}: {error}") from None
        try:
            store._start()
            await store._assignments.wait_first()
        except BaseException:
            await store.close()
            raise
        return store

    def shard_of(self, partition_key: str) -> int:
        return self._calls.assignments.shard_of(partition_key)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return await self._reading.get_many(keys)

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        return await self._reading.get_ceiling(key, within=within)

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        return self._reading.range_scan(start, end)

    async def list(self, start: Key, end: str) -> list[str]:
        return await self._reading.list_paths(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        assert SESSION_TIMEOUT_MS_MIN <= timeout_ms <= SESSION_TIMEOUT_MS_MAX, f"not a session timeout of Oxia: timeout_ms={timeout_ms}"
        self._calls.ensure_open()
        return await self._sessions.open(timeout_ms=timeout_ms, home=self.shard_of(HOME.partition_key))

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        subscription = self._hints.subscribe(callback, prefix)
        if not self._calls.is_closed:
            self._notifications.start()
        return subscription

    async def put_ms(self, key: Key) -> int | None:
        """As `TellsTime` says."""
        return await self._reading.put_ms(key)

    async def probe(self) -> None:
        await self._reading.probe(HOME)
        if (reason := self._writing.stuck_reason) is not None:
            raise Unavailable(reason)

    async def close(self) -> None:
        """Ends its sessions. Takes some seconds at most; what is under way then is unknown."""
        if self._calls.is_closed:
            return
        try:
            await self._sessions.close()
        finally:
            self._calls.is_closed = True
            self._hints.cancel_all()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
            await self._calls.nodes.close()

    def _start(self) -> None:
        for number, stream in enumerate(self._assignments.streams()):
            self._spawn(stream, f"oxia assignments {number}")

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self._nursery.spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _first_of(errors: ExceptionGroup[Unavailable]) -> Unavailable:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
