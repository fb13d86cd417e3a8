"""Proofs that a control record is the newest one: before an answer that no retry heals, and that rests on its being so.

docs/design/reading.md#reads-from-a-deposed-leader says why.

A read may be answered by a deposed leader of the shard, from an older state: an offset behind an old end is out of range there, and a
consumer that gets that answer begins anew somewhere else. Only a write is judged by the leader of the day. So the record is put once more,
under the condition that it is still there; nothing but its version changes.

Proofs of a log are shared, one at a time and no more often than every `proof_every_s`, whatever its readers ask for. Each shard of the
metadata store has places of its own, and a request that gets none in time is refused: a silent shard holds up only requests for its
partitions, and these no longer when there are many.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from runtime.supervision import Nursery
from storage.errors import StorageError, Unavailable
from storage.formats.control import LogState, encode
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.metadata.port import Applied, MetadataStore, Put, Status

ATTEMPTS_MAX: Final = 4
PAUSE_S: Final = 0.02


class Proofs:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        refresh: Callable[[Iterable[PartitionLog]], Awaitable[None]],
        nursery: Nursery,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._timeout_s = limits.proof_timeout_s
        self._metadata = metadata
        self._refresh = refresh
        self._nursery = nursery
        self._next: dict[PartitionLog, asyncio.Future[None]] = {}
        self._under_way: set[PartitionLog] = set()
        self._places: dict[int, asyncio.Semaphore] = {}

    def ask(self, log: PartitionLog) -> asyncio.Future[None]:
        """What is done when `log.seen.control` was the newest record at some moment from now on (or there is none), or fails with
        `Unavailable`. It is shared: never cancel it.
        """
        asked = self._next.get(log)
        if asked is None:
            asked = self._next[log] = asyncio.get_running_loop().create_future()
            if log not in self._under_way:
                self._under_way.add(log)
                self._nursery.spawn(self._prove_wanted(log), name="proof")
        return asked

    async def _prove_wanted(self, log: PartitionLog) -> None:
        places = self._places_of(log)
        try:
            while (asked := self._next.get(log)) is not None:
                try:
                    async with asyncio.timeout(self._timeout_s), places:
                        del self._next[log]  # who asks from here on was not there when it began
                        await self._prove(log)
                except TimeoutError:
                    if self._next.get(log) is asked:  # it had no place
                        del self._next[log]
                    _refuse(asked, Unavailable(f"metadata did not answer: op=prove after_s={self._timeout_s}"))
                except StorageError as error:
                    _refuse(asked, error)
                except BaseException:
                    asked.cancel()
                    raise
                else:
                    asked.set_result(None)
                await asyncio.sleep(self._limits.proof_every_s)
        finally:
            self._under_way.discard(log)
            if (left := self._next.pop(log, None)) is not None:
                left.cancel()  # nobody will prove it any more

    def _places_of(self, log: PartitionLog) -> asyncio.Semaphore:
        shard = self._metadata.shard_of(log.keys.partition_key)
        if shard not in self._places:
            self._places[shard] = asyncio.Semaphore(self._limits.proofs_at_once_max)
        return self._places[shard]

    async def _prove(self, log: PartitionLog) -> None:
        for attempt in range(ATTEMPTS_MAX):
            await self._refresh([log])
            control, version = log.seen.control, log.seen.version
            if control is None or control.log_state is LogState.DELETED or log.seen.broken is not None:
                return
            asked_s = asyncio.get_running_loop().time()
            outcome = await self._metadata.write([Put(log.keys.control, encode(control), version)])
            if isinstance(outcome, Applied) and outcome.results[0].status is Status.OK:
                log.note_put_again(version, outcome.results[0].version, asked_s)
                return
            await asyncio.sleep(PAUSE_S * 2**attempt)
        raise Unavailable(f"the newest control record was not found: partition={log.partition} attempts={ATTEMPTS_MAX}")


def _refuse(asked: asyncio.Future[None], error: StorageError) -> None:
    asked.set_exception(error)
    asked.exception()  # marks it retrieved: all who asked may be gone
