"""Proofs that a control record is the newest, shared by those who ask for one."""

import asyncio
from collections.abc import Iterable

import pytest

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.log.partition import PartitionLog
from storage.log.proofs import Proofs
from storage.metadata.memory import MemoryMetadataStore
from tests.unit.storage.log.rig import PARTITION


async def test_who_waits_for_a_proof_that_nobody_will_make_any_more_is_told() -> None:
    """The broker ends while one is under way and the next is wanted."""
    store = MemoryMetadataStore(clock=SystemClock())
    begun = asyncio.Event()

    async def refresh(_logs: Iterable[PartitionLog]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Nursery() as nursery:
        proofs = Proofs(metadata=store, refresh=refresh, nursery=nursery)
        log = PartitionLog(PARTITION)
        under_way = proofs.ask(log)
        await begun.wait()
        wanted = proofs.ask(log)
        assert wanted is not under_way
        assert proofs.ask(log) is wanted

    for asked in (under_way, wanted):
        with pytest.raises(asyncio.CancelledError):
            await asked
    await store.close()
