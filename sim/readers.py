"""Readers: one follows a partition from 0 through changing brokers; another keeps asking where it ends."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from sim.batches import value_of
from sim.broker import ConnectionLost, SimBroker
from sim.history import End, History, Seen
from storage.errors import StorageError, Unavailable
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId

ASK_TIMEOUT_S: Final = 5.0
FETCH_WAIT_S: Final = 0.5
PAUSE_S: Final = 0.3


class Reader:
    """Reads every offset once, in order. `stop_at` ends it."""

    def __init__(
        self, name: str, partition: PartitionId, brokers: Callable[[], list[SimBroker]], history: History, chance: random.Random
    ) -> None:
        self._name = name
        self.partition = partition
        self._brokers = brokers
        self._history = history
        self._chance = chance
        self.offset = 0
        self.stop_at: int | None = None

    async def run(self) -> None:
        broker = self._chance.choice(self._brokers())
        while self.stop_at is None or self.offset < self.stop_at:
            if self._chance.random() < 0.3:
                broker = self._chance.choice(self._brokers())
            if not await self._fetch(broker):
                broker = self._chance.choice(self._brokers())
                await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))

    async def _fetch(self, broker: SimBroker) -> bool:
        invoked_s = self._history.now_s
        wait_s = self._chance.choice((0.0, FETCH_WAIT_S))
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answer = await broker.fetch(self.partition, self.offset, wait_s=wait_s)
        except (TimeoutError, ConnectionLost):
            return False
        if isinstance(answer, StorageError):
            if not isinstance(answer, Unavailable):
                self._history.violation(
                    f"a read that no reader deserves: {self._name} broker={broker.name} offset={self.offset} {answer!r}"
                )
            return False
        partition = self.partition.partition
        for offset, batch in answer.batches:
            header = parse_header(batch)
            if offset != self.offset or header.base_offset != offset:
                where = f"wanted={self.offset} got={offset} stamped={header.base_offset}"
                self._history.violation(f"a reader was sent elsewhere: {self._name} broker={broker.name} {where}")
            self._history.saw(Seen(self._name, broker.name, partition, offset, header.record_count, value_of(batch), self._history.now_s))
            self.offset = offset + header.record_count
        if not answer.batches:
            self._history.heard_end(End(self._name, broker.name, partition, invoked_s, self._history.now_s, answer.end))
        return bool(answer.batches) or wait_s > 0


class EndAsker:
    """Asks any broker for the end of any partition (ListOffsets of the latest offset)."""

    def __init__(
        self,
        name: str,
        partitions: tuple[PartitionId, ...],
        brokers: Callable[[], list[SimBroker]],
        history: History,
        chance: random.Random,
    ) -> None:
        self._name = name
        self._partitions = partitions
        self._brokers = brokers
        self._history = history
        self._chance = chance

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            broker, partition = self._chance.choice(self._brokers()), self._chance.choice(self._partitions)
            invoked_s = self._history.now_s
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    answer = await broker.end_of(partition)
            except (TimeoutError, ConnectionLost):
                continue
            if not isinstance(answer, StorageError):
                end = End(self._name, broker.name, partition.partition, invoked_s, self._history.now_s, answer.high_watermark)
                self._history.heard_end(end)
            elif not isinstance(answer, Unavailable):
                self._history.violation(f"no end told: {self._name} broker={broker.name} partition={partition} {answer!r}")
