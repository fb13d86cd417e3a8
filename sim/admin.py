"""Administers topics: deletes and creates one again and again, adds partitions, deletes records."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from sim.broker import ConnectionLost, CurrentBrokers, Place, Serving, SimBroker
from sim.faults import LATE_S
from sim.history import History, LogStart
from storage.catalog.topics import Topic
from storage.errors import AlreadyExists, NotFound, OffsetOutOfRange, StorageError
from storage.log.trim import HIGH_WATERMARK
from storage.vocabulary import PartitionId

ASK_TIMEOUT_S: Final = 15.0
PAUSE_S: Final = 1.5
RETRY_S: Final = 0.3

AdminAnswer = Topic | StorageError | int | None


class Admin:
    def __init__(self, brokers: CurrentBrokers, history: History, chance: random.Random) -> None:
        self._brokers = brokers
        self._history = history
        self._chance = chance
        self.is_over = False
        self._deleted: set[str] = set()
        self._is_in_doubt = False

    def _has_to_end(self) -> bool:
        return self.is_over

    async def keep_replacing(self, place: Place) -> None:
        """Create the topic of `place`, delete it after a while, and so on, until `is_over`; in the end it is there."""
        while True:
            await self._create(place.topic)
            if self._has_to_end():
                break
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            if self._has_to_end():
                break
            await self._delete(place.topic)
            await asyncio.sleep(self._chance.choice((0.0, 0.05, 1.0)))
        if self._is_in_doubt:
            # A deletion whose outcome nobody knows may have been carried out after the topic was found.
            await asyncio.sleep(2 * LATE_S[1])
            await self._create(place.topic)

    async def grow(self, topic: str, count: int) -> bool:
        """Raise the number of partitions. True if that is known to have been done."""

        async def add(serving: Serving) -> AdminAnswer:
            found = (await serving.parts.topics.lookup_now([topic])).get(topic)
            if found is not None:
                await serving.parts.topics.add_partitions(found, count)
            return found

        return isinstance(await self._ask(self._broker(), f"grow {topic} to {count}", add), Topic)

    async def trim(self, place: Place, topic_id: str, end: int) -> int:
        """Delete records up to some offset, of the `end` that there are. Returns the start that was acknowledged, or 0."""
        before = self._chance.choice((HIGH_WATERMARK, self._chance.randint(0, end)))
        known = self._history.trimmed.get(str(place), 0)
        self._history.trimmed[str(place)] = max(known, float("inf") if before == HIGH_WATERMARK else before)

        async def trim(serving: Serving) -> AdminAnswer:
            return await serving.parts.trimmer.trim(PartitionId(topic_id, place.partition), before)  # type: ignore[arg-type]

        broker = self._broker()
        invoked_s = self._history.now_s
        answer = await self._ask(broker, f"trim {place} before {before}", trim)
        if isinstance(answer, OffsetOutOfRange | NotFound) and not broker.may_have_read_old(invoked_s):
            self._history.violation(f"a trim that nobody deserves: {place} before={before} {answer!r}")
        if not isinstance(answer, int):
            return 0
        may_be_old = broker.may_have_read_old(invoked_s)
        self._history.heard_start(LogStart("admin", broker.name, str(place), invoked_s, self._history.now_s, answer, may_be_old))
        return answer

    async def _create(self, topic: str) -> None:
        """Return when it is there."""

        async def create(serving: Serving) -> AdminAnswer:
            return await serving.parts.topics.create(topic, partition_count=1, replication_factor=1, configs={})

        async def look(serving: Serving) -> AdminAnswer:
            return (await serving.parts.topics.lookup_now([topic])).get(topic)

        while True:
            answer = await self._ask(self._broker(), f"create {topic}", create)
            if isinstance(answer, AlreadyExists) or not isinstance(answer, Topic):
                answer = await self._ask(self._broker(), f"find {topic}", look)
            # From a deposed leader of the store it may be one that was deleted since.
            if isinstance(answer, Topic) and answer.topic_id not in self._deleted:
                return
            await asyncio.sleep(self._chance.expovariate(1 / RETRY_S))

    async def _delete(self, topic: str) -> None:
        """Return when it is known to be gone; whichever incarnation was found is the one to be deleted."""

        async def look(serving: Serving) -> AdminAnswer:
            return (await serving.parts.topics.lookup_now([topic])).get(topic)

        found = await self._ask(self._broker(), f"find {topic}", look)
        if not isinstance(found, Topic):
            return
        doomed = found

        async def delete(serving: Serving) -> AdminAnswer:
            await serving.parts.topics.delete(doomed)
            return doomed

        for _ in range(8):
            broker, invoked_s = self._broker(), self._history.now_s
            answer = await self._ask(broker, f"delete {topic} {doomed.topic_id}", delete)
            if isinstance(answer, Topic):
                self._deleted.add(doomed.topic_id)
            if isinstance(answer, Topic | NotFound):
                # What a deposed leader of the store does not know of is not gone for that.
                if isinstance(answer, Topic) and not broker.may_have_read_old(invoked_s):
                    self._history.deleted_s[doomed.topic_id] = self._history.now_s
                return
            await asyncio.sleep(self._chance.expovariate(1 / RETRY_S))
        self._is_in_doubt = True

    async def _ask(self, broker: SimBroker, what: str, work: Callable[[Serving], Awaitable[AdminAnswer]]) -> AdminAnswer:
        """An answer, or None if there was none."""

        async def serve(serving: Serving) -> AdminAnswer:
            try:
                return await work(serving)
            except StorageError as error:
                return error

        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answer = await broker.ask(serve)
        except (TimeoutError, ConnectionLost) as error:
            self._history.trace("admin", what, f"{broker.name} {error!r}")
            return None
        self._history.trace("admin", what, f"{broker.name} {answer!r}")
        return answer

    def _broker(self) -> SimBroker:
        return self._chance.choice(self._brokers())
