"""The metadata store on Oxia, production's: any number of shards, led by any number of nodes.

A request goes to the node that leads its shard. Nothing is asked for regularly but for the keep-alives of open sessions;
who leads what, and hints, come on streams that Oxia holds open.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import Unavailable
from storage.metadata.hints import Hints
from storage.metadata.keys import CLUSTER
from storage.metadata.oxia.assignments import Assignments
from storage.metadata.oxia.calls import ShardCalls
from storage.metadata.oxia.following import AssignmentFollower, NotificationFollower
from storage.metadata.oxia.location import OxiaLocation
from storage.metadata.oxia.nodes import CLOSE_TIMEOUT_S, Nodes, Token
from storage.metadata.oxia.reading import OxiaReader
from storage.metadata.oxia.sessions import Sessions
from storage.metadata.oxia.writing import Writing
from storage.metadata.port import Key, OnChange, Record, Session, Subscription, WriteOp, WriteOutcome

SESSION_TIMEOUT_MS_MIN: Final = 2_000
SESSION_TIMEOUT_MS_MAX: Final = 300_000
HOME: Final = CLUSTER
"""What is probed; and its shard is where sessions begin. Brokers and their claims have its partition key: a session that began elsewhere
would be lost with a shard that holds nothing of it."""


class OxiaMetadataStore:
    """Made by `open`."""

    def __init__(self, location: OxiaLocation, *, clock: Clock, chance: random.Random, nursery: Nursery) -> None:
        client_identity = f"forebay-{chance.getrandbits(64):016x}"
        self._nursery = nursery
        self._tasks: set[asyncio.Task[None]] = set()
        access = location.access
        token = None if access.token_file is None else Token(access.token_file, clock=clock)
        nodes = Nodes(access=access, token=token, spawn=self._spawn)
        self._calls = ShardCalls(Assignments(), nodes, clock=clock, chance=chance)
        self._hints = Hints()
        self._sessions = Sessions(self._calls, client_identity=client_identity, spawn=self._spawn)
        self._writing = Writing(self._calls, self._sessions, client_identity=client_identity, spawn=self._spawn)
        self._reading = OxiaReader(self._calls)
        self._assignments = AssignmentFollower(location, self._calls)
        self._notifications = NotificationFollower(self._calls, self._hints, spawn=self._spawn)
        self.write: Callable[[Sequence[WriteOp]], Coroutine[Any, Any, WriteOutcome]] = self._writing.write

    @classmethod
    async def open(cls, location: OxiaLocation, *, clock: Clock, chance: random.Random, nursery: Nursery) -> "OxiaMetadataStore":
        """Connect and learn the shards. Raise `Unavailable`, in one line with address, cause and fix, within 10 s.

        `chance` draws pauses and the name this client goes by. `nursery` holds its tasks; `close` ends them.
        """
        try:
            store = cls(location, clock=clock, chance=chance, nursery=nursery)
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
