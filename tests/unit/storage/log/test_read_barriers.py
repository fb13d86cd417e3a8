"""Read barriers: writes which show that a manifest is the newest, shared by those who ask for one."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

import pytest

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.errors import Unavailable
from storage.formats.manifest import Manifest
from storage.log.fresh_reads import ReadBarriers
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, OpResult, Put, Status, WriteOp, WriteOutcome
from tests.unit.storage.log.rig import PARTITION

SOON_S = 25.0


async def test_who_waits_for_a_proof_that_nobody_will_make_any_more_is_told() -> None:
    """The broker ends while one is under way and the next is wanted."""
    store = MemoryMetadataStore(clock=SystemClock())
    begun = asyncio.Event()

    async def refresh(_logs: Iterable[PartitionLog]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Nursery() as nursery:
        made = ReadBarriers(metadata=store, refresh=refresh, nursery=nursery)
        log = PartitionLog(PARTITION)
        under_way = made.ask(log)
        await begun.wait()
        wanted = made.ask(log)
        assert wanted is not under_way
        assert made.ask(log) is wanted

    for asked in (under_way, wanted):
        with pytest.raises(asyncio.CancelledError):
            await asked
    await store.close()


class SilentShard:
    """Two shards, by the number of the partition. The first takes writes and does not answer them."""

    def __init__(self) -> None:
        self.writes: list[Sequence[WriteOp]] = []

    def shard_of(self, partition_key: str) -> int:
        return int(partition_key.rpartition("/")[2]) % 2

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self.writes.append(ops)
        (put,) = ops
        assert isinstance(put, Put)
        if self.shard_of(put.key.partition_key) == 0:
            await asyncio.Event().wait()
        return Applied((OpResult(Status.OK, 2),))


async def nothing_new(_logs: Iterable[PartitionLog]) -> None:
    """A read that finds what is known."""


def log_of(number: int) -> PartitionLog:
    log = PartitionLog(PARTITION._replace(partition=number))
    log.observe(Manifest(), 1)
    return log


async def test_a_silent_shard_holds_up_no_proof_of_another() -> None:
    async with Nursery() as nursery:
        made = ReadBarriers(metadata=SilentShard(), refresh=nothing_new, nursery=nursery)  # type: ignore[arg-type]
        stuck = [made.ask(log_of(2 * number)) for number in range(DEFAULT_LIMITS.read_barriers_at_once_max + 1)]
        async with asyncio.timeout(SOON_S):
            await made.ask(healthy := log_of(1))

        assert healthy.seen.version == 2
        assert not any(barrier.done() for barrier in stuck)


async def test_however_many_proofs_wait_for_a_silent_shard_all_are_refused_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store, limits = SilentShard(), LogLimits(read_barrier_timeout_s=0.05)
    async with Nursery() as nursery:
        made = ReadBarriers(metadata=store, refresh=nothing_new, nursery=nursery, limits=limits)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as at_once:  # else, on a slow machine, some have a place for the moment that they began after others
            at_once.setattr(loop, "time", partial(float, loop.time()))
            asked = [made.ask(log_of(2 * number)) for number in range(20 * DEFAULT_LIMITS.read_barriers_at_once_max)]
            await asyncio.sleep(0)
        results = await asyncio.gather(*asked, return_exceptions=True)

    assert all(isinstance(result, Unavailable) for result in results)
    assert len(store.writes) == DEFAULT_LIMITS.read_barriers_at_once_max, "the others had no turn, and did not wait for one"


async def test_a_proof_that_had_no_turn_in_time_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, limits = SilentShard(), LogLimits(read_barrier_timeout_s=0.05, read_barrier_every_s=0.0, read_barriers_at_once_max=1)
    async with Nursery() as nursery:
        made = ReadBarriers(metadata=store, refresh=nothing_new, nursery=nursery, limits=limits)  # type: ignore[arg-type]
        first, second = log_of(0), log_of(2)
        for refused in (made.ask(first), made.ask(second)):
            with pytest.raises(Unavailable):
                await refused
        monkeypatch.setattr(store, "shard_of", lambda _key: 1)  # it answers again
        async with asyncio.timeout(SOON_S):
            await made.ask(second)

    assert second.seen.version == 2
