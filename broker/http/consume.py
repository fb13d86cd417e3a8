"""`POST /consume`: what a Fetch reads, as JSON. Groups and streams read by the same `Reading`."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode

from broker.handling.errors import error_code_of
from broker.handling.topics import Located, TopicPartition, read_bounds
from broker.http.errors import invalid, is_retriable, text_of, type_of
from broker.http.guard import NDJSON, Asked, HttpLimits, one_of_each
from broker.http.parts import HttpParts
from broker.http.produce import RECORDS, Count, Placed, TopicName, check_explained, explained
from broker.http.records import BYTES_PER_STEP, NotByHttp, ReadRecord, WantedRecords, read_in_steps
from broker.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from broker.responses import Room
from runtime.blocking import Blocking
from runtime.deadlines import within
from storage.errors import StorageError, Unavailable
from storage.limits import FETCH_RESPONSE_BYTES_MAX, KIB, MIB
from storage.record_values import cut
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, parse_header
from storage.records import TooLarge, decompress_records
from storage.vocabulary import Buffer

FETCH_VERSION: Final = 12
MAX_WAIT_DEFAULT_MS: Final = 500
MAX_WAIT_MAX_MS: Final = 30_000
BYTES_DEFAULT: Final = 4 * MIB
RECORDS_DEFAULT: Final = 10_000
DECOMPRESSED_AT_ONCE_BYTES: Final = 128 * KIB
"""Records that decompress to more are decompressed in a thread, and are there one batch at a time: 64 MiB at most."""
ENCODED_FACTOR: Final = 2
"""Records in JSON take no more than this times the bytes that were asked for: it ends before the rest."""
FETCH_WITHIN_S: Final = 60.0
"""Beside the time that the client lets it wait."""

Millis = Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT_MAX_MS)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=FETCH_RESPONSE_BYTES_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
LogPlace = Offset | Annotated[str, msgspec.Meta(pattern=r"^(start|end|@[0-9]{1,18})$")]
"""An offset, the start or the end of a log, or @ and milliseconds: the first record of that time or later, else the end."""


class PartitionToConsume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: TopicName
    partition: Count
    fetch_offset: LogPlace
    partition_max_bytes: Bytes = MIB


class ConsumeDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes are counted decompressed. One record comes always, however large it is.

    Without `max_records` an answer has RECORDS_DEFAULT at most, and a stream any number. `until`: a stream ends where the log ended when
    it began.
    """

    topic_partitions: Annotated[list[PartitionToConsume], msgspec.Meta(min_length=1)]
    max_wait_ms: Millis = MAX_WAIT_DEFAULT_MS
    min_bytes: Bytes = 1
    max_bytes: Bytes = BYTES_DEFAULT
    max_records: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    until: Literal["end"] | None = None
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    explain: bool = False


class ConsumedPartition(Placed, frozen=True, kw_only=True, omit_defaults=False):
    """`high_watermark` is the offset that the next record will have. Without records `start_offset` and `end_offset` are null."""

    topic: str
    partition: int
    high_watermark: int
    log_start_offset: int
    start_offset: int | None
    end_offset: int | None
    count: int
    next_fetch_offset: int
    records: list[ReadRecord]
    ok: Literal[True]


class UnreadPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """`log_start_offset` and `high_watermark` come with OffsetOutOfRange: between them lies what there is."""

    topic: str
    partition: int
    ok: Literal[False]
    error_type: str
    error_code: int
    retriable: bool
    error: str
    log_start_offset: int | None = None
    high_watermark: int | None = None


class ConsumeAnswer(msgspec.Struct, frozen=True):
    results: Annotated[list[Any], one_of_each("ConsumedPartition", "UnreadPartition")]
    success_count: int
    error_count: int


class ReadPartition(NamedTuple):
    """The records that were read of a partition, as they were encoded, and where they lie; `error` if none could be read."""

    partition: FetchedPartition
    first: int | None
    last: int | None
    record_count: int
    next_offset: int
    records: list[bytes]
    error: UnreadPartition | None = None


class PolledRecords(NamedTuple):
    """Where to go on, in partitions that were read; and those of which what was asked for is not there any more."""

    next_offsets: dict[TopicPartition, int]
    out_of_range: list[TopicPartition]
    width: int
    """How many partitions were asked for."""


_NOWHERE: Final = Placed()
_NO_RECORDS: Final = b'"records":[]'
_decoder: Final = msgspec.json.Decoder(ConsumeDocument)


Encode = Callable[[list[ReadRecord]], bytes]


class HttpReading:
    """Reads partitions for HTTP, by the broker's Fetch."""

    def __init__(self, parts: HttpParts, *, blocking: Blocking) -> None:
        """`blocking` decompresses, and stays the caller's."""
        self.parts = parts
        self._blocking = blocking
        self._decompressing = asyncio.Semaphore()
        self._given = parts.telemetry.counter(RECORDS).labels("out")

    async def places(self, asked: Mapping[TopicPartition, int | str]) -> dict[TopicPartition, int | ErrorCode]:
        """Offsets for places in logs."""
        found: dict[TopicPartition, int | ErrorCode] = {named: at for named, at in asked.items() if isinstance(at, int)}
        named = [one for one, at in asked.items() if not isinstance(at, int)]
        if not named:
            return found
        located = await read_bounds(self.parts.parts, named)
        try:
            async with asyncio.timeout(self.parts.parts.limits.search_timeout_s):
                for one in named:
                    found[one] = await self._place(str(asked[one]), located[one])
        except TimeoutError:
            late = error_code_of(Unavailable("no answer in time"))
            found = dict.fromkeys(named, late) | found
        return found

    async def _place(self, place: str, located: Located | ErrorCode) -> int | ErrorCode:
        if isinstance(located, ErrorCode):
            return located
        if place == "start":
            return located.bounds.log_start
        if place == "end":
            return located.bounds.high_watermark
        try:
            at = await self.parts.parts.timestamps.first_at_or_after(located.partition, int(place[1:]))
        except StorageError as error:
            return error_code_of(error)
        return located.bounds.high_watermark if at is None else at.offset

    async def fetch(
        self, wanted: Sequence[FetchPartition], *, max_wait_ms: int, min_bytes: int, max_bytes: int, isolation: int, room: Room
    ) -> Sequence[FetchedPartition]:
        """As the broker's Fetch. The caller gives `room` back. Raise `StorageError`."""
        request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation, 0, -1, "", list(wanted), [])
        try:
            handled = self.parts.fetch.handle(request, version=FETCH_VERSION, room=room)
            answer = await within(FETCH_WITHIN_S + max_wait_ms / 1_000, handled)
        except TimeoutError:
            raise Unavailable(f"nothing could be read within {FETCH_WITHIN_S:.0f} s") from None
        return answer.partitions

    def room_bytes(self, fetched: Iterable[FetchedPartition], bytes_max: int) -> int:
        """Return how much room records of these take in JSON, if `bytes_max` of them are wanted. Compressed ones may be any number."""
        buffers = [buffer for partition in fetched for buffer in partition.records]
        if all(map(_is_plain, buffers)):
            bytes_max = min(bytes_max, sum(map(len, buffers)))
        return ENCODED_FACTOR * bytes_max + BYTES_PER_STEP

    async def read(self, fetched: FetchedPartition, wanted: WantedRecords, encode: Encode) -> ReadPartition:
        """The records of a partition that was fetched, as far as they are `wanted`; ENCODED_FACTOR times their bytes at most."""
        first: int | None = None
        pieces: list[bytes] = []
        error: UnreadPartition | None = None
        encoded_left = ENCODED_FACTOR * wanted.bytes_left
        try:
            async with contextlib.aclosing(self._records(fetched.records, wanted)) as found:
                async for records in found:
                    if records:
                        first = records[0].offset if first is None else first
                        pieces.append(encode(records))
                        encoded_left -= len(pieces[-1])
                        if encoded_left <= 0:
                            wanted.bytes_left = 0
                    await asyncio.sleep(0)
        except StorageError as unreadable:
            error = unread(fetched.topic, fetched.partition, error_code_of(unreadable), str(unreadable))
        except NotByHttp as unreadable:
            error = unread(fetched.topic, fetched.partition, ErrorCode.invalid_record, str(unreadable))
        self._given.inc(wanted.taken)
        last = wanted.last_offset if wanted.taken else None
        return ReadPartition(fetched, first, last, wanted.taken, wanted.offset, pieces, error if not pieces else None)

    async def _records(self, buffers: Sequence[Buffer], wanted: WantedRecords) -> AsyncGenerator[list[ReadRecord], None]:
        """A few at a time. Raise `StorageError`, `NotByHttp`."""
        data = memoryview(buffers[0]) if len(buffers) == 1 else memoryview(b"".join(buffers))
        for batch in cut(data):
            if wanted.is_done:
                return
            if not batch.is_control and batch.next_offset > wanted.offset:
                async with contextlib.AsyncExitStack() as held:
                    body = await self._decompressed(batch.body, batch.codec, held)
                    for records in read_in_steps(batch.header, body, wanted):
                        yield records
            if not wanted.is_done:
                wanted.offset = max(wanted.offset, batch.next_offset)

    async def _decompressed(self, body: memoryview, codec: int, held: contextlib.AsyncExitStack) -> bytes:
        """One that is long is there alone, until `held` is left."""
        try:
            return bytes(decompress_records(body, codec, bytes_max=DECOMPRESSED_AT_ONCE_BYTES if codec else None))
        except TooLarge:
            await held.enter_async_context(self._decompressing)
            return await self._blocking.run(lambda: bytes(decompress_records(body, codec)))


class StreamsRecords(Protocol):
    async def consume(self, asked: Asked, document: ConsumeDocument) -> web.StreamResponse:
        """Answer with a line a record."""
        ...


class ConsumeByHttp:
    def __init__(self, reading: HttpReading, limits: HttpLimits, streams: "StreamsRecords") -> None:
        self._streams = streams
        self._reading = reading
        self._parts = reading.parts
        self._limits = limits

    async def consume(self, asked: Asked) -> web.StreamResponse:
        is_stream = NDJSON in asked.http.headers.get("Accept", "")
        async with asked.document(_decoder) as (document, _):
            check_document(document, self._limits, is_stream=is_stream)
        if is_stream:
            return await self._streams.consume(asked, document)
        return await self.answered(asked, document)

    async def answered(
        self,
        asked: Asked,
        document: ConsumeDocument,
        *,
        head: bytes = b"{",
        before_sent: Callable[[PolledRecords], None] = lambda _: None,
    ) -> web.StreamResponse:
        """Read and send. `head`: an object in JSON without its end, which the answer begins with. `before_sent` hears what was read."""
        places = {TopicPartition(one.topic, one.partition): one.fetch_offset for one in document.topic_partitions}
        found = await self._reading.places(places)
        wanted = [
            FetchPartition(one.topic, one.partition, -1, offset, one.partition_max_bytes, -1, -1)
            for one in document.topic_partitions
            if not isinstance(offset := found[TopicPartition(one.topic, one.partition)], ErrorCode)
        ]
        room = self._parts.responses.room(asked.address.replies)
        try:
            fetched = await self._fetch(wanted, document, room, is_refused=len(wanted) < len(places))
            out = await asked.room(len(head) + self._reading.room_bytes(fetched.values(), document.max_bytes))
            try:
                good, data, polled = await self._encoded(document, found, fetched, head)
                del fetched
                room.give_back()
                before_sent(polled)
                return await asked.send(200 if good == len(places) else 409, data, out)
            finally:
                out.give_back()
        finally:
            room.give_back()

    async def _encoded(
        self,
        document: ConsumeDocument,
        places: Mapping[TopicPartition, int | ErrorCode],
        fetched: Mapping[TopicPartition, FetchedPartition],
        head: bytes,
    ) -> tuple[int, bytes, PolledRecords]:
        """How many partitions were read, the answer, and where to go on."""
        good, pieces = 0, [head, b"" if head == b"{" else b",", b'"results":[']
        polled = PolledRecords({}, [], len(document.topic_partitions))
        bytes_left, records_max = document.max_bytes, document.max_records or RECORDS_DEFAULT
        records_left = records_max
        for place, one in enumerate(document.topic_partitions):
            named = TopicPartition(one.topic, one.partition)
            offset = places[named]
            if place:
                pieces.append(b",")
            if isinstance(offset, ErrorCode):
                pieces.append(msgspec.json.encode(unread(one.topic, one.partition, offset)))
                continue
            partition = fetched[named]
            if partition.error_code:
                if partition.error_code == ErrorCode.offset_out_of_range:
                    polled.out_of_range.append(named)
                pieces.append(msgspec.json.encode(unread_of(partition)))
                continue
            room_bytes = min(bytes_left, one.partition_max_bytes)
            least = 1 if records_left == records_max else 0  # the answer as a whole has one
            limit = WantedRecords(offset, bytes_left=room_bytes, records_left=records_left, least=least)
            read = await self._reading.read(partition, limit, _in_brackets)
            bytes_left -= room_bytes - limit.bytes_left
            records_left -= read.record_count
            good += read.error is None
            if read.error is None:
                polled.next_offsets[named] = read.next_offset
            pieces += written(read, await self._placed(read) if document.explain else _NOWHERE)
        errors = len(document.topic_partitions) - good
        pieces.append(b'],"success_count":%d,"error_count":%d}\n' % (good, errors))
        return good, b"".join(pieces), polled

    async def _placed(self, read: ReadPartition) -> Placed:
        partition = read.partition
        if read.first is None:
            return _NOWHERE
        return await explained(self._parts, _NOWHERE, partition.topic, partition.partition, read.first)

    async def _fetch(
        self, wanted: Sequence[FetchPartition], document: ConsumeDocument, room: Room, *, is_refused: bool
    ) -> dict[TopicPartition, FetchedPartition]:
        if not wanted:
            return {}
        isolation = 1 if document.isolation == "read_committed" else 0
        max_wait_ms = 0 if is_refused else document.max_wait_ms  # who has an error to hear of waits for no records
        fetched = await self._reading.fetch(
            wanted, max_wait_ms=max_wait_ms, min_bytes=document.min_bytes, max_bytes=document.max_bytes, isolation=isolation, room=room
        )
        return {TopicPartition(one.topic, one.partition): one for one in fetched}


def _is_plain(buffer: Buffer) -> bool:
    """Whether these are whole batches, and none of them is compressed."""
    at = 0
    while at + HEADER_BYTES <= len(buffer):
        header = parse_header(buffer, at)
        if header.attributes & CODEC_MASK or header.size_bytes < HEADER_BYTES:
            return False
        at += header.size_bytes
    return at == len(buffer)


def _in_brackets(records: list[ReadRecord]) -> bytes:
    return msgspec.json.encode(records)[1:-1]


def written(read: ReadPartition, placed: Placed) -> list[bytes]:
    """A partition's result in JSON."""
    partition = read.partition
    if read.error is not None:
        return [msgspec.json.encode(read.error)]
    before = ConsumedPartition(
        topic=partition.topic,
        partition=partition.partition,
        ok=True,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        start_offset=read.first,
        end_offset=read.last,
        count=read.record_count,
        next_fetch_offset=read.next_offset,
        records=[],
        **msgspec.structs.asdict(placed),
    )
    head, _, tail = msgspec.json.encode(before).partition(_NO_RECORDS)
    return [head, _NO_RECORDS[:-1], b",".join(read.records), _NO_RECORDS[-1:], tail]


def unread_of(partition: FetchedPartition) -> UnreadPartition:
    found = unread(partition.topic, partition.partition, ErrorCode(partition.error_code))
    if partition.error_code == ErrorCode.offset_out_of_range:
        start, end = partition.log_start_offset, partition.high_watermark
        text = f"the log begins at {start} and ends before {end}"
        return msgspec.structs.replace(found, error=text, log_start_offset=start, high_watermark=end)
    return found


def unread(topic: str, partition: int, code: ErrorCode, message: str | None = None) -> UnreadPartition:
    return UnreadPartition(
        topic=topic,
        partition=partition,
        ok=False,
        error_type=type_of(code),
        error_code=int(code),
        retriable=is_retriable(code, is_sequenced=True),
        error=message or text_of(code),
    )


def check_document(document: ConsumeDocument, limits: HttpLimits, *, is_stream: bool) -> None:
    """Raise `HttpError` for what the types do not rule out."""
    partitions = document.topic_partitions
    if len(partitions) > limits.partitions_max:
        raise invalid(f"topic_partitions: {len(partitions)} of them, at most {limits.partitions_max} are read at a time")
    if document.max_records is not None and document.max_records > limits.records_max and not is_stream:
        raise invalid(f"max_records: at most {limits.records_max} come in one answer: ask for a stream with Accept: {NDJSON}")
    if document.explain and is_stream:
        raise invalid("explain: is for answers, and this is a stream")
    if document.explain:
        check_explained(partitions)
    if document.until is not None and not is_stream:
        raise invalid(f"until: is for streams: ask for one with Accept: {NDJSON}")
    seen: set[tuple[str, int]] = set()
    for place, one in enumerate(partitions):
        if (one.topic, one.partition) in seen:
            raise invalid(f"topic_partitions[{place}]: {one.topic}-{one.partition} is named twice")
        seen.add((one.topic, one.partition))
