"""Fetch (API key 1), v4-v17.

Whole batches, the first one even if it is larger than asked for; waits for min_bytes up to max_wait. A read at or above the known end looks
at the control record again first (DESIGN.md §6, promise 5), so that no broker answers older than what any broker has acknowledged.
A reader that names a rack (v11+) is told a broker that stands there, if there is one and this is another (KIP-392), and served all the same
if it stays. Every broker serves every partition, so nobody is ever refused for not asking the leader.

Differs from Apache Kafka: no fetch sessions (session id 0, a full fetch each time: KIP-227 allows it); at most FETCH_RESPONSE_BYTES_MAX
record bytes per response, and no wait for more when a partition already has more than its answer may hold; no wait above five minutes; the
high watermark is the last stable offset as long as there are no transactions; leader epoch 0 for ever (I12).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker.fetching.preferred_replicas import Fetcher, Near, PreferredReplicas
from broker.fetching.waiters import Waiters
from broker.handlers.errors import error_code_of
from broker.protocol.fetch import TOPIC_IDS_MINIMUM, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.responses import Room
from runtime.clock import Clock
from storage.catalog.topics import Topic, Topics
from storage.errors import NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.formats.control import Control
from storage.limits import FETCH_RESPONSE_BYTES_MAX, MIB
from storage.log.control_reads import ControlReads
from storage.log.index import check_range, readable
from storage.log.partition import PartitionLog, Partitions
from storage.log.read import Reader
from storage.vocabulary import PartitionId, TopicId

STORED_READS_MAX: Final = 64
"""Reads of the object store in one response: a log of tiny objects is answered in several."""
FULL_FETCH_EPOCHS: Final = (0, -1)
"""Epochs of a request that begins a session or does without: it names all its partitions (KIP-227)."""
FETCH_WAIT_S_MAX: Final = 300.0
PARTITIONS_WAITING_MAX: Final = 500_000
"""Partitions in all requests under way, about 150 MiB of values. Above it no request waits, above its double none is served."""
PINNED_BYTES_MAX: Final = FETCH_RESPONSE_BYTES_MAX + 4 * MIB
"""Memory that one response may keep alive: a batch that was kept where the socket put it keeps the whole frame it came in."""


@dataclass(slots=True)
class Target:
    """A partition of the request: what is known of it, and its answer, made when `control` was known. `is_cut`: there is more to read."""

    asked: FetchPartition
    log: PartitionLog | None
    answer: FetchedPartition
    is_final: bool = False
    is_cut: bool = False
    size_bytes: int = 0
    control: Control | None = None
    records: Sequence[memoryview] = ()

    @property
    def has_stood(self) -> bool:
        return self.log is not None and self.control is self.log.control


class Fetch:
    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        control_reads: ControlReads,
        reader: Reader,
        waiters: Waiters,
        clock: Clock,
        replicas: PreferredReplicas | None = None,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._control_reads = control_reads
        self._reader = reader
        self._waiters = waiters
        self._clock = clock
        self._replicas = replicas
        self._partitions_under_way = 0

    async def handle(
        self, request: FetchRequest, *, version: int, client: Fetcher | None = None, room: Room | None = None
    ) -> FetchResponse:
        """`client` is who asks, if it is to be told of nearer brokers; the caller gives `room` back, which is what the answer holds.

        Raises `Unavailable` when too much is being fetched already.
        """
        if request.session_epoch not in FULL_FETCH_EPOCHS:
            return FetchResponse((), error_code=ErrorCode.fetch_session_id_not_found)
        if self._partitions_under_way + len(request.partitions) > 2 * PARTITIONS_WAITING_MAX:
            raise Unavailable(
                f"too many partitions are being fetched: under_way={self._partitions_under_way} wanted={len(request.partitions)}"
            )
        self._partitions_under_way += len(request.partitions)
        try:
            return await self._handle(request, version, client, room)
        finally:
            self._partitions_under_way -= len(request.partitions)

    async def _handle(self, request: FetchRequest, version: int, client: Fetcher | None, room: Room | None) -> FetchResponse:
        deadline_s = self._clock.monotonic_s() + min(request.max_wait_ms / 1_000, FETCH_WAIT_S_MAX)
        targets = await self._resolve(request, version)
        if self._replicas is not None and client is not None and request.rack_id:
            near = await self._replicas.near(request.rack_id, client)
            if near is not None:
                await self._send_nearer(targets, near, request.isolation_level)
        await self._collect(targets, request, room, deadline_s)
        may_wait = request.max_wait_ms > 0 and self._partitions_under_way <= PARTITIONS_WAITING_MAX
        if targets and may_wait and not _is_enough(targets, request):
            await self._wait(targets, request, room, deadline_s)
        if _pinned_bytes(targets) > PINNED_BYTES_MAX:
            _copy_parts(targets)
            if room is not None:
                room.settle(_pinned_bytes(targets))
        return FetchResponse([target.answer for target in targets])

    async def _send_nearer(self, targets: Sequence[Target], near: Near, isolation_level: int) -> None:
        """Answer with a broker of the reader's rack and without records, as Kafka does; what is not to be read anywhere is told here."""
        await self._refresh(targets)
        for target in targets:
            if target.is_final or target.log is None or (broker_id := near(target.log.partition)) is None:
                continue
            try:
                check_range(target.log, target.asked.fetch_offset)
                target.answer = _answer(target, (), isolation_level)._replace(preferred_read_replica=broker_id)
            except StorageError:
                continue  # `_collect` comes to the same end, and answers it
            target.is_final = True

    async def _wait(self, targets: Sequence[Target], request: FetchRequest, room: Room | None, deadline_s: float) -> None:
        logs = [target.log for target in targets if target.log is not None]
        with self._waiters.wait(logs) as wait:
            # Once more now that nothing can be missed: a commit may have come between the first look and the wait.
            await self._collect(targets, request, room, deadline_s, again=True)
            while not _is_enough(targets, request):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return
                if await wait.moved(left_s):
                    await self._collect(targets, request, room, deadline_s, again=True)

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

    async def _collect(
        self, targets: Sequence[Target], request: FetchRequest, room: Room | None, deadline_s: float, *, again: bool = False
    ) -> None:
        """Answer every target from what can be read now; `again`, those that have moved since. Without room for records there are none."""
        if not again:
            await self._refresh(targets)
        moved = [target for target in targets if not target.is_final and not (again and target.has_stood)]
        for target in moved:
            target.size_bytes, target.records = 0, ()
        kept_bytes = sum(target.size_bytes for target in targets)
        left_bytes = max(0, min(max(request.max_bytes, 0), FETCH_RESPONSE_BYTES_MAX) - kept_bytes)
        is_first = not kept_bytes
        if room is not None and any(map(_has_more, moved)):
            granted_bytes = await room.to_read(left_bytes, deadline_s - self._clock.monotonic_s())
            left_bytes, is_first = min(left_bytes, granted_bytes), is_first and granted_bytes > 0
        stored_reads = STORED_READS_MAX
        for target in moved:
            assert target.log is not None
            try:
                bytes_max = min(left_bytes, max(target.asked.partition_max_bytes, 0))
                buffers, stored_reads = await self._gather(target, bytes_max, at_least_one=is_first, stored_reads=stored_reads)
                target.answer = _answer(target, buffers, request.isolation_level)
            except StorageError as error:
                if isinstance(error, NotFound):
                    self._forget(target.log.partition)
                target.answer = _refusal(target, error)
                target.is_final = True
                continue
            target.size_bytes = sum(map(len, buffers))
            left_bytes = max(0, left_bytes - target.size_bytes)
            is_first = is_first and not target.size_bytes
            target.records = buffers
        if room is not None:
            room.settle(_pinned_bytes(targets))

    def _forget(self, partition: PartitionId) -> None:
        """The cache contradicts the control record: the topic is gone, or is another one of that name by now."""
        topic = self._topics.find_id(partition.topic_id)
        if topic is not None:
            self._topics.forget(topic.name)

    async def _refresh(self, targets: Sequence[Target]) -> None:
        """Read the control records of partitions that the request reaches the end of, or that were never read."""
        stale = {log for target in targets if (log := target.log) is not None and _needs_refresh(log, target.asked.fetch_offset)}
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
                try:
                    run = await self._reader.stored(log, offset, bytes_max=bytes_max - taken_bytes)
                except StorageError:
                    if not buffers:
                        raise
                    break  # what was read is answered; the next fetch begins here, and is told
            piece = run.from_offset(offset, bytes_max - taken_bytes, at_least_one=at_least_one and not buffers)
            if piece is None:
                break
            view, offset = piece
            buffers.append(view)
            taken_bytes += len(view)
        target.control = log.control
        target.is_cut = offset < log.high_watermark
        return buffers, stored_reads


def _needs_refresh(log: PartitionLog, offset: int) -> bool:
    control = log.control
    # Another broker is said to have changed the record: it may have deleted what is asked for (DeleteRecords).
    return control is None or offset >= control.sequence_counter or offset < control.log_start or log.unexplained_hints > 0


def _has_more(target: Target) -> bool:
    return target.log is not None and target.asked.fetch_offset < target.log.high_watermark


def _is_enough(targets: Sequence[Target], request: FetchRequest) -> bool:
    # Who wants more than it takes is not kept waiting for it.
    wanted_bytes = min(request.min_bytes, request.max_bytes)
    return any(target.is_final or target.is_cut for target in targets) or sum(target.size_bytes for target in targets) >= wanted_bytes


def _pinned_bytes(targets: Iterable[Target]) -> int:
    return sum({id(view.obj): _whole_bytes(view) for target in targets for view in target.records}.values())


def _copy_parts(targets: Iterable[Target]) -> None:
    """Copy what is only a part of the memory it keeps alive."""
    for target in targets:
        copied = [memoryview(bytes(view)) if len(view) < _whole_bytes(view) else view for view in target.records]
        target.records = copied
        target.answer = target.answer._replace(records=copied)


def _whole_bytes(view: memoryview) -> int:
    return memoryview(view.obj).nbytes


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
