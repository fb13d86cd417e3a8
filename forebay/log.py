"""The log as a library: partitions are appended to, read, compacted and fenced in this process, with no broker and no socket.

    async with open_log("oxia://localhost:6648/default", "s3://bucket/prefix") as log:
        await log.create_topic("orders", partitions=3)
        [appended] = await log.append([Group("orders", 0, [b"first", Record(b"second", key=b"k")])])
        async for record in log.iter_from("orders", 0, appended.start_offset):
            ...

It is the log of the brokers: those of the same stores read what is appended here, and the other way round. A writer registers as a broker
that nobody connects to, for its commits need an epoch; docs/guides/library.md has the rest.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import structlog

from broker.cluster.registration import BrokerLifecycle
from broker.delayed_fetch import TRUSTED_POLL_S, Waiters, needs_refresh
from broker.handling.validation import Refused, TopicRules, check, check_records, rules_of
from compactor.assembly import open_compactor, policy_of
from compactor.plan import CompactionPolicy
from forebay.opening import check_there
from process.identity import check_age, check_same, identify_cluster
from process.settings.errors import StartError
from process.settings.model import Settings
from process.settings.notation import is_memory, is_shared
from process.store_watch import StoreWatch
from runtime.blocking import ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry, run_token
from runtime.turns import in_turns
from runtime.version import forebay_version
from storage.cache.blocks import BlockCache
from storage.catalog.brokers import BrokerDirectory, Role
from storage.catalog.collections import CommitMarks
from storage.catalog.identity import read_cluster
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topic import NEVER_A_TOPIC, validate_name
from storage.catalog.topics import PARTITIONS_MAX, Topic, Topics
from storage.errors import AlreadyExists, NotFound, StorageError, Unavailable
from storage.limits import MIB, SEQUENCE_MAX
from storage.log.batch import Append, batch_of
from storage.log.batch import Appended as Settled
from storage.log.flush import FlushSettings, early_settings
from storage.log.index import check_range, out_of_range, readable
from storage.log.partition import BrokerEpoch, PartitionLog
from storage.log.parts import LogParts
from storage.log.parts import open_log as open_parts
from storage.log.trim import Fencer
from storage.opening import Stores, open_shared_blocks, open_stores
from storage.record_values import (
    NO_SENDER,
    RECORDS_PER_STEP,
    Record,
    SequencedBy,
    StoredRecord,
    Written,
    batch_bytes,
    codec_number,
    cut,
    read_values,
    write_batch,
    write_header,
    write_values_in_steps,
)
from storage.recordbatch import stamp_log_append_time
from storage.records import compress_records, decompress_records
from storage.vocabulary import PartitionId

__all__ = [
    "Appended",
    "Bounds",
    "CannotOpen",
    "Group",
    "Log",
    "Producer",
    "Record",
    "RecordsRefused",
    "StoredRecord",
    "SyncLog",
    "open_log",
    "open_log_sync",
]

Mode = Literal["both", "read", "write"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

PRODUCE_VERSION: Final = 11
CACHE_BYTES: Final = 64 * MIB
APPENDING_BYTES_MAX: Final = 256 * MIB
"""Bytes of batches without a result yet. More is refused as `Unavailable`, and nothing of it is appended."""
RULES_KEPT_MAX: Final = 10_000
CLOSED: Final = "the log is closed: its context was left"
READ_BYTES: Final = MIB
FOLLOW_WAIT_S: Final = 30.0
DRAIN_S: Final = 30.0
TIMESTAMP_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NO_EPOCH: Final = -1
CLOSE_TRIES: Final = 100
CLOSE_PAUSE_S: Final = 0.01

R = TypeVar("R")

_log = structlog.get_logger("log")
_closing: Final[set[asyncio.Task[None]]] = set()
"""The loop holds tasks weakly."""


class CannotOpen(Exception):
    """The stores cannot be opened as they are. The message names the cause and the fix."""


class RecordsRefused(StorageError):
    """The topic does not take these records: nothing was appended, and no repeat will be."""


class Producer(NamedTuple):
    """An idempotent producer: of two appends with one sequence, one happens. It is forgotten a day after its last append."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Group:
    """Records of one partition. They are appended together, as one batch, or not at all.

    `sequence`, with a producer: 0 at first, then `Appended.next_sequence`. A group whose fate is unknown is appended again with the same
    records and the same sequence.
    """

    topic: str
    partition: int
    records: Sequence[bytes | Record]
    sequence: int | None = None


class Appended(NamedTuple):
    """The group is durable at these offsets, the last one included. `is_duplicate`: it was there before."""

    start_offset: int
    end_offset: int
    log_start_offset: int
    is_duplicate: bool
    next_sequence: int | None


class Bounds(NamedTuple):
    """Offsets that can be read: from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Parts:
    stores: Stores
    log: LogParts
    topics: Topics
    waiters: Waiters
    fencer: Fencer
    producer_ids: ProducerIds
    blocking: ThreadBlocking
    clock: Clock
    settings: Settings


class Log:
    """The log of two stores, as `open_log` gives it. Tasks of the loop that opened it may call its methods side by side.

    Each raises a `StorageError` (storage/errors.py): `Unavailable` (nothing happened: again, later), `OutcomeUnknown`, `NotFound`,
    `Fenced`, `OffsetOutOfRange`, `Corrupt`; and ValueError or TypeError for arguments that are wrong by themselves.
    """

    def __init__(self, parts: _Parts, mode: Mode) -> None:
        self._parts = parts
        self._mode = mode
        self._is_closed = False
        self._rules: dict[str, tuple[Topic, TopicRules]] = {}

    def close(self) -> None:
        """Begin nothing more: each method raises `Unavailable` from now on. Leaving the context of `open_log` does it."""
        self._is_closed = True

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic with the default configs. Raises `AlreadyExists`. Cancelled: it may have happened."""
        self._may("write")
        if (problem := validate_name(topic)) is not None:
            raise ValueError(problem)
        if topic == NEVER_A_TOPIC:
            raise ValueError(f"{topic} is no topic: Kafka keeps the name for itself")
        if not 0 < partitions <= PARTITIONS_MAX:
            raise ValueError(f"{partitions} partitions: a topic has 1 to {PARTITIONS_MAX}")
        if other := (await self._parts.topics.colliding([topic])).get(topic):
            raise AlreadyExists(f"{topic!r} differs from the topic {other!r} in '.' and '_' alone, which metrics write alike")
        await self._parts.topics.create(topic, partition_count=partitions, replication_factor=1, configs={})

    async def new_producer(self) -> Producer:
        """A producer that nobody else has."""
        self._may("write")
        return Producer(await self._parts.producer_ids.next(), 0)

    async def append(
        self, groups: Sequence[Group], producer: Producer | None = None, *, compression: Codec = "none"
    ) -> list[Appended | StorageError]:
        """Append each group, or say why not: one result a group, in their order. Groups are independent of each other.

        Records without a time get that of the append. A topic with a `compression.type` of its own decides instead of `compression`.
        Calls side by side may overtake each other. Cancelled: any of the groups may have been appended.
        """
        self._may("write")
        if compression not in CODECS:
            raise ValueError(f"compression={compression!r}: expected one of {', '.join(CODECS)}")
        groups = [replace(group, records=tuple(group.records)) for group in groups]
        seen: set[tuple[str, int]] = set()
        for place, group in enumerate(groups):
            _check_group(place, group, producer)
            if (group.topic, group.partition) in seen:
                raise ValueError(f"groups[{place}]: {group.topic}-{group.partition} is named twice: put its records together")
            seen.add((group.topic, group.partition))
        found = await self._parts.topics.lookup({group.topic for group in groups})
        appends = [self._append(group, found.get(group.topic), producer, compression) for group in groups]
        return list(await asyncio.gather(*appends))

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """As new as every append that was acknowledged to anybody."""
        self._may("read")
        log = await self._log(topic, partition, to_end=True)
        control = readable(log)
        return Bounds(control.log_start, control.sequence_counter)

    async def read_offset(self, topic: str, partition: int, offset: int) -> StoredRecord | None:
        """The record at that offset; None if compaction has removed it. Raises `OffsetOutOfRange`, also at the end of the log."""
        self._may("read")
        log = await self._log(topic, partition, offset)
        check_range(log, offset)
        control = readable(log)
        if offset == control.sequence_counter:
            raise out_of_range(control, offset)
        views, _ = await self._run(log, offset, 1)
        async with contextlib.aclosing(self._decoded(views, offset)) as steps:
            async for records in steps:
                for record in records:
                    return record if record.offset == offset else None
        return None

    async def read_range(
        self, topic: str, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> list[StoredRecord]:
        """The records from `start` to before `end`, or before the end of the log if that comes first. No further batch is read once those
        that were read have `max_bytes`, as they are stored; so there is at least one record, unless there is none.
        """
        self._may("read")
        log = await self._log(topic, partition, start, to_end=end is None)
        await self._refresh(log, start, to_end=end is not None and end > log.seen.high_watermark)
        limit = readable(log).sequence_counter if end is None else min(end, readable(log).sequence_counter)
        found: list[StoredRecord] = []
        left = max_bytes
        while start < limit and (not found or left > 0):
            views, following = await self._run(log, start, max(left, 1))
            left -= sum(map(len, views))
            async for records in self._decoded(views, start):
                found += [record for record in records if record.offset < limit]
            start = following
        return found

    async def iter_from(self, topic: str, partition: int, offset: int, *, follow: bool = False) -> AsyncGenerator[StoredRecord, None]:
        """Record after record from `offset` on: to the end that the log has when this begins, or with `follow` until it is closed."""
        async with contextlib.aclosing(self.steps_from(topic, partition, offset, follow=follow)) as steps:
            async for records in steps:
                for record in records:
                    yield record

    async def steps_from(
        self, topic: str, partition: int, offset: int, *, follow: bool = False
    ) -> AsyncGenerator[list[StoredRecord], None]:
        """As `iter_from`, up to RECORDS_PER_STEP records at a time."""
        self._may("read")
        log = await self._log(topic, partition, to_end=True)
        check_range(log, offset)
        end = readable(log).sequence_counter
        while True:
            while offset < end:
                views, following = await self._run(log, offset, READ_BYTES)
                async for records in self._decoded(views, offset):
                    yield records if follow else [record for record in records if record.offset < end]
                offset = following
                if needs_refresh(log, offset):
                    await self._refresh(log, offset)
            if not follow:
                return
            with self._parts.waiters.wait([log]) as wait:
                await self._parts.log.manifest_reads.refresh([log])
                if readable(log).sequence_counter == offset:
                    await wait.moved(FOLLOW_WAIT_S)
                    await self._refresh(log, offset)
            end = readable(log).sequence_counter

    async def compact_once(self, topic: str, partition: int) -> int:
        """Compact all there is of one partition, beside any compactor. Returns how many entries went into segments."""
        self._may("write")
        await self._log(topic, partition)
        settings = self._parts.settings
        policy = CompactionPolicy(segment_bytes=policy_of(settings).segment_bytes, entries_due=1)

        @contextlib.asynccontextmanager
        async def shared(_: Telemetry) -> AsyncIterator[Stores]:
            yield self._parts.stores

        async with open_compactor(settings, stores=shared, policy=policy, is_paced=False) as compactor:
            report = await compactor.upkeep.cycle(only={topic}, number=partition, is_share=False)
        for error in report.failed.values():
            raise error
        if report.blocked:
            raise Unavailable(f"nothing was compacted: {report.blocked}")
        return report.entries

    async def fence(self, topic: str, partition: int) -> int:
        """Let nobody append to the partition: broker or library, it is refused as `Fenced`. Returns the end of the log, final by now."""
        self._may("write")
        return await self._parts.fencer.fence((await self._log(topic, partition)).partition)

    async def unfence(self, topic: str, partition: int) -> int:
        """Let the partition take appends again. Returns the end of the log."""
        self._may("write")
        return await self._parts.fencer.unfence((await self._log(topic, partition)).partition)

    async def _refresh(self, log: PartitionLog, offset: int, *, to_end: bool = False) -> None:
        """Read the manifest again, if `offset` or the end of the log may be older than what others know."""
        if to_end or needs_refresh(log, offset):
            await self._parts.log.manifest_reads.refresh([log])
        check_range(log, offset)

    async def _run(self, log: PartitionLog, offset: int, bytes_max: int) -> tuple[Sequence[memoryview], int]:
        """Whole batches from the one that holds `offset` on, and the offset behind them."""
        reader = self._parts.log.reader
        run = reader.cached(log, offset) or await reader.stored_within(
            log, offset, bytes_max=bytes_max, at_least_one=True, is_in_order=True
        )
        assert run is not None, "at least one"
        found = run.from_offset(offset, bytes_max, at_least_one=True)
        assert found is not None, "at least one"
        return found

    async def _decoded(self, views: Sequence[memoryview], offset: int) -> AsyncGenerator[list[StoredRecord], None]:
        """Records from `offset` on, a few at a time."""
        data = views[0] if len(views) == 1 else memoryview(b"".join(views))
        for batch in cut(data):
            if batch.is_control or batch.next_offset <= offset:
                continue
            body = bytes(batch.body)
            if batch.codec:
                body = await self._parts.blocking.run(partial(_decompressed, body, batch.codec))
            reading = read_values(batch.header, body)
            while records := list(itertools.islice(reading, RECORDS_PER_STEP)):
                yield [record for record in records if record.offset >= offset]
                await asyncio.sleep(0)

    def _may(self, what: Mode) -> None:
        if self._is_closed:
            raise Unavailable(CLOSED)
        if self._mode not in ("both", what):
            raise ValueError(f'this log was opened with mode="{self._mode}": open it with mode="both" to {what}')

    async def _log(self, topic: str, partition: int, offset: int = 0, *, to_end: bool = False) -> PartitionLog:
        """The log of the partition, of the topic that has the name now, known well enough to read from `offset`, or `to_end`."""
        for is_last in (False, True):
            found = (await self._parts.topics.lookup([topic])).get(topic)
            log = self._parts.log.partitions.get(_partition_of(found, topic, partition))
            if to_end or log.seen.is_gone or needs_refresh(log, offset):
                await self._parts.log.manifest_reads.refresh([log])
            if log.seen.is_gone and not is_last:
                self._parts.topics.forget(topic)
                continue
            break
        return log

    async def _append(self, group: Group, topic: Topic | None, producer: Producer | None, compression: Codec) -> Appended | StorageError:
        try:
            return await self._settled(group, topic, producer, compression)
        except NotFound as gone:
            # Another topic may have the name by now.
            self._parts.topics.forget(group.topic)
            try:
                newest = (await self._parts.topics.lookup([group.topic])).get(group.topic)
                return gone if newest is None or newest == topic else await self._settled(group, newest, producer, compression)
            except StorageError as error:
                return error
        except StorageError as error:
            return error
        except RuntimeError:
            if self._is_closed:  # its threads are
                return Unavailable(CLOSED)
            raise

    async def _settled(self, group: Group, topic: Topic | None, producer: Producer | None, compression: Codec) -> Appended:
        parts = self._parts
        partition = _partition_of(topic, group.topic, group.partition)
        assert topic is not None, "looked at"
        rules = self._rules_of(topic)
        now_ms = parts.clock.now_ms()
        view = await self._batch(group, rules, now_ms, producer, compression)
        header = check(view, rules, version=PRODUCE_VERSION)
        if not isinstance(header, Refused) and (rules.reads_records or header.max_timestamp - now_ms > rules.after_max_ms):
            header = await parts.blocking.run(partial(check_records, view, header, rules, now_ms)) or header
        if isinstance(header, Refused):
            raise RecordsRefused(f"{group.topic}-{group.partition}: {header.message}")
        if self._is_closed:
            raise Unavailable(CLOSED)
        if parts.log.appender.buffered_bytes + len(view) > APPENDING_BYTES_MAX:
            raise Unavailable(f"more than {APPENDING_BYTES_MAX} bytes are being appended: wait for results")
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append = Append(group, lambda _append: None if settled.done() else settled.set_result(None), [None], 1)
        batch = batch_of(view, header, append, 0)
        if rules.is_log_append:
            stamp_log_append_time(view, now_ms)
            batch.max_timestamp = now_ms
        parts.log.appender.submit(parts.log.partitions.get(partition), batch)
        await settled
        (result,) = append.results
        if isinstance(result, StorageError):
            raise result
        assert isinstance(result, Settled), "an append is done when its batch has a result"
        count = len(group.records)
        following = None if group.sequence is None else (group.sequence + count) & SEQUENCE_MAX
        return Appended(result.base_offset, result.base_offset + count - 1, result.log_start, result.is_duplicate, following)

    async def _batch(self, group: Group, rules: TopicRules, now_ms: int, producer: Producer | None, compression: Codec) -> memoryview:
        written: Written = await in_turns(write_values_in_steps(group.records, now_ms=now_ms, values_of=_as_they_are))
        codec = codec_number(compression) if rules.codec is None else rules.codec
        sender = NO_SENDER
        if producer is not None and group.sequence is not None:
            sender = SequencedBy(producer.id, producer.epoch, group.sequence)
        if not codec:
            view = memoryview(written.batch)
            write_header(view, written, codec, sender)
            return view
        packed = await self._parts.blocking.run(lambda: compress_records(written.body, codec, rules.level))
        view = memoryview(bytearray(batch_bytes(packed)))
        write_batch(view, written, packed, codec, sender)
        return view

    def _rules_of(self, topic: Topic) -> TopicRules:
        known = self._rules.get(topic.name)
        if known is None or known[0] is not topic:
            if len(self._rules) >= RULES_KEPT_MAX:
                self._rules.clear()
            known = self._rules[topic.name] = topic, rules_of(topic)
        return known[1]


def _as_they_are(records: Sequence[bytes | Record]) -> Sequence[bytes | Record]:
    return records


def _decompressed(body: bytes, codec: int) -> bytes:
    return bytes(decompress_records(body, codec))


def _partition_of(topic: Topic | None, name: str, partition: int) -> PartitionId:
    if topic is None:
        raise NotFound(f"no such topic: {name!r}")
    if not 0 <= partition < topic.partition_count:
        raise NotFound(f"no such partition: {name}-{partition}, the topic has {topic.partition_count}")
    return topic.partition(partition)


def _check_group(place: int, group: Group, producer: Producer | None) -> None:
    named = f"groups[{place}] ({group.topic}-{group.partition})"
    if not group.records:
        raise ValueError(f"{named}: no records")
    if (group.sequence is None) != (producer is None):
        raise ValueError(f"{named}: a producer and a sequence belong together: give both, or neither")
    if producer is not None and not (0 <= producer.id <= 2**63 - 1 and 0 <= producer.epoch <= EPOCH_MAX):
        raise ValueError(f"{producer} is no producer: take one from new_producer")
    if group.sequence is not None and not 0 <= group.sequence <= SEQUENCE_MAX:
        raise ValueError(f"{named}: sequence {group.sequence} is not from 0 to {SEQUENCE_MAX}")
    for index, record in enumerate(group.records):
        if isinstance(record, bytes):
            continue
        if isinstance(record, Record):
            _check_record(f"{named}: records[{index}]", record)
        else:
            raise TypeError(f"{named}: records[{index}] is {type(record).__name__}: give bytes, or a Record")


def _check_record(named: str, record: Record) -> None:
    for name, field in (("value", record.value), ("key", record.key)):
        if not isinstance(field, bytes | None):
            raise TypeError(f"{named}.{name} is {type(field).__name__}: give bytes, or None")
    if not isinstance(record.headers, tuple | list) or not all(
        isinstance(header, tuple | list) and len(header) == 2 and isinstance(header[0], str) and isinstance(header[1], bytes | None)
        for header in record.headers
    ):
        raise TypeError(f"{named}.headers is not a tuple of pairs of a text and bytes, or None")
    at_ms = record.timestamp_ms
    if at_ms is not None and (not isinstance(at_ms, int) or isinstance(at_ms, bool)):
        raise TypeError(f"{named}.timestamp_ms is {type(at_ms).__name__}: give milliseconds as an int")
    if at_ms is not None and not 0 <= at_ms <= TIMESTAMP_MAX:
        raise ValueError(f"{named}.timestamp_ms {at_ms} is not from 0 to {TIMESTAMP_MAX}")


@contextlib.asynccontextmanager
async def unwrapped() -> AsyncIterator[list[BaseException]]:
    """Raise an error of the body as itself, where task groups around it would raise it in a group. The body notes it in the list."""
    raised: list[BaseException] = []
    try:
        yield raised
    except BaseExceptionGroup as group:
        if len(raised) == 1 and _leaves(group) == raised:
            raise raised[0] from None
        raise


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in _leaves(one)]


@contextlib.contextmanager
def noting(raised: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        raised.append(error)
        raise


def _settings(metadata_url: str, storage_url: str, cache_dir: str | None) -> Settings:
    try:
        return Settings(metadata={"url": metadata_url}, storage={"url": storage_url, "cache_dir": cache_dir})
    except ValueError as error:
        raise CannotOpen(str(error)) from error


@contextlib.asynccontextmanager
async def open_log(metadata_url: str, storage_url: str, mode: Mode = "both", cache_dir: str | None = None) -> AsyncIterator[Log]:
    """The log of these stores (`metadata.url` and `storage.url` of a broker), for as long as the context is open.

    A mode that writes begins a cluster in empty stores, and registers; leaving the context waits for what is being appended. `read`
    registers nothing and writes nothing. `cache_dir` is the folder of `storage.cache_dir`, which processes of the machine share: none here
    if it is None. Raises `CannotOpen`, and what it waits for may be cancelled.
    """
    if mode not in ("both", "read", "write"):
        raise ValueError(f'mode="{mode}": expected "both", "read" or "write"')
    settings = _settings(metadata_url, storage_url, cache_dir)
    async with unwrapped() as raised, contextlib.AsyncExitStack() as closing:
        with noting(raised):
            try:
                parts = await _open(settings, mode, closing)
            except (StartError, StorageError) as error:
                raise CannotOpen(str(error)) from error
            log = Log(parts, mode)
            closing.callback(log.close)
            yield log


async def _open(settings: Settings, mode: Mode, closing: contextlib.AsyncExitStack) -> _Parts:
    clock, telemetry = SystemClock(), Telemetry(run=run_token())
    ids = IdSource(clock=clock)
    is_writer = mode != "read"
    if not is_writer and not is_memory(settings.metadata.url):
        check_there(settings)
    refused: list[str] = []
    opened: list[LogParts] = []

    def refuse(cause: str) -> None:
        refused.append(cause)
        for parts in opened:
            parts.refuse(cause)

    stores = await closing.enter_async_context(
        open_stores(
            storage_url=settings.storage.url,
            s3_client=settings.storage.s3_client,
            metadata_url=settings.metadata.url,
            clock=clock,
            ids=ids,
            telemetry=telemetry,
            on_metadata_lost=refuse,
        )
    )
    directory = BrokerDirectory(stores.metadata, clock=clock)
    closing.callback(directory.close)
    cluster_id = ""
    shared = await closing.enter_async_context(
        open_shared_blocks(
            stores.objects,
            settings.storage.cache_dir,
            bytes_max=settings.storage.cache_dir_bytes,
            cluster=lambda: cluster_id,
            ids=ids,
            clock=clock,
            telemetry=telemetry,
        )
    )
    epoch = BrokerEpoch(NO_EPOCH, registered_epoch=lambda: None, live=directory.epochs_now)
    nursery = Nursery()
    if is_writer:
        await stores.metadata.probe()
        await stores.objects.probe()
        cluster = await identify_cluster(stores, settings, ids, clock, accept_new_store=False)
        cluster_id = cluster.cluster_id
        await check_age(stores, settings, ids, clock, accept_older=False)
        lifecycle = BrokerLifecycle(
            directory, listeners=(), rack=None, version=forebay_version(), fixed_id=None, telemetry=telemetry, roles={Role.PRODUCE}
        )
        epoch = await lifecycle.begin()
        closing.push_async_callback(lifecycle.end)
        await closing.enter_async_context(nursery)
        nursery.spawn(lifecycle.stay(), name="stay-registered")
        nursery.spawn(directory.follow_level(), name="follow-format-level")
        nursery.spawn(StoreWatch(stores, settings, cluster, on_lost=lambda _store, cause: refuse(cause)).run(), name="store-watch")
        if stores.versions is not None:
            marks = CommitMarks(stores.objects, commits=stores.versions.commits, broker_id=lambda: directory.own_id, ids=ids, clock=clock)
            nursery.spawn(marks.run(), name="commit-marks")
            closing.push_async_callback(marks.put)
    else:
        await check_same(stores, settings)
        found = await read_cluster(stores.metadata)
        cluster_id = "" if found is None else found.cluster_id
        await closing.enter_async_context(nursery)
    blocking = ThreadBlocking(threads=1, name="log")
    closing.callback(blocking.close)
    topics = Topics(stores.metadata, clock=clock, ids=ids, telemetry=telemetry)
    closing.callback(topics.close)
    nursery.spawn(topics.watch(), name="topics-watch")
    parts = open_parts(
        metadata=stores.metadata,
        objects=stores.objects,
        blocks=BlockCache(
            shared or stores.objects,
            bytes_max=CACHE_BYTES if mode != "write" else 0,
            clock=clock,
            telemetry=telemetry,
            on_damaged=shared.distrust if shared else None,
        ),
        tail_bytes_max=CACHE_BYTES if mode == "both" else 0,
        early=early_settings(settings.storage.early_bytes_per_second, is_shared=is_shared(settings.metadata.url)),
        level=lambda: directory.level,
        flush=FlushSettings(interval_s=settings.storage.flush_interval.total_seconds(), bytes_max=settings.storage.flush_bytes),
        epoch=epoch,
        ids=ids,
        clock=clock,
        chance=random.Random(os.urandom(16)),  # noqa: S311 - for pauses
        nursery=nursery,
        telemetry=telemetry,
        walking=blocking,
        doubt=None if stores.versions is None else stores.versions.doubt,
        former=topics.former,
        shared=shared,
    )
    opened.append(parts)
    for cause in refused:
        parts.refuse(cause)
    waiters = Waiters(
        metadata=stores.metadata,
        partitions=parts.partitions,
        manifest_reads=parts.manifest_reads,
        clock=clock,
        trusted_poll_s=TRUSTED_POLL_S,
    )
    nursery.spawn(waiters.run(), name="waiters")
    closing.push_async_callback(_drain, parts)
    fencer = Fencer(metadata=stores.metadata, partitions=parts.partitions, manifest_reads=parts.manifest_reads)
    return _Parts(stores, parts, topics, waiters, fencer, ProducerIds(stores.metadata), blocking, clock, settings)


async def _drain(parts: LogParts) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            await parts.appender.drain()
            await parts.appender.store_early()
    except TimeoutError:
        _log.warning("commits_abandoned", after_s=DRAIN_S)
    parts.appender.stop()


class SyncLog:
    """A `Log` for code without an event loop: each method blocks until it is done. Any thread may call it."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._run(self._log.create_topic(topic, partitions))

    def new_producer(self) -> Producer:
        return self._run(self._log.new_producer())

    def append(
        self, groups: Sequence[Group], producer: Producer | None = None, *, compression: Codec = "none"
    ) -> list[Appended | StorageError]:
        return self._run(self._log.append(groups, producer, compression=compression))

    def bounds(self, topic: str, partition: int) -> Bounds:
        return self._run(self._log.bounds(topic, partition))

    def read_offset(self, topic: str, partition: int, offset: int) -> StoredRecord | None:
        return self._run(self._log.read_offset(topic, partition, offset))

    def read_range(
        self, topic: str, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> list[StoredRecord]:
        return self._run(self._log.read_range(topic, partition, start, end, max_bytes=max_bytes))

    def iter_from(self, topic: str, partition: int, offset: int, *, follow: bool = False) -> Iterator[StoredRecord]:
        """As `Log.iter_from`. A thread that follows waits in `next`."""
        steps = self._log.steps_from(topic, partition, offset, follow=follow)
        try:
            while (records := self._run(_next(steps))) is not None:
                yield from records
        finally:
            # Whoever collects garbage may come here, the loop's own thread among them: nobody waits for it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_close_soon, steps)

    def compact_once(self, topic: str, partition: int) -> int:
        return self._run(self._log.compact_once(topic, partition))

    def fence(self, topic: str, partition: int) -> int:
        return self._run(self._log.fence(topic, partition))

    def unfence(self, topic: str, partition: int) -> int:
        return self._run(self._log.unfence(topic, partition))

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        try:
            under_way = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise Unavailable(CLOSED) from None
        try:
            return under_way.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(CLOSED) from None
        except BaseException:
            under_way.cancel()
            raise


def _close_soon(steps: AsyncGenerator[list[StoredRecord], None]) -> None:
    closing = asyncio.get_running_loop().create_task(_close(steps))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


async def _close(steps: AsyncGenerator[list[StoredRecord], None]) -> None:
    for _ in range(CLOSE_TRIES):
        try:
            return await steps.aclose()
        except RuntimeError:
            await asyncio.sleep(CLOSE_PAUSE_S)  # the step that was cancelled has not ended yet
    return None


async def _next(steps: AsyncGenerator[list[StoredRecord], None]) -> list[StoredRecord] | None:
    return await anext(steps, None)


@contextlib.contextmanager
def open_log_sync(metadata_url: str, storage_url: str, mode: Mode = "both", cache_dir: str | None = None) -> Iterator[SyncLog]:
    """As `open_log`, with an event loop in a thread of its own."""
    opened: concurrent.futures.Future[tuple[Log, asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def hold() -> None:
        task = asyncio.current_task()
        assert task is not None, "in a loop"
        begun.append((asyncio.get_running_loop(), task))
        left = asyncio.Event()
        async with open_log(metadata_url, storage_url, mode, cache_dir) as log:
            opened.set_result((log, asyncio.get_running_loop(), left))
            await left.wait()

    ended: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:  # noqa: BLE001 - whoever opened it is told
            ended.append(error)
            if not opened.done():
                opened.set_exception(error)

    thread = threading.Thread(target=run, name="forebay-log", daemon=True)
    thread.start()
    try:
        log, loop, left = opened.result()
    except KeyboardInterrupt:
        for loop, task in begun:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    try:
        yield SyncLog(log, loop)
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself, and says why
            loop.call_soon_threadsafe(left.set)
        thread.join()
    for error in ended:
        raise error
