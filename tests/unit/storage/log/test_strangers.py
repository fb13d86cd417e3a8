"""Producers that nobody knows wait, and then begin with the first of what they were refused."""

import msgspec
import pytest

from storage.errors import StorageError, Unavailable
from storage.formats.control import encode
from storage.log import strangers as strangers_module
from storage.log.batch import Appended
from storage.log.strangers import Strangers
from storage.metadata import keys
from storage.metadata.port import Put
from tests.unit.storage.log.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig

WAIT_S = 35.0


def refused(*refusals: tuple[int, int, float]) -> Strangers:
    """Of producer, sequence and time of each."""
    strangers = Strangers()
    for producer_id, first_seq, now_s in refusals:
        strangers.make_wait(producer_id, first_seq, now_s, wait_s=WAIT_S)
    return strangers


def test_nobody_begins_before_it_has_waited() -> None:
    strangers = refused((9, 5, 0.0), (9, 5, 34.0), (7, 3, 10.0))

    assert strangers.begin_at(34.9, wait_s=WAIT_S) == {}
    assert strangers.begin_at(35.0, wait_s=WAIT_S) == {9: 5}
    assert strangers.begin_at(45.0, wait_s=WAIT_S) == {9: 5, 7: 3}


def test_the_lowest_sequence_refused_is_the_highest_to_begin_with() -> None:
    assert refused((9, 6, 0.0), (9, 5, 34.9), (9, 7, 34.95)).begin_at(35.0, wait_s=WAIT_S) == {9: 5}


def test_who_was_refused_long_ago_waits_anew() -> None:
    strangers = refused((9, 5, 0.0), (9, 8, 86_400.0))

    assert refused((9, 5, 0.0)).begin_at(86_400.0, wait_s=WAIT_S) == {}
    assert strangers.begin_at(86_400.0, wait_s=WAIT_S) == {}
    assert strangers.begin_at(86_435.0, wait_s=WAIT_S) == {9: 8}


def test_who_was_answered_otherwise_is_no_stranger() -> None:
    strangers = refused((9, 5, 0.0), (7, 5, 0.0))
    strangers.forget(9)
    strangers.forget(8)

    assert strangers.begin_at(35.0, wait_s=WAIT_S) == {7: 5}


def test_of_too_many_all_begin_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest waiting are not put off by those that come: with more than there is room for, nobody would ever begin."""
    monkeypatch.setattr(strangers_module, "STRANGERS_KEPT_MAX", 3)
    strangers, waiting = Strangers(), set(range(10))
    for second in range(200):
        for producer_id in strangers.begin_at(float(second), wait_s=WAIT_S):
            strangers.forget(producer_id)
            waiting.discard(producer_id)
        for producer_id in waiting:
            strangers.make_wait(producer_id, 5, float(second), wait_s=WAIT_S)
        assert len(strangers.refused) <= 3

    assert not waiting


def test_those_that_went_away_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "STRANGERS_KEPT_MAX", 1)
    strangers = refused((9, 5, 0.0), (8, 5, 70.0), (7, 5, 71.0), (7, 5, 106.0))

    assert len(strangers.refused) == 1
    assert strangers.begin_at(105.9, wait_s=WAIT_S) == {}
    assert strangers.begin_at(106.0, wait_s=WAIT_S) == {7: 5}


def numbered(first_seq: int) -> bytearray:
    return batch_bytes(producer_id=5, producer_epoch=0, first_seq=first_seq)


async def forget_producers(broker: Rig) -> None:
    path = keys.PartitionKeys(PARTITION).control
    (record,) = await broker.shared.get_many([path])
    assert record is not None
    await broker.shared.write([Put(path, encode(msgspec.structs.replace(await broker.control(), producers={})), record.version)])


async def outcome(broker: Rig, first_seq: int) -> Appended | StorageError:
    (answer,) = await broker.send(numbered(first_seq))
    return answer


async def test_what_is_refused_after_an_attempt_without_an_answer_is_not_appended_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer might begin at the first attempt, and not at the second, as if it had expired. The first is still on its way."""
    begin_at: list[dict[int, int]] = []
    monkeypatch.setattr(Strangers, "begin_at", lambda *_, **__: begin_at.pop() if begin_at else {})
    async with rig() as broker:
        assert await outcome(broker, 0) == Appended(0, 0)
        await forget_producers(broker)
        assert isinstance(await outcome(broker, 3), Unavailable)
        begin_at.append({5: 1})
        broker.metadata.faults.append("late")

        assert isinstance(await outcome(broker, 1), Unavailable)
        await broker.metadata.deliver_late()

        assert begin_at == []
        assert (await broker.control()).sequence_counter == 1


async def test_a_batch_whose_time_ended_just_after_the_one_before_it_was_refused_waits_for_that() -> None:
    """An idle producer goes on with several batches in flight. They are sent again one by one, and either may be the one in time."""
    async with rig() as broker:
        assert await outcome(broker, 0) == Appended(0, 0)
        await forget_producers(broker)
        assert isinstance(await outcome(broker, 1), Unavailable)
        assert isinstance(await outcome(broker, 2), Unavailable)
        strangers = broker.parts.partitions.get(PARTITION).strangers
        strangers.refused[5] = strangers.refused[5]._replace(since_s=float("-inf"))

        assert isinstance(await outcome(broker, 2), Unavailable)
        assert await outcome(broker, 1) == Appended(1, 0)
        assert await outcome(broker, 2) == Appended(2, 0)
        assert await outcome(broker, 3) == Appended(3, 0)
