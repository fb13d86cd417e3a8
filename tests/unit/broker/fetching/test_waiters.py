import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from broker.delayed_fetch import OWN_HINT_S, Waiters
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from runtime.clock import Clock, SystemClock
from runtime.supervision import Nursery
from sim.loop import VirtualClock, VirtualLoop
from storage.errors import Unavailable
from storage.formats.manifest import Manifest
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import OnChange
from storage.vocabulary import PartitionId, TopicId

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
LONG_S = 120.0
SOON_S = 25.0


@dataclass
class FakeStore:
    """Its manifests are never read here: `refreshed` is who was asked about, round by round."""

    refreshed: list[set[PartitionLog]] = field(default_factory=list)
    fails: bool = False
    moves: set[PartitionLog] = field(default_factory=set)
    gone: set[PartitionLog] = field(default_factory=set)
    asking: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    callback: OnChange | None = None

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> "FakeStore":
        self.callback = callback
        return self

    def cancel(self) -> None:
        self.callback = None

    def shard_of(self, partition_key: str) -> int:
        """One per partition."""
        return int(partition_key.rpartition("/")[2])

    def ask(self, log: PartitionLog) -> asyncio.Future[None]:
        """Answered in the next turn: all who ask in one turn share a round, and those of one shard a future."""
        loop = asyncio.get_running_loop()
        if not self.asking:
            self.refreshed.append(set())
            loop.call_soon(self._answer)
        self.refreshed[-1].add(log)
        shard = self.shard_of(log.keys.partition_key)
        return self.asking.setdefault(shard, loop.create_future())

    def _answer(self) -> None:
        asking, self.asking = self.asking, {}
        for log in sorted(self.refreshed[-1] & self.moves, key=str):
            log.observe(Manifest(), log.seen.version + 1)
        for log in self.refreshed[-1] & self.gone:
            log.observe_absent()
        for shard, read in asking.items():
            if shard in self.silent:
                continue
            if self.fails:
                read.set_exception(Unavailable("no answer"))
            else:
                read.set_result(None)

    def hint(self, log: PartitionLog) -> None:
        """As of a commit that is not known."""
        assert self.callback is not None
        self.callback(log.keys.manifest.path, log.seen.version + 1)


@dataclass
class Waiting:
    store: FakeStore
    partitions: Partitions
    waiters: Waiters
    clock: Clock

    def log(self, partition: int) -> PartitionLog:
        return self.partitions.get(PartitionId(TOPIC, partition))


@contextlib.asynccontextmanager
async def waiting(
    *, poll_s: float = DEFAULT_FETCH_LIMITS.poll_s, trusted_poll_s: float = DEFAULT_FETCH_LIMITS.poll_s, clock: Clock | None = None
) -> AsyncIterator[Waiting]:
    store, partitions, clock = FakeStore(), Partitions(), clock or SystemClock()
    anything: Any = store
    waiters = Waiters(
        metadata=anything,
        partitions=partitions,
        manifest_reads=anything,
        clock=clock,
        trusted_poll_s=trusted_poll_s,
        limits=FetchLimits(poll_s=poll_s),
    )
    async with Nursery() as nursery:
        nursery.spawn(waiters.run(), name="waiters")
        await asyncio.sleep(0)
        yield Waiting(store, partitions, waiters, clock)
    assert store.callback is None, "who stops listening says so"


async def rounds(store: FakeStore, count: int) -> None:
    async with asyncio.timeout(SOON_S):
        while len(store.refreshed) < count:  # noqa: ASYNC110 - the timer of the code under test
            await asyncio.sleep(0.001)


async def test_a_wait_ends_when_one_of_its_partitions_moves() -> None:
    async with waiting(poll_s=LONG_S) as broker, asyncio.timeout(SOON_S):
        with broker.waiters.wait([broker.log(0), broker.log(1)]) as wait:
            broker.log(1).readers.wake()

            assert await wait.moved(LONG_S)


async def test_a_wait_ends_with_its_time_and_only_a_new_move_ends_the_next() -> None:
    async with waiting(poll_s=LONG_S) as broker, asyncio.timeout(SOON_S):
        with broker.waiters.wait([broker.log(0)]) as wait:
            broker.log(0).readers.wake()
            broker.log(0).readers.wake()
            first, second = await wait.moved(LONG_S), await wait.moved(0.001)
            broker.log(0).readers.wake()
            third = await wait.moved(LONG_S)

        assert (first, second, third) == (True, False, True)


async def test_a_move_of_another_partition_ends_nothing() -> None:
    async with waiting(poll_s=LONG_S) as broker:
        with broker.waiters.wait([broker.log(0)]) as wait:
            broker.log(1).readers.wake()

            assert not await wait.moved(0.001)


async def test_all_who_wait_for_a_partition_are_woken() -> None:
    async with waiting(poll_s=LONG_S) as broker, asyncio.timeout(SOON_S):
        with broker.waiters.wait([broker.log(0)]) as one, broker.waiters.wait([broker.log(0)]) as other:
            broker.log(0).readers.wake()

            assert await one.moved(LONG_S)
            assert await other.moved(LONG_S)


async def test_who_leaves_is_forgotten_and_the_others_stay() -> None:
    async with waiting() as broker:
        log = broker.log(0)
        with broker.waiters.wait([log, log]):
            with broker.waiters.wait([log, broker.log(1)]):
                pass
            left_behind = len(log.readers.wakers)
            await rounds(broker.store, 1)
            asked = broker.store.refreshed[-1]

        assert left_behind == 1
        assert asked == {log}
        assert not log.readers.wakers
        assert not broker.waiters._waited.shards


async def test_a_hint_about_a_partition_that_somebody_waits_for_is_followed_at_once() -> None:
    async with waiting(poll_s=LONG_S) as broker, asyncio.timeout(SOON_S):
        broker.store.moves.add(broker.log(0))
        with broker.waiters.wait([broker.log(0), broker.log(1)]) as wait:
            broker.store.hint(broker.log(0))

            assert await wait.moved(LONG_S)
            assert broker.store.refreshed == [{broker.log(0)}]


async def test_hints_about_other_partitions_are_not_followed() -> None:
    async with waiting(poll_s=LONG_S) as broker:
        with broker.waiters.wait([broker.log(0)]):
            broker.store.hint(broker.log(1))
            assert broker.store.callback is not None
            broker.store.callback("llog/topics/t", 1)
            broker.store.hint(broker.log(0))
            await rounds(broker.store, 1)

        assert broker.store.refreshed == [{broker.log(0)}]


async def test_hints_that_come_together_are_followed_together() -> None:
    async with waiting(poll_s=LONG_S) as broker:
        logs = {broker.log(number) for number in range(5)}
        with broker.waiters.wait(list(logs)):
            for log in [*logs, *logs]:
                broker.store.hint(log)
            await rounds(broker.store, 1)
            await asyncio.sleep(0.01)

        assert broker.store.refreshed == [logs]


def test_the_hint_of_a_commit_of_this_broker_is_not_followed() -> None:
    """It comes before the answer, which explains it. In virtual time: the answer is there within 5 ms, however busy the machine is."""

    async def play() -> None:
        async with waiting(poll_s=LONG_S, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            own, other = broker.log(0), broker.log(1)
            own.observe(Manifest(), 1)
            with broker.waiters.wait([own, other]):
                own.commit_queue.is_busy = True
                broker.store.hint(own)
                await asyncio.sleep(0)
                own.advance(Manifest(), own.seen.version + 1)
                own.commit_queue.is_busy = False
                await asyncio.sleep(2 * OWN_HINT_S)
                broker.store.hint(other)
                await rounds(broker.store, 1)

        assert broker.store.refreshed == [{other}]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


async def test_the_hint_of_another_brokers_commit_waits_for_one_of_this_broker_and_not_for_long() -> None:
    async with waiting(poll_s=LONG_S) as broker:
        log = broker.log(0)
        log.observe(Manifest(), 1)
        with broker.waiters.wait([log]):
            log.commit_queue.is_busy = True
            began_s = broker.clock.monotonic_s()
            broker.store.hint(log)
            await rounds(broker.store, 1)
            waited_s = broker.clock.monotonic_s() - began_s
            log.advance(Manifest(), log.seen.version + 1)
            broker.store.hint(log)
            await rounds(broker.store, 2)

    assert waited_s >= OWN_HINT_S
    assert broker.store.refreshed == [{log}, {log}], "an own commit explains no hint of a later one"


async def test_without_hints_the_partitions_waited_for_are_asked_about_again_and_again() -> None:
    async with waiting() as broker, asyncio.timeout(SOON_S):
        with broker.waiters.wait([broker.log(0)]) as wait:
            await rounds(broker.store, 2)
            broker.store.moves.add(broker.log(0))

            assert await wait.moved(LONG_S)
            assert all(asked == {broker.log(0)} for asked in broker.store.refreshed)


async def test_a_stream_of_hints_does_not_put_off_the_poll() -> None:
    async with waiting(poll_s=0.02) as broker, asyncio.timeout(SOON_S):
        with broker.waiters.wait([broker.log(0), broker.log(1)]):
            while {broker.log(0), broker.log(1)} not in broker.store.refreshed:
                broker.store.hint(broker.log(0))
                await asyncio.sleep(0)

        assert {broker.log(0)} in broker.store.refreshed


async def test_nobody_is_asked_about_when_nobody_waits() -> None:
    async with waiting(poll_s=0.001) as broker:
        broker.log(0)
        await asyncio.sleep(0.02)

        assert broker.store.refreshed == []


async def test_a_store_that_does_not_answer_is_asked_again() -> None:
    async with waiting(poll_s=0.001) as broker, asyncio.timeout(SOON_S):
        broker.store.fails = True
        with broker.waiters.wait([broker.log(0)]) as wait:
            await rounds(broker.store, 3)
            broker.store.fails = False
            broker.store.moves.add(broker.log(0))

            assert await wait.moved(LONG_S)


async def test_partitions_of_a_shard_whose_hints_arrive_are_polled_rarely() -> None:
    async with waiting(poll_s=0.001, trusted_poll_s=LONG_S) as broker:
        with broker.waiters.wait([broker.log(0), broker.log(1)]):
            broker.store.hint(broker.log(0))
            await rounds(broker.store, 10)

        assert broker.log(0) in set.union(*broker.store.refreshed[:2])
        assert broker.store.refreshed[2:10] == [{broker.log(1)}] * 8


async def test_a_shard_is_polled_often_again_when_a_poll_finds_what_no_hint_had_told() -> None:
    async with waiting(poll_s=0.001, trusted_poll_s=0.3) as broker, asyncio.timeout(SOON_S):
        log = broker.log(0)
        log.observe(Manifest(), 1)
        with broker.waiters.wait([log]):
            broker.store.hint(log)
            await rounds(broker.store, 1)
            broker.store.moves.add(log)
            await rounds(broker.store, 2)
            found_at_s = broker.clock.monotonic_s()
            await rounds(broker.store, 20)
            took_s = broker.clock.monotonic_s() - found_at_s

        assert broker.store.refreshed == [{log}] * len(broker.store.refreshed)
        assert took_s < 0.3 * 18, "a trusted shard would have been polled 18 times in so long"


async def test_what_is_read_anew_after_it_was_forgotten_says_nothing_of_hints() -> None:
    """Its version is remembered, and nobody listened to hints of it meanwhile."""
    async with waiting(poll_s=0.001, trusted_poll_s=0.01) as broker, asyncio.timeout(SOON_S):
        log = broker.log(0)
        log.seen.version = 7
        broker.store.moves.add(log)
        broker.waiters._trusted.add(0)
        with broker.waiters.wait([log]):
            while log.seen.version == 7:  # noqa: ASYNC110 - the timer of the code under test
                await asyncio.sleep(0)
            broker.store.moves.clear()
            await rounds(broker.store, len(broker.store.refreshed) + 1)

            assert log.seen.version == 8
            assert broker.waiters._trusted == {0}


async def test_a_deletion_ends_a_wait() -> None:
    async with waiting() as broker, asyncio.timeout(SOON_S):
        log = broker.log(0)
        log.observe(Manifest(), 1)
        broker.store.gone.add(log)
        with broker.waiters.wait([log]) as wait:
            assert await wait.moved(LONG_S)


async def test_a_silent_shard_is_asked_once_and_holds_up_no_other() -> None:
    async with waiting(poll_s=0.001) as broker, asyncio.timeout(SOON_S):
        broker.store.silent = {0}
        with broker.waiters.wait([broker.log(0)]), broker.waiters.wait([broker.log(1)]) as wait:
            await rounds(broker.store, 5)
            broker.store.hint(broker.log(0))
            await rounds(broker.store, 10)
            broker.store.moves.add(broker.log(1))

            assert await wait.moved(LONG_S)
        assert [broker.log(0) in asked for asked in broker.store.refreshed] == [True] + [False] * (len(broker.store.refreshed) - 1)
