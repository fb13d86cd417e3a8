"""A connection that carries Produce requests: taken in the order sent, begun before earlier ones are done, answered in order."""

import asyncio
from typing import Final

from broker.handling.errors import error_code_of
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest
from sim.broker import HANDLER_TIMEOUT_S, ConnectionLost, Serving, SimBroker, fail
from sim.history import Attempt
from sim.places import INDEFINITE
from storage.catalog.topics import Topic
from storage.errors import StorageError, Unavailable

PRODUCE_VERSION: Final = 11
REQUESTS_MAX: Final = 64
"""On their way at a time; clients keep far fewer."""


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
