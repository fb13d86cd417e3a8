"""Which brokers are gone for certain: only their entries may leave `writers` (docs/design/coordination.md#who-is-gone-for-certain).

An epoch is the version of a registration record, and versions are never reused: one that is not registered any more is gone for ever. A
list of brokers proves that of the epochs that were read before it was asked for, and of no others:

    list of brokers without 10 … broker 10 registers, commits … control with {10: …} is read                  must not count 10 as dead

So each list is asked for with the epochs that were noted until then, and what it shows holds for every record, also for one read later.
"""

import asyncio
from collections.abc import Collection

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from runtime.clock import Clock
from storage.catalog.brokers import read_live
from storage.errors import Unavailable
from storage.metadata.port import MetadataStore, Session


class GoneBrokers:
    """What one process knows. `note` epochs that were read in control records, then `ask`."""

    def __init__(self, metadata: MetadataStore, *, clock: Clock, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._metadata = metadata
        self._limits = limits
        self._clock = clock
        self._noted: dict[int, None] = {}
        self._gone: dict[int, None] = {}
        self._alive: frozenset[int] = frozenset()
        self._alive_until_s = float("-inf")
        self._asked = 0

    def among(self, epochs: Collection[int]) -> frozenset[int]:
        """Which of `epochs` are known to be gone."""
        return frozenset([epoch for epoch in epochs if epoch in self._gone])

    def note(self, epochs: Collection[int]) -> None:
        """`epochs` have been read. Those of which nothing is known are asked for next time."""
        alive = self._alive if self._clock.monotonic_s() < self._alive_until_s else frozenset()
        for epoch in epochs:
            if epoch not in self._gone and epoch not in alive and len(self._noted) < self._limits.noted_brokers_max:
                self._noted[epoch] = None

    @property
    def has_questions(self) -> bool:
        return bool(self._noted)

    async def ask(self, session: Session) -> None:
        """Find out which of the noted epochs are gone. Raises `Unavailable`, also if that cannot be shown: they stay noted.

        `session`: the caller's own. One call at a time.
        """
        named = frozenset(self._noted)
        self._asked += 1
        try:
            async with asyncio.timeout(self._limits.call_timeout_s):
                records = await read_live(self._metadata, session, number=self._asked)
        except TimeoutError:
            raise Unavailable(f"metadata did not say which brokers are live: after_s={self._limits.call_timeout_s}") from None
        live = frozenset([record.version for record in records])
        self._noted = {epoch: None for epoch in self._noted if epoch not in named}
        self._alive, self._alive_until_s = live, self._clock.monotonic_s() + self._limits.broker_alive_for_s
        self._gone.update(dict.fromkeys(sorted(named - live)))
        while len(self._gone) > self._limits.gone_brokers_kept_max:
            del self._gone[next(iter(self._gone))]
