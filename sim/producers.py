"""What producers have in common, and those without sequences: one batch in flight, or several that must not overtake a refusal."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker.protocol.produce import PartitionResult
from sim.batches import TIMESTAMP_MS, encode
from sim.broker import ConnectionLost, SimBroker
from sim.connection import SimConnection
from sim.history import PLAIN, Attempt, BatchIdentity, History, OperationOutcome, Sent
from sim.places import INDEFINITE, CurrentBrokers, Place
from storage.recordbatch import NO_PRODUCER

IN_FLIGHT_MAX: Final = 5
REQUEST_TIMEOUTS_S: Final = (0.5, 3.0, 35.0)
START_S_MAX: Final = 8.0
GIVE_UP_RATE: Final = 0.3
RECORDS_MAX: Final = 3
VALUE_BYTES_MIN: Final = 24
"""As many as RECORDS_MAX records take at least."""


@dataclass(slots=True)
class BatchInFlight:
    """A batch on its way, and the answer to it."""

    sent: Sent
    attempt: Attempt
    answer: "asyncio.Future[PartitionResult]"


class Producer:
    """Sends `batches` batches to one partition and knows in the end what became of each. `run` it."""

    def __init__(
        self,
        name: str,
        *,
        place: Place,
        batches: int,
        brokers: CurrentBrokers,
        history: History,
        chance: random.Random,
        pauses_s: tuple[float, ...] = (0.02, 0.3, 0.8),
        start_s_max: float = START_S_MAX,
    ) -> None:
        self._name = name
        self.place = place
        self._unsent = batches
        self._brokers = brokers
        self._history = history
        self._chance = chance
        self._timeout_s = chance.choice(REQUEST_TIMEOUTS_S)
        self._pause_s = chance.choice(pauses_s)
        self._next_number = 0
        self._is_stopped = False
        self._start_s_max = start_s_max
        self._size_padding = chance.choice((0, 0, 100))

    @property
    def is_idempotent(self) -> bool:
        return False

    async def run(self) -> None:
        """Begins at some time. Returns when every batch has a definite answer, or was given up, or when an answer was fatal."""
        await self._sleep_at_first()
        if self._chance.random() < 0.6:
            await self._run_one_by_one()
        else:
            await self._run_pipelined()

    async def _run_one_by_one(self) -> None:
        while self._unsent and not self._is_stopped:
            sent = self._make()
            while True:
                connection = await self._connect()
                flight = self._send(connection, sent, self._encode(sent, PLAIN), PLAIN)
                is_heard = await self._hear(flight)
                self._leave([flight])
                if is_heard or self._is_stopped or self._chance.random() < GIVE_UP_RATE:
                    break
                await self._pause()
            await self._pause()

    async def _run_pipelined(self) -> None:
        """Several in flight on one connection; after the first failure all unanswered are sent again on another."""
        unanswered: deque[Sent] = deque()
        while (self._unsent or unanswered) and not self._is_stopped:
            connection = await self._connect()
            flying = deque(self._send(connection, sent, self._encode(sent, PLAIN), PLAIN) for sent in unanswered)
            while flying or self._unsent:
                while self._unsent and len(flying) < IN_FLIGHT_MAX and (not flying or self._chance.random() < 0.8):
                    sent = self._make()
                    unanswered.append(sent)
                    flying.append(self._send(connection, sent, self._encode(sent, PLAIN), PLAIN))
                    await asyncio.sleep(self._chance.expovariate(1 / 0.01))
                if not await self._hear(flying[0]):
                    if self._chance.random() < 0.5:
                        for flight in flying:
                            await self._hear(flight)
                    break
                flying.popleft()
                await self._pause()
            self._leave(flying)
            unanswered = deque(sent for sent in unanswered if sent.acked is None)
            await self._pause()

    def _make(self) -> Sent:
        self._unsent -= 1
        count = self._chance.randint(1, RECORDS_MAX)
        value = f"{self._name}:{self._next_number}".encode().ljust(VALUE_BYTES_MIN + self._size_padding, b".")
        sent = Sent(self._name, self.is_idempotent, str(self.place), self._next_number, count, value)
        self._history.sent.append(sent)
        self._next_number += 1
        return sent

    def _encode(self, sent: Sent, identity: BatchIdentity) -> bytes:
        return encode(
            sent.value,
            record_count=sent.record_count,
            producer_id=identity.producer_id if identity != PLAIN else NO_PRODUCER,
            producer_epoch=identity.epoch,
            first_seq=identity.first_seq,
            timestamp_ms=TIMESTAMP_MS + sent.number % 5,
        )

    async def _connect(self) -> SimConnection:
        while True:
            try:
                return SimConnection(self._chance.choice(self._brokers()))
            except ConnectionLost:
                await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    def _send(self, connection: SimConnection, sent: Sent, batch: bytes, identity: BatchIdentity) -> BatchInFlight:
        attempt = self._history.invoke(sent, connection.broker.name, identity, connection.number)
        return BatchInFlight(sent, attempt, connection.produce(self.place.topic, self.place.partition, batch, attempt))

    async def _hear(self, flight: BatchInFlight) -> bool:
        """Wait for the answer. True if it is an ack."""
        history, sent, attempt = self._history, flight.sent, flight.attempt
        if attempt.outcome is not OperationOutcome.OPEN:
            return attempt.outcome is OperationOutcome.OK
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait({flight.answer})
                answer = flight.answer.result()
        except (TimeoutError, ConnectionLost) as error:
            history.end(sent, attempt, OperationOutcome.UNKNOWN, cause=repr(error))
            return False
        code = self._judge(flight, answer)
        if code is not ErrorCode.none and not self.place.is_deserved(code):
            self._complain(flight, answer)
        return code is ErrorCode.none

    def _judge(self, flight: BatchInFlight, answer: PartitionResult) -> ErrorCode:
        """Note what the answer means to a client."""
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.none:
            self._history.end(flight.sent, flight.attempt, OperationOutcome.OK, offset=answer.base_offset)
        else:
            outcome = OperationOutcome.UNKNOWN if code in INDEFINITE else OperationOutcome.FAIL
            self._history.end(flight.sent, flight.attempt, outcome, cause=f"{code.name} {answer.error_message}")
        return code

    def _complain(self, flight: BatchInFlight, answer: PartitionResult) -> None:
        code = ErrorCode(answer.error_code).name
        self._history.violation(f"fatal answer: {flight.sent.value!r} broker={flight.attempt.broker} {code} {answer.error_message}")
        self._is_stopped = True

    def _leave(self, flying: "deque[BatchInFlight] | list[BatchInFlight]") -> None:
        """Close the connection: what it still owes is never heard."""
        for one in flying:
            one.answer.cancel()
            if one.attempt.outcome is OperationOutcome.OPEN:
                self._history.end(one.sent, one.attempt, OperationOutcome.UNKNOWN, cause="connection closed")

    async def _sleep_at_first(self) -> None:
        await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0, self._start_s_max))))

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))

    def _broker(self) -> SimBroker:
        return self._chance.choice(self._brokers())
