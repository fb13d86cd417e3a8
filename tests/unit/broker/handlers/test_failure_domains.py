"""One of two metadata shards is silent, or one prefix of the bucket is slow: real handlers, and what they answer about the rest."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from broker import delayed_fetch
from broker.handlers.log.fetch import Fetch
from broker.handling.topics import Located, TopicPartition, read_bounds
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from broker.protocol.fetch import FetchedPartition
from runtime.clock import SystemClock
from storage.catalog.topics import Topic
from storage.errors import OffsetOutOfRange, Unavailable
from storage.formats.wal import object_key
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.logged import Node, Stores, asking, node, offsets_of

PARTITIONS = 12
SILENT = 1
SOON_S = 25.0
LONG_MS = 60_000
clock = SystemClock()


@dataclass
class Scene:
    """A topic whose partitions lie on two shards. Its first `other` broker wrote it, so the tested one has nothing of it in memory."""

    broker: Node
    other: Node
    topic: Topic
    healthy: list[int]
    silent: list[int]
    is_down: bool = False

    async def fetch(self, *asked: tuple[int, int], **options: Any) -> tuple[list[FetchedPartition], float]:
        """By (partition, offset); and how long it took."""
        began_s = clock.monotonic_s()
        async with asyncio.timeout(SOON_S):
            response = await self.broker.read(*[asking("t", partition, offset) for partition, offset in asked], **options)
        return list(response.partitions), clock.monotonic_s() - began_s


@contextlib.asynccontextmanager
async def two_shards(*, fetch_limits: FetchLimits = DEFAULT_FETCH_LIMITS, log_limits: LogLimits = DEFAULT_LIMITS) -> AsyncIterator[Scene]:
    log_limits = replace(log_limits, manifest_read_timeout_s=6 * SOON_S)
    stores = Stores(metadata=MemoryMetadataStore(clock=SystemClock(), shards=2))
    async with (
        node(stores, is_deaf=True, fetch_limits=fetch_limits, log_limits=log_limits) as broker,
        node(stores, epoch=8, log_limits=log_limits) as other,
    ):
        topic = await other.create("t", partition_count=PARTITIONS)
        await broker.topics.lookup(["t"])
        shards = [stores.metadata.shard_of(PartitionKeys(topic.partition(number)).partition_key) for number in range(PARTITIONS)]
        scene = Scene(
            broker,
            other,
            topic,
            [number for number, shard in enumerate(shards) if shard != SILENT],
            [number for number, shard in enumerate(shards) if shard == SILENT],
        )
        for number in range(PARTITIONS):
            await other.send(("t", number, record_batch(b"a")), ("t", number, record_batch(b"b")))
        get_many = broker.log.metadata.get_many

        async def silent_while_down(wanted: Sequence[Key]) -> list[object]:
            if scene.is_down and any(stores.metadata.shard_of(key.partition_key) == SILENT for key in wanted):
                await asyncio.Event().wait()
            return await get_many(wanted)

        broker.log.metadata.get_many = silent_while_down  # type: ignore[method-assign]
        yield scene


def code(answer: FetchedPartition) -> ErrorCode:
    return ErrorCode(answer.error_code)


async def test_fetches_of_a_healthy_shard_take_no_longer_while_another_is_silent() -> None:
    async with two_shards() as scene:
        scene.is_down = True
        async with asyncio.TaskGroup() as group:
            stuck = [group.create_task(scene.broker.read(asking("t", number, 2), max_wait_ms=LONG_MS)) for number in scene.silent]
            await asyncio.sleep(0)
            for number in scene.healthy:
                (answer,), _ = await scene.fetch((number, 0))
                assert offsets_of(answer) == [0, 1]
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()


async def test_a_fetch_of_both_shards_answers_the_healthy_and_refuses_the_silent() -> None:
    async with two_shards(log_limits=LogLimits(silent_after_s=0.5)) as scene:
        scene.is_down = True
        asked = [(scene.silent[0], 0), (scene.healthy[0], 0), (scene.silent[1], 2), (scene.healthy[1], 1)]
        first, first_s = await scene.fetch(*asked, max_wait_ms=LONG_MS)
        again, again_s = await scene.fetch(*asked, max_wait_ms=LONG_MS)
        scene.is_down = False

        for answers in (first, again):
            assert [code(answer) for answer in answers] == [ErrorCode.kafka_storage_error, ErrorCode.none] * 2
            assert offsets_of(answers[1]) == [0, 1]
            assert offsets_of(answers[3]) == [1]
        assert again_s < first_s, "the shard is known to be silent now"


async def test_a_long_poll_over_both_shards_waits_for_records_and_not_in_a_circle_of_errors() -> None:
    """An error ends a wait at once. If a silent shard did, too, its clients would ask again without a pause."""
    async with two_shards(fetch_limits=FetchLimits(empty_timeout_s=0.0), log_limits=LogLimits(silent_after_s=0.01)) as scene:
        scene.is_down = True
        asked = [(scene.silent[0], 2), (scene.healthy[0], 2)]
        idle, idle_s = await scene.fetch(*asked, max_wait_ms=300)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(scene.fetch(*asked, max_wait_ms=LONG_MS))
            await asyncio.sleep(0.05)
            await scene.broker.send(("t", scene.healthy[0], record_batch(b"c")))
        woken, _ = waiting.result()

        assert idle_s >= 0.3
        assert [code(answer) for answer in idle] == [ErrorCode.kafka_storage_error, ErrorCode.none]
        assert [code(answer) for answer in woken] == [ErrorCode.kafka_storage_error, ErrorCode.none]
        assert offsets_of(woken[1]) == [2]


async def test_what_is_known_to_be_committed_is_served_while_its_shard_is_silent() -> None:
    async with two_shards() as scene:
        await scene.broker.log.parts.manifest_reads.refresh([scene.broker.log_of(scene.topic, scene.silent[0])])
        scene.is_down = True
        (answer,), _ = await scene.fetch((scene.silent[0], 0))

        assert offsets_of(answer) == [0, 1]


async def test_offsets_of_both_shards_are_listed_rightly_or_refused() -> None:
    async with two_shards(log_limits=LogLimits(bounds_timeout_s=0.1, silent_timeout_s=0.1)) as scene, asyncio.timeout(SOON_S):
        scene.is_down = True
        parts: Any = type("BrokerParts", (), {"topics": scene.broker.topics, "bounds": scene.broker.log.parts.manifest_reads})
        located = await read_bounds(parts, [TopicPartition("t", number) for number in range(PARTITIONS)])

        assert {asked.partition for asked, found in located.items() if found is ErrorCode.kafka_storage_error} == set(scene.silent)
        ends = {asked.partition: found.bounds.high_watermark for asked, found in located.items() if isinstance(found, Located)}
        assert ends == dict.fromkeys(scene.healthy, 2)


@dataclass
class Bucket:
    """GETs of the objects in `slow` wait for `let_go`."""

    slow: set[str]
    let_go: asyncio.Event
    gets: list[str]


def slow_bucket(broker: Node) -> Bucket:
    bucket = Bucket(set(), asyncio.Event(), [])
    inner: Any = broker.log.objects.inner
    real = inner.get_range

    async def get_range(key: str, start: int, end: int) -> bytes:
        bucket.gets.append(key)
        if key in bucket.slow:
            await bucket.let_go.wait()
        body: bytes = await real(key, start, end)
        return body

    inner.get_range = get_range
    return bucket


async def object_keys(scene: Scene, partition: int) -> list[str]:
    manifest = await scene.other.log.manifest(scene.topic.partition(partition))
    return [object_key(entry.object_id) for entry in manifest.pending]


async def test_a_slow_object_of_one_partition_holds_up_no_other_and_its_read_goes_on() -> None:
    async with two_shards() as scene:
        bucket = slow_bucket(scene.broker)
        slow = scene.healthy[0]
        bucket.slow = set(await object_keys(scene, slow))
        asked = [(slow, 0), *[(number, 0) for number in scene.healthy[1:]]]
        first, first_s = await scene.fetch(*asked, max_wait_ms=LONG_MS)
        again, again_s = await scene.fetch(*asked, max_wait_ms=LONG_MS)
        under_way = len(scene.broker.log.parts.reader.stored_reads)
        gets = len([key for key in bucket.gets if key in bucket.slow])
        bucket.let_go.set()
        async with asyncio.TaskGroup() as group:
            at_last = group.create_task(scene.fetch((slow, 0)))

        for answers in (first, again):
            assert [code(answer) for answer in answers] == [ErrorCode.none] * len(asked)
            assert (answers[0].records, answers[0].high_watermark) == ([], 2)
            assert [offsets_of(answer) for answer in answers[1:]] == [[0, 1]] * (len(asked) - 1)
        assert first_s >= DEFAULT_FETCH_LIMITS.late_after_s
        assert again_s < first_s, "it is known to be slow now"
        assert (under_way, gets) == (1, 1)
        assert offsets_of(at_last.result()[0][0]) == [0, 1]


SIZE = len(record_batch(b"a"))
WELL_FILLED_BY_TWO = int(2 * SIZE / DEFAULT_FETCH_LIMITS.well_filled_share)


async def read_two_each(scene: Scene, *asked: tuple[int, int]) -> list[list[int]]:
    """The offsets that each partition is answered, by a response that two batches fill well."""
    async with asyncio.timeout(SOON_S):
        response = await scene.broker.read(
            *[asking("t", partition, offset, max_bytes=2 * SIZE) for partition, offset in asked], max_bytes=WELL_FILLED_BY_TWO
        )
    return [offsets_of(answer) for answer in response.partitions]


async def test_a_response_that_is_well_filled_waits_a_moment_for_a_slow_object_and_the_next_one_has_it() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        began_s = clock.monotonic_s()
        early = await read_two_each(scene, (slow, 0), (other, 0))
        early_s = clock.monotonic_s() - began_s
        async with asyncio.TaskGroup() as group:
            with_one_batch = group.create_task(read_two_each(scene, (slow, 0), (other, 1)))
            await asyncio.sleep(5 * DEFAULT_FETCH_LIMITS.moment_s)
            assert not with_one_batch.done(), "it is not well filled"
            bucket.let_go.set()

        assert early == [[], [0, 1]]
        assert early_s >= DEFAULT_FETCH_LIMITS.moment_s
        assert with_one_batch.result() == [[0, 1], [1]]
        assert sorted(key for key in bucket.gets if key in bucket.slow) == sorted(bucket.slow), "the read that was left went on"


async def test_a_client_that_asks_for_what_it_has_not_got_first_is_not_held_up_by_its_read_that_goes_on() -> None:
    """As the Java client asks: the partitions that had records go to the end of its list."""
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        for asked in [((other, 0), (slow, 0)), ((slow, 0), (other, 0))] * 2:
            assert sorted(await read_two_each(scene, *asked)) == [[], [0, 1]]
        bucket.let_go.set()


async def test_what_one_reader_had_left_and_got_in_the_end_holds_up_no_other_reader() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        left = await read_two_each(scene, (slow, 0), (other, 0))
        bucket.let_go.set()
        got = await read_two_each(scene, (slow, 0))
        for key in bucket.slow:
            scene.broker.log.parts.reader._blocks.drop(key)
        bucket.let_go.clear()
        of_another = await read_two_each(scene, (slow, 0), (other, 0))
        bucket.let_go.set()

    assert (left, got, of_another) == ([[], [0, 1]], [[0, 1]], [[], [0, 1]])


async def test_the_moment_begins_with_the_read_however_late_the_fetch_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = Fetch._resolve

    async def late(*given: Any) -> Any:
        await asyncio.sleep(1.1)
        return await resolve(*given)

    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S, moment_s=1.0)) as scene:
        stored, own = scene.healthy[:2]
        await scene.broker.send(("t", own, record_batch(b"c")), ("t", own, record_batch(b"d")))
        monkeypatch.setattr(Fetch, "_resolve", late)

        assert await read_two_each(scene, (stored, 0), (own, 2)) == [[0, 1], [2, 3]], "one of them was in memory all the time"


@pytest.mark.parametrize("log_limits", [LogLimits(unattended_max=0), LogLimits(unattended_bytes_max=0)], ids=["reads", "bytes"])
async def test_while_one_more_read_that_is_left_would_end_another_responses_wait_for_theirs(log_limits: LogLimits) -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S), log_limits=log_limits) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read_two_each(scene, (slow, 0), (other, 0)))
            await asyncio.sleep(5 * DEFAULT_FETCH_LIMITS.moment_s)
            assert not reading.done()
            bucket.let_go.set()

    assert reading.result() == [[0, 1], [0, 1]]


async def test_a_read_that_was_left_and_whose_bytes_are_gone_again_is_not_left_once_more() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        early = await read_two_each(scene, (slow, 0), (other, 0))
        bucket.let_go.set()
        parts = scene.broker.log.parts
        while len(parts.reader.stored_reads):  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.001)
        for key in bucket.slow:
            parts.reader._blocks.drop(key)
        bucket.let_go.clear()
        async with asyncio.TaskGroup() as group:
            again = group.create_task(read_two_each(scene, (slow, 0), (other, 0)))
            await asyncio.sleep(5 * DEFAULT_FETCH_LIMITS.moment_s)
            assert not again.done()
            bucket.let_go.set()

        assert early == [[], [0, 1]]
        assert again.result() == [[0, 1], [0, 1]]


async def slow_from_its_second_object_on(scene: Scene, partition: int) -> Bucket:
    """The bucket of a scene whose `partition` has one more record, in an object that does not come."""
    await scene.other.send(("t", partition, record_batch(b"c")))
    bucket = slow_bucket(scene.broker)
    bucket.slow = {(await object_keys(scene, partition))[1]}
    return bucket


async def test_what_was_read_of_a_partition_is_answered_though_its_next_object_is_slow() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        slow, other = scene.healthy[:2]
        bucket = await slow_from_its_second_object_on(scene, slow)
        answer = await read_two_each(scene, (slow, 1), (other, 0))
        bucket.let_go.set()

    assert answer == [[1], [0, 1]]


async def test_what_has_come_of_a_read_is_answered_and_the_next_fetch_goes_on_in_order_behind_it() -> None:
    async with two_shards(fetch_limits=FetchLimits(empty_timeout_s=3 * SOON_S, late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow = scene.healthy[0]
        await scene.other.send(("t", slow, record_batch(b"c")))
        first, second = await object_keys(scene, slow)
        bucket.slow = {first, second}
        reader = scene.broker.log.parts.reader
        asked = asking("t", slow, 0, max_bytes=3 * SIZE)
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(scene.broker.read(asked, max_bytes=WELL_FILLED_BY_TWO))
            await asyncio.sleep(3 * DEFAULT_FETCH_LIMITS.moment_s)
            assert not reading.done()
            bucket.slow = {second}
            bucket.let_go.set()
            bucket.let_go = asyncio.Event()
        behind = scene.topic.partition(slow), 2

        assert offsets_of(reading.result().partitions[0]) == [0, 1]
        assert behind in reader.stored_reads._ends
        assert len(reader.stored_reads) == 1, "it goes on"
        async with asyncio.timeout(SOON_S):
            of_another = await scene.broker.read(asked, max_bytes=WELL_FILLED_BY_TWO)
        assert offsets_of(of_another.partitions[0]) == [0, 1]
        bucket.let_go.set()
        while len(reader.stored_reads):  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.001)
        assert behind in reader.stored_reads._left


async def test_a_read_that_another_fetch_began_long_ago_is_late_but_what_it_has_is_taken() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.05, empty_timeout_s=3 * SOON_S)) as scene:
        slow, other = scene.healthy[:2]
        bucket = await slow_from_its_second_object_on(scene, slow)
        async with asyncio.timeout(SOON_S):
            alone = await scene.broker.read(asking("t", slow, 0, max_bytes=3 * SIZE))
            for stored_read in scene.broker.log.parts.reader.stored_reads._stored_reads.values():
                stored_read.began_s -= 6 * SOON_S
            scene.broker.fetch = scene.broker.make_fetch(FetchLimits(late_after_s=3 * SOON_S, empty_timeout_s=3 * SOON_S))
            again = await scene.broker.read(asking("t", slow, 0, max_bytes=3 * SIZE), max_wait_ms=LONG_MS)
            both = await scene.broker.read(*[asking("t", number, 0, max_bytes=3 * SIZE) for number in (slow, other)])
        bucket.let_go.set()

    assert [[offsets_of(one) for one in found.partitions] for found in (alone, again, both)] == [[[0, 1]], [[0, 1]], [[0, 1], [0, 1]]]


async def test_what_has_left_the_tail_while_the_read_behind_it_goes_on_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        number = scene.healthy[0]
        await scene.broker.send(("t", number, record_batch(b"c")))
        for value in (b"d", b"e"):
            await scene.other.send(("t", number, record_batch(value)))
        *_, first, second = await object_keys(scene, number)
        bucket.slow = {first, second}
        reader = scene.broker.log.parts.reader
        await scene.broker.read(asking("t", number, 5))
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(scene.broker.read(asking("t", number, 2, max_bytes=3 * SIZE), max_bytes=WELL_FILLED_BY_TWO))
            await asyncio.sleep(3 * DEFAULT_FETCH_LIMITS.moment_s)
            assert reader.cached(scene.broker.log.parts.partitions.get(scene.topic.partition(number)), 2) is not None
            monkeypatch.setattr(reader, "cached", lambda _log, _offset: None)
            bucket.slow = {second}
            bucket.let_go.set()
            bucket.let_go = asyncio.Event()
        bucket.let_go.set()

    assert offsets_of(reading.result().partitions[0])[:2] == [2, 3]


@pytest.mark.parametrize("min_bytes", [1, 3 * SIZE])
async def test_a_partition_that_has_all_it_may_take_waits_for_no_more_of_a_read_that_another_began(min_bytes: int) -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow = scene.healthy[0]
        await scene.other.send(("t", slow, record_batch(b"c")))
        bucket.slow = {(await object_keys(scene, slow))[1]}
        reader = scene.broker.log.parts.reader
        async with asyncio.TaskGroup() as group:
            wide = group.create_task(scene.broker.read(asking("t", slow, 0, max_bytes=3 * SIZE)))
            await asyncio.sleep(3 * DEFAULT_FETCH_LIMITS.moment_s)
            async with asyncio.timeout(SOON_S):
                narrow = await scene.broker.read(asking("t", slow, 0, max_bytes=SIZE), min_bytes=min_bytes, max_wait_ms=LONG_MS)
            goes_on_in_order = (scene.topic.partition(slow), 1) in reader.stored_reads._ends
            bucket.let_go.set()

    assert offsets_of(narrow.partitions[0]) == [0]
    assert goes_on_in_order
    assert offsets_of(wide.result().partitions[0]) == [0, 1, 2]


async def test_the_reads_of_a_partition_that_has_records_have_one_grace_together() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.2, runs_per_read=1)) as scene:
        slow = scene.healthy[0]
        for _ in range(10):
            await scene.other.send(("t", slow, record_batch(b"c")))
        inner: Any = scene.broker.log.objects.inner
        get_range = inner.get_range

        async def slowly(*asked: Any) -> bytes:
            await asyncio.sleep(0.2 / 3)
            body: bytes = await get_range(*asked)
            return body

        inner.get_range = slowly
        async with asyncio.timeout(SOON_S):
            answer = await scene.broker.read(asking("t", slow, 0, max_bytes=12 * SIZE))
        offsets = offsets_of(answer.partitions[0])

    assert offsets == list(range(len(offsets)))
    assert 2 <= len(offsets) < 10


async def test_a_partition_whose_records_go_while_some_of_them_have_come_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow = scene.healthy[0]
        await scene.other.send(("t", slow, record_batch(b"c")))
        first, second = await object_keys(scene, slow)
        bucket.slow = {first, second}
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(scene.broker.read(asking("t", slow, 0, max_bytes=3 * SIZE), max_bytes=WELL_FILLED_BY_TWO))
            await asyncio.sleep(3 * DEFAULT_FETCH_LIMITS.moment_s)
            monkeypatch.setattr(delayed_fetch, "check_range", out_of_range)
            bucket.slow = {second}
            bucket.let_go.set()
            bucket.let_go = asyncio.Event()

        assert code(reading.result().partitions[0]) == ErrorCode.offset_out_of_range
        bucket.let_go.set()


def out_of_range(_log: object, offset: int) -> None:
    raise OffsetOutOfRange(f"offset={offset}", log_start=3, high_watermark=3)


async def test_a_read_that_was_left_is_not_left_once_more_only_until_it_has_something() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=3 * SOON_S)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, other = scene.healthy[:2]
        await scene.other.send(("t", slow, record_batch(b"c")))
        first, second = await object_keys(scene, slow)
        bucket.slow = {first}
        early = await read_two_each(scene, (slow, 1), (other, 0))
        bucket.slow = {second}
        bucket.let_go.set()
        while len(scene.broker.log.parts.reader.stored_reads):  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.001)
        bucket.let_go.clear()
        again = await read_two_each(scene, (slow, 1), (other, 0))
        bucket.let_go.set()

    assert (early, again) == ([[], [0, 1]], [[1], [0, 1]])


async def test_a_fetch_with_nothing_else_to_answer_waits_for_a_slow_object() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.1)) as scene:
        bucket = slow_bucket(scene.broker)
        slow = scene.healthy[0]
        bucket.slow = set(await object_keys(scene, slow))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(scene.fetch((slow, 0), max_wait_ms=10))
            await asyncio.sleep(0.2)
            assert not reading.done()
            bucket.let_go.set()

        assert offsets_of(reading.result()[0][0]) == [0, 1]


async def test_a_late_read_that_comes_before_the_response_goes_is_in_it() -> None:
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.01)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, at_end = scene.healthy[:2]
        bucket.slow = set(await object_keys(scene, slow))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(scene.fetch((slow, 0), (at_end, 2), max_wait_ms=LONG_MS))
            await asyncio.sleep(0.1)
            bucket.let_go.set()

        assert [offsets_of(answer) for answer in reading.result()[0]] == [[0, 1], []]


async def test_the_first_place_of_a_slow_partition_passes_to_the_next_one() -> None:
    """One batch is answered even if it is larger than the limit: of the first partition that has one in time."""
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.05)) as scene:
        bucket = slow_bucket(scene.broker)
        slow, *others = scene.healthy[:3]
        bucket.slow = set(await object_keys(scene, slow))
        answers, _ = await scene.fetch((slow, 0), *[(number, 0) for number in others], max_bytes=10)

        assert [offsets_of(answer) for answer in answers] == [[], [0], []]


async def test_limits_hold_when_reads_end_in_another_order() -> None:
    async with two_shards(fetch_limits=FetchLimits(well_filled_share=1.0)) as scene:
        size = len(record_batch(b"a"))
        bucket = slow_bucket(scene.broker)
        first, *others = scene.healthy[:4]
        bucket.slow = set(await object_keys(scene, first))
        asked = [asking("t", number, max_bytes=2 * size) for number in (first, *others)]
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(scene.broker.read(*asked, max_bytes=5 * size))
            await asyncio.sleep(DEFAULT_FETCH_LIMITS.late_after_s / 4)
            bucket.let_go.set()

        assert [offsets_of(answer) for answer in reading.result().partitions] == [[0, 1], [0, 1], [0], []]


async def test_no_more_reads_of_a_fetch_are_under_way_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    async with two_shards(fetch_limits=FetchLimits(late_after_s=0.02, empty_timeout_s=0.4, reads_under_way_max=7)) as scene:
        bucket = slow_bucket(scene.broker)
        for number in range(PARTITIONS):
            bucket.slow |= set(await object_keys(scene, number))
        reads = scene.broker.log.parts.reader.stored_reads
        join = reads.join

        def counted(*args: Any, **options: Any) -> Any:
            stored_read = join(*args, **options)
            begun.append(len(reads))
            return stored_read

        monkeypatch.setattr(reads, "join", counted)
        answers, _ = await scene.fetch(*((number, 0) for number in range(PARTITIONS)))

        assert [code(answer) for answer in answers] == [ErrorCode.none] * PARTITIONS
        # Four at once; others only when these are late, and no more of them than there may be.
        assert begun == list(range(1, 8))
        bucket.let_go.set()


async def test_reads_that_nobody_waits_for_are_bounded_and_leave_nothing_behind() -> None:
    async with two_shards(
        fetch_limits=FetchLimits(late_after_s=0.01, empty_timeout_s=0.02), log_limits=LogLimits(unattended_max=2)
    ) as scene:
        bucket = slow_bucket(scene.broker)
        for number in range(PARTITIONS):
            bucket.slow |= set(await object_keys(scene, number))
        for number in range(PARTITIONS):
            (answer,), _ = await scene.fetch((number, 0))
            assert (code(answer), answer.records) == (ErrorCode.none, [])
        await asyncio.sleep(0)
        reads = scene.broker.log.parts.reader.stored_reads

        assert (len(reads), reads.unattended) == (2, 2)
        bucket.let_go.set()
        async with asyncio.timeout(SOON_S):
            while len(reads):  # noqa: ASYNC110 - there is nobody who waits for them: that is the point
                await asyncio.sleep(0.001)
        assert (reads.unattended, reads._unattended_bytes) == (0, 0)


async def test_a_topic_that_cannot_be_looked_up_is_refused_beside_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_shards(fetch_limits=FetchLimits(refresh_timeout_s=0.05, topics_timeout_s=2 * SOON_S)) as scene:
        look_up = scene.broker.topics.look_up

        async def silent(names: Any, *, timeout_s: float) -> Any:
            found, _ = await look_up([name for name in names if name != "u"])
            await asyncio.sleep(timeout_s)
            return found, Unavailable("no answer")

        monkeypatch.setattr(scene.broker.topics, "look_up", silent)
        async with asyncio.timeout(SOON_S):
            response = await scene.broker.read(asking("u"), asking("t", scene.healthy[0]))

        assert [code(answer) for answer in response.partitions] == [ErrorCode.kafka_storage_error, ErrorCode.none]
        assert offsets_of(response.partitions[1]) == [0, 1]


async def test_a_commit_of_its_own_does_not_stand_in_for_the_read_that_was_asked_for() -> None:
    """Promise 5: that commit may be older than what others have acknowledged before the request came."""
    async with two_shards(fetch_limits=FetchLimits(empty_timeout_s=0.2), log_limits=LogLimits(silent_after_s=0.05)) as scene:
        partition = scene.silent[0]
        log = scene.broker.log_of(scene.topic, partition)
        await scene.broker.log.parts.manifest_reads.refresh([log])
        scene.is_down = True
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(scene.fetch((partition, 2)))
            await asyncio.sleep(0)
            assert log.seen.manifest is not None
            log.advance(msgspec.structs.replace(log.seen.manifest, sequence_counter=3), log.seen.version + 1)
        (answer,), _ = reading.result()

        assert code(answer) is ErrorCode.kafka_storage_error
