"""Requests to handlers: decode, bound by a deadline, count, encode; and what is done when something goes wrong that nobody foresaw."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from kio.schema.errors import ErrorCode
from prometheus_client import Counter, Histogram

from broker.handlers.api_versions import unsupported_version
from broker.handlers.context import Context, Parts
from broker.handlers.errors import error_code_of
from broker.handlers.fetch import Fetch
from broker.handlers.produce import Produce
from broker.handlers.table import HANDLERS
from broker.protocol import codec, fetch, produce, support
from broker.protocol.errors import ProtocolViolation
from broker.protocol.produce import PartitionResult, ProduceRequest, ProduceResponse
from broker.protocol.request import Request
from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.vocabulary import Buffer

REQUESTS: Final = Metric("forebay_kafka_requests_total", "Requests answered, by API and the first error in the answer", ("api", "error"))
REQUEST_SECONDS: Final = Metric("forebay_kafka_request_duration_seconds", "From the last byte of a request to its answer", ("api",))
REQUEST_BYTES: Final = Metric("forebay_kafka_request_bytes_total", "Bytes of frames", ("api", "direction"))
VIOLATIONS: Final = Metric("forebay_protocol_violations_total", "Connections closed because of what the client sent")
UNEXPECTED: Final = Metric("forebay_unexpected_errors_total", "Requests that failed in a way no handler foresaw; each is a bug")

HANDLER_TIMEOUT_S: Final = 60.0
FETCH_WAIT_S_MAX: Final = 300.0
"""On top of HANDLER_TIMEOUT_S: no client waits longer in a long poll."""

_API_VERSIONS: Final = 18

log = structlog.get_logger("dispatch")


Done = Callable[[Sequence[Buffer] | None], None]


class Client(Protocol):
    """The connection a request came by."""

    client_id: str | None

    @property
    def listener(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    def close(self) -> None:
        """After what is buffered for the client has been sent."""
        ...


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

    def __init__(self, *, parts: Parts, produce_handler: Produce, fetch_handler: Fetch, clock: Clock, telemetry: Telemetry) -> None:
        self._parts = parts
        self._produce = produce_handler
        self._fetch = fetch_handler
        self._clock = clock
        requests, seconds = telemetry.counter(REQUESTS), telemetry.histogram(REQUEST_SECONDS)
        size = telemetry.counter(REQUEST_BYTES)
        self._meters = {
            api.key: ApiMeter(requests, seconds.labels(api.name), size.labels(api.name, "in"), size.labels(api.name, "out"), api.name, {})
            for api in support.APIS
        }
        self._violations = telemetry.counter(VIOLATIONS)
        self._unexpected = telemetry.counter(UNEXPECTED)

    def is_overlapping(self, frame: memoryview) -> bool:
        """Produce requests (key 0) may run beside others of their connection."""
        return len(frame) > 1 and frame[0] == 0 and frame[1] == codec.PRODUCE

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        began_s = self._clock.monotonic_s()
        header, request = self._read_produce(frame, connection)
        topics = self._produce.find_topics(request)
        if topics is None:
            return False
        meter = self._meters[codec.PRODUCE]

        def finish(results: list[PartitionResult]) -> None:
            reply = self._answer_produce(header, request, results, connection)
            first_error = next((result.error_code for result in results if result.error_code), 0)
            meter.answered(first_error, self._clock.monotonic_s() - began_s, len(frame), sum(map(len, reply or ())))
            done(reply)

        self._produce.start(request, topics, version=header.api_version, source=connection, done=finish)
        return True

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """Raises `ProtocolViolation` for everything that is to close the connection."""
        began_s = self._clock.monotonic_s()
        try:
            header, reply, error_code = await self._handle(frame, connection)
        except ProtocolViolation:
            self._violations.inc()
            raise
        except (StorageError, TimeoutError) as error:
            # Some answers have no field for "not now": a closed connection is what makes their clients try again.
            raise ProtocolViolation(f"no answer to give: cause={error!r}") from error
        except Exception as error:
            # The last resort: this request cannot be answered, every other one can.
            self._unexpected.inc()
            log.exception("request_failed", client_host=connection.client_host, client_id=connection.client_id)
            raise ProtocolViolation(f"the request could not be answered: cause={error!r}") from error
        size_out = sum(map(len, reply or ()))
        self._meters[header.api_key].answered(error_code, self._clock.monotonic_s() - began_s, len(frame), size_out)
        return reply

    async def _handle(self, frame: memoryview, connection: Client) -> tuple[codec.RequestHeader, Sequence[Buffer] | None, int]:
        header = self._read_header(frame, connection)
        if not support.is_served(header.api_key, header.api_version):
            if header.api_key != _API_VERSIONS:
                raise ProtocolViolation(f"not served: api_key={header.api_key} api_version={header.api_version}")
            refusal = codec.encode_response(_API_VERSIONS, 0, header.correlation_id, unsupported_version())
            return header, refusal, ErrorCode.unsupported_version
        if header.api_key == codec.PRODUCE:
            return await self._handle_produce(frame, connection)
        body = codec.decode_request(header.api_key, header.api_version, frame, header.body_position)
        if isinstance(body, fetch.FetchRequest):
            timeout_s = HANDLER_TIMEOUT_S + min(max(body.max_wait_ms, 0) / 1_000, FETCH_WAIT_S_MAX)
            async with asyncio.timeout(timeout_s):
                fetched = await self._fetch.handle(body, version=header.api_version)
            first_error = fetched.error_code or next((p.error_code for p in fetched.partitions if p.error_code), 0)
            return header, codec.encode_response(header.api_key, header.api_version, header.correlation_id, fetched), first_error
        request = Request(header.api_key, header.api_version, header.correlation_id, header.client_id, body)
        context = Context(self._parts, connection.listener, connection.client_host)
        async with asyncio.timeout(HANDLER_TIMEOUT_S):
            answer = await HANDLERS[header.api_key](context, request)
        return header, codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer), first_error_of(answer)

    async def _handle_produce(self, frame: memoryview, connection: Client) -> tuple[codec.RequestHeader, Sequence[Buffer] | None, int]:
        """A Produce request whose topics have to be looked up first: it runs alone, so it cannot be overtaken by what follows it."""
        header, request = self._read_produce(frame, connection)
        answered: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()
        try:
            topics = await self._produce.lookup_topics(request)
        except StorageError as error:
            code, message = error_code_of(error), str(error)
            results = [PartitionResult(topic, partition, code, error_message=message) for topic, partition, _ in request.partitions]
        else:

            def done(results: list[PartitionResult]) -> None:
                if not answered.done():
                    answered.set_result(results)

            self._produce.start(request, topics, version=header.api_version, source=connection, done=done)
            results = await answered
        first_error = next((result.error_code for result in results if result.error_code), 0)
        return header, self._answer_produce(header, request, results, connection), first_error

    def _read_header(self, frame: memoryview, connection: Client) -> codec.RequestHeader:
        header = codec.decode_header(frame)
        connection.client_id = header.client_id
        return header

    def _read_produce(self, frame: memoryview, connection: Client) -> tuple[codec.RequestHeader, ProduceRequest]:
        header = self._read_header(frame, connection)
        if not support.is_served(header.api_key, header.api_version):
            raise ProtocolViolation(f"not served: api_key={header.api_key} api_version={header.api_version}")
        return header, produce.read_request(header.api_version, frame, header.body_position)

    def _answer_produce(
        self, header: codec.RequestHeader, request: ProduceRequest, results: list[PartitionResult], connection: Client
    ) -> Sequence[Buffer] | None:
        if request.acks == 0:
            if any(result.error_code for result in results):
                connection.close()  # as Kafka does: the only way to tell a client that waits for no answer
            return None
        return [produce.write_response(header.api_version, header.correlation_id, ProduceResponse(results))]


def first_error_of(answer: object) -> int:
    """The first error code of an answer: its own, or that of its first topic, resource, group … that has one."""
    own = getattr(answer, "error_code", 0)
    if own:
        return int(own)
    for name in getattr(answer, "__slots__", ()):
        value = getattr(answer, name)
        if isinstance(value, tuple) and value and hasattr(value[0], "__slots__"):
            for element in value:
                if error := first_error_of(element):
                    return error
    return 0
