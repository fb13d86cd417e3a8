"""An idempotent producer as client libraries have it: up to five batches in flight, sent again with the sequences they were first given.

Java's sends what failed one by one, the first of its sequences first, and goes on elsewhere when its metadata says so while earlier batches
are on their way; librdkafka's closes the connection and sends all that is unanswered in order. Either gives a batch up after some time, or
when nobody knows its sequences any more, and begins at sequence 0 again under the next epoch (Java) or under a new id (librdkafka): what
was unanswered is sent again as something new, and is there twice if it was there already.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5 import InitProducerIdRequest

from broker.handlers.log import init_producer_id
from broker.handling.kio_types import as_i16, as_producer_id
from broker.protocol.codec import as_field
from broker.protocol.request import Request
from sim.broker import ConnectionLost, Serving
from sim.connection import SimConnection
from sim.history import BatchIdentity, OperationOutcome, Sent
from sim.producers import IN_FLIGHT_MAX, BatchInFlight, Producer

INIT_PRODUCER_ID: Final = 22
INIT_VERSION: Final = 4
ASK_TIMEOUT_S: Final = 5.0
MOVE_RATE: Final = 0.15
SPEED_RATE: Final = 0.7
GIVE_UP_RATE: Final = 0.15
"""How likely a producer that gives up does so when its first batch has failed again."""


LATER_RATE: Final = 0.3
LATER_S: Final = (0.1, 0.8)
"""With what an upload may take less than a stranger waits for (SHORTEST_WAIT): no client is slower, beside the 35 s of a real broker."""


class Style(Enum):
    """How a client sends again what failed."""

    JAVA = "java"  # one by one, the first of its sequences first, while other connections go on
    LIBRDKAFKA = "librdkafka"  # all that is unanswered, in order, on a new connection
    EAGER = "eager"  # each by itself, most at once and some later, whatever becomes of the others


@dataclass(slots=True)
class Pending:
    """A batch without an ack. `was_next`: when it was sent, all before it had one. `first_sent_s`: with these sequences."""

    sent: Sent
    first_seq: int
    flight: BatchInFlight | None = None
    connection: SimConnection | None = None
    failures: int = 0
    was_next: bool = False
    first_sent_s: float = math.inf
    send_again_s: float = 0.0


class IdempotentProducer(Producer):
    def __init__(
        self,
        name: str,
        *,
        chance: random.Random,
        note_id: Callable[[int], None],
        style: Style,
        delivery_timeout_s: float = math.inf,
        **how: Any,
    ) -> None:
        """`note_id` is given each producer id that a broker gave."""
        super().__init__(name, chance=chance, **how)
        self._note_id = note_id
        self._style = style
        self._delivery_timeout_s = delivery_timeout_s
        self._gives_up = chance.random() < 0.3
        self._producer_id = -1
        self._epoch = 0
        self._next_seq = 0
        self._window: list[Pending] = []
        self._connection: SimConnection | None = None
        self._next_batch_s = 0.0
        self._must_begin_anew = False

    @property
    def is_idempotent(self) -> bool:
        return True

    async def run(self) -> None:
        await self._sleep_at_first()
        await self._take_id()
        while (self._unsent or self._window) and not self._is_stopped:
            if self._connection is None:
                self._connection = await self._connect()
            if self._is_overdue():
                await self._give_up()
                continue
            self._send_again(self._connection)
            await self._send_new()
            await self._listen()
        self._leave([pending.flight for pending in self._window if pending.flight is not None])

    async def _take_id(self) -> None:
        """A new producer id, from any broker."""
        while True:
            code, producer_id, epoch = ErrorCode.none, -1, -1
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    code, producer_id, epoch = await self._broker().ask(_init_producer_id)
            except (TimeoutError, ConnectionLost):
                pass
            if producer_id >= 0:
                self._note_id(producer_id)
                self._producer_id, self._epoch, self._next_seq = producer_id, epoch, 0
                return
            if code is not ErrorCode.none and not code.retriable:
                self._history.violation(f"fatal answer: no producer id: {self._name} {code.name}")
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))

    def _send_again(self, connection: SimConnection) -> None:
        waiting = [pending for pending in self._window if pending.flight is None]
        if self._style is Style.JAVA:
            # One at a time: the next is sent when the first of all has its ack.
            waiting = [pending for pending in waiting[:1] if pending is self._window[0]]
        elif self._style is Style.EAGER:
            waiting = [pending for pending in waiting if pending.send_again_s <= self._history.now_s]
        for pending in waiting:
            self._fly(pending, connection)

    @property
    def _may_send_new(self) -> bool:
        """Not while something waits to be sent again, nor further ahead of what has no ack than a broker remembers."""
        is_clear = all(pending.flight is not None and not pending.failures for pending in self._window)
        span = self._next_number - self._window[0].sent.number if self._window else 0
        return bool(self._unsent) and is_clear and span < IN_FLIGHT_MAX

    async def _send_new(self) -> None:
        while self._may_send_new and self._history.now_s >= self._next_batch_s:
            if self._style is Style.JAVA and self._window and self._chance.random() < MOVE_RATE:
                self._connection = await self._connect()
            assert self._connection is not None
            sent = self._make()
            pending = Pending(sent, self._next_seq)
            self._next_seq += sent.record_count
            self._window.append(pending)
            self._fly(pending, self._connection)
            if self._chance.random() > SPEED_RATE:
                self._next_batch_s = self._history.now_s + self._chance.expovariate(1 / self._pause_s)

    def _fly(self, pending: Pending, connection: SimConnection) -> None:
        identity = BatchIdentity(self._producer_id, self._epoch, pending.first_seq)
        pending.was_next = pending is self._window[0]
        pending.first_sent_s = min(pending.first_sent_s, self._history.now_s)
        pending.connection = connection
        pending.flight = self._send(connection, pending.sent, self._encode(pending.sent, identity), identity)

    async def _listen(self) -> None:
        """Until something is heard, or there is something to do."""
        flying = [pending for pending in self._window if pending.flight is not None]
        now_s = self._history.now_s
        if not flying:
            await asyncio.sleep(max(self._next_batch_s - now_s, self._chance.expovariate(1 / self._pause_s)))
            return
        until_s = min(pending.flight.attempt.invoked_s for pending in flying if pending.flight is not None) + self._timeout_s
        if self._may_send_new:
            until_s = min(until_s, self._next_batch_s)
        answers = [pending.flight.answer for pending in flying if pending.flight is not None]
        await asyncio.wait(answers, timeout=max(until_s - now_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        lost: set[int] = set()
        for pending in flying:
            flight = pending.flight
            if flight is None or pending.connection is None:
                continue
            if flight.answer.done():
                if not self._take_in(pending, flight):
                    lost.add(pending.connection.number)
            elif self._history.now_s >= flight.attempt.invoked_s + self._timeout_s:
                lost.add(pending.connection.number)
        if lost:
            self._close(lost)
            if self._must_begin_anew:
                await self._begin_anew()
            else:
                await self._consider_giving_up()
            await self._pause()

    def _take_in(self, pending: Pending, flight: BatchInFlight) -> bool:
        """Take in an answer. False if the caller must close the connection."""
        try:
            answer = flight.answer.result()
        except ConnectionLost as error:
            self._history.end(flight.sent, flight.attempt, OperationOutcome.UNKNOWN, cause=repr(error))
            pending.flight, pending.failures = None, pending.failures + 1
            return False
        code = self._judge(flight, answer)
        if code is ErrorCode.none:
            self._window.remove(pending)
            return True
        pending.flight, pending.failures = None, pending.failures + 1
        if self._style is Style.EAGER and self._chance.random() < LATER_RATE:
            pending.send_again_s = self._history.now_s + self._chance.uniform(*LATER_S)
        if code is ErrorCode.out_of_order_sequence_number and not pending.was_next:
            return True  # what comes before it has no ack: it is sent again behind that
        if code is ErrorCode.out_of_order_sequence_number and self.place.is_fleeting:
            self._must_begin_anew = True
            return False
        if not self.place.is_deserved(code):
            self._complain(flight, answer)
        return self._style is not Style.LIBRDKAFKA

    def _close(self, connections: set[int]) -> None:
        """What was sent there is sent again; librdkafka's has one connection to a partition's leader."""
        for pending in self._window:
            if pending.flight is not None and (
                self._style is Style.LIBRDKAFKA or (pending.connection and pending.connection.number in connections)
            ):
                self._leave([pending.flight])
                pending.flight, pending.failures = None, pending.failures + 1
        self._connection = None

    async def _consider_giving_up(self) -> None:
        if not self._gives_up or not self._window or self._window[0].failures < 2 or self._chance.random() > GIVE_UP_RATE:
            return
        await self._give_up()

    def _is_overdue(self) -> bool:
        """Something would be sent again that was sent too long ago."""
        before_s = self._history.now_s - self._delivery_timeout_s
        return any(pending.flight is None and pending.first_sent_s <= before_s for pending in self._window)

    async def _give_up(self) -> None:
        """The first that has no ack."""
        self._history.trace(self._name, "gives up", self._window[0].sent.number)
        if (flight := self._window.pop(0).flight) is not None:
            self._leave([flight])
        await self._begin_anew()

    async def _begin_anew(self) -> None:
        """All that has no ack goes out as something new, from sequence 0 on."""
        self._must_begin_anew = False
        self._leave([pending.flight for pending in self._window if pending.flight is not None])
        if self._style is Style.JAVA:
            self._epoch += 1
            self._next_seq = 0
        else:
            await self._take_id()
        self._connection = None
        for pending in self._window:
            pending.flight, pending.first_seq, pending.first_sent_s = None, self._next_seq, math.inf
            self._next_seq += pending.sent.record_count


async def _init_producer_id(serving: Serving) -> tuple[ErrorCode, int, int]:
    body = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout=as_field(60_000),
        producer_id=as_producer_id(-1),
        producer_epoch=as_i16(-1),
    )
    answer = await init_producer_id.handle(serving.context, Request(INIT_PRODUCER_ID, INIT_VERSION, 0, "sim", body))
    return answer.error_code, answer.producer_id, answer.producer_epoch
