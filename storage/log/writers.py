"""The writers of a log: the epoch of this broker, and which entries of `writers` are of brokers gone by now (docs/design/coordination.md).

Entries of epochs that are gone may be dropped, no others (docs/design/commit.md#unknown-outcomes).
An epoch is the version of a registration record. One that was read in a control record and is not among those registered at a later moment
is gone for ever: versions are never reused. The order matters:

    scan begins … broker 10 registers, commits … control with {10: …} is read … scan ends without 10    must not count 10 as dead
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.formats.control import Control
from storage.log.limits import DEFAULT_LIMITS, LogLimits

LOOK_TIMEOUT_S: Final = 10.0
LOOKS: Final = Metric("forebay_dead_writer_scans_total", "Reads of brokers/ to find which writers of a partition are gone", ("outcome",))


class BrokerEpoch:
    """`current` is what new commits begin under.

    `live` reads which epochs are registered, as of a moment after it is called: one that was read in a control record before, and is not
    among them, is gone for ever. It raises `Unavailable` when that cannot be shown.
    """

    def __init__(self, epoch: int, *, registered_epoch: Callable[[], int | None], live: Callable[[], Awaitable[frozenset[int]]]) -> None:
        """`registered_epoch`: the epoch whose registration certainly exists; None if none does."""
        self.current = epoch
        self.registered_epoch = registered_epoch
        self.live = live
        self._commit_seq = 0

    def is_registered(self, epoch: int) -> bool:
        """True if the registration of `epoch` certainly exists, so that nobody may have dropped what that epoch wrote into `writers`."""
        return self.registered_epoch() == epoch

    async def gone(self, epochs: Collection[int]) -> frozenset[int]:
        """The members of `epochs`, read before the call, whose registration is certainly over; none while that cannot be shown."""
        try:
            live = await self.live()
        except StorageError:
            return frozenset()
        return frozenset(epochs) - live - {self.current}

    def next_commit_seq(self) -> int:
        """A number that no other commit of this process has, in whatever partition and under whatever epoch."""
        self._commit_seq += 1
        return self._commit_seq

    def renew(self, epoch: int) -> None:
        """The broker registered again. Commits that were begun under the old epoch keep it."""
        assert epoch != self.current, "an epoch is never handed out twice"
        self.current = epoch


class DeadWriters:
    """Looks in the background and at intervals, so that no commit waits for it; what was found dead stays so."""

    def __init__(
        self, *, epoch: BrokerEpoch, clock: Clock, nursery: Nursery, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS
    ) -> None:
        self._limits = limits
        self._writers_kept_max = limits.writers_kept_max
        self._epoch = epoch
        self._clock = clock
        self._nursery = nursery
        self._dead: dict[int, None] = {}
        self._look_at_s = float("-inf")
        self._is_looking = False
        self._looks = telemetry.counter(LOOKS)

    def of(self, control: Control) -> Collection[int]:
        """The epochs in `writers` that are known to be gone; if there are too many of others, they are looked for."""
        writers = control.writers
        if len(writers) <= self._writers_kept_max:
            return ()
        dead = [epoch for epoch in writers if epoch in self._dead]
        if len(writers) - len(dead) > self._writers_kept_max and not self._is_looking and self._clock.monotonic_s() >= self._look_at_s:
            self._is_looking = True
            self._nursery.spawn(self._look(frozenset(writers)), name="dead-writers")
        return dead

    async def _look(self, named: frozenset[int]) -> None:
        """`named` was read before this began: its epochs were registered before."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                live = await self._epoch.live()
        except (StorageError, TimeoutError):
            self._looks.labels("failed").inc()
        else:
            self._looks.labels("done").inc()
            self._dead.update(dict.fromkeys(sorted(named - live - {self._epoch.current})))
            while len(self._dead) > self._limits.dead_writers_kept_max:
                del self._dead[next(iter(self._dead))]
        finally:
            self._is_looking = False
            self._look_at_s = self._clock.monotonic_s() + self._limits.dead_writers_look_every_s
