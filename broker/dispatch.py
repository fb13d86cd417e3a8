"""Requests to handlers: decode, bound by a deadline, count, encode; and what happens when a handler fails in an unforeseen way.

`SlowRequests` logs which requests take long, by the slowest of each ten seconds.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import structlog
from kio.schema.errors import ErrorCode
from prometheus_client import Counter, Histogram

from broker.cluster.registration import ControlledShutdown
from broker.handlers.log.fetch import Fetch
from broker.handlers.log.produce import NOTHING_UNREAD, BatchRoom, Produce, WideProduce, read_wide, refuse_all, write_wide
from broker.handlers.log.repeated_list_offsets import RepeatedListOffsets, replied
from broker.handlers.table import HANDLERS
from broker.handling.context import BrokerParts, Context, LargeAnswer
from broker.protocol import apis, codec, fetch, produce
from broker.protocol.codec import first_error_in_steps, first_error_of, let_go_in_steps
from broker.protocol.list_offsets import RepeatedRequest
from broker.protocol.produce import LonePrefix, LoneProduce, PartitionRecords, PartitionResult, ProduceRequest, ProduceResponse
from broker.protocol.wire import ProtocolViolation, Request
from broker.responses import LARGE_REPLY_BYTES, HasReplies, Responses
from runtime.clock import Clock
from runtime.deadlines import within
from runtime.logs import Cancellable, Rarely
from runtime.telemetry import Children, Metric, Telemetry
from runtime.turns import in_turns
from storage.catalog.brokers import Role
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.limits import KIB
from storage.vocabulary import Buffer

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10 import ListOffsetsRequest

REQUESTS: Final = Metric("forebay_kafka_requests_total", "Requests answered, by API and the first error in the answer", ("api", "error"))
REQUEST_SECONDS: Final = Metric("forebay_kafka_request_duration_seconds", "From the last byte of a request to its answer", ("api",))
REQUEST_BYTES: Final = Metric("forebay_kafka_request_bytes_total", "Bytes of frames", ("api", "direction"))
UNEXPECTED: Final = Metric("forebay_unexpected_errors_total", "Requests that failed in a way no handler foresaw; each is a bug")

WAITING_APIS: Final = (11, 14)
"""JoinGroup and SyncGroup wait for other members, within bounds of their own."""
LARGE_REQUEST_BYTES: Final = 64 * KIB
"""Larger requests other than Produce and Fetch are handled one at a time: their values take many times the memory of their bytes."""
LONG_REQUEST_BYTES: Final = 4 * KIB
"""Larger requests other than Produce and Fetch are decoded one at a time, one step per turn of the event loop."""
LARGE_ANSWERS_MAX: Final = 4
"""How many are made and written at a time: each takes a step per turn of the event loop, and 10,000 partitions hold 3 MiB until written."""
LONG_REPLY_BYTES: Final = 16 * KIB
"""The values of larger requests are searched and released in steps."""

_API_VERSIONS: Final = 18

SHUTTING_DOWN: Final = "this broker is shutting down: look for the leader again"

log = structlog.get_logger("dispatch")
_slow_log = structlog.get_logger("requests")

Done = Callable[[Sequence[Buffer] | None], None]


class Slow(NamedTuple):
    """A request that took long. Long polls have their own time on top of `slow_request_s`."""

    seconds: float
    api: str
    error: str
    client_host: str
    client_id: str | None


class SlowRequests:
    """Remembers one request: nothing grows with how many are slow."""

    def __init__(self, *, later: Callable[[float, Callable[[], None]], Cancellable]) -> None:
        """`later` is `call_later` of the loop."""
        self._rarely = Rarely(self._say, later=later)
        self._slowest: Slow | None = None

    def note(self, slow: Slow) -> None:
        if self._slowest is None or slow.seconds > self._slowest.seconds:
            self._slowest = slow
        self._rarely.happened()

    def _say(self, count: int) -> None:
        slowest, self._slowest = self._slowest, None
        assert slowest is not None, "said without one that was noted"
        _slow_log.warning(
            "slow_requests",
            count=count,
            slowest_s=round(slowest.seconds, 3),
            api=slowest.api,
            error=slowest.error,
            client_host=slowest.client_host,
            client_id=slowest.client_id,
        )


class Unanswerable(Exception):
    """There is no answer, and the client did not cause that: its connection is closed so that it tries again."""


class Client(Protocol):
    """The connection a request came by."""

    client_id: str | None
    lone_prefix: LonePrefix | None
    """What its last Produce request began with, if it had one partition."""

    @property
    def listener(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def address(self) -> HasReplies: ...

    def close(self) -> None:
        """Returns after the bytes buffered for the client have been sent."""
        ...

    def until_written(self, release: Callable[[], None], covered_bytes: int) -> None:
        """Call `release` once, when the client has taken the next reply or never will. It counts that many bytes of the reply."""
        ...

    def when_followed(self, call: Callable[[], None] | None) -> None:
        """Call `call` once when a request other than a Fetch waits behind the one that runs, at once if one does. None: no longer."""
        ...


Start = Callable[[memoryview, Client, Done], bool]


@dataclass(slots=True)
class ApiMeter:
    """The bound metrics of one API."""

    requests: Counter
    seconds: Histogram
    bytes_in: Counter
    bytes_out: Counter
    name: str
    by_error: dict[int, Counter]

    def answered(self, error_code: int, seconds: float, size_in: int, size_out: int) -> None:
        counter = self.by_error.get(error_code)
        if counter is None:
            error = ErrorCode(error_code).name.upper()
            counter = self.by_error[error_code] = self.requests.labels(self.name, error)
        counter.inc()
        self.seconds.observe(seconds)
        self.bytes_in.inc(size_in)
        self.bytes_out.inc(size_out)


class Dispatch:
    """What a connection hands its frames to."""

    def __init__(
        self,
        *,
        parts: BrokerParts,
        produce_handler: Produce,
        fetch_handler: Fetch,
        controlled_shutdown: ControlledShutdown,
        responses: Responses,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._parts = parts
        self._slow_s = parts.limits.slow_request_s
        self._timeout_s = parts.limits.handler_timeout_s
        self._waiting_timeouts_s = dict.fromkeys(WAITING_APIS, 2 * parts.groups.limits.join_wait_s_max)
        self._controlled_shutdown = controlled_shutdown
        self._leaves_producing = Role.PRODUCE not in parts.roles.own
        self._produce = produce_handler
        self._fetch = fetch_handler
        self._responses = responses
        self._clock = clock
        requests, seconds = telemetry.counter(REQUESTS), telemetry.histogram(REQUEST_SECONDS)
        size = telemetry.counter(REQUEST_BYTES)
        names = {api.key: api.name for api in apis.APIS}

        def meter_of(api_key: int) -> ApiMeter:
            name = names[api_key]
            return ApiMeter(requests, seconds.labels(name), size.labels(name, "in"), size.labels(name, "out"), name, {})

        self._meters = Children(meter_of)
        self._room = BatchRoom(telemetry=telemetry)
        self.wide_produce = WideProduce(produce_handler, self._room, limits=parts.limits)
        """For requests of any width, which take their batches' room of what all of them share."""
        self._repeated = RepeatedListOffsets(parts)
        self._reading_wide = asyncio.Lock()
        self._large = asyncio.Semaphore()
        self._beginning = asyncio.Lock()
        self._met: set[tuple[int, int]] = set()
        self._large_answers = asyncio.Semaphore(LARGE_ANSWERS_MAX)
        self._unexpected = telemetry.counter(UNEXPECTED)
        self._slow = SlowRequests(later=asyncio.get_running_loop().call_later)

    def is_overlapping(self, frame: memoryview) -> bool:
        """Produce requests (key 0) may run beside others of their connection."""
        return len(frame) > 1 and frame[0] == 0 and frame[1] == codec.PRODUCE

    def is_fetch(self, frame: memoryview) -> bool:
        return len(frame) > 1 and frame[0] == 0 and frame[1] == codec.FETCH

    def is_repeated(self, frame: memoryview) -> bool:
        """True for a question for offsets (key 2) that was answered before, and is answered together with others like it."""
        return len(frame) > 1 and frame[0] == 0 and frame[1] == codec.LIST_OFFSETS and self._repeated.find(frame) is not None

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        prefix = connection.lone_prefix
        if prefix is not None and not self._controlled_shutdown.is_asking and not self._leaves_producing:
            lone = prefix.match(frame)
            if lone is not None and self._start_lone(prefix, lone, len(frame), connection, done):
                return True
        return self._start(frame, connection, done, self._produce.find_topics)

    def _start_lone(self, prefix: LonePrefix, lone: LoneProduce, size_bytes: int, connection: Client, done: Done) -> bool:
        """As `_start`, of a request that is like the last one. False: nothing was begun, and it is for `_start`."""
        version, correlation_id = prefix.version, lone.correlation_id
        found = self._produce.find_lone(prefix.topic, lone.partition)
        if found is None or not self._room.take_now(1):
            return False
        began_s = self._clock.monotonic_s()
        is_answered = False

        def finish(result: PartitionResult) -> None:
            nonlocal is_answered
            is_answered = True
            self._room.give_back(1)
            reply: bytes | bytearray | None
            try:
                if self._controlled_shutdown.is_asking or result.error_code:
                    throttle_ms = self._controlled_shutdown.throttle_ms(connection)
                    reply = produce.write_response(version, correlation_id, ProduceResponse([result], throttle_ms))
                else:
                    reply = prefix.reply(correlation_id, result)
            except Exception:  # noqa: BLE001 - the caller is the log, which must go on for all the others
                self._note_unexpected(connection)
                connection.close()
                reply = None
            self._note_produced(began_s, result.error_code, size_bytes, len(reply or b""), connection)
            done(None if reply is None else [reply])

        try:
            named = PartitionRecords(prefix.topic, lone.partition, lone.records)
            self._produce.start_lone(named, found, version=version, source=connection, done=finish)
        except Exception as error:
            if not is_answered:
                self._room.give_back(1)
            raise self._unanswerable(error, connection) from error
        return True

    async def prepare(self, frame: memoryview, connection: Client) -> Start | None:
        """Look up the topics of a Produce request, and wait for room for its batches. Nothing else of the connection runs meanwhile, so no
        later request overtakes it. None for a request that names too many partitions to be handled beside others.
        """
        _, request = self._read_produce(frame, connection)
        if request is None:
            return None
        batches = len(request.partitions)
        arrived = self._produce.losses
        highest: dict[str, int] = {}
        for topic, partition, _ in request.partitions:
            highest[topic] = max(partition, highest.get(topic, partition))
        del request  # read again afterwards: many of these may wait, and their values are larger than their bytes
        try:
            async with asyncio.timeout(self._timeout_s):
                topics, unread = await self._produce.lookup_topics(highest)
                await self._room.take(batches)
        except ProtocolViolation:
            raise
        except Exception as error:
            raise self._unanswerable(error, connection) from error
        return lambda frame, connection, done: self._start(frame, connection, done, lambda _request: topics, unread, arrived=arrived)

    def _start(
        self,
        frame: memoryview,
        connection: Client,
        done: Done,
        find_topics: Callable[[ProduceRequest], dict[str, Topic] | None],
        unread: Mapping[str, StorageError] = NOTHING_UNREAD,
        *,
        arrived: int | None = None,
    ) -> bool:
        """`arrived`: it has arrived earlier, and room was taken for its batches."""
        began_s = self._clock.monotonic_s()
        header, request = self._read_produce(frame, connection)
        if request is None:
            return False
        batches = len(request.partitions)
        connection.lone_prefix = LonePrefix.of(header.api_version, frame, header.body_position, request) if batches == 1 else None
        refusal = self._refusal(request, connection)
        is_refused = refusal is not None
        topics = {} if is_refused else find_topics(request)
        if topics is None or not (arrived is not None or self._room.take_now(batches)):
            return False
        is_answered = False

        def finish(results: list[PartitionResult]) -> None:
            nonlocal is_answered
            is_answered = True
            self._room.give_back(batches)
            try:
                reply = self._answer_produce(header, request, results, connection)
            except Exception:  # noqa: BLE001 - the caller is the log, which must go on for all the others
                self._note_unexpected(connection)
                connection.close()
                reply = None
            first_error = next((result.error_code for result in results if result.error_code), 0)
            self._note_produced(began_s, first_error, len(frame), sum(map(len, reply or ())), connection)
            done(reply)

        try:
            if is_refused:
                code = ErrorCode.not_leader_or_follower
                finish([PartitionResult(topic, partition, code, error_message=refusal) for topic, partition, _ in request.partitions])
            else:
                self._produce.start(
                    request, topics, version=header.api_version, source=connection, done=finish, unread=unread, arrived=arrived
                )
        except Exception as error:
            if not is_answered:
                self._room.give_back(batches)
            if isinstance(error, ProtocolViolation):
                raise
            raise self._unanswerable(error, connection) from error
        return True

    def _refusal(self, request: ProduceRequest, connection: Client) -> str | None:
        """Why its client has to look for the leader again. One that waits for no answer (acks=0) cannot learn of it, so it is served."""
        if request.acks == 0:
            return None
        if self._controlled_shutdown.is_refusing:
            return SHUTTING_DOWN
        return self._parts.roles.refuses(Role.PRODUCE, connection.listener) if self._leaves_producing else None

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """Raises `ProtocolViolation` and `Unanswerable`: the caller closes the connection."""
        began_s, size_bytes = self._clock.monotonic_s(), len(frame)
        try:
            header, reply, error_code = await self._handle(frame, connection)
        except ProtocolViolation:
            raise
        except Exception as error:
            raise self._unanswerable(error, connection) from error
        seconds, meter = self._clock.monotonic_s() - began_s, self._meters[header.api_key]
        meter.answered(error_code, seconds, size_bytes, sum(map(len, reply or ())))
        if seconds >= self._slow_s and seconds - self._slow_s >= self._may_wait_s(header, frame):
            self._note_slow(meter, seconds, error_code, connection)
        return reply

    async def handle_repeated(self, frames: Sequence[memoryview], connection: Client) -> list[Sequence[Buffer] | None]:
        """As `handle`, of several that `is_repeated`, in their order."""
        began_s = self._clock.monotonic_s()
        asked = [self._repeated.find(frame) for frame in frames]
        answers = await self._ends_of(asked, connection)
        seconds, meter = self._clock.monotonic_s() - began_s, self._meters[codec.LIST_OFFSETS]
        replies: list[Sequence[Buffer] | None] = []
        is_asked_again = False
        for frame, request in zip(frames, asked, strict=True):
            ends = None if request is None else answers.get(request)
            if request is None or ends is None:
                replies.append(await self.handle(frame, connection))
                if not is_asked_again:
                    # Its topics are in the cache again: the others that named them need not be looked up one by one.
                    is_asked_again = True
                    answers |= await self._ends_of([one for one in asked[len(replies) :] if one not in answers], connection)
                continue
            connection.client_id = request.client_id
            reply, first_error = replied(request, frame, ends)
            meter.answered(first_error, seconds, len(frame), len(reply))
            if seconds >= self._slow_s:
                self._note_slow(meter, seconds, first_error, connection)
            replies.append([reply])
        return replies

    async def _ends_of(self, asked: Sequence[RepeatedRequest | None], connection: Client) -> dict[RepeatedRequest, list[int | ErrorCode]]:
        try:
            return await within(self._timeout_s, self._repeated.answer([request for request in asked if request is not None]))
        except Exception as error:
            raise self._unanswerable(error, connection) from error

    async def _handle(self, frame: memoryview, connection: Client) -> tuple[codec.RequestHeader, Sequence[Buffer] | None, int]:
        header = self._read_header(frame, connection)
        if not apis.is_served(header.api_key, header.api_version):
            if header.api_key != _API_VERSIONS:
                raise ProtocolViolation(f"not served: api_key={header.api_key} api_version={header.api_version}")
            from broker.handlers.cluster.api_versions import unsupported_version

            refusal = codec.encode_response(_API_VERSIONS, 0, header.correlation_id, unsupported_version())
            return header, refusal, ErrorCode.unsupported_version
        if header.api_key == codec.FETCH:
            return await self._handle_fetch(header, frame, connection)
        if header.api_key == codec.PRODUCE:
            return await self._handle_wide(header, frame, connection)
        waits_s = self._waiting_timeouts_s.get(header.api_key)
        place = LargeAnswer(self._large_answers)
        try:
            if waits_s is None and len(frame) > LARGE_REQUEST_BYTES:
                async with asyncio.timeout(self._timeout_s), self._large:
                    return await self._answer(header, frame, connection, place)
            return await within(waits_s or self._timeout_s, self._answer(header, frame, connection, place))
        finally:
            place.give_back()

    async def _answer(
        self, header: codec.RequestHeader, frame: memoryview, connection: Client, place: LargeAnswer
    ) -> tuple[codec.RequestHeader, Sequence[Buffer], int]:
        if (header.api_key, header.api_version) not in self._met:
            await self._meet(header.api_key, header.api_version)
        is_long = len(frame) > LONG_REQUEST_BYTES
        if is_long:
            async with self._beginning:
                await asyncio.sleep(0)
                body = await in_turns(codec.decode_in_steps(header.api_key, header.api_version, frame, header.body_position))
        else:
            body = codec.decode_request(header.api_key, header.api_version, frame, header.body_position)
        if header.api_key in self._waiting_timeouts_s:
            frame.release()  # it may wait for an hour, and who keeps what it says counts that
        request = Request(header.api_key, header.api_version, header.correlation_id, header.client_id, body)
        context = Context(self._parts, connection.listener, connection.client_host, place)
        answer = await HANDLERS[header.api_key](context, request)
        reply = await self._encode(header, answer, place)
        if header.api_key == codec.LIST_OFFSETS and not is_long:
            self._repeated.learn(header.api_version, frame, cast("ListOffsetsRequest", body), header.client_id)
        if len(reply) > LARGE_REPLY_BYTES:
            await self._take_room(len(reply), connection)
        if not is_long and len(reply) <= LONG_REPLY_BYTES:
            return header, [reply], first_error_of(answer)
        error_code = await in_turns(first_error_in_steps(answer))
        held = [body, answer]
        del body, answer, request
        await in_turns(let_go_in_steps(held))
        return header, [reply], error_code

    async def _meet(self, api_key: int, version: int) -> None:
        """Load the handler and compile the codec of a version when a client asks for it first, with turns for others in between."""
        HANDLERS[api_key]  # imports it
        for _ in codec.compile_in_steps(api_key, version):
            await asyncio.sleep(0)
        self._met.add((api_key, version))

    async def _encode(self, header: codec.RequestHeader, answer: object, place: LargeAnswer) -> bytearray:
        """A few requests at a time write large answers beyond the first step, with a turn for others after each step."""
        reply = bytearray()
        for _ in codec.encode_in_steps(header.api_key, header.api_version, header.correlation_id, answer, reply):
            await place.take()
            await asyncio.sleep(0)
        return reply

    async def _handle_wide(
        self, header: codec.RequestHeader, frame: memoryview, connection: Client
    ) -> tuple[codec.RequestHeader, Sequence[Buffer] | None, int]:
        async with self._reading_wide:
            request = await read_wide(header.api_version, frame, header.body_position)
        if (refusal := self._refusal(request, connection)) is not None:
            results = await refuse_all(request, ErrorCode.not_leader_or_follower, refusal)
        else:
            results = await self.wide_produce.handle(request, version=header.api_version, source=connection)
        first_error = next((result.error_code for result in results if result.error_code), 0)
        if request.acks == 0:
            if first_error:
                connection.close()
            return header, None, first_error
        throttle_ms = self._controlled_shutdown.throttle_ms(connection) if self._controlled_shutdown.is_asking else 0
        reply = await write_wide(header.api_version, header.correlation_id, ProduceResponse(results, throttle_ms))
        return header, [reply], first_error

    async def _handle_fetch(
        self, header: codec.RequestHeader, frame: memoryview, connection: Client
    ) -> tuple[codec.RequestHeader, Sequence[Buffer], int]:
        request = fetch.read_narrow(header.api_version, frame, header.body_position)
        if request is None:
            request = await in_turns(fetch.read_in_steps(header.api_version, frame, header.body_position))
        room = self._responses.room(connection.address.replies)
        try:
            handled = self._fetch.handle(request, version=header.api_version, client=connection, room=room)
            fetched = await within(self._timeout_s + self._fetch.limits.fetch_wait_s_max, handled)
            reply: list[Buffer] = []
            for _ in fetch.write_in_steps(header.api_version, header.correlation_id, fetched, reply):
                await asyncio.sleep(0)  # only of a wide one
        except BaseException:
            room.give_back()
            raise
        is_wide = len(request.partitions) > fetch.PARTITIONS_PER_STEP
        record_bytes, first_error, left = 0, fetched.error_code, fetch.PARTITIONS_PER_STEP
        for partition in fetched.partitions:
            for buffer in partition.records:
                record_bytes += len(buffer)
            first_error = first_error or partition.error_code
            left -= 1
            if not left:
                left = fetch.PARTITIONS_PER_STEP
                await asyncio.sleep(0)
        connection.until_written(room.give_back, record_bytes)
        if is_wide:
            held: list[object] = [request.partitions, fetched.partitions]
            del request, fetched
            await in_turns(let_go_in_steps(held))
        return header, reply, first_error

    async def _take_room(self, reply_bytes: int, connection: Client) -> None:
        room = self._responses.room(connection.address.replies)
        await room.to_send(reply_bytes)
        connection.until_written(room.give_back, reply_bytes)

    def _unanswerable(self, error: Exception, connection: Client) -> Unanswerable:
        """A request that fails closes its own connection and no other."""
        if isinstance(error, StorageError | TimeoutError):
            # Some answers have no field for "not now".
            log.warning("request_not_answered", client_host=connection.client_host, client_id=connection.client_id, cause=repr(error))
        else:
            self._note_unexpected(connection)
        return Unanswerable()

    def _note_unexpected(self, connection: Client) -> None:
        self._unexpected.inc()
        log.exception("request_failed", client_host=connection.client_host, client_id=connection.client_id)

    def _note_produced(self, began_s: float, error_code: int, size_in: int, size_out: int, connection: Client) -> None:
        seconds, meter = self._clock.monotonic_s() - began_s, self._meters[codec.PRODUCE]
        meter.answered(error_code, seconds, size_in, size_out)
        if seconds >= self._slow_s:
            self._note_slow(meter, seconds, error_code, connection)

    def _may_wait_s(self, header: codec.RequestHeader, frame: memoryview) -> float:
        """Time that a request takes though nothing is slow: JoinGroup and SyncGroup wait for others, and a fetch says how long it waits."""
        if header.api_key in self._waiting_timeouts_s:
            return float("inf")
        if header.api_key != codec.FETCH:
            return 0.0
        request = fetch.read_narrow(header.api_version, frame, header.body_position)
        return max(request.max_wait_ms, 0) / 1_000 if request is not None else self._fetch.limits.fetch_wait_s_max

    def _note_slow(self, meter: ApiMeter, seconds: float, error_code: int, connection: Client) -> None:
        error = ErrorCode(error_code).name.upper()
        self._slow.note(Slow(seconds, meter.name, error, connection.client_host, connection.client_id))

    def _read_header(self, frame: memoryview, connection: Client) -> codec.RequestHeader:
        header = codec.decode_header(frame)
        connection.client_id = header.client_id
        return header

    def _read_produce(self, frame: memoryview, connection: Client) -> tuple[codec.RequestHeader, ProduceRequest | None]:
        """None for a request that names too many partitions to be handled beside others."""
        header = self._read_header(frame, connection)
        if not apis.is_served(header.api_key, header.api_version):
            raise ProtocolViolation(f"not served: api_key={header.api_key} api_version={header.api_version}")
        return header, produce.read_narrow(header.api_version, frame, header.body_position)

    def _answer_produce(
        self, header: codec.RequestHeader, request: ProduceRequest, results: list[PartitionResult], connection: Client
    ) -> Sequence[Buffer] | None:
        if request.acks == 0:
            if any(result.error_code for result in results):
                connection.close()  # as Kafka does: the only way to tell a client that waits for no answer
            return None
        throttle_ms = self._controlled_shutdown.throttle_ms(connection) if self._controlled_shutdown.is_asking else 0
        return [produce.write_response(header.api_version, header.correlation_id, ProduceResponse(results, throttle_ms))]
