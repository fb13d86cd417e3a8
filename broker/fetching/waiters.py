"""Waking long polls: own commits wake by themselves; commits of other brokers are learned by hints, and by a poll where hints get lost."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Self

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.log.control_reads import ControlReads
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import MetadataStore

POLL_S: Final = 0.1


class Wait:
    """One reader's wait for any of its partitions to move. Used by `with`, so that nobody wakes the dead."""

    def __init__(self, logs: Sequence[PartitionLog], waited_for: set[PartitionLog]) -> None:
        self._logs = logs
        self._waited_for = waited_for
        self._moved = asyncio.Event()
        self._wake = self._moved.set

    def __enter__(self) -> Self:
        for log in self._logs:
            log.wakers.add(self._wake)
            self._waited_for.add(log)
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            log.wakers.discard(self._wake)
            if not log.wakers:
                self._waited_for.discard(log)

    async def moved(self, timeout_s: float) -> bool:
        """True as soon as a partition has moved since the last call; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        moved = self._moved.is_set()
        self._moved.clear()
        return moved


class Waiters:
    """Keeps the control records of partitions that somebody waits for up to date; a newer one wakes by itself."""

    def __init__(self, *, metadata: MetadataStore, partitions: Partitions, control_reads: ControlReads, clock: Clock) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._control_reads = control_reads
        self._clock = clock
        self._waited_for: set[PartitionLog] = set()
        self._hinted: set[PartitionLog] = set()
        self._has_hint = asyncio.Event()

    def wait(self, logs: Sequence[PartitionLog]) -> Wait:
        return Wait(logs, self._waited_for)

    async def run(self) -> None:
        """Until cancelled."""
        subscription = self._metadata.subscribe(self._hear)
        poll_at_s = self._clock.monotonic_s() + POLL_S
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, poll_at_s - self._clock.monotonic_s())):
                        await self._has_hint.wait()
                self._has_hint.clear()
                logs, self._hinted = self._hinted, set()
                if self._clock.monotonic_s() >= poll_at_s:
                    logs = set(self._waited_for)
                    poll_at_s = self._clock.monotonic_s() + POLL_S
                if logs:
                    # Unreadable now: the next poll asks again, and a reader whose time is over reads for itself.
                    with contextlib.suppress(Unavailable):
                        await self._control_reads.refresh(logs)
        finally:
            subscription.cancel()

    def _hear(self, path: str) -> None:
        log = self._partitions.by_control_path(path)
        if log is not None and log.wakers:
            self._hinted.add(log)
            self._has_hint.set()
