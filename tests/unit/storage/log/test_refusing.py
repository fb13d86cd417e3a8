"""A broker whose metadata store is lost answers at once, and never that something was appended."""

import asyncio

from storage.errors import OutcomeUnknown, Unavailable
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import rig

CAUSE = "the metadata file was removed"
WITHIN_S = 25.0


async def test_what_comes_is_refused_even_what_was_appended_before() -> None:
    async with rig() as broker:
        (before,) = await broker.send(batch_bytes(1, producer_id=7, producer_epoch=0, first_seq=0))
        broker.parts.appender.refuse(CAUSE)
        (again,) = await broker.send(batch_bytes(1, producer_id=7, producer_epoch=0, first_seq=0))
        (new,) = await broker.send(batch_bytes(1))

    assert isinstance(before, Appended)
    for refused in (again, new):
        assert isinstance(refused, Unavailable)
        assert str(refused) == CAUSE


async def test_what_is_gathered_is_refused_without_waiting_for_its_flush() -> None:
    async with rig(flush=FlushSettings(interval_s=3_600.0, gather_s=3_600.0)) as broker:
        gathered = broker.send(batch_bytes(1))
        broker.parts.appender.refuse(CAUSE)
        async with asyncio.timeout(WITHIN_S):
            (refused,) = await gathered

    assert isinstance(refused, Unavailable)
    assert CAUSE in str(refused)
    assert broker.objects.put_keys == []


async def test_a_commit_without_an_answer_is_told_as_unknown_and_those_behind_it_as_refused() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        broker.metadata.faults.append("late")
        broker.metadata.reads_fail = True
        sent = broker.send(batch_bytes(1))
        await broker.metadata.until_late()
        behind = broker.send(batch_bytes(1))
        broker.parts.appender.refuse(CAUSE)
        async with asyncio.timeout(WITHIN_S):
            (unknown,), (refused,) = await sent, await behind

    assert isinstance(unknown, OutcomeUnknown)
    assert CAUSE in str(unknown)
    assert isinstance(refused, Unavailable)


async def test_an_appender_that_has_stopped_has_nothing_to_refuse() -> None:
    async with rig(flush=FlushSettings(interval_s=3_600.0, gather_s=3_600.0)) as broker:
        gathered = broker.send(batch_bytes(1))
        broker.parts.appender.stop()
    broker.parts.appender.refuse(CAUSE)

    assert not gathered.done()
