"""Streams of the HTTP API: records in by lines (broker/http/line_stream.py), records out by lines (`POST /consume`) and as events
(`GET /tail/TOPIC`, Server-Sent Events).

Each that reads has a bound on what it holds: a fetch of records that its client has not taken.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode

from broker.handling.errors import error_code_of
from broker.handling.topics import TopicPartition
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
from broker.http.guard import NDJSON, Asked, HttpLimits, HttpTaker
from broker.http.line_stream import PARTITION_DIGITS, LinesIn
from broker.http.parts import HttpParts
from broker.http.produce import (
    ProduceByHttp,
)
from broker.http.records import Header, ReadRecord, Text, WantedRecords
from broker.protocol.fetch import FetchedPartition, FetchPartition
from runtime.telemetry import Metric
from storage.errors import StorageError

STREAMS: Final = Metric("forebay_http_streams", "Streams of the HTTP API that are open, by kind", ("kind",), aggregation="sum")

SSE: Final = "text/event-stream"
TAILED_PARTITIONS_MAX: Final = 100
OFFSET_DIGITS: Final = 18
COMMENT_EVERY_S: Final = 15.0
"""A stream without records says so: proxies and clients take silence for a broken connection."""
UNSENT_WITHIN_S: Final = 30.0
RETRY_MS: Final = 2_000
ROUND_BYTES: Final = BYTES_DEFAULT // 4
"""What a stream fetches at a time."""


class RecordOfLine(msgspec.Struct, frozen=True):
    """A line of what is read."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: Text
    value: Text
    headers: list[Header]


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
                if self._parts.controlled_shutdown.is_asking:
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
        responses = self._parts.responses
        responses.note_untaken(self._taker)  # for as long as the client holds it up: a stream that waits for records is in nobody's way
        try:
            async with asyncio.timeout(UNSENT_WITHIN_S):
                if not self._response.prepared:
                    await self._response.prepare(self._asked.http)
                if data:
                    await self._response.write(data)
        finally:
            responses.note_taken(self._taker)

    def _is_at_end(self, named: TopicPartition, offset: int) -> bool:
        end = self._ends.get(named)
        return end is not None and not isinstance(end, ErrorCode) and offset >= end

    def _is_beyond(self, named: TopicPartition, offset: int) -> bool:
        end = self._ends.get(named)
        return end is not None and not isinstance(end, ErrorCode) and offset > end
