"""What Kafka checks of a batch before it appends it (LogValidator, UnifiedLog.analyzeAndValidateRecords): header, size, CRC, times.

`check` looks at the header, `check_records` at every record. The latter is for brokers with `kafka.validate_records: full`, and for topics
that ask for it: keys of compacted ones, and `message.timestamp.before.max.ms` when it is set. Where the header is a reason to doubt its
greatest time (`needs_times`), the times of the records are read at least. As in Kafka, a batch whose records were read is then given their
greatest time, in its header, with the CRC that covers it.

Differs from Apache Kafka: else what is inside the records is not looked at. Where it is, a batch has at most RECORDS_CHECKED_MAX records,
offset deltas must count from 0 (Kafka numbers them anew, or takes them as they are), what does not decompress is INVALID_RECORD, and the
answer names at most NAMED_MAX records (storage/records.py). A producer id below -1 is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from storage import recordbatch
from storage.catalog.topic import INTERNAL
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
    stamp_max_timestamp,
)
from storage.records import RECORD_BYTES_MIN, ZSTD, TooLarge, Unreadable, greatest_time, is_time_doubtful, read_records

CODEC_NUMBERS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of compression.type, without `producer`."""
ZSTD_VERSION_MINIMUM: Final = 7
TIMESTAMP_AFTER_DEFAULT_MAX_MS: Final = 3_600_000
UNLIMITED_MS: Final = 2**63 - 1
RECORDS_CHECKED_MAX: Final = 1_000_000
"""Reading that many takes a second of a thread; a batch of 1 MiB can claim thousands of millions."""
_MAGIC_AT: Final = 16
_MIN_MS: Final = -(2**63)
_MAX_MS: Final = 2**63 - 1


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
    is_internal: bool = False
    reads_records: bool = field(init=False)
    """Whether the topic asks for something that the header of a batch does not say."""

    def __post_init__(self) -> None:
        checks_before = self.before_max_ms != UNLIMITED_MS and not self.is_log_append
        object.__setattr__(self, "reads_records", self.needs_keys or checks_before)


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
        is_internal=topic.name in INTERNAL,
    )


def check(view: memoryview | None, rules: TopicRules, *, version: int) -> BatchHeader | Refused:
    """The header of the one batch in `view`, or why it is refused. `version` is that of the Produce request."""
    if rules.is_internal:
        return Refused(ErrorCode.invalid_topic_exception, "clients may not write to an internal topic")
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
    return _check_header(header, version) or header


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
    if attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return Refused(ErrorCode.invalid_timestamp, "producers may not mark a batch as LogAppendTime")
    return None


def needs_times(view: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int) -> bool:
    """Whether a batch that `check` has passed must have the times of its records read: its header's greatest one is doubtful, or further
    ahead than the topic allows.
    """
    return not rules.is_log_append and (is_ahead(header, rules, now_ms) or is_time_doubtful(view, header))


def is_ahead(header: BatchHeader, rules: TopicRules, now_ms: int) -> bool:
    """Whether the greatest time in a header is further ahead than the topic allows."""
    return not rules.is_log_append and header.max_timestamp - now_ms > rules.after_max_ms


def check_records(
    view: memoryview,
    header: BatchHeader,
    rules: TopicRules,
    now_ms: int,
    *,
    only_times: bool = False,
    bytes_max: int | None = None,
    headers_max: int | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> Refused | None:
    """Why a batch that `check` has passed is refused for what is in its records; else its header has their greatest time.

    `only_times`: nothing else is looked at, unless one is out of time, which is `TooLarge` if there is a `bytes_max`. Blocks, raises
    `TooLarge`; see `read_records`.
    """
    if header.record_count > RECORDS_CHECKED_MAX:
        text = f"{header.record_count} records in a batch whose records are checked, at most {RECORDS_CHECKED_MAX} are allowed"
        return Refused(ErrorCode.invalid_record, text)
    earliest_ms = _MIN_MS if rules.is_log_append else max(_MIN_MS, now_ms - rules.before_max_ms)
    latest_ms = _MAX_MS if rules.is_log_append else min(_MAX_MS, now_ms + rules.after_max_ms)
    try:
        if only_times:
            greatest_ms = greatest_time(view, header, bytes_max=bytes_max, breathe=breathe)
            if greatest_ms <= latest_ms:
                _correct(view, header, greatest_ms)
                return None
            if bytes_max is not None:
                raise TooLarge("which records are out of time is looked for where nobody waits")
        found = read_records(
            view, header, earliest_ms=earliest_ms, latest_ms=latest_ms, bytes_max=bytes_max, headers_max=headers_max, breathe=breathe
        )
    except Corrupt as error:
        # Not CORRUPT_MESSAGE, which clients take for damage on the way and send again: Kafka's UNKNOWN_SERVER_ERROR is as final.
        text = str(error)
        index = error.index if isinstance(error, Unreadable) else None
        return Refused(ErrorCode.invalid_record, text, () if index is None else ((index, text),))
    if found.out_of_time:
        text = (
            f"the timestamp is not between {earliest_ms} and {latest_ms}: "
            f"message.timestamp.before.max.ms={rules.before_max_ms} message.timestamp.after.max.ms={rules.after_max_ms}"
        )
        return _refused_records(ErrorCode.invalid_timestamp, found.out_of_time, text)
    if rules.needs_keys and found.without_key:
        return _refused_records(ErrorCode.invalid_record, found.without_key, "compacted topics take no record without a key")
    if not rules.is_log_append:
        _correct(view, header, found.greatest_ms)
    return None


def _correct(view: memoryview, header: BatchHeader, greatest_ms: int) -> None:
    if greatest_ms != header.max_timestamp:
        stamp_max_timestamp(view, greatest_ms)


def _refused_records(code: ErrorCode, indexes: list[int], text: str) -> Refused:
    return Refused(code, text, tuple((index, text) for index in indexes))
