"""Retention in the simulation: the real one over faulty stores, sometimes from old leaders, under limits that change from run to run.

It tidies soon after the last append, so it drains rings and drops dead brokers beside commits, compactions, merges and collectors.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from compactor.gone_brokers import GoneBrokers
from compactor.retention import Retention
from compactor.retention_plan import NO_LIMIT, RetentionLimits
from compactor.tidy_plan import TidyPolicy
from sim.batches import TIMESTAMP_MS
from sim.broker import SESSION_TIMEOUT_MS, Ground
from sim.faults import Wire
from sim.loop import VirtualClock
from sim.metadata import SimMetadata
from sim.retention_watch import Grant
from storage.errors import StorageError
from storage.formats.control import Control, decode_control
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Session, WriteOp, WriteOutcome

IDLE_S: Final = 1.0
OLD_RATE: Final = 0.3
FOUND_RATE: Final = 0.5
CHANGED_RATE: Final = 0.7
ASKED_RATE: Final = 0.7
TIDIED_MS: Final = (0, 300, 1_500, 600_000)
"""The first is no time at all: whatever was appended is tidied at once."""
BYTES: Final = (0, 300, 1_500, 6_000)


class _Granted(SimMetadata):
    """Whatever it puts was asked for under the limits of that moment, whenever it arrives."""

    def __init__(self, ground: Ground, wire: Wire) -> None:
        super().__init__(ground.metadata, wire, ground.shards)
        self._watch = ground.shards.retention
        self.grant: Grant | None = None

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self.grant is not None:
            self._watch.allow(ops, self.grant)
        return await super().write(ops)


class SimRetainer:
    """One life of it."""

    def __init__(self, name: str, ground: Ground, chance: random.Random, clock: VirtualClock, gate: asyncio.Event) -> None:
        wire = Wire(f"{name} retention", ground.metadata_plan, gate, ground.nursery, ground.history)
        self._name = name
        self._ground = ground
        self._chance = chance
        self._clock = clock
        self._metadata = _Granted(ground, wire)
        policy = TidyPolicy(chance.choice(TIDIED_MS), ground.producer_expiration_ms)
        limits = ground.compactor_limits
        self._gone = GoneBrokers(self._metadata, clock=clock, limits=limits)
        self._session: Session | None = None
        self._retention = Retention(
            self._metadata,
            clock,
            chance.randbytes,
            policy=policy,
            gone=self._gone.among,
            limits=limits,
            log_limits=ground.log_limits,
        )

    async def work(self) -> None:
        """Until cancelled."""
        ground, chance = self._ground, self._chance
        limits = self._draw()
        while True:
            await asyncio.sleep(chance.expovariate(1 / IDLE_S))
            partition = chance.choice(list(ground.shards.control_records()))
            if chance.random() < FOUND_RATE:
                self._metadata.find_leaders()
            if chance.random() < OLD_RATE:
                self._metadata.depose(chance.randrange(ground.shards.count))
            if chance.random() < CHANGED_RATE:
                limits = self._draw()
            (record,) = await ground.metadata.get_many([PartitionKeys(partition).control])
            assert record is not None
            control = decode_control(record.value, path=record.path)
            if chance.random() < ASKED_RATE:
                await self._ask_who_is_gone(control)
            if chance.random() < 0.5 and not self._retention.is_due(partition, control, limits):
                continue
            begin_ms = None if limits.retention_ms == NO_LIMIT else self._clock.now_ms() - limits.retention_ms
            self._metadata.grant = Grant(begin_ms, limits.retention_bytes)
            try:
                done = await self._retention.run(partition, limits)
            except StorageError as error:
                ground.history.trace(self._name, "not retained", f"{partition} {error!r}")
                continue
            ground.history.trace(self._name, "retained", f"{partition} {limits} {done}")

    def crash(self) -> None:
        """Its session ends when its timeout has passed."""
        self._metadata.crash()

    async def _ask_who_is_gone(self, control: Control) -> None:
        self._gone.note(self._retention.questioned_writers(control))
        if not self._gone.has_questions:
            return
        try:
            if self._session is None or self._session.is_lost:
                self._session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
            await self._gone.ask(self._session)
        except StorageError as error:
            self._ground.history.trace(self._name, "does not know who is gone", repr(error))

    def _draw(self) -> RetentionLimits:
        """Timestamps of a run are few: what is before one of them is too old."""
        retention_ms = self._clock.now_ms() - TIMESTAMP_MS - self._chance.randint(0, 5)
        return RetentionLimits(self._chance.choice((NO_LIMIT, retention_ms)), self._chance.choice((NO_LIMIT, *BYTES)))
