"""Batches before they are appended: checked as Kafka does (LogValidator, UnifiedLog.analyzeAndValidateRecords), read, and recompressed.

`check` looks at the header, `check_records` at every record. The latter is for brokers with `kafka.validate_records: full`, and for topics
that ask for it: keys of compacted ones, and `message.timestamp.before.max.ms` when it is set. Where the header is a reason to doubt its
greatest time (`needs_times`), the times of the records are read at least. As in Kafka, a batch whose records were read is then given their
greatest time, in its header, with the CRC that covers it. These functions are pure.

`Recompression` has threads do what takes long, in an order that lets no batch overtake an earlier one of its connection.

Differs from Apache Kafka: else what is inside the records is not looked at. Where it is, a batch has at most RECORDS_CHECKED_MAX records,
offset deltas must count from 0 (Kafka numbers them itself, or takes them as they are), what does not decompress is INVALID_RECORD, and the
answer names at most NAMED_MAX records (storage/records.py). A producer id below -1 is refused.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage import recordbatch
from storage.catalog.topic import INTERNAL
from storage.catalog.topics import Topic
from storage.errors import Corrupt
from storage.limits import BATCH_BYTES_DEFAULT_MAX, KIB
from storage.recordbatch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
    stamp_max_timestamp,
)
from storage.records import RECORD_BYTES_MIN, ZSTD, TooLarge, Unreadable, greatest_time, is_time_doubtful, read_records, recompress_batch
from storage.vocabulary import PartitionId

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

RECOMPRESSED: Final = Metric(
    "forebay_recompressed_batches_total", "Batches compressed again for topics with a compression.type of their own, by codec", ("codec",)
)
RECOMPRESSED_BYTES: Final = Metric("forebay_recompressed_bytes_total", "Bytes of such batches, as they came and as they left", ("side",))
WAITING: Final = Metric(
    "forebay_recompression_waiting_bytes", "Bytes of batches that wait to be read or compressed again", aggregation="sum"
)
READ: Final = Metric(
    "forebay_batches_read_total", "Batches whose records were read one by one before they were taken, by what came of it", ("verdict",)
)

THREADS: Final = 2
READ_AT_ONCE_RECORDS_MAX: Final = 256
READ_AT_ONCE_BYTES_MAX: Final = 128 * KIB
"""Per request on the loop, decompressed: a fraction of a millisecond, about what waking a thread takes."""
LEAVING_MAX: Final = 250
"""Batches of a line that leave it in one turn of the loop."""
READ_AT_ONCE_HEADERS_EACH_MAX: Final = 8
"""Per record, on average: two bytes make a header, and to read it takes as long as a record."""
_EXPANSION: Final = 8
"""A batch that decompresses to more than this many times its size is not read at once."""
_TIMES_FOR_A_RECORD: Final = 4
"""Records whose times alone are read while one is read."""
_CODECS: Final = tuple(CODEC_NUMBERS)

log = structlog.get_logger("recompression")


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


RecompressionDone = Callable[[memoryview | Refused | None], None]
"""None: there was nothing to do."""


@dataclass(slots=True)
class Work:
    """`reads`: every record, or only their times; `compresses` it again; and then, if the topic says so, it is marked as LogAppendTime.

    The batch that leaves has the greatest time of its records in its header, written in place if it was not compressed again.
    """

    batch: memoryview
    header: BatchHeader
    rules: TopicRules
    now_ms: int
    reads: bool
    compresses: bool
    only_times: bool = False
    is_long: bool = False
    """Known not to be short, whatever its header says."""


@dataclass(slots=True)
class AtOnce:
    """What the loop itself may still read of one request, or in one turn."""

    records: int = READ_AT_ONCE_RECORDS_MAX
    size_bytes: int = READ_AT_ONCE_BYTES_MAX

    def room_for(self, work: Work) -> int | None:
        """Bytes that the batch may decompress to, taken; None if a thread is to read it."""
        is_compressed = work.header.attributes & CODEC_MASK
        room_bytes = len(work.batch) * (_EXPANSION if is_compressed else 1)
        # Without decompression times are read where they are, and much faster than records.
        records = work.header.record_count // _TIMES_FOR_A_RECORD if work.only_times else work.header.record_count
        taken_bytes = 0 if work.only_times and not is_compressed else room_bytes
        if work.is_long or work.compresses or records > self.records or taken_bytes > self.size_bytes:
            return None
        self.records -= records
        self.size_bytes -= taken_bytes
        return room_bytes


@dataclass(slots=True, eq=False)
class Share:
    """What one request has of the results. `release` when it is answered."""

    recompression: "Recompression"
    results_bytes: int = 0

    def release(self) -> None:
        self.recompression.give_back(self.results_bytes)
        self.results_bytes = 0


@dataclass(slots=True, eq=False)
class _Job:
    work: Work | None
    share: Share
    done: RecompressionDone
    added_s: float


_Line = tuple[int, PartitionId]


class Recompression:
    """Reads batches, and compresses those of topics with a `compression.type` of their own, off the event loop.

    A line is what one connection sends to one partition. Its batches leave in the order of their coming, those that need no work among
    them, and one is worked on at a time; connections take turns, and the lines of each, so that no connection has the threads to itself.
    A batch that is short is not worth a thread: it is read on the loop, as many of them in one turn of the loop as are read of one request.

    What is made here is not in the budget of requests, and may be many times larger than what was sent. So a request begins only while the
    results of all that are not answered yet are few, and has no more of them than a bound; one that has begun goes on, or all might wait
    for one another. What cannot be decompressed, or holds fewer bytes than its records must have, is INVALID_RECORD.
    Reading makes nothing that is kept: a thread has at most one batch decompressed, of DECOMPRESSED_BYTES_MAX.
    """

    def __init__(
        self, *, blocking: Blocking, nursery: Nursery, clock: Clock, telemetry: Telemetry, limits: BrokerLimits = DEFAULT_BROKER_LIMITS
    ) -> None:
        self._limits = limits
        self._blocking = blocking
        self._nursery = nursery
        self._clock = clock
        self.lines: dict[_Line, deque[_Job]] = {}
        """The lines that have batches: while there are none, nothing can be overtaken. Read-only for others."""
        self._ready: OrderedDict[int, deque[_Line]] = OrderedDict()
        """Lines that nobody works on, by connection, in the order of their turns."""
        self._turn = AtOnce()
        self._working = 0
        self._results_bytes = 0
        self._room = asyncio.Event()
        batches = telemetry.counter(RECOMPRESSED)
        self._batches = [batches.labels(codec) for codec in _CODECS]
        size = telemetry.counter(RECOMPRESSED_BYTES)
        self._bytes_in, self._bytes_out = size.labels("in"), size.labels("out")
        read = telemetry.counter(READ)
        self._accepted, self._refused = read.labels("accepted"), read.labels("refused")
        telemetry.gauge(WAITING).set_function(
            lambda: sum(len(job.work.batch) for jobs in self.lines.values() for job in jobs if job.work is not None)
        )

    @property
    def results_bytes(self) -> int:
        """The size of results of requests not answered yet."""
        return self._results_bytes

    def share(self) -> Share:
        return Share(self)

    def holds(self, source: object, partition: PartitionId) -> bool:
        """Whether a batch of that source and partition would overtake another one if it did not stand in line."""
        return (id(source), partition) in self.lines

    def add(self, source: object, partition: PartitionId, work: Work | None, share: Share, done: RecompressionDone) -> None:
        """Stand in line. `done` is called once, on the loop and never before this returns; without `work`, when it is its turn.

        `source` must live until then.
        """
        line = id(source), partition
        jobs = self.lines.get(line)
        if jobs is None:
            jobs = self.lines[line] = deque()
            self._stand_by(line)
            if self._working < THREADS:
                self._working += 1
                self._nursery.spawn(self._work(), name="recompress")
        jobs.append(_Job(work, share, done, self._clock.monotonic_s()))

    def read_at_once(self, work: Work, at_once: AtOnce) -> tuple[bool, Refused | None]:
        """Whether the batch is short enough to be read on the loop, and was; and then what came of it."""
        room_bytes = at_once.room_for(work)
        if room_bytes is None:
            return False, None
        try:
            headers_max = READ_AT_ONCE_HEADERS_EACH_MAX * work.header.record_count
            refused = _check_work(work, bytes_max=room_bytes, headers_max=headers_max)
        except TooLarge:
            work.is_long = True
            return False, None
        self._count(work, refused)
        return True, refused

    def give_back(self, size_bytes: int) -> None:
        self._results_bytes -= size_bytes
        if self._results_bytes < self._limits.recompressed_bytes_max:
            self._room.set()

    def _stand_by(self, line: _Line) -> None:
        self._ready.setdefault(line[0], deque()).append(line)

    def _next_line(self) -> _Line:
        source, lines = self._ready.popitem(last=False)
        line = lines.popleft()
        if lines:
            self._ready[source] = lines
        return line

    async def _work(self) -> None:
        try:
            while self._ready:
                line = self._next_line()
                jobs = self.lines[line]
                await self._work_on(jobs)
                if jobs:
                    self._stand_by(line)
                else:
                    del self.lines[line]
        finally:
            self._working -= 1

    async def _work_on(self, jobs: deque[_Job]) -> None:
        """The first of a line, and what follows it without work; all of them, if the client must send the first again."""
        job = jobs[0]
        result = await self._result_of(job)
        # Batches behind one that the client must send again may not overtake it.
        is_retried = isinstance(result, Refused) and result.error_code.retriable
        jobs.popleft().done(result)
        left = 1
        while jobs and (is_retried or jobs[0].work is None):
            jobs.popleft().done(result if is_retried else None)
            left += 1
            if left % LEAVING_MAX == 0:
                await asyncio.sleep(0)

    async def _result_of(self, job: _Job) -> memoryview | Refused | None:
        work, share = job.work, job.share
        if work is None:
            return None
        while (
            work.compresses
            and not share.results_bytes
            and self._results_bytes >= self._limits.recompressed_bytes_max
            and not self._is_late(job)
        ):
            self._room.clear()
            try:
                async with asyncio.timeout(self._limits.recompression_wait_s_max):
                    await self._room.wait()
            except TimeoutError:
                break
        if self._is_late(job):
            return Refused(
                ErrorCode.request_timed_out,
                f"not read or compressed again within {self._limits.recompression_wait_s_max:.0f} s; nothing was appended",
            )
        if work.compresses and share.results_bytes >= self._limits.recompressed_of_request_bytes_max:
            bytes_max = self._limits.recompressed_of_request_bytes_max
            text = f"the batches of the request decompress to more than {bytes_max} bytes; send this one again"
            return Refused(ErrorCode.kafka_storage_error, text)
        try:
            refused = await self._read(work) if work.reads else None
            if refused is not None or not work.compresses:
                return refused
            result = await self._blocking.run(lambda: _recompress(work))
        except Exception:
            log.exception("batch_not_worked_on", codec=work.rules.codec)
            return Refused(ErrorCode.unknown_server_error, "the batch could not be read or compressed again")
        if isinstance(result, memoryview):
            share.results_bytes += len(result)
            self._results_bytes += len(result)
            assert work.rules.codec is not None
            self._batches[work.rules.codec].inc()
            self._bytes_in.inc(len(work.batch))
            self._bytes_out.inc(len(result))
        return result

    async def _read(self, work: Work) -> Refused | None:
        is_read, refused = self.read_at_once(work, self._turn)
        if not is_read and AtOnce().room_for(work) is not None:
            await asyncio.sleep(0)
            self._turn = AtOnce()
            is_read, refused = self.read_at_once(work, self._turn)
        if not is_read:
            refused = await self._blocking.run(lambda: _check_work(work, breathe=_breathe))
            self._count(work, refused)
        return refused

    def _count(self, work: Work, refused: Refused | None) -> None:
        if not work.only_times:
            (self._refused if refused else self._accepted).inc()

    def _is_late(self, job: _Job) -> bool:
        return self._clock.monotonic_s() - job.added_s > self._limits.recompression_wait_s_max


def _check_work(
    work: Work, *, bytes_max: int | None = None, headers_max: int | None = None, breathe: Callable[[], None] = lambda: None
) -> Refused | None:
    return check_records(
        work.batch,
        work.header,
        work.rules,
        work.now_ms,
        only_times=work.only_times,
        bytes_max=bytes_max,
        headers_max=headers_max,
        breathe=breathe,
    )


def _breathe() -> None:
    """Lets others have the interpreter now and then."""
    time.sleep(0)


def _recompress(work: Work) -> memoryview | Refused:
    """Runs in a thread: nobody else touches the batch meanwhile."""
    rules = work.rules
    assert rules.codec is not None
    try:
        made = recompress_batch(
            work.batch,
            work.header,
            rules.codec,
            level=rules.level,
            append_ms=work.now_ms if rules.is_log_append else None,
            bytes_max=rules.batch_bytes_max,
            breathe=_breathe,
        )
    except TooLarge as error:
        return Refused(ErrorCode.message_too_large, f"{error}, max.message.bytes is {rules.batch_bytes_max}")
    except Corrupt as error:
        # Not CORRUPT_MESSAGE, which clients take for damage on the way and send again: Kafka's UNKNOWN_SERVER_ERROR is as final.
        return Refused(ErrorCode.invalid_record, str(error))
    if len(made) > rules.batch_bytes_max:
        text = f"the batch has {len(made)} bytes as {_CODECS[rules.codec]}, max.message.bytes is {rules.batch_bytes_max}"
        return Refused(ErrorCode.message_too_large, text)
    # The times of what was not read are bounded by what was found as it was compressed.
    if not work.reads and is_ahead(parse_header(made), rules, work.now_ms):
        return check_records(work.batch, work.header, rules, work.now_ms, breathe=_breathe) or memoryview(made)
    return memoryview(made)
