"""`POST /produce` and `POST /producers`: records in JSON become one batch a partition, on the path that Kafka's Produce takes.

Exactly once: a producer has an id (`/producers`) and counts its records for each partition. A client that got no answer sends the same
records again, to any broker; what is there already is not written again, and the answer says `duplicate`.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from aiohttp import web
from kio.schema.errors import ErrorCode
from msgspec import UNSET, UnsetType

from broker.handlers.log.produce import BegunProduce
from broker.handling.administration import Requester
from broker.handling.errors import error_code_of
from broker.handling.topics import create_missing
from broker.http.errors import invalid, is_retriable, text_of, type_of
from broker.http.guard import NDJSON, Asked, HttpLimits, ReceivedBody, json_response, one_of_each
from broker.http.parts import HttpParts
from broker.http.records import AnyRecord, values_of
from broker.protocol.produce import PartitionRecords, PartitionResult, ProduceRequest
from runtime.blocking import Blocking
from runtime.frames import make_frame
from runtime.telemetry import Metric
from runtime.turns import in_turns
from storage.catalog.topic import validate_name
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.limits import KIB, SEQUENCE_MAX
from storage.record_values import NO_SENDER, SequencedBy, Written, batch_bytes, codec_number, write_batch, write_values_in_steps
from storage.records import compress_records
from storage.vocabulary import Buffer

RECORDS: Final = Metric("forebay_http_records_total", "Records that came in by the HTTP API, and went out", ("direction",))
DUPLICATES: Final = Metric("forebay_http_duplicates_total", "Batches that a producer sent again by HTTP, and that were there already")

LISTENER: Final = "HTTP"
PRODUCE_VERSION: Final = 11
TIMEOUT_DEFAULT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 60_000
COMPRESSED_AT_ONCE_BYTES: Final = 64 * KIB
"""What is more is compressed in a thread."""
ACKS_ALL: Final = -1
EXPLAINED_MAX: Final = 10
INLINE: Final = "inline"

P = TypeVar("P", bound="Placed")

Count = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]


class HttpProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]


TopicName = Annotated[str, msgspec.Meta(max_length=249)]


class Placed(msgspec.Struct, frozen=True, omit_defaults=True):
    """With `explain`: the record of the metadata store that names the batches, the object that holds them ("inline": that record itself),
    and where in it. Compaction may move them at any time.
    """

    index_key: str | UnsetType = UNSET
    object_uri: str | UnsetType = UNSET
    byte_offset: int | UnsetType = UNSET
    byte_length: int | UnsetType = UNSET


class PartitionToProduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sequence`: that of the first record, of a producer."""

    topic: TopicName
    partition: Count
    records: Annotated[list[AnyRecord], msgspec.Meta(min_length=1)]
    sequence: Count | None = None


class ProduceDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic_partitions: Annotated[list[PartitionToProduce], msgspec.Meta(min_length=1)]
    producer: HttpProducer | None = None
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=TIMEOUT_MAX_MS)] = TIMEOUT_DEFAULT_MS
    explain: bool = False


class RecordError(msgspec.Struct, frozen=True):
    index: int
    message: str


class ProducedPartition(Placed, frozen=True, kw_only=True, omit_defaults=False):
    """`timestamp`: that of LogAppendTime, else null, and of a duplicate. `next_sequence`: of a producer."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    count: int
    log_start_offset: int
    timestamp: int | None
    duplicate: bool
    next_sequence: int | None
    ok: Literal[True]


class FailedPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """`error_code` is Kafka's. `retriable`: the same request may succeed later, and writes nothing twice."""

    topic: str
    partition: int
    ok: Literal[False]
    error_type: str
    error_code: int
    retriable: bool
    error: str
    record_errors: Sequence[RecordError] = ()


ProduceResult = ProducedPartition | FailedPartition


class ProduceAnswer(msgspec.Struct, frozen=True):
    results: Annotated[list[Any], one_of_each("ProducedPartition", "FailedPartition")]
    success_count: int
    error_count: int


class NewProducer(msgspec.Struct, frozen=True):
    """It is forgotten when it has appended nothing to a partition for `expires_after_ms`."""

    id: int
    epoch: int
    expires_after_ms: int


class PostedBatches:
    """A request, as a source of batches whose order counts. The next one of its connection begins when this one is answered."""


_decoder: Final = msgspec.json.Decoder(ProduceDocument)


class StreamsBatches(Protocol):
    async def produce(self, asked: Asked, produce: "ProduceByHttp") -> web.StreamResponse:
        """Append the records of a stream of lines."""
        ...


class ProduceByHttp:
    def __init__(
        self, parts: HttpParts, limits: HttpLimits, streams: "StreamsBatches", *, blocking: Blocking, expires_after_ms: int
    ) -> None:
        """`blocking` compresses, and stays the caller's."""
        self._streams = streams
        self._parts = parts
        self._limits = limits
        self._blocking = blocking
        self._expires_after_ms = expires_after_ms
        self._taken = parts.telemetry.counter(RECORDS).labels("in")
        self._duplicates = parts.telemetry.counter(DUPLICATES)

    async def new_producer(self, _: Asked) -> web.Response:
        return json_response(200, NewProducer(await self._parts.parts.producer_ids.next(), 0, self._expires_after_ms))

    async def produce(self, asked: Asked) -> web.StreamResponse:
        if asked.content_type == NDJSON:
            return await self._streams.produce(asked, self)
        async with asked.document(_decoder) as (document, body):
            check_document(document, self._limits)
            by = Requester(asked.client_host, None, LISTENER)
            results = await self.append(document, body, by)
        if document.explain:
            results = [
                one if isinstance(one, FailedPartition) else await explained(self._parts, one, one.topic, one.partition, one.start_offset)
                for one in results
            ]
        good = sum(1 for result in results if result.ok)
        return await asked.answer(200 if good == len(results) else 409, ProduceAnswer(results, good, len(results) - good))

    async def append(self, document: ProduceDocument, body: ReceivedBody, by: Requester) -> list[ProduceResult]:
        """Append what `check_document` has passed. One result a partition, in their order."""
        return await (await self.begin(document, body, by, source=PostedBatches())).results(self)

    async def begin(self, document: ProduceDocument, body: ReceivedBody, by: Requester, *, source: object) -> "BegunDocument":
        """As `append`. Return when all of it is in line for the log: what `source` begins afterwards comes behind it."""
        failed = await self._create(sorted({one.topic for one in document.topic_partitions}), by)
        asked = [
            PartitionRecords(one.topic, one.partition, await self._batch(one, document, body))
            for one in document.topic_partitions
            if one.topic not in failed
        ]
        request = ProduceRequest(None, ACKS_ALL, document.timeout_ms, asked)
        deadline_s = asyncio.get_running_loop().time() + document.timeout_ms / 1_000
        try:
            async with asyncio.timeout_at(deadline_s):
                begun: BegunProduce | None = await self._parts.produce.begin(request, version=PRODUCE_VERSION, source=source)
        except TimeoutError:
            begun = None
        return BegunDocument(document, failed, begun, deadline_s)

    async def _create(self, names: Sequence[str], by: Requester) -> Mapping[str, ErrorCode]:
        """Create topics that are not there, as Metadata would. Why some are not, by name."""
        parts = self._parts.parts
        unknown = [name for name in names if parts.topics.find(name) is None]
        if not unknown:
            return {}
        failed = {name: ErrorCode.invalid_topic_exception for name in unknown if validate_name(name) is not None}
        try:
            found, unread = await parts.topics.look_up([name for name in unknown if name not in failed])
        except StorageError as error:
            return failed | dict.fromkeys(unknown, error_code_of(error))
        missing = [name for name in unknown if name not in failed and name not in found]
        if unread is not None:
            return failed | dict.fromkeys(missing, error_code_of(unread))
        if not parts.topic_defaults.auto_create:
            return failed | dict.fromkeys(missing, ErrorCode.unknown_topic_or_partition)
        created = await create_missing(parts, missing, by) if missing else {}
        return failed | {name: answer for name, answer in created.items() if not isinstance(answer, Topic)}

    async def _batch(self, one: PartitionToProduce, document: ProduceDocument, body: ReceivedBody) -> memoryview:
        """The partition's records as one batch, in memory that counts as a request's."""
        written: Written = await in_turns(write_values_in_steps(one.records, now_ms=self._parts.clock.now_ms(), values_of=values_of))
        codec = codec_number(document.compression)
        packed: Buffer = written.body
        if codec:
            if len(written.body) > COMPRESSED_AT_ONCE_BYTES:
                packed = await self._blocking.run(lambda: compress_records(written.body, codec))
            else:
                packed = compress_records(written.body, codec)
        sender = NO_SENDER
        if document.producer is not None:
            assert one.sequence is not None, "checked"
            sender = SequencedBy(document.producer.id, document.producer.epoch, one.sequence)
        frame = make_frame(batch_bytes(packed), body.address)
        body.shrink(frame.cost_bytes)
        batch = memoryview(frame)
        write_batch(batch, written, packed, codec, sender)
        return batch

    def result(self, one: PartitionToProduce, document: ProduceDocument, result: PartitionResult | ErrorCode) -> ProduceResult:
        count, is_sequenced = len(one.records), document.producer is not None
        if isinstance(result, ErrorCode):
            result = PartitionResult(one.topic, one.partition, result)
        if result.error_code:
            return failed_partition(result, is_sequenced=is_sequenced)
        self._taken.inc(count)
        if result.is_duplicate:
            self._duplicates.inc()
        return ProducedPartition(
            topic=one.topic,
            partition=one.partition,
            ok=True,
            start_offset=result.base_offset,
            end_offset=result.base_offset + count - 1,
            count=count,
            log_start_offset=result.log_start_offset,
            timestamp=None if result.log_append_time_ms < 0 or result.is_duplicate else result.log_append_time_ms,
            duplicate=result.is_duplicate,
            next_sequence=None if one.sequence is None else next_sequence(one.sequence, count),
        )


class BegunDocument(NamedTuple):
    """A document whose batches are in line for the log. `failed`: why some topics are not there, by name."""

    document: ProduceDocument
    failed: Mapping[str, ErrorCode]
    begun: BegunProduce | None
    deadline_s: float

    async def results(self, produce: ProduceByHttp) -> list[ProduceResult]:
        """One a partition, in their order. For one caller."""
        document, failed = self.document, self.failed
        produced: list[PartitionResult] | None = None
        if self.begun is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self.deadline_s):
                    produced = await self.begun.results()
        if produced is None:
            text = f"no answer within timeout_ms={document.timeout_ms}"
            code = ErrorCode.request_timed_out
            partitions = document.topic_partitions
            produced = [
                PartitionResult(one.topic, one.partition, code, error_message=text) for one in partitions if one.topic not in failed
            ]
        remaining = iter(produced)
        return [produce.result(one, document, failed.get(one.topic) or next(remaining)) for one in document.topic_partitions]


def check_document(document: ProduceDocument, limits: HttpLimits) -> None:
    """Raise `HttpError` for what the types do not rule out."""
    partitions = document.topic_partitions
    if len(partitions) > limits.partitions_max:
        raise invalid(f"topic_partitions: {len(partitions)} of them, at most {limits.partitions_max} are taken at a time")
    if document.explain:
        check_explained(partitions)
    count = sum(len(one.records) for one in partitions)
    if count > limits.records_max:
        raise invalid(f"topic_partitions: {count} records in all, at most {limits.records_max} are taken at a time")
    seen: set[tuple[str, int]] = set()
    for place, one in enumerate(partitions):
        if (one.topic, one.partition) in seen:
            raise invalid(f"topic_partitions[{place}]: {one.topic}-{one.partition} is named twice: put its records together")
        seen.add((one.topic, one.partition))
        if (one.sequence is None) != (document.producer is None):
            what = "a producer counts its records" if one.sequence is None else "only a producer counts its records: give its id and epoch"
            raise invalid(f"topic_partitions[{place}].sequence: {what}")


def next_sequence(sequence: int, count: int) -> int:
    return (sequence + count) & SEQUENCE_MAX


def failed_partition(result: PartitionResult, *, is_sequenced: bool) -> FailedPartition:
    code = result.error_code
    return FailedPartition(
        topic=result.topic,
        partition=result.partition,
        ok=False,
        error_type=type_of(code),
        error_code=int(code),
        retriable=is_retriable(code, is_sequenced=is_sequenced),
        error=result.error_message or text_of(code),
        record_errors=tuple(RecordError(index, message or "") for index, message in result.record_errors),
    )


def check_explained(partitions: Sequence[object]) -> None:
    """Raise `HttpError` for more than are explained at a time."""
    if len(partitions) > EXPLAINED_MAX:
        raise invalid(f"explain: at most {EXPLAINED_MAX} partitions are explained at a time, and these are {len(partitions)}")


async def explained(parts: HttpParts, result: P, topic: str, partition: int, offset: int) -> P:
    """The result with its place, which costs a read of the manifest; as it was if that cannot be read."""
    try:
        found = (await parts.parts.topics.lookup([topic])).get(topic)
        if found is None:
            return result
        place = await parts.locate(found.partition(partition), offset)
    except StorageError:
        return result
    uri = INLINE if place.object_key is None else f"{parts.objects_uri}{place.object_key}"
    return msgspec.structs.replace(
        result, index_key=place.index_key, object_uri=uri, byte_offset=place.byte_offset, byte_length=place.byte_length
    )
