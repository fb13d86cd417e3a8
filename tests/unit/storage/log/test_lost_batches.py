"""What becomes of batches that are behind one that was answered with an error, and of their retries."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from storage.errors import NotFound, StorageError, Unavailable
from storage.formats.manifest import encode
from storage.log.batch import Appended
from storage.log.limits import LogLimits
from storage.log.partition import LOSSES_KEPT_MAX, Losses
from storage.log.producers import PermittedStart, WaitingProducers
from storage.log.uploads import UPLOADS_MAX
from storage.metadata import keys
from storage.metadata.port import Key, Put, Record, WriteOp, WriteOutcome
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig, until_put, until_taken


def numbered(first_seq: int) -> bytearray:
    return batch_bytes(producer_id=5, producer_epoch=0, first_seq=first_seq)


def give_up_the_oldest(broker: Rig) -> None:
    appender = broker.parts.appender
    appender._committer.give_up(next(iter(appender._in_flight._commits)))


async def test_a_flush_that_was_answered_before_does_not_refuse_the_retries_behind_it() -> None:
    """The first of four flushes is overdue, those behind it are refused; then the client sends all anew, and the old uploads fail."""
    async with rig() as broker:
        gate = broker.objects.gate = asyncio.Event()
        broker.objects.puts_fail = Unavailable("503")
        old = []
        for number in range(4):
            old.append(broker.send(numbered(number)))
            await until_put(broker, number + 1)
        broker.objects.gate = broker.objects.puts_fail = None
        give_up_the_oldest(broker)
        assert all([isinstance((await one)[0], Unavailable) for one in old])

        retries = [broker.send(numbered(number)) for number in range(4)]
        await until_put(broker, 5)
        gate.set()

        assert [await one for one in retries] == [[Appended(number, 0)] for number in range(4)]


async def test_what_follows_a_batch_whose_partition_was_not_found_is_refused_with_it() -> None:
    """A deposed leader of the shard may have answered that."""
    async with rig() as broker:
        stale = [True]
        inner = broker.metadata.get_many

        async def get_many(wanted: Sequence[Key]) -> list[Record | None]:
            return [None for _ in wanted] if stale and stale.pop() else list(await inner(wanted))

        broker.metadata.get_many = get_many  # type: ignore[method-assign]
        gate = broker.objects.gate = asyncio.Event()
        first = broker.send(batch_bytes(1))
        await until_put(broker, 1)
        second = broker.send(batch_bytes(1))
        await until_put(broker, 2)
        gate.set()

        assert isinstance((await first)[0], NotFound)
        assert isinstance((await second)[0], StorageError), "else it were before the retry of the first"


async def test_a_batch_lost_long_ago_is_not_held_against_a_producer_that_was_forgotten() -> None:
    async with rig(limits=LogLimits(unknown_producers_wait_s=0.2)) as broker:
        assert await broker.send(numbered(0)) == [Appended(0, 0)]
        log = broker.parts.partitions.get(PARTITION)
        log.producers.lose(5, 1, now_s=-100.0)
        assert log.producers.lost_since(-100.0) == {5: 1}
        for number in range(1, 8):
            assert await broker.send(numbered(number)) == [Appended(number, 0)]
        path = keys.PartitionKeys(PARTITION).manifest
        (record,) = await broker.shared.get_many([path])
        assert record is not None
        forgetful = msgspec.structs.replace(await broker.manifest(), producers={})
        await broker.shared.write([Put(path, encode(forgetful), record.version)])

        assert isinstance((await broker.send(numbered(8)))[0], Unavailable), "nobody knows it, so it is to wait"
        assert await until_taken(broker, numbered(8)) == Appended(8, 0)


async def test_a_commit_that_may_have_been_applied_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt would be larger than a manifest, as unknown producers may begin by now."""
    unknown = [batch_bytes(first_seq=5, producer_id=pid, producer_epoch=0) for pid in range(5, 13)]

    async def begin(broker: Rig) -> "asyncio.Future[list[Appended | StorageError]]":
        """One commit of a batch and of unknown producers, whose first attempt is late."""
        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        await broker.send(*map(bytearray, unknown))
        broker.metadata.faults.append("late")
        sent = broker.send(batch_bytes(1), *map(bytearray, unknown))
        await broker.metadata.until_late()
        return sent

    async with rig() as measured:
        await begin(measured)
        put = measured.metadata.late[0][-1]
        assert isinstance(put, Put)
        await measured.metadata.deliver_late()
    async with rig(limits=LogLimits(manifest_bytes_max=len(put.value) + 4)) as broker:
        write = broker.metadata.write

        async def deliver_first(ops: Sequence[WriteOp]) -> WriteOutcome:
            await broker.metadata.deliver_late()
            return await write(ops)

        sent = await begin(broker)
        monkeypatch.setattr(WaitingProducers, "permitted_starts", lambda *_, **__: dict.fromkeys(range(5, 13), PermittedStart(0, 5)))
        await asyncio.sleep(0.05)
        await broker.metadata.deliver_late()
        broker.metadata.write = deliver_first  # type: ignore[method-assign]
        results = await sent

        assert results[0] == Appended(1, 0)
        assert (await broker.manifest()).sequence_counter == 2


async def test_a_flush_that_waits_for_a_place_holds_nothing_once_it_is_answered() -> None:
    async with rig(limits=LogLimits(slow_uploads_max=0)) as broker:
        gate = broker.objects.gate = asyncio.Event()
        data = [batch_bytes(payload=bytes(9_000_000)) for _ in range(6)]  # each makes a flush due by bytes
        sent = [broker.send(one) for one in data]
        await until_put(broker, UPLOADS_MAX)
        appender = broker.parts.appender
        for commit in tuple(appender._in_flight._commits):
            commit.deadline_s = 0.0
        appender._give_up_overdue()
        assert all([isinstance((await one)[0], Unavailable) for one in sent])

        for one in data[UPLOADS_MAX:]:
            one.append(0)  # a buffer that somebody has a view of cannot grow
        gate.set()


async def lose(broker: Rig, *, partition: PartitionId = PARTITION, source: object = None) -> None:
    """Have a batch that cannot be stored."""
    gate = broker.objects.gate = asyncio.Event()
    lost = broker.send(batch_bytes(1), partition=partition, source=source)
    while not broker.parts.appender._in_flight._commits:  # noqa: ASYNC110 - it is sealed by a timer
        await asyncio.sleep(0)
    give_up_the_oldest(broker)
    gate.set()
    assert isinstance((await lost)[0], Unavailable)


async def test_what_arrived_behind_a_batch_and_was_looked_up_while_that_was_lost_is_refused_with_it() -> None:
    async with rig() as broker:
        arrived = broker.parts.appender.losses.count
        await lose(broker)
        behind = await broker.send(batch_bytes(1), arrived=arrived)
        retry = await broker.send(batch_bytes(1), arrived=broker.parts.appender.losses.count)

    assert isinstance(behind[0], Unavailable), "else it were before the retry of the first"
    assert retry == [Appended(0, 0)]


async def test_what_others_have_lost_meanwhile_is_not_held_against_a_batch() -> None:
    async with rig() as broker:
        arrived = broker.parts.appender.losses.count
        await lose(broker, source=object())

        assert await broker.send(batch_bytes(1), arrived=arrived) == [Appended(0, 0)]


async def test_a_batch_that_arrived_before_more_losses_than_are_remembered_is_refused() -> None:
    losses, source = Losses(), object()
    for _ in range(LOSSES_KEPT_MAX):
        losses.note(PARTITION, frozenset([1]))
    assert not losses.are_ahead(0, PARTITION, source)
    losses.note(PARTITION, frozenset([1]))
    assert losses.are_ahead(0, PARTITION, source)
    assert not losses.are_ahead(1, PARTITION, source)
    losses.note(PARTITION, frozenset())
    assert losses.count == LOSSES_KEPT_MAX + 1
