"""Batches whose records are read, or compressed anew for a topic with a `compression.type` of its own: off the event loop, in the order in
which they came.

A line is what one connection sends to one partition. Its batches leave in the order of their coming, those that need no work among them,
and one is worked on at a time; connections take turns, and the lines of each, so that no connection has the threads to itself.
A batch that is short is not worth a thread: it is read on the loop, as many of them in one turn of the loop as are read of one request.
What is made here is not in the budget of requests, and may be many times larger than what was sent. So a request begins only while the
results of all that are not answered yet are few, and has no more of them than a bound; one that has begun goes on, or all might wait for
one another. What cannot be decompressed, or holds fewer bytes than its records must have, is INVALID_RECORD.
Reading makes nothing that is kept: a thread has at most one batch decompressed, of DECOMPRESSED_BYTES_MAX.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from broker.handling.record_checks import CODEC_NUMBERS, Refused, TopicRules, check_records, is_ahead
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import Corrupt
from storage.limits import KIB
from storage.recordbatch import CODEC_MASK, BatchHeader, parse_header
from storage.records import TooLarge, recompress_batch
from storage.vocabulary import PartitionId

RECOMPRESSED: Final = Metric(
    "forebay_recompressed_batches_total", "Batches compressed anew for topics with a compression.type of their own, by codec", ("codec",)
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

RecompressionDone = Callable[[memoryview | Refused | None], None]
"""None: there was nothing to do."""


@dataclass(slots=True)
class Work:
    """`reads`: every record, or only their times; `compresses`: anew; and then, if the topic says so, the batch is marked as LogAppendTime.

    The batch that leaves has the greatest time of its records in its header, written in place if it was not compressed anew.
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
            refused = _check(work, bytes_max=room_bytes, headers_max=headers_max)
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
                f"not read or compressed anew within {self._limits.recompression_wait_s_max:.0f} s; nothing was appended",
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
            return Refused(ErrorCode.unknown_server_error, "the batch could not be read or compressed anew")
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
            refused = await self._blocking.run(lambda: _check(work, breathe=_breathe))
            self._count(work, refused)
        return refused

    def _count(self, work: Work, refused: Refused | None) -> None:
        if not work.only_times:
            (self._refused if refused else self._accepted).inc()

    def _is_late(self, job: _Job) -> bool:
        return self._clock.monotonic_s() - job.added_s > self._limits.recompression_wait_s_max


def _check(
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
