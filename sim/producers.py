"""Producers, without sequences and idempotent, and the connection that carries their requests.

One without sequences has one batch in flight, or several that must not overtake a refusal. An idempotent one is as client libraries have
it: up to five batches in flight, sent again with the sequences they were first given. A connection takes requests in the order sent, begins
them before earlier ones are done, and answers them in order.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5 import InitProducerIdRequest

from broker.handlers.log import init_producer_id
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i16, as_producer_id
from broker.protocol.codec import as_field
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest
from broker.protocol.wire import Request
from sim.batches import TIMESTAMP_MS, encode
from sim.broker import HANDLER_TIMEOUT_S, INDEFINITE, ConnectionLost, CurrentBrokers, Place, Serving, SimBroker, fail
from sim.history import PLAIN, Attempt, BatchIdentity, History, OperationOutcome, Sent
from storage.catalog.topics import Topic
from storage.errors import StorageError, Unavailable
from storage.recordbatch import NO_PRODUCER

PRODUCE_VERSION: Final = 11
REQUESTS_MAX: Final = 64
"""On their way at a time; clients keep far fewer."""
IN_FLIGHT_MAX: Final = 5
REQUEST_TIMEOUTS_S: Final = (0.5, 3.0, 35.0)
START_S_MAX: Final = 8.0
GIVE_UP_RATE: Final = 0.3
RECORDS_MAX: Final = 3
VALUE_BYTES_MIN: Final = 24
"""As many as RECORDS_MAX records take at least."""
INIT_PRODUCER_ID: Final = 22
INIT_VERSION: Final = 4
ASK_TIMEOUT_S: Final = 5.0
MOVE_RATE: Final = 0.15
SPEED_RATE: Final = 0.7
IDEMPOTENT_GIVE_UP_RATE: Final = 0.15
"""How likely a producer that gives up does so when its first batch has failed again."""


LATER_RATE: Final = 0.3
LATER_S: Final = (0.1, 0.8)
"""With what an upload may take less than an unknown producer waits for (SHORTEST_WAIT): no client is slower; a real broker has 35 s."""


class Arriving:
    """A request on its way. `attempt` learns when it arrived and when its answer was known."""

    def __init__(self, topic: str, partition: int, batch: bytes, attempt: Attempt, answer: "asyncio.Future[PartitionResult]") -> None:
        self.attempt = attempt
        self.answer = answer
        self.settled: asyncio.Future[PartitionResult] = asyncio.get_running_loop().create_future()
        self.topic = topic
        self.partition = partition
        self.batch = batch


class SimConnection:
    """Its requests arrive even when it is closed meanwhile, and those that need not wait are begun."""

    def __init__(self, broker: SimBroker) -> None:
        """Raises `ConnectionLost` if nobody listens."""
        serving = broker.serving
        self.number = broker.history.next_connection()
        self.broker = broker
        self._arriving: asyncio.Queue[Arriving] = asyncio.Queue(maxsize=REQUESTS_MAX)
        self._begun: asyncio.Queue[Arriving] = asyncio.Queue(maxsize=REQUESTS_MAX)
        serving.nursery.spawn(self._serve(serving), name="connection")
        serving.nursery.spawn(self._reply(), name="replies")

    def produce(self, topic: str, partition: int, batch: bytes, attempt: Attempt) -> "asyncio.Future[PartitionResult]":
        """The future may fail with `ConnectionLost`."""
        answer: asyncio.Future[PartitionResult] = asyncio.get_running_loop().create_future()
        self.broker.expect(answer)
        if not self.broker.is_up:
            fail(answer, ConnectionLost(self.broker.name))
        self._arriving.put_nowait(Arriving(topic, partition, batch, attempt, answer))
        return answer

    async def _serve(self, serving: Serving) -> None:
        while True:
            arriving = await self._arriving.get()
            await self.broker.travel()
            arriving.attempt.arrived_s = self.broker.history.now_s
            self.broker.check_registration()
            if not await self._take(serving, arriving):
                return

    async def _take(self, serving: Serving, arriving: Arriving) -> bool:
        """False if the connection is closed."""
        accounts = self.broker.accounts
        frame = accounts.receive(arriving.batch)
        cost_bytes = frame.cost_bytes
        request = ProduceRequest(None, -1, 30_000, [PartitionRecords(arriving.topic, arriving.partition, memoryview(frame))])
        del frame
        arrived = serving.produce.losses
        topics: dict[str, Topic] | StorageError | None = serving.produce.find_topics(request)
        if topics is None:
            topics = await self._look_up(serving, request)
            if arriving.answer.cancelled():
                # The client closed the connection meanwhile: what has not begun goes with it.
                accounts.let_go(cost_bytes)
                return False
        self._start(serving, arriving, request, topics, cost_bytes, arrived)
        return True

    async def _look_up(self, serving: Serving, request: ProduceRequest) -> dict[str, Topic] | StorageError:
        """As the dispatcher does: nothing that follows on this connection begins before."""
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                topics, unread = await serving.produce.lookup_topics({named.topic: named.partition for named in request.partitions})
            return next(iter(unread.values()), topics)  # of one partition, which is then not among those of `topics`
        except TimeoutError:
            return Unavailable("the topic cannot be looked up")

    def _start(
        self,
        serving: Serving,
        arriving: Arriving,
        request: ProduceRequest,
        topics: dict[str, Topic] | StorageError,
        cost_bytes: int,
        arrived: int,
    ) -> None:
        self._begun.put_nowait(arriving)
        accounts = self.broker.accounts
        size_bytes = 0 if isinstance(topics, StorageError) else len(arriving.batch)
        accounts.begin(size_bytes)

        def done(results: list[PartitionResult]) -> None:
            (result,) = results
            accounts.answer(size_bytes)
            accounts.let_go(cost_bytes)
            if arriving.settled.done():
                return  # the broker was killed: what its timers still do concerns nobody
            arriving.attempt.settled_s = self.broker.history.now_s
            if result.error_code not in INDEFINITE:
                arriving.attempt.was_taken = not result.error_code
            arriving.settled.set_result(result)

        if isinstance(topics, StorageError):
            done([PartitionResult(arriving.topic, arriving.partition, error_code_of(topics))])
        else:
            serving.produce.start(request, topics, version=PRODUCE_VERSION, source=self, done=done, arrived=arrived)

    async def _reply(self) -> None:
        """As broker/protocol/session.py releases replies."""
        while True:
            arriving = await self._begun.get()
            result = await arriving.settled
            await self.broker.travel()
            if not arriving.answer.done():
                arriving.answer.set_result(result)


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
        if not self._gives_up or not self._window or self._window[0].failures < 2 or self._chance.random() > IDEMPOTENT_GIVE_UP_RATE:
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
