"""What Kafka checks of a batch before it appends it (LogValidator, UnifiedLog.analyzeAndValidateRecords): header, size, CRC, times.

Record by record only where a topic asks for it: keys of compacted topics, and `message.timestamp.before.max.ms` when it is set.

Differs from Apache Kafka: what is inside the records is otherwise not looked at. Where it is, a batch has at most RECORDS_CHECKED_MAX
records, and the answer names at most RECORD_ERRORS_MAX of them. A producer id below -1 is refused.
"""

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from storage import recordbatch
from storage.catalog.topics import Topic
from storage.errors import Corrupt
from storage.limits import BATCH_BYTES_DEFAULT_MAX
from storage.recordbatch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
)
from storage.records import RECORD_BYTES_MIN, ZSTD, walk

CODEC_NUMBERS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of compression.type, without `producer`."""
ZSTD_VERSION_MINIMUM: Final = 7
TIMESTAMP_AFTER_DEFAULT_MAX_MS: Final = 3_600_000
UNLIMITED_MS: Final = 2**63 - 1
RECORDS_CHECKED_MAX: Final = 200_000
"""Walking that many takes a third of a second of the event loop; a batch of 1 MiB can claim thousands of millions."""
RECORD_ERRORS_MAX: Final = 1_000
NO_TIMESTAMP: Final = -1
_MAGIC_AT: Final = 16


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The topic configs that decide about a batch."""

    batch_bytes_max: int
    is_log_append: bool
    before_max_ms: int
    after_max_ms: int
    needs_keys: bool
    codec: int | None = None
    """The one that the topic keeps its batches in; None for the producer's."""
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    error_code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()


def rules_of(topic: Topic) -> TopicRules:
    configs = topic.configs
    return TopicRules(
        batch_bytes_max=int(configs.get("max.message.bytes", BATCH_BYTES_DEFAULT_MAX)),
        is_log_append=configs.get("message.timestamp.type") == "LogAppendTime",
        before_max_ms=int(configs.get("message.timestamp.before.max.ms", UNLIMITED_MS)),
        after_max_ms=int(configs.get("message.timestamp.after.max.ms", TIMESTAMP_AFTER_DEFAULT_MAX_MS)),
        needs_keys="compact" in configs.get("cleanup.policy", "delete"),
        codec=CODEC_NUMBERS.get(codec := configs.get("compression.type", "producer")),
        level=int(configs[level_key]) if (level_key := f"compression.{codec}.level") in configs and configs[level_key] != "-1" else None,
    )


def check(view: memoryview | None, rules: TopicRules, *, version: int, now_ms: int) -> BatchHeader | Refused:
    """The header of the one batch in `view`, or why it is refused. `version` is that of the Produce request."""
    if view is None or len(view) == 0:
        return Refused(ErrorCode.invalid_record, "the partition's records hold no batch")
    if len(view) < HEADER_BYTES:
        return Refused(ErrorCode.invalid_record, f"a batch has at least {HEADER_BYTES} bytes, these are {len(view)}")
    if view[_MAGIC_AT] != MAGIC:
        code = ErrorCode.invalid_record if view[_MAGIC_AT] < MAGIC else ErrorCode.corrupt_message
        return Refused(code, f"magic {view[_MAGIC_AT]} is not served: Produce v3 and later carry magic 2")
    header = recordbatch.parse_header(view)
    size_bytes = header.size_bytes
    if size_bytes < HEADER_BYTES:
        return Refused(ErrorCode.corrupt_message, f"the batch says it has {size_bytes} bytes, a batch has at least {HEADER_BYTES}")
    if size_bytes > len(view):
        return Refused(ErrorCode.invalid_record, f"the batch says it has {size_bytes} bytes, {len(view)} are there")
    if size_bytes < len(view):
        return Refused(ErrorCode.invalid_record, "a partition's records must be exactly one batch")
    if size_bytes > rules.batch_bytes_max:
        return Refused(ErrorCode.message_too_large, f"the batch has {size_bytes} bytes, max.message.bytes is {rules.batch_bytes_max}")
    if recordbatch.checksum(view) != header.crc:
        return Refused(ErrorCode.corrupt_message, "the batch does not match its CRC-32C")
    return _check_header(header, version) or _check_times(header, rules, now_ms) or _check_records(view, header, rules, now_ms) or header


def _check_header(header: BatchHeader, version: int) -> Refused | None:
    attributes = header.attributes
    if header.base_offset != 0:
        return Refused(ErrorCode.invalid_record, f"the base offset of a produced batch is 0, not {header.base_offset}")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        return Refused(
            ErrorCode.invalid_record, f"record count {header.record_count} and last offset delta {header.last_offset_delta} contradict"
        )
    if not attributes & CODEC_MASK and header.record_count > (header.size_bytes - HEADER_BYTES) // RECORD_BYTES_MIN:
        return Refused(ErrorCode.invalid_record, f"{header.size_bytes} bytes cannot hold {header.record_count} records")
    if attributes & ATTRIBUTE_CONTROL:
        return Refused(ErrorCode.invalid_record, "clients may not write control batches")
    if header.producer_id < NO_PRODUCER:
        return Refused(ErrorCode.invalid_record, f"{header.producer_id} is not a producer id")
    if header.producer_id != NO_PRODUCER and (header.base_sequence < 0 or header.producer_epoch < 0):
        return Refused(
            ErrorCode.invalid_record,
            f"producer id {header.producer_id} without sequence ({header.base_sequence}) or epoch ({header.producer_epoch})",
        )
    if attributes & ATTRIBUTE_TRANSACTIONAL:
        return Refused(ErrorCode.invalid_txn_state, "no transaction is open: transactions are not served yet")
    codec = attributes & CODEC_MASK
    if codec > ZSTD:
        return Refused(ErrorCode.unsupported_compression_type, f"compression codec {codec} is not known")
    if codec == ZSTD and version < ZSTD_VERSION_MINIMUM:
        return Refused(ErrorCode.unsupported_compression_type, "zstd needs Produce v7 or later")
    return None


def _check_times(header: BatchHeader, rules: TopicRules, now_ms: int) -> Refused | None:
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return Refused(ErrorCode.invalid_timestamp, "producers may not mark a batch as LogAppendTime")
    if not rules.is_log_append and header.max_timestamp - now_ms > rules.after_max_ms:
        return Refused(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms ahead, "
            f"message.timestamp.after.max.ms is {rules.after_max_ms}",
        )
    return None


def _check_records(view: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int) -> Refused | None:
    checks_before = rules.before_max_ms != UNLIMITED_MS and not rules.is_log_append
    if not rules.needs_keys and not checks_before:
        return None
    if header.record_count > RECORDS_CHECKED_MAX:
        text = f"{header.record_count} records in a batch whose records are checked, at most {RECORDS_CHECKED_MAX} are allowed"
        return Refused(ErrorCode.invalid_record, text)
    without_key: list[int] = []
    early: list[int] = []
    try:
        for index, record in enumerate(walk(view, header)):
            if rules.needs_keys and not record.has_key:
                without_key.append(index)
            if checks_before and record.timestamp_ms != NO_TIMESTAMP and now_ms - record.timestamp_ms > rules.before_max_ms:
                early.append(index)
    except Corrupt as error:
        return Refused(ErrorCode.invalid_record, str(error))
    if without_key:
        return _refused_records(ErrorCode.invalid_record, without_key, "compacted topics take no record without a key")
    if early:
        text = f"older than message.timestamp.before.max.ms={rules.before_max_ms}"
        return _refused_records(ErrorCode.invalid_timestamp, early, text)
    return None


def _refused_records(code: ErrorCode, indexes: list[int], text: str) -> Refused:
    return Refused(code, text, tuple((index, text) for index in indexes[:RECORD_ERRORS_MAX]))
