"""Produce (API key 0), v3-v11.

Checks each batch as Kafka does and submits it; acks 1 and -1 both mean durable and committed. Errors are per partition. A batch of another
codec than its topic's `compression.type` is compressed afresh first. One whose records, or their times, must be read waits until they are
(broker/handling/validation.py); only short ones are read at once.

`Produce` begins a request in one turn of the loop. `WideProduce` begins one that names more partitions slice by slice.

Differs from Apache Kafka: acks=0 is as durable as the rest, only unanswered; NOT_LEADER_OR_FOLLOWER says "try again", never "elsewhere",
as every broker serves every partition; transactional batches are refused with INVALID_TXN_STATE until transactions are served.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakSet

from kio.schema.errors import ErrorCode

from broker.handling.errors import error_code_of
from broker.handling.validation import AtOnce, Recompression, Refused, Share, TopicRules, Work, check, is_ahead, needs_times, rules_of
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol.produce import (
    PARTITIONS_PER_STEP,
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    read_in_steps,
    write_in_steps,
)
from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from runtime.turns import Turns, in_turns
from storage.catalog.topics import Topic, Topics
from storage.errors import Corrupt, NotFound, StorageError, Unavailable, without_frames
from storage.log.batch import Append, Appended, Batch, batch_of
from storage.log.partition import Partitions
from storage.log.tracing import Submit, Tracing
from storage.log.writer import Appender
from storage.recordbatch import CODEC_MASK, NO_PRODUCER, BatchHeader, parse_header, stamp_log_append_time
from storage.vocabulary import PartitionId

ACKS: Final = (-1, 0, 1)
NOTHING_UNREAD: Final[Mapping[str, StorageError]] = {}
BATCHES_MAX: Final = 40_000
"""What takes two seconds to begin and 40 MiB to hold."""
UNDER_WAY: Final = Metric(
    "forebay_produce_batches",
    "Batches of Produce requests that were begun and are not answered; above 40,000 others wait",
    aggregation="sum",
)

ProduceDone = Callable[[list[PartitionResult]], None]


class Produce:
    """Requests of one connection overlap: `start` returns at once, and calls back when `ProduceUnderWay` is finished."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        appender: Appender,
        recompression: Recompression,
        clock: Clock,
        reads_records: bool = False,
        tracing: Tracing | None = None,
        limits: BrokerLimits = DEFAULT_BROKER_LIMITS,
    ) -> None:
        """`reads_records`: those of every batch, whatever its topic asks for. `tracing` samples batches."""
        self._topics = topics
        self._partitions = partitions
        self._submit: Submit = appender.submit if tracing is None else tracing.sampling(appender.submit)
        self._tracing = tracing
        self._losses = appender.losses
        self._recompression = recompression
        self._clock = clock
        self._reads_records = reads_records
        self._timeout_s = limits.produce_topics_timeout_s
        self._rules_kept_max = limits.topic_rules_kept_max
        self._rules: dict[str, tuple[Topic, TopicRules]] = {}
        self._computing: WeakSet[object] = WeakSet()
        """The sources whose clients find the greatest time of a batch: they have sent a compressed one with a later time than its first."""

    @property
    def losses(self) -> int:
        """For `start`, of a request that arrives now and is started later."""
        return self._losses.count

    def find_topics(self, request: ProduceRequest) -> dict[str, Topic] | None:
        """The topics of the request if all of them, with the partitions named, are cached."""
        found: dict[str, Topic] = {}
        for name, partition, _ in request.partitions:
            topic = found.get(name) or self._topics.find(name)
            if topic is None or not 0 <= partition < topic.partition_count:
                return None
            found[name] = topic
        return found

    async def lookup_topics(self, highest: Mapping[str, int]) -> tuple[dict[str, Topic], dict[str, StorageError]]:
        """The topics that exist, each from a read made now where the cache does not know it, or its highest partition named;
        and the errors for those that could not be read in time, or whose partitions could not.
        """
        turns = Turns()
        found: dict[str, Topic] = {}
        missing: list[str] = []
        doubtful: dict[str, None] = {}
        for name, partition in highest.items():
            topic = self._topics.find(name)
            if topic is None:
                missing.append(name)
            else:
                found[name] = topic
                if partition >= topic.partition_count:
                    doubtful[name] = None
            await turns.spent()
        read, error = await self._look_up(missing)
        found |= read
        # A client that is wrong about its partitions takes the topic from nobody else, should this read fail.
        if self._topics.is_silent:
            doubtful |= {name: None for name, topic in read.items() if highest[name] >= topic.partition_count}
        if doubtful and error is None:
            missing = []  # of these it is known
            newest, error = await self._look_up_now(doubtful)
            if error is None:
                for name in doubtful:
                    del found[name]
                    await turns.spent()
                found |= newest
        if error is None:
            return found, {}
        return found, dict.fromkeys([*doubtful, *(name for name in missing if name not in found)], without_frames(error))

    async def _look_up(self, names: Collection[str]) -> tuple[dict[str, Topic], StorageError | None]:
        try:
            return await self._topics.look_up(names)
        except StorageError as unreadable:
            return {}, unreadable

    async def _look_up_now(self, names: Collection[str]) -> tuple[dict[str, Topic], StorageError | None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._topics.lookup_now(names), None
        except StorageError as error:
            return {}, error
        except TimeoutError:
            return {}, Unavailable(f"topics were not read in time: topics={len(names)} after_s={self._timeout_s}")

    def start(
        self,
        request: ProduceRequest,
        topics: Mapping[str, Topic],
        *,
        version: int,
        source: object,
        done: ProduceDone,
        unread: Mapping[str, StorageError] = NOTHING_UNREAD,
        arrived: int | None = None,
    ) -> None:
        """Submit what passes its checks. `done` is called once, perhaps before this returns, with one result per partition, in order.

        `unread`: why nobody can tell of a topic that is not among `topics`, or whether one has more partitions. `arrived`: what `losses`
        was when the request arrived, if that was not in this turn of the loop.
        """
        if request.acks not in ACKS:
            done(
                [_failed(named, ErrorCode.invalid_required_acks, f"acks {request.acks} is not -1, 0 or 1") for named in request.partitions]
            )
            return
        now_ms = self._clock.now_ms()
        under_way = ProduceUnderWay(request, now_ms, self._topics, done)
        append = Append(source, under_way.finish, [], 0, self._losses.count if arrived is None else arrived)
        if self._tracing is not None:
            self._tracing.arrive(append)
        results, append_ms = under_way.results, under_way.append_ms
        batches: list[tuple[PartitionId, Batch]] = []
        lines = self._recompression.lines
        at_once: AtOnce | None = None
        for place, named in enumerate(request.partitions):
            topic = topics.get(named.topic)
            if topic is None or not 0 <= named.partition < topic.partition_count:
                error = unread.get(named.topic)
                code = ErrorCode.unknown_topic_or_partition if error is None else error_code_of(error)
                results.append(_failed(named, code, None if error is None else str(error)))
                continue
            rules = self._rules_of(topic)
            header = check(named.records, rules, version=version)
            if isinstance(header, Refused):
                results.append(_refused(named, header))
                continue
            assert named.records is not None, "checked"
            reads = self._reads_records or rules.reads_records
            is_other = rules.codec is not None and rules.codec != header.attributes & CODEC_MASK
            only_times = not reads and not is_other and self._needs_times(source, named.records, header, rules, now_ms)
            work: Work | None = None
            if reads or is_other or only_times:
                work = Work(named.records, header, rules, now_ms, reads or only_times, is_other, only_times)
                at_once = at_once or AtOnce()
                is_read, refused = self._recompression.read_at_once(work, at_once)
                if refused is not None:
                    self._note_lost(topic.partition(named.partition), header)
                    results.append(_refused(named, refused))
                    continue
                if is_read:
                    work, header = None, parse_header(named.records)
            index = len(append.results)
            append_ms.append(now_ms if rules.is_log_append else -1)
            append.results.append(None)
            results.append(index)
            if work is not None or lines:
                partition = topic.partition(named.partition)
                if work is not None or self._recompression.holds(source, partition):
                    share = under_way.share = under_way.share or self._recompression.share()
                    in_line = BatchInLine(under_way, append, place, partition, header, rules)
                    self._recompression.add(source, partition, work, share, partial(self._leave_line, in_line))
                    continue
            batch = batch_of(named.records, header, append, index)
            if rules.is_log_append:
                stamp_log_append_time(named.records, now_ms)
                batch.max_timestamp = now_ms
            batches.append((topic.partition(named.partition), batch))
        append.remaining = len(append.results)
        if not append.remaining:
            under_way.finish(append)
        for partition, batch in batches:
            # One at a time: a log that has no work may be forgotten by the next `get`, and its batch would have a queue of its own (I6).
            self._submit(self._partitions.get(partition), batch)

    def find_lone(self, name: str, partition: int) -> tuple[Topic, TopicRules] | None:
        """What `start_lone` needs. None if the topic is not cached, has no such partition, or does not keep batches as they come."""
        topic = self._topics.find(name)
        if topic is None or not 0 <= partition < topic.partition_count:
            return None
        rules = self._rules_of(topic)
        if self._reads_records or rules.reads_records or rules.codec is not None or self._recompression.lines:
            return None
        return topic, rules

    def start_lone(
        self,
        named: PartitionRecords,
        found: tuple[Topic, TopicRules],
        *,
        version: int,
        source: object,
        done: Callable[[PartitionResult], None],
    ) -> None:
        """As `start`, of a request of one partition, with acks, of which `find_lone` has said that nothing waits."""
        topic, rules = found
        now_ms = self._clock.now_ms()
        header = check(named.records, rules, version=version)
        if isinstance(header, Refused):
            done(_refused(named, header))
            return
        assert named.records is not None, "checked"
        append_ms = now_ms if rules.is_log_append else -1
        name, partition, topics = named.topic, named.partition, self._topics
        if self._needs_times(source, named.records, header, rules, now_ms):
            request = ProduceRequest(None, -1, 0, [named])
            self.start(request, {name: topic}, version=version, source=source, done=lambda results: done(results[0]))
            return

        # It holds nothing of the frame, which whoever waits for the answer of a request that failed would keep.
        def finish(append: Append) -> None:
            outcome = append.results[0]
            if isinstance(outcome, Appended):
                done(PartitionResult(name, partition, 0, outcome.base_offset, append_ms, outcome.log_start))
            else:
                assert isinstance(outcome, StorageError), "an append is done when every batch has its result"
                done(_failed_append(PartitionRecords(name, partition, None), outcome, topics))

        append = Append(source, finish, [None], 1)
        if self._tracing is not None:
            self._tracing.arrive(append)
        batch = batch_of(named.records, header, append, 0)
        if rules.is_log_append:
            stamp_log_append_time(named.records, now_ms)
            batch.max_timestamp = now_ms
        self._submit(self._partitions.get(topic.partition(partition)), batch)

    def _leave_line(self, in_line: "BatchInLine", made: memoryview | Refused | None) -> None:
        """Go on with one batch that was compressed again, or stood behind one that was."""
        under_way, append, place, partition, header, rules = in_line
        named = under_way.request.partitions[place]
        index = under_way.results[place]
        assert isinstance(index, int), "a batch leaves once"
        if isinstance(made, Refused):
            under_way.results[place] = _refused(named, made)
            self._note_lost(partition, header)
            append.settle(index, Corrupt(made.message))
            return
        assert named.records is not None, "checked"
        if made is None and rules.is_log_append:
            stamp_log_append_time(named.records, under_way.now_ms)
        view = named.records if made is None else made
        batch = batch_of(view, parse_header(view), append, index)
        self._submit(self._partitions.get(partition), batch)

    def _needs_times(self, source: object, view: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int) -> bool:
        """As `needs_times`. To decompress may take as long as all else, so a source that is known to find greatest times is believed."""
        if header.attributes & CODEC_MASK and header.record_count > 1 and not rules.is_log_append:
            if header.max_timestamp > header.base_timestamp:
                self._computing.add(source)
            elif header.max_timestamp == header.base_timestamp and source in self._computing:
                return is_ahead(header, rules, now_ms)
        return needs_times(view, header, rules, now_ms)

    def _note_lost(self, partition: PartitionId, header: BatchHeader) -> None:
        """A batch is refused for its records: what its producer sent behind it is not to wait for it."""
        if header.producer_id != NO_PRODUCER:
            self._partitions.get(partition).producers.lose(header.producer_id, header.base_sequence, self._clock.monotonic_s())

    def _rules_of(self, topic: Topic) -> TopicRules:
        known = self._rules.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        if len(self._rules) >= self._rules_kept_max:
            self._rules.clear()
        rules = rules_of(topic)
        self._rules[topic.name] = topic, rules
        return rules


class ProduceUnderWay:
    """One request from its checks to its answer: what each of its partitions was refused for, or which result of the append is its own.

    This is no coroutine. A request waits once, for the last of its batches, and the log knows when that is: it calls `finish`, in the turn
    of the event loop in which it commits. A task for each request, and an await for each batch, would cost time and tell nobody more.

    The append refers to it, and it not to the append: else the frame of a request that failed would wait for the garbage collector.
    """

    __slots__ = ("_done", "_topics", "append_ms", "now_ms", "request", "results", "share")

    def __init__(self, request: ProduceRequest, now_ms: int, topics: Topics, done: ProduceDone) -> None:
        self.request = request
        self.now_ms = now_ms
        self.results: list[PartitionResult | int] = []
        """By place in the request; a number is the index of a result of the append."""
        self.append_ms: list[int] = []
        """What each of its batches is stamped with, by that index; -1 if it keeps its own times."""
        self.share: Share | None = None
        """Its share of the recompression's memory, if a batch waits for that."""
        self._topics = topics
        self._done = done

    def finish(self, append: Append) -> None:
        """Answer. Called once, when every batch has its result."""
        if self.share is not None:
            self.share.release()
        merged: list[PartitionResult] = []
        for named, result in zip(self.request.partitions, self.results, strict=True):
            if isinstance(result, PartitionResult):
                merged.append(result)
                continue
            outcome = append.results[result]
            if isinstance(outcome, Appended):
                at_ms = self.append_ms[result]
                merged.append(
                    PartitionResult(
                        named.topic, named.partition, 0, outcome.base_offset, at_ms, outcome.log_start, is_duplicate=outcome.is_duplicate
                    )
                )
                continue
            assert isinstance(outcome, StorageError), "an append is done when every batch has its result"
            merged.append(_failed_append(named, outcome, self._topics))
        self._done(merged)


class BatchInLine(NamedTuple):
    """A batch that waits in the line of the recompression, with what is needed to go on when it leaves."""

    under_way: ProduceUnderWay
    append: Append
    place: int
    """In the request."""
    partition: PartitionId
    header: BatchHeader
    rules: TopicRules


class BatchRoom:
    """Grants room in order; a batch of any size gets it when no other has any. On the loop.

    Bounds how many batches are under way: each takes a KiB beside its bytes, and a request of 64 KiB can bring nearly a thousand.
    """

    def __init__(self, *, telemetry: Telemetry, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        telemetry.gauge(UNDER_WAY).set_function(lambda: self._held)

    def take_now(self, batches: int) -> bool:
        """False if there is no room now, or others wait for some."""
        held = self._held
        if self._waiting or (held and held + batches > self._batches_max):
            return False
        self._held = held + batches
        return True

    async def take(self, batches: int) -> None:
        """Wait for room. Cancelled: none was taken."""
        if self.take_now(batches):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batches, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(batches)  # it came in the same turn
            else:
                self._waiting.remove((batches, granted))
                self._grant()
            raise

    def give_back(self, batches: int) -> None:
        self._held -= batches
        if self._waiting:
            self._grant()

    def _fits(self, batches: int) -> bool:
        return not self._held or self._held + batches <= self._batches_max

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            batches, granted = self._waiting.popleft()
            if not granted.done():
                self._held += batches
                granted.set_result(None)


async def read_wide(version: int, frame: memoryview, position: int) -> ProduceRequest:
    """Raises `ProtocolViolation`."""
    return await in_turns(read_in_steps(version, frame, position))


class WideProduce:
    """Begins a request that names more partitions than are begun in one turn of the loop. `handle` may run for several side by side.

    It is answered alone: what its connection sends behind it waits. Its slices are begun in their order, each when there is room for its
    batches, and go into the log like requests of their own.
    """

    def __init__(self, produce: Produce, room: BatchRoom, *, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> None:
        self._produce = produce
        self._room = room
        self._begin_s_max = limits.wide_produce_begin_s_max

    async def handle(self, request: ProduceRequest, *, version: int, source: object) -> list[PartitionResult]:
        """One result per partition, in order. Cancelled: what was begun goes on, and nobody hears of it."""
        return await (await self.begin(request, version=version, source=source)).results()

    async def begin(self, request: ProduceRequest, *, version: int, source: object) -> "BegunProduce":
        """Return when all of it is in line for the log: what its source begins afterwards comes behind it."""
        arrived = self._produce.losses
        topics, unread = await self._look_up(request)
        partitions = request.partitions
        slices = [partitions[begin : begin + PARTITIONS_PER_STEP] for begin in range(0, len(partitions), PARTITIONS_PER_STEP)]
        answered: list[asyncio.Future[list[PartitionResult]]] = []
        try:
            async with asyncio.timeout(self._begin_s_max):
                for part in slices:
                    await self._room.take(len(part))
                    answered.append(self._begin(request, part, topics, unread, version=version, source=source, arrived=arrived))
                    await asyncio.sleep(0)
        except TimeoutError:
            pass  # the slices that are left are answered as late ones
        return BegunProduce(slices, answered, self._begin_s_max)

    def _begin(
        self,
        request: ProduceRequest,
        part: list[PartitionRecords],
        topics: Mapping[str, Topic],
        unread: Mapping[str, StorageError],
        *,
        version: int,
        source: object,
        arrived: int,
    ) -> asyncio.Future[list[PartitionResult]]:
        answered: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()

        def done(results: list[PartitionResult]) -> None:
            self._room.give_back(len(part))
            if not answered.done():
                answered.set_result(results)

        asked = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, part)
        try:
            self._produce.start(asked, topics, version=version, source=source, done=done, unread=unread, arrived=arrived)
        except BaseException:
            if not answered.done():
                self._room.give_back(len(part))
            raise
        return answered

    async def _look_up(self, request: ProduceRequest) -> tuple[dict[str, Topic], Mapping[str, StorageError]]:
        highest: dict[str, int] = {}
        turns = Turns()
        for topic, partition, _ in request.partitions:
            highest[topic] = max(partition, highest.get(topic, partition))
            await turns.spent()
        topics, unread = await self._produce.lookup_topics(highest)
        return topics, unread or NOTHING_UNREAD


class BegunProduce(NamedTuple):
    """A request whose first slices were begun, as many as there are in `answered`."""

    slices: list[list[PartitionRecords]]
    answered: list[asyncio.Future[list[PartitionResult]]]
    within_s: float
    """For how long it was begun, slice by slice."""

    async def results(self) -> list[PartitionResult]:
        """One per partition, in order. For one caller."""
        results: list[PartitionResult] = []
        for number, part in enumerate(self.slices):
            results += (
                await self.answered[number] if number < len(self.answered) else [_late(named, within_s=self.within_s) for named in part]
            )
            await asyncio.sleep(0)
        return results


async def refuse_all(request: ProduceRequest, code: ErrorCode, message: str) -> list[PartitionResult]:
    """The same answer for every partition."""
    return await Turns().each(partial(_refused_with, code=code, message=message), request.partitions)


async def write_wide(version: int, correlation_id: int, response: ProduceResponse) -> bytearray:
    """As `write_response` of broker/protocol/produce.py."""
    out = bytearray()
    await in_turns(write_in_steps(version, correlation_id, response, out))
    return out


def _failed(named: PartitionRecords, code: ErrorCode, message: str | None) -> PartitionResult:
    return PartitionResult(named.topic, named.partition, code, error_message=message)


def _failed_append(named: PartitionRecords, error: StorageError, topics: Topics) -> PartitionResult:
    if isinstance(error, NotFound):
        # The cache is behind: the next request looks the name up again, and may find a new topic of that name.
        topics.forget(named.topic)
    return _failed(named, error_code_of(error), str(error))


def _refused(named: PartitionRecords, refused: Refused) -> PartitionResult:
    return PartitionResult(
        named.topic, named.partition, refused.error_code, record_errors=refused.record_errors, error_message=refused.message
    )


def _refused_with(named: PartitionRecords, *, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(named.topic, named.partition, code, error_message=message)


def _late(named: PartitionRecords, *, within_s: float) -> PartitionResult:
    error = Unavailable(f"not begun within {within_s:.0f} s, since other batches of this request took as long; nothing was appended")
    return _refused_with(named, code=ErrorCode.kafka_storage_error, message=str(error))
