"""Producers that nobody knows wait, and then begin with the first of what they were refused."""

import msgspec
import pytest

from storage.errors import OutOfOrderSequence, StorageError, Unavailable
from storage.formats.manifest import encode
from storage.log.batch import Appended
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import Partitions
from storage.log.producers import AllWaitingProducers, PermittedStart, WaitingProducers
from storage.metadata import keys
from storage.metadata.port import Put
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig

WAIT_S = 35.0
EPOCH = 3


def of_one(*, kept_max: int = DEFAULT_LIMITS.unknown_producers_max) -> WaitingProducers:
    return AllWaitingProducers(limits=LogLimits(unknown_producers_max=kept_max)).of(PARTITION)


def refused(*refusals: tuple[int, int, float], kept_max: int = DEFAULT_LIMITS.unknown_producers_max) -> WaitingProducers:
    """Of producer, sequence and time of each; all are of one epoch."""
    unknown = of_one(kept_max=kept_max)
    for producer_id, first_seq, now_s in refusals:
        unknown.make_wait(producer_id, EPOCH, first_seq, now_s, wait_s=WAIT_S)
    return unknown


def permitted_starts(unknown: WaitingProducers, now_s: float) -> dict[int, int]:
    started = unknown.permitted_starts(now_s, wait_s=WAIT_S)
    assert all(start.producer_epoch == EPOCH for start in started.values())
    return {producer_id: start.first_seq for producer_id, start in started.items()}


def test_nobody_begins_before_it_has_waited() -> None:
    unknown = refused((9, 5, 0.0), (9, 5, 34.0), (7, 3, 10.0))

    assert permitted_starts(unknown, 34.9) == {}
    assert permitted_starts(unknown, 35.0) == {9: 5}
    assert permitted_starts(unknown, 45.0) == {9: 5, 7: 3}


def test_the_lowest_sequence_refused_is_the_highest_to_begin_with() -> None:
    assert permitted_starts(refused((9, 6, 0.0), (9, 5, 34.9), (9, 7, 34.95)), 35.0) == {9: 5}


def test_who_was_refused_long_ago_waits_anew() -> None:
    unknown = refused((9, 5, 0.0), (9, 8, 86_400.0))

    assert permitted_starts(refused((9, 5, 0.0)), 86_400.0) == {}
    assert permitted_starts(unknown, 86_400.0) == {}
    assert permitted_starts(unknown, 86_435.0) == {9: 8}


def test_who_gave_its_lowest_sequence_up_begins_with_the_next_one_after_another_wait() -> None:
    """It was refused for good otherwise, as long as it insisted."""
    unknown = refused((9, 5, 0.0), *[(9, first_seq, float(second)) for second in range(1, 140) for first_seq in (6, 7)])

    assert permitted_starts(unknown, 100.0) == {}
    assert permitted_starts(unknown, 106.0) == {9: 6}


def test_a_newer_epoch_waits_anew_and_an_older_one_does_not_disturb_it() -> None:
    """Its sequences begin at 0 again: nothing before them was on its way while the older epoch waited."""
    unknown = refused((9, 50, 0.0))
    unknown.make_wait(9, EPOCH + 1, 3, 36.0, wait_s=WAIT_S)
    unknown.make_wait(9, EPOCH, 1, 37.0, wait_s=WAIT_S)

    assert unknown.permitted_starts(70.9, wait_s=WAIT_S) == {}
    assert unknown.permitted_starts(71.0, wait_s=WAIT_S) == {9: PermittedStart(EPOCH + 1, 3)}


def test_who_was_answered_otherwise_is_no_unknown_producer() -> None:
    unknown = refused((9, 5, 0.0), (7, 5, 0.0))
    unknown.forget(9)
    unknown.forget(8)

    assert permitted_starts(unknown, 35.0) == {7: 5}


def test_of_too_many_all_begin_in_the_end() -> None:
    """The longest waiting are not put off by those that come: with more than there is room for, nobody would ever begin."""
    unknown, waiting = of_one(kept_max=3), set(range(10))
    for second in range(200):
        for producer_id in unknown.permitted_starts(float(second), wait_s=WAIT_S):
            unknown.forget(producer_id)
            waiting.discard(producer_id)
        for producer_id in waiting:
            unknown.make_wait(producer_id, EPOCH, 5, float(second), wait_s=WAIT_S)
        assert len(unknown.refused) <= 3

    assert not waiting


def test_those_that_went_away_make_room() -> None:
    unknown = refused((9, 5, 0.0), (8, 5, 70.0), (7, 5, 71.0), (7, 5, 106.0), kept_max=1)

    assert len(unknown.refused) == 1
    assert permitted_starts(unknown, 105.9) == {}
    assert permitted_starts(unknown, 106.0) == {7: 5}


def numbered(first_seq: int, epoch: int = 0) -> bytearray:
    return batch_bytes(producer_id=5, producer_epoch=epoch, first_seq=first_seq)


def test_unknown_producers_of_all_partitions_are_bounded_and_a_crowd_at_some_keeps_nobody_out_of_the_others() -> None:
    waiting = AllWaitingProducers(limits=LogLimits(unknown_producers_of_all_max=20))
    *crowds, few = (waiting.of(PARTITION._replace(partition=number)) for number in range(3))
    for producer_id in range(100):
        for crowd in crowds:
            crowd.make_wait(producer_id, EPOCH, 5, 1.0, wait_s=WAIT_S)
    assert [len(crowd.refused) for crowd in crowds] == [10, 10]
    few.make_wait(7, EPOCH, 5, 2.0, wait_s=WAIT_S)

    assert len(waiting) == 20
    assert permitted_starts(few, 2.0 + WAIT_S) == {7: 5}
    few.forget(7)
    crowds[0].make_wait(500, EPOCH, 5, 3.0, wait_s=WAIT_S)
    assert len(crowds[0].refused) == 10, "there is room again"
    for crowd in crowds:
        for producer_id in tuple(crowd.refused):
            crowd.forget(producer_id)
    assert len(waiting) == 0


def test_who_waits_goes_on_waiting_while_its_partition_is_forgotten_again_and_again() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=1))
    for second in range(36):
        partitions.get(PARTITION).producers.waiting.make_wait(9, EPOCH, 5, float(second), wait_s=WAIT_S)
        partitions.get(PARTITION._replace(partition=1))
    log = partitions.get(PARTITION)

    assert permitted_starts(log.producers.waiting, WAIT_S) == {9: 5}
    log.producers.waiting.forget(9)
    assert partitions._remembered.waiting._not_empty == {}


def test_unknown_producers_that_went_away_make_room_in_all_partitions() -> None:
    waiting = AllWaitingProducers(limits=LogLimits(unknown_producers_of_all_max=2))
    gone, here = (waiting.of(PARTITION._replace(partition=number)) for number in range(2))
    gone.make_wait(1, EPOCH, 5, 0.0, wait_s=WAIT_S)
    here.make_wait(2, EPOCH, 5, 60.0, wait_s=WAIT_S)
    here.make_wait(3, EPOCH, 5, 60.0, wait_s=WAIT_S)
    assert list(here.refused) == [2]
    here.make_wait(3, EPOCH, 5, 71.0, wait_s=WAIT_S)

    assert (list(gone.refused), list(here.refused)) == ([], [2, 3])


async def forget_producers(broker: Rig) -> None:
    path = keys.PartitionKeys(PARTITION).manifest
    (record,) = await broker.shared.get_many([path])
    assert record is not None
    await broker.shared.write([Put(path, encode(msgspec.structs.replace(await broker.manifest(), producers={})), record.version)])


async def outcome(broker: Rig, first_seq: int, epoch: int = 0) -> Appended | StorageError:
    (answer,) = await broker.send(numbered(first_seq, epoch))
    return answer


def let_it_have_waited(broker: Rig) -> None:
    unknown = broker.parts.partitions.get(PARTITION).producers.waiting
    unknown.refused[5] = unknown.refused[5]._replace(since_s=float("-inf"))


async def test_what_is_refused_after_an_attempt_without_an_answer_is_not_appended_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer might begin at the first attempt, and not at the second, as if it had expired. The first is still on its way."""
    starts: list[dict[int, PermittedStart]] = []
    monkeypatch.setattr(WaitingProducers, "permitted_starts", lambda *_, **__: starts.pop() if starts else {})
    async with rig() as broker:
        assert await outcome(broker, 0) == Appended(0, 0)
        await forget_producers(broker)
        assert isinstance(await outcome(broker, 3), Unavailable)
        starts.append({5: PermittedStart(0, 1)})
        broker.metadata.faults.append("late")

        assert isinstance(await outcome(broker, 1), Unavailable)
        await broker.metadata.deliver_late()

        assert starts == []
        assert (await broker.manifest()).sequence_counter == 1


async def test_a_batch_whose_time_ended_just_after_the_one_before_it_was_refused_waits_for_that() -> None:
    """An idle producer goes on with several batches in flight. They are sent again one by one, and either may be the one in time."""
    async with rig() as broker:
        assert await outcome(broker, 0) == Appended(0, 0)
        await forget_producers(broker)
        assert isinstance(await outcome(broker, 1), Unavailable)
        assert isinstance(await outcome(broker, 2), Unavailable)
        let_it_have_waited(broker)

        assert isinstance(await outcome(broker, 2), Unavailable)
        assert await outcome(broker, 1) == Appended(1, 0)
        assert await outcome(broker, 2) == Appended(2, 0)
        assert await outcome(broker, 3) == Appended(3, 0)


async def test_what_one_epoch_waited_is_not_for_the_next_one() -> None:
    """A producer was refused until it gave up and began a new epoch; of that, the first batch is on its way through another broker."""
    async with rig() as broker:
        assert isinstance(await outcome(broker, 50), Unavailable)
        let_it_have_waited(broker)

        assert isinstance(await outcome(broker, 1, epoch=1), Unavailable), "it would take the place of the first"
        assert await outcome(broker, 0, epoch=1) == Appended(0, 0)
        assert await outcome(broker, 1, epoch=1) == Appended(1, 0)


async def test_who_has_waited_goes_on_though_the_batch_it_began_with_was_lost() -> None:
    async with rig(limits=LogLimits(upload_timeout_s=0.0)) as broker:
        assert isinstance(await outcome(broker, 50), Unavailable)
        let_it_have_waited(broker)
        broker.objects.puts_fail = Unavailable("503")
        assert isinstance(await outcome(broker, 50), Unavailable)
        broker.objects.puts_fail = None

        assert isinstance(await outcome(broker, 51), OutOfOrderSequence), "it was on its way when the other was lost"
        assert await outcome(broker, 50) == Appended(0, 0)
        assert await outcome(broker, 51) == Appended(1, 0)
