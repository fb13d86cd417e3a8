"""Producers: an idempotent one that behaves as librdkafka does, and one without sequences."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sim.batches import encode
from sim.broker import Connection, ConnectionLost, SimBroker
from sim.history import Attempt, History, Outcome, Sent
from storage.errors import Conflict, OutcomeUnknown, StorageError, Unavailable
from storage.log.batch import Appended
from storage.vocabulary import PartitionId

IN_FLIGHT_MAX: Final = 5
REQUEST_TIMEOUTS_S: Final = (0.5, 3.0, 35.0)
START_S_MAX: Final = 8.0
GIVE_UP_RATE: Final = 0.3
RETRIABLE: Final = (Unavailable, OutcomeUnknown, Conflict)


@dataclass(slots=True)
class _InFlight:
    sent: Sent
    attempt: Attempt
    answer: "asyncio.Future[Appended | StorageError]"


class Producer:
    """Sends `batches` batches to one partition and knows in the end what became of each."""

    def __init__(
        self,
        name: str,
        *,
        producer_id: int,
        partition: PartitionId,
        batches: int,
        brokers: Callable[[], list[SimBroker]],
        history: History,
        chance: random.Random,
    ) -> None:
        self._name = name
        self._producer_id = producer_id
        self._partition = partition
        self._unsent = batches
        self._brokers = brokers
        self._history = history
        self._chance = chance
        self._timeout_s = chance.choice(REQUEST_TIMEOUTS_S)
        self._pause_s = chance.choice((0.02, 0.3, 0.8))
        self._next_number = 0
        self._next_seq = 0
        self._is_stopped = False

    @property
    def is_idempotent(self) -> bool:
        return self._producer_id >= 0

    async def run(self) -> None:
        """Begins at some time. Returns when every batch has a definite answer, or was given up by a producer without sequences, or when
        an answer was fatal.
        """
        await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0, START_S_MAX))))
        if self.is_idempotent:
            await self._run_idempotent()
        else:
            await self._run_plain()

    async def _run_idempotent(self) -> None:
        """Retries in order, with the sequences first given, through whichever broker: everything unanswered is sent again."""
        unanswered: deque[tuple[Sent, bytes]] = deque()
        while (self._unsent or unanswered) and not self._is_stopped:
            connection, broker = await self._connect()
            flying: deque[_InFlight] = deque()
            for sent, batch in unanswered:
                flying.append(self._send(connection, broker, sent, batch))
            while flying or self._unsent:
                while self._unsent and len(flying) < IN_FLIGHT_MAX and (not flying or self._chance.random() < 0.7):
                    sent, batch = self._make()
                    unanswered.append((sent, batch))
                    flying.append(self._send(connection, broker, sent, batch))
                first = flying.popleft()
                while self._unsent and len(flying) + 1 < IN_FLIGHT_MAX and not await self._is_answered(first):
                    sent, batch = self._make()
                    unanswered.append((sent, batch))
                    flying.append(self._send(connection, broker, sent, batch))
                if not await self._hear(first):
                    flying.appendleft(first)
                    break
                unanswered.popleft()
                await self._pause()
                if self._chance.random() < 0.1:
                    break
            self._leave(flying)
            await self._pause()

    async def _run_plain(self) -> None:
        while self._unsent and not self._is_stopped:
            sent, batch = self._make()
            while True:
                connection, broker = await self._connect()
                flying = self._send(connection, broker, sent, batch)
                is_heard = await self._hear(flying)
                self._leave([flying])
                if is_heard or self._chance.random() < GIVE_UP_RATE:
                    break
                await self._pause()
            await self._pause()

    def _make(self) -> tuple[Sent, bytes]:
        self._unsent -= 1
        count = self._chance.randint(1, 3)
        value = f"{self._name}:{self._next_number}".encode() + b"." * self._chance.choice((0, 0, 100))
        sent = Sent(self._name, self.is_idempotent, self._partition.partition, self._next_number, count, value)
        self._history.sent.append(sent)
        self._next_number += 1
        if not self.is_idempotent:
            return sent, encode(value, record_count=count)
        batch = encode(value, record_count=count, producer_id=self._producer_id, producer_epoch=0, first_seq=self._next_seq)
        self._next_seq += count
        return sent, batch

    async def _connect(self) -> tuple[Connection, SimBroker]:
        while True:
            broker = self._chance.choice(self._brokers())
            try:
                return broker.connect(), broker
            except ConnectionLost:
                await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    def _send(self, connection: Connection, broker: SimBroker, sent: Sent, batch: bytes) -> _InFlight:
        return _InFlight(sent, self._history.invoke(sent, broker.name), connection.produce(self._partition, batch))

    async def _hear(self, flying: _InFlight) -> bool:
        """Wait for the answer. True if it is an ack."""
        history, sent, attempt = self._history, flying.sent, flying.attempt
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await flying.answer
        except (TimeoutError, ConnectionLost) as error:
            history.end(sent, attempt, Outcome.UNKNOWN, cause=repr(error))
            return False
        if isinstance(answer, Appended):
            history.end(sent, attempt, Outcome.OK, offset=answer.base_offset)
            return True
        outcome = Outcome.UNKNOWN if isinstance(answer, OutcomeUnknown | Conflict) else Outcome.FAIL
        history.end(sent, attempt, outcome, cause=repr(answer))
        if not isinstance(answer, RETRIABLE):
            history.violation(f"fatal answer: {sent.value!r} broker={attempt.broker} answer={answer!r}")
            self._is_stopped = True
        return False

    async def _is_answered(self, flying: _InFlight) -> bool:
        """Wait for the answer for as long as there is nothing new to send."""
        answered, _ = await asyncio.wait({flying.answer}, timeout=self._chance.expovariate(1 / self._pause_s))
        return bool(answered)

    def _leave(self, flying: "deque[_InFlight] | list[_InFlight]") -> None:
        """Close the connection: what it still owes is never heard."""
        for one in flying:
            one.answer.cancel()
            if one.attempt.outcome is Outcome.OPEN:
                self._history.end(one.sent, one.attempt, Outcome.UNKNOWN, cause="connection closed")

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))
