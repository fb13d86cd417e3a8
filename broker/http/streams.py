"""Streams of the HTTP API: records in by lines (`POST /produce` as NDJSON), records out by lines (`POST /consume`) and as events
(`GET /tail/TOPIC`, Server-Sent Events).

Each has a bound on what it holds: 4 MiB of lines that have no answer yet, one fetch of records that its client has not taken.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode

from broker.handling.administration import By
from broker.handling.errors import error_code_of
from broker.handling.partition_bounds import TopicPartition
from broker.http.consume import (
    BYTES_DEFAULT,
    ConsumeDocument,
    HttpReading,
    LogPlace,
    UnreadPartition,
    unread,
    unread_of,
)
from broker.http.errors import HttpError, invalid, type_of
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
from broker.http.records import AnyRecord, Header, JsonRecord, ReadRecord, Text, Timestamp, WantedRecords
from broker.protocol.fetch import FetchedPartition, FetchPartition
from runtime.frames import FRAME_OVERHEAD_BYTES
from runtime.telemetry import Metric
from storage.errors import StorageError
from storage.limits import MIB, PRODUCER_BATCHES_KEPT
from storage.recordbatch import HEADER_BYTES

STREAMS: Final = Metric("forebay_http_streams", "Streams of the HTTP API that are open, by kind", ("kind",), aggregation="sum")

SSE: Final = "text/event-stream"
UNANSWERED_BYTES_MAX: Final = 4 * MIB
"""Lines that were read and have no answer; also the longest line."""
BATCH_BYTES_MAX: Final = 1 * MIB
"""Lines that are appended together."""
TAILED_PARTITIONS_MAX: Final = 100
PARTITION_DIGITS: Final = 6
OFFSET_DIGITS: Final = 18
LINES_PER_TURN: Final = 500
"""Then others have their turn of the event loop."""
COMMENT_EVERY_S: Final = 15.0
"""A stream without records says so: proxies and clients take silence for a broken connection."""
UNSENT_WITHIN_S: Final = 30.0
RETRY_MS: Final = 2_000
ROUND_BYTES: Final = BYTES_DEFAULT // 4
"""What a stream fetches at a time."""
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


class RecordOfLine(msgspec.Struct, frozen=True):
    """A line of what is read."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: Text
    value: Text
    headers: list[Header]


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


class HttpStreams:
    """Opens streams, up to a number of them."""

    def __init__(self, parts: HttpParts, limits: HttpLimits, reading: HttpReading) -> None:
        self._parts = parts
        self._limits = limits
        self._reading = reading
        self._open = 0
        self._gauge = parts.telemetry.gauge(STREAMS)

    @contextlib.contextmanager
    def _one_more(self, kind: str) -> Iterator[None]:
        if self._open >= self._limits.streams_max:
            text = f"{self._open} streams are open, http.max_connections leaves room for no more"
            raise HttpError(429, "TooManyStreams", text, headers={"Retry-After": "5"})
        self._open += 1
        gauge = self._gauge.labels(kind)
        gauge.inc()
        try:
            yield
        finally:
            self._open -= 1
            gauge.dec()

    # Lines in

    async def produce(self, asked: Asked, produce: ProduceByHttp) -> web.StreamResponse:
        with self._one_more("produce"):
            return await LinesIn(asked, produce, self._parts, self._limits).run()

    # Records out

    async def consume(self, asked: Asked, document: ConsumeDocument) -> web.StreamResponse:
        with self._one_more("consume"):
            out = RecordsOut(self._reading, asked, LinesOut())
            places = {TopicPartition(one.topic, one.partition): one.fetch_offset for one in document.topic_partitions}
            return await out.run(places, isolation=document.isolation, records_max=document.max_records, until_end=document.until == "end")

    async def tail(self, asked: Asked) -> web.StreamResponse:
        places = await self._tailed(asked)
        with self._one_more("tail"):
            return await RecordsOut(self._reading, asked, EventsOut(asked.http.match_info["topic"])).run(places)

    async def _tailed(self, asked: Asked) -> dict[TopicPartition, int | str]:
        """Partitions, and where each begins: where the client's last event ended, else where it asks for. Raise `HttpError`."""
        name, query = asked.http.match_info["topic"], asked.http.query
        found, missing = await self._parts.parts.topics.look_up([name])
        topic = found.get(name)
        if topic is None:
            if missing is not None:
                raise missing
            raise HttpError(404, "UnknownTopicOrPartition", f"there is no topic {name[:250]!r}")
        start = _place(query.get("from", "end"))
        named = query.getall("partition", None) or [str(number) for number in range(topic.partition_count)]
        if len(named) > TAILED_PARTITIONS_MAX:
            raise invalid(f"partition: {len(named)} of them, a stream has at most {TAILED_PARTITIONS_MAX}: name those you want")
        places: dict[TopicPartition, int | str] = {}
        for text in named:
            if not text.isdecimal() or len(text) > PARTITION_DIGITS or int(text) >= topic.partition_count:
                raise invalid(f"partition: {text[:50]!r} is none of the {topic.partition_count} of {name}")
            places[TopicPartition(name, int(text))] = start
        for partition, offset in _last_event(asked.http.headers.get("Last-Event-ID", "")):
            if TopicPartition(name, partition) in places:
                places[TopicPartition(name, partition)] = offset
        return places


def _place(text: str) -> int | str:
    place: int | str = int(text) if text.isdecimal() and len(text) <= OFFSET_DIGITS else text
    try:
        msgspec.convert(place, LogPlace)
    except msgspec.ValidationError:
        raise invalid(f"from: {text[:50]!r} is not start, end, an offset, or @ and milliseconds") from None
    return place


def _last_event(text: str) -> Iterator[tuple[int, int]]:
    """`0:42,1:7`: the next offset of each partition. What is not of this form, another server's id, says nothing."""
    for pair in text.split(",")[:TAILED_PARTITIONS_MAX]:
        partition, _, offset = pair.strip().partition(":")
        if partition.isdecimal() and offset.isdecimal() and len(partition) <= PARTITION_DIGITS and len(offset) <= OFFSET_DIGITS:
            yield int(partition), int(offset)


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
        self._by = By(asked.client_host, None, LISTENER)
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
        if self._parts.leaving.is_refusing:
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


class LinesOut:
    """Writes records as lines."""

    content_type = NDJSON
    comment = b"\n"

    def begin(self, _: Mapping[TopicPartition, int]) -> bytes:
        return b""

    def records(self, named: TopicPartition, records: list[ReadRecord], _: Mapping[TopicPartition, int]) -> bytes:
        before = b'{"topic":%b,"partition":%d,' % (msgspec.json.encode(named.topic), named.partition)
        encode = msgspec.json.encode
        return b"".join([before + encode(record)[1:] + b"\n" for record in records])

    def error(self, error: object) -> bytes:
        return msgspec.json.encode(error) + b"\n"


class EventsOut:
    """Writes records as Server-Sent Events. The id of each says where all partitions go on."""

    content_type = SSE
    comment = b": nothing new\n\n"

    def __init__(self, topic: str) -> None:
        self._before = b'data: {"topic":%b,"partition":' % msgspec.json.encode(topic)

    def begin(self, ids: Mapping[TopicPartition, int]) -> bytes:
        """The id is kept by clients without an event, too: one that was away misses nothing, though it has seen nothing."""
        return b"id: %b\nretry: %d\n\n" % (",".join(f"{one.partition}:{offset}" for one, offset in ids.items()).encode(), RETRY_MS)

    def records(self, named: TopicPartition, records: list[ReadRecord], positions: Mapping[TopicPartition, int]) -> bytes:
        others = "".join(f",{one.partition}:{offset}" for one, offset in positions.items() if one != named).encode()
        before = b"\n%b%d," % (self._before, named.partition)
        ours, encode = b"event: record\nid: %d:" % named.partition, msgspec.json.encode
        return b"".join([ours + b"%d" % (record.offset + 1) + others + before + encode(record)[1:] + b"\n\n" for record in records])

    def error(self, error: object) -> bytes:
        return b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"


class RecordsOut:
    """One stream of records that go out."""

    def __init__(self, reading: HttpReading, asked: Asked, form: LinesOut | EventsOut) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._asked = asked
        self._form = form
        self._taker = HttpTaker(asked)
        self._ends: Mapping[TopicPartition, int | ErrorCode] = {}
        """Where each partition is to end; empty for a stream without end."""
        self._ids: dict[TopicPartition, int] = {}
        """Where each partition goes on, those that have ended among them."""
        self._response = web.StreamResponse(headers={"Content-Type": form.content_type, "Cache-Control": "no-store"})

    async def run(
        self,
        places: Mapping[TopicPartition, int | str],
        *,
        isolation: str = "read_uncommitted",
        records_max: int | None = None,
        until_end: bool = False,
    ) -> web.StreamResponse:
        """Until the client leaves, all its partitions have ended, or what it asked for is there."""
        async with asyncio.TaskGroup() as group:
            left = group.create_task(self._asked.left())
            writing = group.create_task(self._run(places, isolation, records_max, until_end=until_end))
            await asyncio.wait({left, writing}, return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
            writing.cancel()
        return self._response

    async def _run(self, places: Mapping[TopicPartition, int | str], isolation: str, records_max: int | None, *, until_end: bool) -> None:
        found = await self._reading.places(places)
        if until_end:
            self._ends = await self._reading.places(dict.fromkeys(places, "end"))
            found |= {named: end for named, end in self._ends.items() if isinstance(end, ErrorCode)}
        positions = {named: offset for named, offset in found.items() if not isinstance(offset, ErrorCode)}
        self._ids = dict(positions)
        responses = self._parts.responses
        responses.note_untaken(self._taker)
        try:
            await self._write(self._form.begin(self._ids))
            for named, code in found.items():
                if isinstance(code, ErrorCode):
                    await self._write(self._form.error(unread(named.topic, named.partition, code)))
            for named in [one for one, at in positions.items() if self._is_beyond(one, at)]:
                del positions[named]
                await self._write(self._form.error(unread(named.topic, named.partition, ErrorCode.offset_out_of_range)))
            left = records_max if records_max is not None else 2**63
            while positions and left > 0:
                for named in [one for one, at in positions.items() if self._is_at_end(one, at)]:
                    del positions[named]
                if not positions:
                    break
                if self._parts.leaving.is_asking:
                    await self._write(self._form.error({"error_type": "BackPressureRejected", "error": "this broker is shutting down"}))
                    break
                try:
                    left = await self._round(positions, isolation, left)
                except (StorageError, HttpError) as error:
                    kind = error.error_type if isinstance(error, HttpError) else type_of(error_code_of(error))
                    await self._write(self._form.error({"error_type": kind, "error": str(error)}))
                    break
            await self._response.write_eof()
        except TimeoutError:
            self._taker.evict(f"it did not take what it was sent within {UNSENT_WITHIN_S:.0f} s")
        except ConnectionError:
            pass  # it has left
        finally:
            responses.note_taken(self._taker)

    async def _round(self, positions: dict[TopicPartition, int], isolation: str, left: int) -> int:
        """Fetch once and write what came. Return how many records are left."""
        wanted = [FetchPartition(one.topic, one.partition, -1, at, ROUND_BYTES, -1, -1) for one, at in positions.items()]
        room = self._parts.responses.room(self._asked.address.replies)
        try:
            fetched = await self._reading.fetch(
                wanted,
                max_wait_ms=int(COMMENT_EVERY_S * 1_000),
                min_bytes=1,
                max_bytes=ROUND_BYTES,
                isolation=1 if isolation == "read_committed" else 0,
                room=room,
            )
            left_before, is_told, waits = left, False, False
            for partition in fetched:
                if partition.error_code:
                    code = ErrorCode(partition.error_code)
                    if code.retriable and code is not ErrorCode.unknown_topic_or_partition:
                        waits = True
                        continue
                    is_told = True
                    await self._end(positions, unread_of(partition))
                elif partition.records and left > 0:
                    left = await self._read(positions, partition, left)
        finally:
            room.give_back()
        if left == left_before and not is_told:
            await self._write(self._form.comment)
            if waits:
                await asyncio.sleep(RETRY_MS / 1_000)
        return left

    async def _read(self, positions: dict[TopicPartition, int], partition: FetchedPartition, left: int) -> int:
        """Write what was fetched of a partition, or the first part of it: the rest is fetched once more."""
        named = TopicPartition(partition.topic, partition.partition)
        limit = WantedRecords(positions[named], bytes_left=ROUND_BYTES, records_left=left)

        def encode(records: list[ReadRecord]) -> bytes:
            wanted = [record for record in records if not self._is_at_end(named, record.offset)] if self._ends else records
            if wanted:
                self._ids[named] = wanted[-1].offset + 1
            return self._form.records(named, wanted, self._ids)

        out = await self._asked.room(self._reading.room_bytes([partition], ROUND_BYTES))
        try:
            read = await self._reading.read(partition, limit, encode)
            if read.error is not None:
                await self._end(positions, read.error)
            else:
                positions[named] = read.next_offset
                self._ids[named] = read.next_offset
                out.settle(sum(map(len, read.records)))
                await self._write(b"".join(read.records))
        finally:
            out.give_back()
        return left - read.record_count

    async def _end(self, positions: dict[TopicPartition, int], why: UnreadPartition) -> None:
        """End a partition. Its place stays in the ids of events: a client that comes back goes on there."""
        del positions[TopicPartition(why.topic, why.partition)]
        await self._write(self._form.error(why))

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(UNSENT_WITHIN_S):
            if not self._response.prepared:
                await self._response.prepare(self._asked.http)
            if data:
                await self._response.write(data)

    def _is_at_end(self, named: TopicPartition, offset: int) -> bool:
        end = self._ends.get(named)
        return end is not None and not isinstance(end, ErrorCode) and offset >= end

    def _is_beyond(self, named: TopicPartition, offset: int) -> bool:
        end = self._ends.get(named)
        return end is not None and not isinstance(end, ErrorCode) and offset > end
