"""One object, decoded: what its header or footer says, and the batches that lie in it. Fields of `-o json`."""

import msgspec

from forebay.commands.trace import CODECS
from runtime.ulid import ulid_ms
from storage.catalog.topic import decode_topic_id, read_topic_ids
from storage.errors import Corrupt, EndsEarly, IncompatibleFormat, StorageError
from storage.formats.segment import HEADER_BYTES, decode_header
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStat
from storage.recordbatch import CODEC_MASK
from storage.verify.inventory import kind_of_object
from storage.verify.objects import StoredBatch, batches_between, read_footer, read_head
from storage.verify.reading import StoreReading
from storage.vocabulary import PartitionId


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """`base_offset` is as stored: always 0 in a WAL object, whose batches get their offsets from the index."""

    start: int
    end: int
    base_offset: int
    records: int
    codec: str
    max_timestamp_ms: int
    producer_id: int


class PartRow(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a WAL object, or a block of a segment, with offsets. `problem`: why its batches cannot be read."""

    topic: str | None
    topic_id: str
    partition: int
    start: int
    end: int
    first_offset: int | None = None
    last_offset: int | None = None
    batches: list[BatchRow] = msgspec.field(default_factory=list)
    problem: str | None = None


class ObjectAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`parts` are slices or blocks, as many as are wanted of `part_count`. `problem`: why there are none."""

    key: str
    kind: str
    size_bytes: int
    modified_ms: int
    created_ms: int | None = None
    broker_epoch: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    records: int | None = None
    part_count: int = 0
    parts: list[PartRow] = msgspec.field(default_factory=list)
    problem: str | None = None

    @property
    def is_sound(self) -> bool:
        return self.problem is None and all(part.problem is None for part in self.parts)


async def object_answer(reading: StoreReading, metadata: MetadataStore, key: str, *, parts_max: int) -> ObjectAnswer:
    """Raises `NotFound`, `Unavailable`. At most `parts_max` slices or blocks are read."""
    stat = await reading.stat(key)
    kind, object_id = kind_of_object(key)
    answer = ObjectAnswer(
        key=key,
        kind=kind,
        size_bytes=stat.size_bytes,
        modified_ms=stat.modified_ms,
        created_ms=None if object_id is None else ulid_ms(object_id),
    )
    try:
        match kind:
            case "wal":
                return await _wal(reading, metadata, answer, parts_max=parts_max)
            case "segments":
                return await _segment(reading, metadata, answer, stat, parts_max=parts_max)
    except (Corrupt, IncompatibleFormat, EndsEarly) as error:
        return msgspec.structs.replace(answer, problem=str(error))
    return answer


async def _wal(reading: StoreReading, metadata: MetadataStore, answer: ObjectAnswer, *, parts_max: int) -> ObjectAnswer:
    header = (await read_head(reading, answer.key)).header
    if isinstance(header, StorageError):
        raise header
    shown = header.slices[:parts_max]
    names = await _names(metadata, {one.partition for one in shown})
    parts = [await _part(reading, answer.key, one.partition, names, one.position, one.position + one.length) for one in shown]
    return msgspec.structs.replace(answer, broker_epoch=header.broker_epoch, part_count=len(header.slices), parts=parts)


async def _segment(
    reading: StoreReading, metadata: MetadataStore, answer: ObjectAnswer, stat: ObjectStat, *, parts_max: int
) -> ObjectAnswer:
    decode_header(await reading.get(answer.key, 0, HEADER_BYTES), key=answer.key)
    footer = await read_footer(reading, answer.key, stat.size_bytes)
    names = await _names(metadata, {footer.partition})
    parts = []
    for block in range(min(parts_max, len(footer.firsts))):
        start = footer.positions[block]
        part = await _part(reading, answer.key, footer.partition, names, start, start + footer.lengths[block])
        parts.append(msgspec.structs.replace(part, first_offset=footer.firsts[block], last_offset=footer.lasts[block]))
    return msgspec.structs.replace(
        answer,
        first_offset=footer.base,
        last_offset=footer.last,
        records=footer.record_count,
        part_count=len(footer.firsts),
        parts=parts,
    )


async def _part(reading: StoreReading, key: str, partition: PartitionId, names: dict[str, str], start: int, end: int) -> PartRow:
    rows: list[BatchRow] = []
    problem = None
    try:
        async for batches in batches_between(reading, key, start, end):
            rows += [_row(batch) for batch in batches]
    except (Corrupt, EndsEarly) as error:
        problem = str(error)
    topic_id, number = partition
    return PartRow(topic=names.get(topic_id), topic_id=topic_id, partition=number, start=start, end=end, batches=rows, problem=problem)


def _row(batch: StoredBatch) -> BatchRow:
    header = batch.header
    codec = header.attributes & CODEC_MASK
    return BatchRow(
        start=batch.position,
        end=batch.position + header.size_bytes,
        base_offset=header.base_offset,
        records=header.record_count,
        codec=CODECS[codec] if codec < len(CODECS) else f"unknown ({codec})",
        max_timestamp_ms=header.max_timestamp,
        producer_id=header.producer_id,
    )


async def _names(metadata: MetadataStore, partitions: set[PartitionId]) -> dict[str, str]:
    """The names of the topics that still exist, by id."""
    topic_ids = sorted({one.topic_id for one in partitions})
    records = await read_topic_ids(metadata, topic_ids)
    found = {topic_id: decode_topic_id(record) for topic_id, record in zip(topic_ids, records, strict=True) if record is not None}
    return {topic_id: record.name for topic_id, record in found.items() if not record.is_deleted}
