"""Records that come in by lines: `POST /produce` as NDJSON. They are appended while they come, and answered in their order.

A stream holds at most 4 MiB of lines that have no answer yet, and what their batches take.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web

from broker.handling.administration import Requester
from broker.http.errors import HttpError, invalid
from broker.http.guard import ANSWER_TAKEN_WITHIN_S, NDJSON, Asked, HttpLimits, HttpTaker, ReceivedBody, decoded_line
from broker.http.parts import HttpParts
from broker.http.produce import (
    LISTENER,
    BegunDocument,
    Count,
    FailedPartition,
    HttpProducer,
    PartitionToProduce,
    PostedBatches,
    ProduceByHttp,
    ProduceDocument,
    ProduceResult,
    TopicName,
    next_sequence,
)
from broker.http.records import AnyRecord, Header, JsonRecord, Text, Timestamp
from runtime.frames import FRAME_OVERHEAD_BYTES
from storage.errors import StorageError
from storage.limits import MIB, PRODUCER_BATCHES_KEPT
from storage.recordbatch import HEADER_BYTES

UNANSWERED_BYTES_MAX: Final = 4 * MIB
"""Lines that were read and have no answer; also the longest line."""
BATCH_BYTES_MAX: Final = 1 * MIB
"""Lines that are appended together."""
PARTITION_DIGITS: Final = 6
LINES_PER_TURN: Final = 500
"""Then others have their turn of the event loop."""
_BLANK: Final = b" \t\r"


class StreamHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a stream, if it is no record. `linger_ms`: a batch ends by time, too, unless there is a producer."""

    producer: HttpProducer | None = None
    sequences: dict[str, Count] = {}
    batch_records: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    linger_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 5


class LineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A record with the partition that it is for."""

    topic: TopicName
    partition: Count
    value: Text | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET
    key: Text = None
    headers: Annotated[list[Header], msgspec.Meta(max_length=100)] | None = None
    timestamp: Timestamp | None = None


_head_decoder: Final = msgspec.json.Decoder(StreamHead)
_line_decoder: Final = msgspec.json.Decoder(LineRecord)


class LinesTogether(NamedTuple):
    """Lines that are appended together: `numbers` of the first and the last, counted from 1."""

    records: list[tuple[int, LineRecord]]
    size_bytes: int


class SentLines(NamedTuple):
    """Lines whose batches are in line for the log, with the numbers of each partition's first and last. `cost_bytes`: of memory."""

    begun: BegunDocument
    body: ReceivedBody
    spans: Mapping[tuple[str, int], tuple[int, int]]
    refused: list[FailedPartition]
    cost_bytes: int


class LinesIn:
    """One stream of records that come in."""

    def __init__(self, asked: Asked, produce: ProduceByHttp, parts: HttpParts, limits: HttpLimits) -> None:
        self._asked = asked
        self._produce = produce
        self._parts = parts
        self._limits = limits
        self._head = StreamHead()
        self._is_headed = False
        self._sequences: dict[tuple[str, int], int] = {}
        self._ended: dict[tuple[str, int], FailedPartition] = {}
        self._named: set[tuple[str, int]] = set()
        self._source = PostedBatches()
        self._by = Requester(asked.client_host, None, LISTENER)
        self._number = 0
        self._unanswered_bytes = 0
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._answered = asyncio.Event()
        self._sent: asyncio.Queue[SentLines | HttpError | None] = asyncio.Queue()
        self._response = web.StreamResponse(headers={"Content-Type": NDJSON})

    async def run(self) -> web.StreamResponse:
        """Read, append and answer until the client ends its stream. An error before the first answer is an answer of its own."""
        taker = HttpTaker(self._asked)
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read())
                try:
                    await self._answer()
                finally:
                    reading.cancel()
        except* HttpError as errors:
            raise errors.exceptions[0] from None
        except* TimeoutError:
            taker.evict("it does not take its answers")
        except* ConnectionError:
            pass  # the client has left: what was begun goes on, and nobody hears of it
        finally:
            while not self._sent.empty():
                left = self._sent.get_nowait()
                if isinstance(left, SentLines):
                    left.body.close()
        return self._response

    async def _read(self) -> None:
        try:
            async for lines in self._batches():
                await self._send(lines)
                del lines  # nothing counts them from now on
            self._sent.put_nowait(None)
        except HttpError as error:
            self._sent.put_nowait(error)
        except StorageError as error:
            self._sent.put_nowait(HttpError(503, "StorageUnavailable", str(error)))

    async def _batches(self) -> AsyncIterator[LinesTogether]:
        """Lines that belong together: up to a blank one, a number of records or of bytes, or a time."""
        records: list[tuple[int, LineRecord]] = []
        size_bytes = 0
        content, buffer = self._asked.http.content, bytearray()
        linger_s: float | None = None
        while True:
            within_s = self._limits.idle_timeout_s if linger_s is None else linger_s
            try:
                async with asyncio.timeout(within_s):
                    chunk = await content.readany()
            except web.RequestPayloadError as error:
                raise invalid(f"the body cannot be read: {error}") from None
            except TimeoutError:
                if linger_s is None:
                    raise HttpError(408, "RequestTimeout", f"no line came within {within_s:.0f} s") from None
                yield LinesTogether(records, size_bytes)
                records, size_bytes, linger_s = [], 0, None
                continue
            buffer += chunk
            at = 0
            while (end := buffer.find(b"\n", at)) >= 0 or (not chunk and at < len(buffer)):
                end = len(buffer) if end < 0 else end
                line = bytes(buffer[at:end]).strip(_BLANK)
                at = end + 1
                self._number += 1
                if not self._number % LINES_PER_TURN:
                    await asyncio.sleep(0)
                if line and (record := self._line(line)) is not None:
                    records.append((self._number, record))
                    size_bytes += len(line)
                is_full = len(records) >= self._head.batch_records or size_bytes >= BATCH_BYTES_MAX
                if records and (is_full or not line):
                    yield LinesTogether(records, size_bytes)
                    records, size_bytes = [], 0
            del buffer[:at]
            if len(buffer) > UNANSWERED_BYTES_MAX:
                raise invalid(f"line {self._number + 1}: longer than {UNANSWERED_BYTES_MAX} bytes")
            if not chunk:
                if records:
                    yield LinesTogether(records, size_bytes)
                return
            linger_s = self._head.linger_ms / 1_000 if records and self._head.producer is None else None

    def _line(self, line: bytes) -> LineRecord | None:
        """A record. None for the head. Raise `HttpError`."""
        if not self._is_headed:
            self._is_headed = True
            if b'"topic"' not in line:
                self._head = decoded_line(_head_decoder, line, self._number)
                for name, sequence in self._head.sequences.items():
                    topic, _, partition = name.rpartition("/")
                    is_number = partition.isdecimal() and len(partition) <= PARTITION_DIGITS
                    if not topic or not is_number or self._head.producer is None:
                        raise invalid(f'line {self._number}: sequences: a producer writes them as {{"orders/0": 0}}, not {name[:100]!r}')
                    self._sequences[topic, int(partition)] = sequence
                return None
        record = decoded_line(_line_decoder, line, self._number)
        if (record.value is msgspec.UNSET) == (record.base64 is msgspec.UNSET):
            raise invalid(f'line {self._number}: a record has a "value" (null for none), or "base64" in its place')
        return record

    async def _send(self, lines: LinesTogether) -> None:
        """Put them in line for the log, when there are not too many before them."""
        named_here = {(record.topic, record.partition) for _, record in lines.records}
        self._named |= named_here
        if len(self._named) > self._limits.partitions_max:
            raise invalid(f"line {self._number}: a stream writes to at most {self._limits.partitions_max} partitions")
        cost_bytes = lines.size_bytes + len(named_here) * (FRAME_OVERHEAD_BYTES + HEADER_BYTES)
        while self._is_full(cost_bytes, named_here):
            self._answered.clear()
            async with asyncio.timeout(self._limits.idle_timeout_s):
                await self._answered.wait()
        if self._parts.controlled_shutdown.is_refusing:
            raise HttpError(503, "BackPressureRejected", "this broker is shutting down: go on at another")
        by_partition: dict[tuple[str, int], list[AnyRecord]] = {}
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for number, record in lines.records:
            named = record.topic, record.partition
            by_partition.setdefault(named, []).append(_record_of(record))
            spans[named] = (spans[named][0] if named in spans else number, number)
        refused = [self._refusal(named) for named in by_partition if named in self._ended]
        partitions = [
            PartitionToProduce(named[0], named[1], records, self._next(named, len(records)))
            for named, records in by_partition.items()
            if named not in self._ended
        ]
        body = ReceivedBody(self._parts.admission, self._asked, self._limits)
        try:
            await body.hold(cost_bytes)
            document = ProduceDocument(partitions, self._head.producer)
            begun = await self._produce.begin(document, body, self._by, source=self._source)
        except BaseException:
            body.close()
            raise
        self._unanswered_bytes += cost_bytes
        self._under_way.update(by_partition.keys())
        self._sent.put_nowait(SentLines(begun, body, spans, refused, cost_bytes))

    def _is_full(self, size_bytes: int, named_here: set[tuple[str, int]]) -> bool:
        """Whether answers must come before more is sent. What comes behind a batch that fails must not be written, or not in its order: a
        producer's sequences see to that, else nothing is sent behind a batch without an answer.
        """
        if self._unanswered_bytes and self._unanswered_bytes + size_bytes > UNANSWERED_BYTES_MAX:
            return True
        most = 1 if self._head.producer is None else PRODUCER_BATCHES_KEPT
        return any(self._under_way[named] >= most for named in named_here)

    def _next(self, named: tuple[str, int], count: int) -> int | None:
        if self._head.producer is None:
            return None
        sequence = self._sequences.get(named, 0)
        self._sequences[named] = next_sequence(sequence, count)
        return sequence

    def _refusal(self, named: tuple[str, int]) -> FailedPartition:
        first = self._ended[named]
        text = f"this stream writes no more to the partition, an earlier batch of it failed ({first.error_type}: {first.error})"
        return msgspec.structs.replace(first, error=text, record_errors=())

    async def _answer(self) -> None:
        while True:
            sent = await self._sent.get()
            if sent is None:
                break
            if isinstance(sent, HttpError):
                if not self._response.prepared:
                    error, sent = sent, None
                    try:
                        raise error
                    finally:
                        del error  # else it and this frame hold each other, and what the stream has sent
                last = {"lines": [self._number, self._number], "ok": False, "error_type": sent.error_type, "error": str(sent)}
                await self._write(msgspec.json.encode(last) + b"\n")
                break
            answers, cost_bytes, named_there = await self._results(sent), sent.cost_bytes, sent.spans.keys()
            del sent  # its batches need no memory while the client takes their answers
            await self._write(answers)
            self._unanswered_bytes -= cost_bytes
            self._under_way.subtract(named_there)
            self._under_way += Counter()  # without those of which there are none
            self._answered.set()
            del answers, named_there  # while the next one is waited for
        await self._prepare()
        await self._response.write_eof()

    async def _results(self, sent: SentLines) -> bytes:
        """The answers to some lines, when they are there."""
        try:
            results: list[ProduceResult] = [*await sent.begun.results(self._produce), *sent.refused]
        finally:
            sent.body.close()
        pieces = []
        for result in results:
            named = result.topic, result.partition
            if isinstance(result, FailedPartition):
                self._ended.setdefault(named, result)
            pieces.append(b'{"lines":[%d,%d],' % sent.spans[named] + msgspec.json.encode(result)[1:] + b"\n")
        return b"".join(pieces)

    async def _prepare(self) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._asked.http)

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(ANSWER_TAKEN_WITHIN_S):
            await self._prepare()
            await self._response.write(data)


def _record_of(line: LineRecord) -> AnyRecord:
    return JsonRecord(value=line.value, base64=line.base64, key=line.key, headers=line.headers, timestamp=line.timestamp)
