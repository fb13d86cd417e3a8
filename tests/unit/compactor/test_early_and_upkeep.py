"""A broker that writes early while others compact, collect, trim and delete: late requests, long pauses, and pages in the middle of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactor.collector import CollectionReport
from compactor.plan import NO_LIMIT, RetentionLimits, TidyPolicy
from compactor.purge import Purge, PurgePolicy
from compactor.retention import Retention
from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource
from storage.catalog.collections import Deletions
from storage.catalog.topics import Topic, Topics
from storage.errors import StorageError
from storage.formats.manifest import Early
from storage.log.batch import Appended
from storage.log.flush import EarlySettings, FlushSettings
from storage.log.limits import LogLimits
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import DeleteRange, NotApplied, Put, Unknown, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.kit.stepping_clock import SteppingClock
from tests.unit.compactor.compacting import compacting
from tests.unit.compactor.test_collector import Stored
from tests.unit.storage.log.rig import Rig, rig

EARLY = EarlySettings(bytes_per_s=1 << 30)
SLOW = FlushSettings(interval_s=60.0, gather_s=60.0)
QUICK = FlushSettings(interval_s=0.0, gather_s=0.0)
AT_ONCE = LogLimits(early_delete_after_s=0.0, early_delete_pause_s=0.0)
HOUR_MS = 3_600_000
MINUTES_S = 1_200.0


class Holding:
    """A metadata store in front of which the next change of a manifest is held, or its answer is, until it is let go."""

    def __init__(self, inner: MemoryMetadataStore, *, applies: bool = False) -> None:
        self._inner = inner
        self._applies = applies
        self._is_free = asyncio.Event()
        self.holds = False
        self.held: asyncio.Future[Sequence[WriteOp]] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self.holds and any(isinstance(op, Put) and not op.key.path.startswith(EARLY_PREFIX) for op in ops):
            if self._applies:
                await self._inner.write(ops)
            if not self.held.done():
                self.held.set_result(ops)
            await self._is_free.wait()
            if self._applies:
                return Unknown("the answer was lost")
        return await self._inner.write(ops)

    def let_go(self) -> None:
        self.holds = False
        self._is_free.set()


class Scene:
    """Stores with one topic of one partition, and what upkeep does to them."""

    def __init__(self, topics: Topics, topic: Topic, metadata: MemoryMetadataStore, blobs: MemoryObjectStore) -> None:
        self.topics = topics
        self.topic = topic
        self.metadata = metadata
        self.blobs = blobs
        self.partition: PartitionId = topic.partition(0)

    def broker(
        self, *, epoch: int = 7, clock: Clock | None = None, metadata: Any = None, flush: FlushSettings = SLOW, limits: LogLimits = AT_ONCE
    ) -> contextlib.AbstractAsyncContextManager[Rig]:
        return rig(shared=metadata or self.metadata, objects=self.blobs, epoch=epoch, early=EARLY, flush=flush, clock=clock, limits=limits)

    async def send(self, broker: Rig, payload: bytes) -> Appended | StorageError:
        (answer,) = await self.sent(broker, payload)
        return answer

    def sent(self, broker: Rig, payload: bytes) -> "asyncio.Future[list[Appended | StorageError]]":
        return broker.send(batch_bytes(payload=payload), partition=self.partition)

    async def payloads(self) -> list[bytes]:
        """Read as a broker that has read nothing before; the offsets are dense."""
        async with self.broker(epoch=9) as reader:
            log = reader.parts.partitions.get(self.partition)
            await reader.parts.manifest_reads.refresh([log])
            assert log.seen.manifest is not None
            offset = log.seen.manifest.log_start
            view = memoryview(await reader.read_all_from(offset, self.partition))
        found = []
        while len(view):
            header = parse_header(view)
            assert header.base_offset == offset
            found.append(bytes(view[61 : header.size_bytes]))
            offset += header.last_offset_delta + 1
            view = view[header.size_bytes :]
        return found

    async def pages(self) -> list[str]:
        start, end = metadata_keys.early_pages(PartitionKeys(self.partition).partition_key)
        return list(await self.metadata.list(start, end))

    async def compact(self) -> None:
        async with compacting(self.metadata, self.blobs) as compaction:
            await compaction.run(self.partition)

    async def collect(self) -> CollectionReport:
        none: Any = None
        return await Stored(none, self.metadata, self.blobs).collect()

    async def delete_topic(self) -> None:
        await self.topics.delete(self.topic)
        await self.purge()

    async def purge(self) -> None:
        clock = SystemClock()
        deletions = Deletions(self.metadata, self.blobs, ids=IdSource(clock=clock), clock=clock)
        policy = PurgePolicy(pause_s=0.0, pause_s_max=0.0)
        await Purge(metadata=self.metadata, objects=self.blobs, deletions=deletions, clock=clock, policy=policy).run()

    async def objects(self) -> list[str]:
        return [stat.key for prefix in ("wal/", "segments/") async for stat in self.blobs.list(prefix)]


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    clock = SystemClock()
    metadata, blobs = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
    topics = Topics(metadata, clock=clock, ids=IdSource(clock=clock))
    try:
        topic = await topics.create("early", partition_count=1, replication_factor=1, configs={})
        yield Scene(topics, topic, metadata, blobs)
    finally:
        topics.close()


# Requests that land late

LATE = ["its object was stored", "its pages were deleted", "a compaction", "a compaction and a collection", "its topic was deleted"]


async def goes_on(it: Scene, broker: Rig, until: str) -> None:
    """An event before a request lands."""
    if until == "its object was stored":
        storing = asyncio.get_running_loop().create_task(broker.parts.appender.store_early())
        async with asyncio.timeout(25):
            while not await it.objects():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        storing.cancel()
    elif until == "its pages were deleted":
        await broker.parts.appender.store_early()
    elif until == "its topic was deleted":
        await it.delete_topic()
    else:
        await it.compact()
        if until == "a compaction and a collection":
            await it.collect()


@pytest.mark.parametrize("until", LATE)
async def test_a_repeated_request_whose_first_attempt_lands_late_appends_once(until: str) -> None:
    limits = LogLimits(early_delete_after_s=60.0) if until == "its object was stored" else AT_ONCE
    async with scene() as it, it.broker(limits=limits) as broker:
        assert await it.send(broker, b"first") == Appended(0, 0)
        broker.metadata.faults.append("late")
        assert await it.send(broker, b"second") == Appended(1, 0)
        await goes_on(it, broker, until)
        await broker.metadata.deliver_late()

        if until == "its topic was deleted":
            assert isinstance(await it.send(broker, b"third"), StorageError)
        else:
            assert await it.payloads() == [b"first", b"second"]
            assert await it.send(broker, b"third") == Appended(2, 0)
            assert await it.payloads() == [b"first", b"second", b"third"]
            await it.compact()
        report = await it.collect()
        assert (report.failed, report.pages.failed, await it.pages()) == ({}, {}, [])
        if until != "its topic was deleted":
            assert await it.payloads() == [b"first", b"second", b"third"]


@pytest.mark.parametrize("until", LATE)
async def test_a_request_of_a_killed_broker_that_lands_late_appends_once_or_never(until: str) -> None:
    """Nobody repeats it, so that its CAS may still apply."""
    limits = LogLimits(early_delete_after_s=60.0) if until == "its object was stored" else AT_ONCE
    async with scene() as it:
        holding = Holding(it.metadata)
        async with it.broker(limits=limits, metadata=holding) as broker:
            assert await it.send(broker, b"first") == Appended(0, 0)
            holding.holds = True
            second = it.sent(broker, b"second")
            request = await holding.held
            await goes_on(it, broker, until)
            second.cancel()
        await it.metadata.write(request)

        if until == "its topic was deleted":
            assert await it.objects() == []
        else:
            found = await it.payloads()
            may_apply = "compaction" not in until
            assert found == ([b"first", b"second"] if may_apply else [b"first"])
            async with it.broker(epoch=8) as other:
                assert await it.send(other, b"third") == Appended(len(found), 0)
                await other.parts.appender.store_early()
            assert await it.payloads() == [*found, b"third"]
            await it.compact()
        report = await it.collect()
        assert (report.failed, report.pages.failed, await it.pages()) == ({}, {}, [])
        if until != "its topic was deleted":
            assert await it.payloads() == [*found, b"third"]


# A long pause


@pytest.mark.parametrize("meanwhile", ["nothing", "a compaction", "a collection", "a compaction and a collection", "its topic was deleted"])
@pytest.mark.parametrize("request_was", ["sent when it is awake", "on its way when it paused", "applied without an answer when it paused"])
async def test_a_broker_that_was_paused_for_twenty_minutes_acknowledges_nothing_wrong_and_has_lost_nothing(
    meanwhile: str, request_was: str
) -> None:
    """Its object is open all the time. What it was asked to commit is overdue when it wakes, or new."""
    clock, is_sent = SteppingClock(), request_was != "sent when it is awake"
    async with scene() as it:
        holding = Holding(it.metadata, applies=request_was == "applied without an answer when it paused")
        async with it.broker(metadata=holding, clock=clock) as paused:
            assert await it.send(paused, b"first") == Appended(0, 0)
            if is_sent:
                holding.holds = True
                second = it.sent(paused, b"second")
                await holding.held
            if "compaction" in meanwhile:
                await it.compact()
            if "collection" in meanwhile:
                await it.collect()
            if meanwhile == "its topic was deleted":
                await it.delete_topic()
            clock.advance(MINUTES_S)
            holding.let_go()
            if not is_sent:
                second = it.sent(paused, b"second")
            (answer,) = await second
            after = await it.send(paused, b"third")
            await paused.parts.appender.store_early()

            if meanwhile == "its topic was deleted":
                # It was appended before the topic went, if it was applied.
                assert isinstance(answer, Appended if request_was.startswith("applied") else StorageError)
                assert isinstance(after, StorageError)
            else:
                assert answer == Appended(1, 0)
                assert after == Appended(2, 0)
                assert await it.payloads() == [b"first", b"second", b"third"]
                await it.compact()
        await it.purge()
        report = await it.collect()
        assert (report.failed, report.pages.failed, await it.pages()) == ({}, {}, [])
        assert [key for key in await it.objects() if key.startswith("wal/")] == []
        if meanwhile != "its topic was deleted":
            assert await it.payloads() == [b"first", b"second", b"third"]


# Pages that a broker cannot delete


class Undeleting:
    """A metadata store that takes no range delete while it `refuses`."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self.refuses = True
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if any(isinstance(op, DeleteRange) for op in ops):
            self.asked += 1
            if self.refuses:
                return NotApplied("away")
        return await self._inner.write(ops)


async def test_pages_that_a_broker_could_not_delete_are_said_once_and_left_to_a_collector() -> None:
    limits = LogLimits(early_delete_after_s=0.0, early_delete_pause_s=0.0, early_pause_s=0.0, early_delete_tries=3)
    async with scene() as it:
        undeleting = Undeleting(it.metadata)
        async with it.broker(metadata=undeleting, limits=limits) as broker:
            with capture_logs() as events:
                assert await it.send(broker, b"first") == Appended(0, 0)
                await broker.parts.appender.store_early()
            assert [event["event"] for event in events] == ["early_pages_not_deleted"]
            assert (undeleting.asked, len(await it.pages())) == (3, 1)
            undeleting.refuses = False
            assert await it.send(broker, b"second") == Appended(1, 0)
            await broker.parts.appender.store_early()

            assert len(await it.pages()) == 1, "it forgets those of an object that it has given up"
            assert await it.payloads() == [b"first", b"second"]
            report = await it.collect()
            assert (report.pages.deleted, await it.pages()) == (1, [])
            assert await it.payloads() == [b"first", b"second"]


# Clocks that are apart


class Apart(SystemClock):
    """A clock that is some minutes ahead of the others, or behind them."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_ms = round(ahead_s * 1_000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


async def test_brokers_whose_clocks_are_twenty_minutes_apart_write_one_partition_above_every_floor() -> None:
    """The one that is ahead gives ids that are above all of the other. What is collected of it raises the floor over the other's open
    object.
    """
    async with (
        scene() as it,
        it.broker(clock=Apart(MINUTES_S), flush=QUICK) as ahead,
        it.broker(epoch=8, clock=Apart(-MINUTES_S), flush=QUICK) as behind,
    ):
        sent = []
        for number in range(6):
            for broker in (ahead, behind):
                sent.append(b"%d of %d" % (number, broker.epoch.current))
                assert await it.send(broker, sent[-1]) == Appended(len(sent) - 1, 0)
            if number % 2:
                await it.compact()
                await ahead.parts.appender.store_early()
                await it.collect()
                (floor, ids) = await floor_and_ids(it, behind)
                assert all(one > floor for one in ids), "no entry is at a floor"
        assert await it.payloads() == sent
        await behind.parts.appender.store_early()
        assert await it.payloads() == sent


async def floor_and_ids(it: Scene, broker: Rig) -> tuple[str, list[str]]:
    manifest = await broker.manifest(it.partition)
    return manifest.revoked_floor, [entry.object_id for entry in manifest.pending if entry.last >= manifest.compaction_cursor]


# Log starts inside a page


SIX = [b"batch %d" % number for number in range(6)]


async def one_slice_of_six(it: Scene, broker: Rig, *, at_ms: Sequence[int] = (0,) * 6) -> None:
    """One entry, and one page, of six batches."""
    batches = [batch_bytes(payload=payload, max_timestamp=ms) for payload, ms in zip(SIX, at_ms, strict=True)]
    results = await broker.send(*batches, partition=it.partition)
    assert results == [Appended(number, 0) for number in range(6)]
    (entry,) = (await broker.manifest(it.partition)).pending
    assert isinstance(entry.batches, Early)
    assert len(await it.pages()) == 1


@pytest.mark.parametrize("state", ["in its page", "in its object", "compacted"])
async def test_a_log_start_inside_a_page_cuts_the_batches_before_it_and_no_other(state: str) -> None:
    async with scene() as it, it.broker() as broker:
        await one_slice_of_six(it, broker)
        assert await broker.parts.trimmer.trim(it.partition, 3) == 3
        if state == "in its object":
            await broker.parts.appender.store_early()
        elif state == "compacted":
            await it.compact()
        await it.collect()

        assert await it.payloads() == SIX[3:]
        assert len(await it.pages()) == (1 if state == "in its page" else 0)
        answer = await it.send(broker, b"behind it")
        assert isinstance(answer, Appended)
        assert (answer.base_offset, answer.log_start) == (6, 3)
        assert await it.payloads() == [*SIX[3:], b"behind it"]


async def test_pages_before_the_log_start_go_with_the_others_of_their_object() -> None:
    async with scene() as it, it.broker() as broker:
        await one_slice_of_six(it, broker)
        assert await it.send(broker, b"behind it") == Appended(6, 0)
        await broker.parts.trimmer.trim(it.partition, 6)
        await it.collect()
        assert await it.payloads() == [b"behind it"], "a page of the object is needed"

        await it.compact()
        await it.collect()
        assert (await it.pages(), await it.payloads()) == ([], [b"behind it"])


@pytest.mark.parametrize("is_stored", [False, True], ids=["in its page", "in its object"])
async def test_retention_keeps_a_slice_as_long_as_one_of_its_batches_is_kept(is_stored: bool) -> None:
    clock = SteppingClock()
    now_ms = clock.now_ms()
    async with scene() as it, it.broker(clock=clock) as broker:
        old, young = [now_ms - 2 * HOUR_MS] * 3, [now_ms] * 3
        await one_slice_of_six(it, broker, at_ms=[*old, *young])
        if is_stored:
            await broker.parts.appender.store_early()
        retention = Retention(it.metadata, clock, policy=TidyPolicy())
        await retention.run(it.partition, RetentionLimits(HOUR_MS, NO_LIMIT))
        await it.collect()
        found = await it.payloads()
        assert found[-3:] == SIX[3:]

        clock.advance(2 * HOUR_MS / 1_000)
        await retention.run(it.partition, RetentionLimits(HOUR_MS, NO_LIMIT))
        await it.collect()
        assert (await it.payloads(), await it.pages(), await it.objects()) == ([], [], [])


async def test_the_pages_of_a_deleted_topic_go_and_those_of_no_other() -> None:
    async with scene() as it:
        async with it.broker() as broker:
            kept = (await it.topics.create("kept", partition_count=1, replication_factor=1, configs={})).partition(0)
            await one_slice_of_six(it, broker)
            await broker.send(batch_bytes(payload=b"kept"), partition=kept)
            await it.delete_topic()
        report = await it.collect()
        assert (report.pages.deleted, report.pages.live, report.pages.failed) == (0, 2, {}), "one object, and a topic needs it"
        async with it.broker(epoch=8) as other:
            expected = await other.read_all(kept)
            assert b"kept" in expected
            assert isinstance(await it.send(other, b"late"), StorageError)

        async with compacting(it.metadata, it.blobs) as compaction:
            await compaction.run(kept)
        report = await it.collect()
        assert (report.pages.deleted, report.pages.failed, await it.pages()) == (2, {}, [])
        async with it.broker(epoch=9) as other:
            assert await other.read_all(kept) == expected
