"""Fetch (API key 1), v4-v17.

Whole batches, the first one even if it is larger than asked for; waits for min_bytes up to max_wait. A read at or above the known end looks
at the control record again first (DESIGN.md §6, promise 5), so that no broker answers older than what any broker has acknowledged.

Differs from Apache Kafka: no fetch sessions (session id 0, a full fetch each time: KIP-227 allows it); at most FETCH_RESPONSE_BYTES_MAX
record bytes per response; the high watermark is the last stable offset as long as there are no transactions; leader epoch 0 for ever (I12).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker.fetching.waiters import Waiters
from broker.handlers.errors import error_code_of
from broker.handlers.record_checks import ZSTD
from broker.protocol.fetch import TOPIC_IDS_MINIMUM, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from runtime.clock import Clock
from storage.catalog.topics import Topic, Topics
from storage.errors import OffsetOutOfRange, StorageError, Unavailable
from storage.limits import FETCH_RESPONSE_BYTES_MAX
from storage.log.control_reads import ControlReads
from storage.log.index import check_range, readable
from storage.log.partition import PartitionLog, Partitions
from storage.log.read import Reader
from storage.recordbatch import CODEC_MASK, peek_offset_and_size
from storage.vocabulary import TopicId

ZSTD_VERSION_MINIMUM: Final = 10
STORED_READS_MAX: Final = 64
"""Reads of the object store in one response: a log of tiny objects is answered in several."""
_ATTRIBUTES_LOW_AT: Final = 22


@dataclass(slots=True)
class Target:
    """A partition of the request: what is known of it, and its answer."""

    asked: FetchPartition
    log: PartitionLog | None
    answer: FetchedPartition
    is_final: bool = False
    size_bytes: int = 0


class Fetch:
    def __init__(
        self, *, topics: Topics, partitions: Partitions, control_reads: ControlReads, reader: Reader, waiters: Waiters, clock: Clock
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._control_reads = control_reads
        self._reader = reader
        self._waiters = waiters
        self._clock = clock

    async def handle(self, request: FetchRequest, *, version: int) -> FetchResponse:
        if request.session_id:
            return FetchResponse((), error_code=ErrorCode.fetch_session_id_not_found)
        deadline_s = self._clock.monotonic_s() + request.max_wait_ms / 1_000
        targets = await self._resolve(request, version)
        await self._collect(targets, request, version)
        if not _is_enough(targets, request.min_bytes) and request.max_wait_ms > 0:
            await self._wait(targets, request, version, deadline_s)
        return FetchResponse([target.answer for target in targets])

    async def _wait(self, targets: Sequence[Target], request: FetchRequest, version: int, deadline_s: float) -> None:
        logs = [target.log for target in targets if target.log is not None]
        with self._waiters.wait(logs) as wait:
            # Once more now that nothing can be missed: a commit may have come between the first look and the wait.
            await self._collect(targets, request, version, is_fresh=True)
            while not _is_enough(targets, request.min_bytes):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return
                if await wait.moved(left_s):
                    await self._collect(targets, request, version, is_fresh=True)

    async def _resolve(self, request: FetchRequest, version: int) -> list[Target]:
        by_id = version >= TOPIC_IDS_MINIMUM
        unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        try:
            topics = await self._find_topics(request.partitions, by_id=by_id)
        except StorageError as error:
            return [_failed(asked, error_code_of(error)) for asked in request.partitions]
        targets: list[Target] = []
        for asked in request.partitions:
            topic = topics.get(asked.topic)
            if topic is None:
                targets.append(_failed(asked, unknown))
            elif not topic.has_partition(asked.partition):
                targets.append(_failed(asked, ErrorCode.unknown_topic_or_partition))
            elif asked.current_leader_epoch > 0:
                targets.append(_failed(asked, ErrorCode.unknown_leader_epoch))
            else:
                log = self._partitions.get(topic.partition(asked.partition))
                targets.append(Target(asked, log, FetchedPartition(asked.topic, asked.partition)))
        return targets

    async def _find_topics(self, asked: Iterable[FetchPartition], *, by_id: bool) -> dict[str, Topic]:
        """By what the request calls them. What the cache does not know, or contradicts, is read."""
        found: dict[str, Topic] = {}
        missing: set[str] = set()
        for partition in asked:
            name = partition.topic
            topic = found.get(name) or (self._topics.find_id(TopicId(name)) if by_id else self._topics.find(name))
            if topic is not None and not topic.has_partition(partition.partition):
                self._topics.forget(topic.name)
                topic = None
            if topic is None:
                missing.add(name)
            else:
                found[name] = topic
        if missing and by_id:
            found.update((str(topic_id), topic) for topic_id, topic in (await self._topics.lookup_ids(map(TopicId, missing))).items())
        elif missing:
            found |= await self._topics.lookup(missing)
        return found

    async def _collect(self, targets: Sequence[Target], request: FetchRequest, version: int, *, is_fresh: bool = False) -> None:
        """Answer every target from what can be read now."""
        if not is_fresh:
            await self._refresh(targets)
        left_bytes = min(max(request.max_bytes, 0), FETCH_RESPONSE_BYTES_MAX)
        is_first = True
        stored_reads = STORED_READS_MAX
        for target in targets:
            if target.log is None or target.is_final:
                continue
            try:
                bytes_max = min(left_bytes, max(target.asked.partition_max_bytes, 0))
                buffers, stored_reads = await self._gather(target, bytes_max, at_least_one=is_first, stored_reads=stored_reads)
            except StorageError as error:
                target.answer = _refusal(target, error)
                target.is_final = True
                continue
            if version < ZSTD_VERSION_MINIMUM and any(map(_has_zstd, buffers)):
                code = ErrorCode.unsupported_compression_type  # KIP-110: readers of this version do not know zstd
                target.answer = FetchedPartition(target.asked.topic, target.asked.partition, code)
                target.is_final = True
                continue
            target.size_bytes = sum(map(len, buffers))
            left_bytes = max(0, left_bytes - target.size_bytes)
            is_first = is_first and not target.size_bytes
            target.answer = _answer(target, buffers, request.isolation_level)

    async def _refresh(self, targets: Sequence[Target]) -> None:
        """Read the control records of partitions that the request reaches the end of, or that were never read."""
        stale = [log for target in targets if (log := target.log) is not None and _needs_refresh(log, target.asked.fetch_offset)]
        if not stale:
            return
        try:
            await self._control_reads.refresh(stale)
        except Unavailable as error:
            for target in targets:
                if target.log in stale:
                    target.answer = FetchedPartition(target.asked.topic, target.asked.partition, error_code_of(error))
                    target.is_final = True

    async def _gather(self, target: Target, bytes_max: int, *, at_least_one: bool, stored_reads: int) -> tuple[list[memoryview], int]:
        log = target.log
        assert log is not None
        offset = target.asked.fetch_offset
        check_range(log, offset)
        buffers: list[memoryview] = []
        taken_bytes = 0
        while offset < log.high_watermark and (taken_bytes < bytes_max or (at_least_one and not buffers)):
            run = self._reader.cached(log, offset)
            if run is None:
                if not stored_reads:
                    break
                stored_reads -= 1
                run = await self._reader.stored(log, offset, bytes_max=bytes_max - taken_bytes)
            piece = run.from_offset(offset, bytes_max - taken_bytes, at_least_one=at_least_one and not buffers)
            if piece is None:
                break
            view, offset = piece
            buffers.append(view)
            taken_bytes += len(view)
        return buffers, stored_reads


def _needs_refresh(log: PartitionLog, offset: int) -> bool:
    control = log.control
    return control is None or offset >= control.sequence_counter or offset < control.log_start


def _is_enough(targets: Sequence[Target], min_bytes: int) -> bool:
    return any(target.is_final for target in targets) or sum(target.size_bytes for target in targets) >= min_bytes


def _answer(target: Target, records: Sequence[memoryview], isolation_level: int) -> FetchedPartition:
    assert target.log is not None
    control = readable(target.log)
    return FetchedPartition(
        target.asked.topic,
        target.asked.partition,
        0,
        control.sequence_counter,
        control.sequence_counter,
        control.log_start,
        () if isolation_level else None,
        -1,
        records,
    )


def _refusal(target: Target, error: StorageError) -> FetchedPartition:
    asked = target.asked
    if isinstance(error, OffsetOutOfRange):
        code = ErrorCode.offset_out_of_range
        return FetchedPartition(asked.topic, asked.partition, code, error.high_watermark, error.high_watermark, error.log_start)
    return FetchedPartition(asked.topic, asked.partition, error_code_of(error))


def _failed(asked: FetchPartition, code: ErrorCode) -> Target:
    return Target(asked, None, FetchedPartition(asked.topic, asked.partition, code), is_final=True)


def _has_zstd(batches: memoryview) -> bool:
    position = 0
    while position < len(batches):
        if batches[position + _ATTRIBUTES_LOW_AT] & CODEC_MASK == ZSTD:
            return True
        position += peek_offset_and_size(batches, position)[1]
    return False
