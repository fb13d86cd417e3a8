"""Loads of minutes in virtual time: how much waits, what it costs in requests, and what is left when a load has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from runtime.clock import SystemClock
from sim.loop import VirtualClock, VirtualLoop
from storage.errors import StorageError, Unavailable
from storage.formats.levels import LEVEL_OF_EARLY
from storage.limits import KIB, MIB
from storage.log.batch import Appended
from storage.log.flush import COMMIT_COST_BYTES, FlushSettings, Gathered, early_settings
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata.port import DeleteRange, Put
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import HEADER_BYTES
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.log.test_early import EARLY, counted, of_size, pages, reasons

T = TypeVar("T")

RECORD_BYTES = KIB
MINUTE_S = 60.0
AWAY_S = 10 * MINUTE_S


def in_virtual_time(scenario: Callable[[VirtualClock], Awaitable[T]]) -> T:
    async def run() -> T:
        return await scenario(VirtualClock(asyncio.get_running_loop()))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


async def load(broker: Rig, *, per_s: float, seconds: float, together: int) -> list[tuple[float, Appended | StorageError]]:
    """So many records of 1 KiB a second, `together` in a batch, whatever is answered. Return the answers, by when each was sent."""
    loop = asyncio.get_running_loop()
    sent = []
    for _ in range(round(seconds * per_s / together)):
        sent.append((loop.time(), broker.send(of_size(HEADER_BYTES + together * RECORD_BYTES))))
        await asyncio.sleep(together / per_s)
    return [(at_s, (await answer)[0]) for at_s, answer in sent]


def errors(answers: list[tuple[float, Appended | StorageError]]) -> dict[float, StorageError]:
    return {at_s: answer for at_s, answer in answers if isinstance(answer, StorageError)}


# S3 away


def test_ten_minutes_without_s3_are_no_error_while_what_waits_fits_and_are_caught_up_with_in_few_objects() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with rig(early=EARLY, flush=FlushSettings(), clock=clock) as broker:
            broker.objects.puts_fail = Unavailable("away")
            answers = await load(broker, per_s=100, seconds=AWAY_S, together=50)
            assert errors(answers) == {}
            assert reasons(broker) == {}
            waiting_bytes = counted(broker, "early_waiting_bytes")
            assert waiting_bytes is not None
            assert 57 * MIB < waiting_bytes < DEFAULT_LIMITS.early_waiting_bytes_max

            broker.objects.puts_fail, before = None, len(broker.objects.put_keys)
            await asyncio.sleep(2 * MINUTE_S)
            assert len(broker.objects.put_keys) - before == -(-waiting_bytes // DEFAULT_LIMITS.early_object_bytes)
            assert (counted(broker, "early_waiting_bytes"), counted(broker, "early_pages"), await pages(broker)) == (0, 0, [])

    in_virtual_time(scenario)


def test_above_what_may_wait_for_s3_batches_fail_as_those_of_a_flush_do_until_it_is_back() -> None:
    """Two hundred records of 1 KiB a second are 64 MiB after five minutes and a half."""

    async def scenario(clock: VirtualClock) -> None:
        async with rig(early=EARLY, flush=FlushSettings(), clock=clock) as broker:
            broker.objects.puts_fail = Unavailable("away")
            answers = await load(broker, per_s=200, seconds=AWAY_S, together=100)
            failed = errors(answers)
            assert 5 * MINUTE_S < min(failed) < 6 * MINUTE_S
            assert all(at_s in failed for at_s, _ in answers if at_s >= min(failed)), "they are refused until it is back"
            assert {type(error) for error in failed.values()} == {Unavailable}
            assert reasons(broker).keys() <= {Gathered.UNSTORED, Gathered.QUEUED}
            waiting_bytes = counted(broker, "early_waiting_bytes")
            assert waiting_bytes is not None
            assert waiting_bytes < DEFAULT_LIMITS.early_waiting_bytes_max + DEFAULT_LIMITS.early_object_bytes

            broker.objects.puts_fail = None
            await asyncio.sleep(2 * MINUTE_S)
            acknowledged = len(answers) - len(failed)
            (after,) = await broker.send(of_size(100))
            assert after == Appended(acknowledged, 0)
            assert (await broker.manifest()).bytes_total == acknowledged * (HEADER_BYTES + 100 * RECORD_BYTES) + 100
            assert len(await broker.read_all_from(acknowledged - 5)) == 5 * (HEADER_BYTES + 100 * RECORD_BYTES) + 100

    in_virtual_time(scenario)


# What is left when a load has ended


@pytest.mark.parametrize("per_s", [1, 100, 1_000])
def test_a_minute_after_a_load_no_page_of_a_live_broker_is_left(per_s: int) -> None:
    """A minute is the age of the last object. Its PUT, and its pages, a hundred at a time, take moments more."""

    async def scenario(clock: VirtualClock) -> None:
        async with rig(early=EARLY, flush=FlushSettings(), clock=clock) as broker:
            broker.objects.put_s, broker.metadata.write_s = 0.1, 0.004
            answers = await load(broker, per_s=per_s, seconds=20 if per_s > 1 else 200, together=max(1, per_s // 20))
            assert errors(answers) == {}
            assert await pages(broker) != []
            oldest_s = counted(broker, "early_age_seconds")
            assert oldest_s is not None
            assert oldest_s <= MINUTE_S
            await asyncio.sleep(DEFAULT_LIMITS.early_age_s + 2.0)

            assert (await pages(broker), counted(broker, "early_pages"), counted(broker, "early_age_seconds")) == ([], 0, 0)
            assert len(await broker.read_all()) == len(answers) * (HEADER_BYTES + max(1, per_s // 20) * RECORD_BYTES)

    in_virtual_time(scenario)


def test_while_a_load_goes_on_no_slice_is_older_than_its_object_may_be() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with rig(early=EARLY, flush=FlushSettings(), clock=clock) as broker, asyncio.TaskGroup() as group:
            broker.objects.put_s = 0.1
            group.create_task(load(broker, per_s=1, seconds=10 * MINUTE_S, together=1))
            ages_s, waiting = [], []
            for _ in range(580):
                await asyncio.sleep(1.0)
                ages_s.append(counted(broker, "early_age_seconds") or 0.0)
                waiting.append(len(await pages(broker)))

            assert MINUTE_S - 1.5 < max(ages_s) <= MINUTE_S + 0.2
            assert max(waiting) <= MINUTE_S + 2, "those of one minute, and of one that is stored"
            assert len(broker.objects.put_keys) == 9

    in_virtual_time(scenario)


# Requests


async def test_a_commit_is_one_write_request_however_many_pages_it_has() -> None:
    async with rig(early=EARLY, flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker:
        for size in (100, 5_000, 100_000, 400_000):
            before = len(broker.metadata.writes)
            await broker.send(of_size(size))
            (ops,) = broker.metadata.writes[before:]
            assert sum(isinstance(op, Put) for op in ops) == 1 + -(-size // (60 * KIB))


@pytest.mark.parametrize(("count", "size", "deletes"), [(250, 100, 3), (100, 100, 1), (101, 100, 2), (20, 60_000, 5), (12, 20_000, 1)])
async def test_pages_go_with_one_range_delete_for_each_hundred_or_quarter_of_a_mebibyte(count: int, size: int, deletes: int) -> None:
    async with rig(early=EARLY, flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker:
        for _ in range(count):
            await broker.send(of_size(size))
        before = len(broker.metadata.writes)
        await broker.parts.appender.store_early()

        requests = broker.metadata.writes[before:]
        assert [type(op) for ops in requests for op in ops] == [DeleteRange] * deletes
        assert len(requests) == deletes
        assert await pages(broker) == []


@pytest.mark.parametrize("is_stored", [False, True], ids=["not stored yet", "stored meanwhile"])
async def test_a_follower_on_another_broker_asks_for_one_read_more_a_fetch(*, is_stored: bool) -> None:
    """A Fetch of what is new reads the manifest. The pages are one read more, and nothing else of the metadata is read."""
    async with (
        rig(early=EARLY, flush=FlushSettings(interval_s=60.0, gather_s=60.0), limits=LogLimits(early_delete_after_s=0.0)) as broker,
        rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as follower,
    ):
        log = follower.parts.partitions.get(PARTITION)
        reads = []
        for number in range(10):
            for _ in range(3):
                await broker.send(of_size(200))
            if is_stored:
                await broker.parts.appender.store_early()
            await follower.parts.manifest_reads.refresh([log])
            before, offset = follower.metadata.reads, 3 * number
            while offset < log.seen.high_watermark:
                offset = (await follower.parts.reader.stored(log, offset, bytes_max=MIB)).last + 1
            reads.append(follower.metadata.reads - before)

        assert max(reads) <= 1
        assert reads[0] == 1, "it was asked for as what is young"


class Apart(SystemClock):
    """A clock that is some minutes ahead of the others, or behind them."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_ms = round(ahead_s * 1_000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


class CountedGets(MemoryObjectStore):
    gets = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.gets += 1
        return await super().get_range(key, start, end)


@pytest.mark.parametrize("ahead_s", [-20 * MINUTE_S, 0.0, 20 * MINUTE_S], ids=["20 minutes behind", "right", "20 minutes ahead"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["not stored", "stored"])
async def test_a_clock_that_guesses_wrong_costs_a_request_for_each_object_and_nothing_else(ahead_s: float, *, is_stored: bool) -> None:
    objects = CountedGets(clock=SystemClock())
    async with (
        rig(objects=objects, early=EARLY, flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker,
        rig(shared=broker.shared, objects=objects, epoch=8, clock=Apart(ahead_s), limits=LogLimits(early_read_bytes_max=1)) as reader,
    ):
        for _ in range(4):
            await broker.send(of_size(300))
        if is_stored:
            await broker.parts.appender.store_early()
        expected = await broker.read_all()
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])
        objects.gets, before = 0, reader.metadata.reads
        runs = [await reader.parts.reader.stored(log, offset, bytes_max=100) for offset in range(4)]
        requests = objects.gets + reader.metadata.reads - before

        assert b"".join([run.buffer for run in runs]) == expected
        is_object_first = ahead_s > 0
        assert requests == 4 + (is_object_first != is_stored), "one for each entry, and one for a wrong guess"


# The budget


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [(0, 0.0, 0.0), (1, 0.0, 0.01), (4 * COMMIT_COST_BYTES, 0.01, 0.6), (1 << 30, 1.0, 1.0)],
    ids=["0 B", "1 B", "8 KiB", "1 GiB"],
)
def test_the_setting_of_the_budget_decides_how_much_goes_early(setting: int, least: float, most: float) -> None:
    """Five records of 1 KiB a second, to one partition, for two minutes."""

    async def scenario(clock: VirtualClock) -> None:
        async with rig(early=early_settings(setting, is_shared=True), flush=FlushSettings(), clock=clock) as broker:
            answers = await load(broker, per_s=5, seconds=2 * MINUTE_S, together=1)
            assert errors(answers) == {}
            went_early = counted(broker, "early_commits_total")
            assert went_early is not None
            assert (went_early == 0) == (setting == 0)
            assert least <= went_early / len(answers) <= most
            gathered = sum(reasons(broker).values())
            if setting:
                assert went_early + gathered >= len(answers)
                assert reasons(broker).keys() <= {Gathered.BUDGET, Gathered.QUEUED}
            if setting == 1 << 30:
                assert (went_early, gathered) == (len(answers), 0)
            assert len(await broker.read_all()) == len(answers) * (HEADER_BYTES + RECORD_BYTES)

    in_virtual_time(scenario)


async def test_a_large_budget_lets_all_go_early_but_what_other_bounds_keep_back() -> None:
    async with rig(early=early_settings(1 << 30, is_shared=True), flush=FlushSettings(interval_s=0.0, gather_s=0.0)) as broker:
        for size in (100, 400 * KIB, 480 * KIB, 480 * KIB + 1, 100):
            assert isinstance((await broker.send(of_size(size)))[0], Appended)

        assert (counted(broker, "early_commits_total"), reasons(broker)) == (4, {Gathered.LARGE: 1})


# The level


def test_batches_go_early_from_the_moment_the_level_is_raised_and_the_order_is_theirs() -> None:
    async def scenario(clock: VirtualClock) -> None:
        level = LEVEL_OF_EARLY - 1
        async with rig(early=EARLY, flush=FlushSettings(), level_now=lambda: level, clock=clock) as broker, asyncio.TaskGroup() as group:
            broker.objects.put_s, broker.metadata.write_s = 0.1, 0.004
            loading = group.create_task(load(broker, per_s=100, seconds=20.0, together=1))
            await asyncio.sleep(10.0)
            assert counted(broker, "early_commits_total") == 0
            assert (await broker.manifest()).fmt == 1
            objects_before = len(broker.objects.put_keys)
            level = LEVEL_OF_EARLY
            answers = await loading

            assert errors(answers) == {}
            assert [answer.base_offset for _, answer in answers if isinstance(answer, Appended)] == list(range(len(answers)))
            assert set(reasons(broker)) == {Gathered.OFF, Gathered.QUEUED}
            went_early = counted(broker, "early_commits_total")
            assert went_early is not None
            assert went_early > 0.4 * len(answers)
            assert len(broker.objects.put_keys) - objects_before <= 2, "what was gathered by then"
            assert (await broker.manifest()).fmt == 4
            assert len(await broker.read_all()) == len(answers) * (HEADER_BYTES + RECORD_BYTES)

    in_virtual_time(scenario)


# Catching up


@pytest.mark.parametrize("size", [1_100, 5_000])
async def test_a_consumer_that_catches_up_reads_an_early_object_with_few_gets(size: int) -> None:
    """A batch of it at a time: each is an entry of its own, and the next ones lie beside it."""
    count, objects = 400, CountedGets(clock=SystemClock())
    async with (
        rig(objects=objects, early=EARLY, flush=FlushSettings(interval_s=60.0, gather_s=60.0)) as broker,
        rig(shared=broker.shared, objects=objects, epoch=8, cache_bytes=32 * MIB, block_bytes=MIB) as reader,
    ):
        for _ in range(count):
            await broker.send(of_size(size))
        await broker.parts.appender.store_early()
        log = reader.parts.partitions.get(PARTITION)
        await reader.parts.manifest_reads.refresh([log])
        objects.gets, offset, found = 0, 0, b""
        while offset < count:
            run = await reader.parts.reader.stored_within(log, offset, bytes_max=MIB, at_least_one=True, is_in_order=True)
            assert run is not None
            found, offset = found + bytes(run.buffer), run.last + 1
            await asyncio.sleep(0)

        assert objects.gets < count / 10
        assert found == await broker.read_all()
