"""A broker that registered again has a new epoch; what it had begun under the old one is settled under that first."""

import asyncio
from collections.abc import Awaitable

import pytest

from storage.errors import OutcomeUnknown, StorageError
from storage.formats.manifest import Manifest, WriterEntry, encode
from storage.log.batch import Appended
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Put
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig

OLD, NEW = 7, 1_007


async def sent_before_the_epoch_was_renewed(broker: Rig, fault: str) -> Awaitable[list[Appended | StorageError]]:
    """One commit is known to have applied; of the next nothing is known but that it was sent. Reads fail until the test lets them."""
    assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
    broker.metadata.faults.append(fault)
    broker.metadata.reads_fail = True
    sent = broker.send(batch_bytes(1))
    while len(broker.metadata.writes) < 2:  # noqa: ASYNC110 - until the request is sent
        await asyncio.sleep(0)
    broker.epoch.registered_epoch = lambda: None
    broker.epoch.renew(NEW)
    broker.epoch.registered_epoch = lambda: NEW
    return sent


async def drop_writers(broker: Rig) -> None:
    """As another broker does that finds the old epoch no longer registered."""
    manifest = await broker.manifest()
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    dropped = Manifest(**(fields | {"writers": {8: WriterEntry(1, 1)}}))
    outcome = await broker.shared.write([Put(PartitionKeys(PARTITION).manifest, encode(dropped), None)])
    assert isinstance(outcome, Applied)


@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
async def test_an_unknown_commit_of_the_old_epoch_is_settled_under_it_and_the_next_is_made_under_the_new(fault: str) -> None:
    async with rig(epoch=OLD) as broker:
        sent = await sent_before_the_epoch_was_renewed(broker, fault)
        broker.metadata.reads_fail = False
        settled = await sent
        writers = (await broker.manifest()).writers
        following = await broker.send(batch_bytes(1))

        assert settled == [Appended(1, 0)]
        assert set(writers) == {OLD}, "not taken over by the new epoch: its entry is what tells whether it applied"
        assert following == [Appended(2, 0)]
        assert (await broker.manifest()).writers[NEW].commit_seq == 3


async def test_a_late_request_of_the_old_epoch_counts_once() -> None:
    async with rig(epoch=OLD) as broker:
        sent = await sent_before_the_epoch_was_renewed(broker, "late")
        await broker.metadata.deliver_late()
        broker.metadata.reads_fail = False

        assert await sent == [Appended(1, 0)]
        assert (await broker.manifest()).sequence_counter == 2


@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
async def test_once_the_entry_of_the_old_epoch_was_dropped_nobody_can_tell_and_nothing_is_sent_again(fault: str) -> None:
    async with rig(epoch=OLD) as broker:
        sent = await sent_before_the_epoch_was_renewed(broker, fault)
        await drop_writers(broker)
        broker.metadata.reads_fail = False
        (settled,) = await sent

        assert isinstance(settled, OutcomeUnknown)
        assert (await broker.manifest()).sequence_counter == (2 if fault == "reply lost" else 1)
        assert len(broker.metadata.writes) == 2


async def test_the_registration_that_exists_does_not_vouch_for_the_epoch_before_it() -> None:
    """The broker has registered again and does not know yet: the entry of its first commit was dropped for the epoch that is gone."""
    async with rig(epoch=OLD) as broker:
        await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])
        broker.metadata.faults.append("reply lost")
        broker.metadata.reads_fail = True
        sent = broker.send(batch_bytes(1))
        while len(broker.metadata.writes) < 1:  # noqa: ASYNC110 - until the request is sent
            await asyncio.sleep(0)
        broker.epoch.registered_epoch = lambda: NEW
        await drop_writers(broker)
        broker.metadata.reads_fail = False
        (settled,) = await sent

        assert isinstance(settled, OutcomeUnknown)
        assert (await broker.manifest()).sequence_counter == 1
        assert len(broker.metadata.writes) == 1


async def test_a_commit_sent_while_there_was_no_registration_is_settled_when_there_is_one_again() -> None:
    async with rig(epoch=OLD) as broker:
        broker.epoch.registered_epoch = lambda: None
        broker.metadata.faults.append("reply lost")
        result = await broker.send(batch_bytes(1))
        broker.epoch.renew(NEW)
        broker.epoch.registered_epoch = lambda: NEW

        assert result == [Appended(0, 0)]
        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)]
